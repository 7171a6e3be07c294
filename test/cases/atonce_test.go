//go:build linux

package cases

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/test/attach"
)

// atOnce runs add, check or del for many attachments at once, and %d is 1, 2
// ...: "at-once 12 add c%d eth0 pod%d". Who gets which address is nobody's to
// say, so the results are not kept: no two may have the same.
func (c *story) atOnce(ctx context.Context, t *testing.T, args []string) error {
	count, err := strconv.Atoi(args[0])
	if err != nil {
		t.Fatal(err)
	}
	all := make([]attach.Attachment, count)
	for i := range all {
		words := strings.Fields(strings.ReplaceAll(strings.Join(args[2:], " "), "%d", strconv.Itoa(i+1)))
		all[i] = c.attachment(t, words)
		if args[1] == "add" {
			c.pod(t, words[2])
		}
	}
	switch args[1] {
	case "add":
		return c.addAll(ctx, all)
	case "check":
		return together(c.Node, count, func(i int) error { return c.Check(ctx, all[i]) })
	case "del":
		return together(c.Node, count, func(i int) error { return c.Del(ctx, all[i]) })
	}
	return fmt.Errorf("no such step at once: %s", args[1])
}

// addAll adds each; two with one address are an error.
func (c *story) addAll(ctx context.Context, all []attach.Attachment) error {
	results := make([]*types100.Result, len(all))
	err := together(c.Node, len(all), func(i int) error {
		r, err := c.Add(ctx, all[i])
		if err == nil {
			results[i], err = types100.GetResult(r)
		}
		return err
	})
	holder := map[string]string{}
	for i, r := range results {
		if r == nil {
			continue
		}
		for _, ip := range r.IPs {
			address := ip.Address.String()
			if first, taken := holder[address]; taken {
				err = errors.Join(err, fmt.Errorf("%s and %s both got %s", first, all[i].ContainerID, address))
			}
			holder[address] = all[i].ContainerID
		}
	}
	return err
}

// together runs do count times at once, each on a thread in the node's namespace.
func together(n *attach.Node, count int, do func(int) error) error {
	errs := make([]error, count)
	var wait sync.WaitGroup
	for i := range count {
		wait.Go(func() {
			if err := n.In("host", func() error { return do(i) }); err != nil {
				errs[i] = fmt.Errorf("%d: %w", i+1, err)
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}
