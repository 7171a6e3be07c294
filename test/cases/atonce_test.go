//go:build linux

package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

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

// TestHundredFirstADDs: a hundred pods start at once on a node without a bridge,
// and each is detached twice at once, as by a runtime that is impatient: one
// bridge, one gateway address, a hundred addresses, and nothing left.
func TestHundredFirstADDs(t *testing.T) {
	const pods = 100
	n := node(t)
	stdin := conf(t, n, map[string]string{"ipMasq": "true"})
	all := make([]attach.Attachment, pods)
	for i := range all {
		all[i] = podOf(t, n, i)
	}
	var mu sync.Mutex
	addresses := map[string]bool{}
	run := func(verb string, a attach.Attachment) ([]byte, error) {
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		defer cancel()
		return n.Run(ctx, "tracewire", []byte(stdin), n.Environment(verb, a))
	}
	err := together(n, pods, func(i int) error {
		out, err := run("ADD", all[i])
		var r types100.Result
		if err == nil {
			err = json.Unmarshal(out, &r)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, ip := range r.IPs {
			addresses[ip.Address.String()] = true
		}
		return err
	})
	if err != nil || len(addresses) != pods {
		t.Errorf("%d addresses, %v", len(addresses), err)
	}
	if got := kindOf(t, n, "bridge"); len(got) != 1 || len(got["tb0"]) != 1 {
		t.Errorf("bridges and their addresses: %v", got)
	}
	if err := together(n, 2*pods, func(i int) error { _, err := run("DEL", all[i/2]); return err }); err != nil {
		t.Error(describe(err))
	}
	nothingLeft(t, n)
}

// kindOf is the node's interfaces of a kind, with their IPv4 addresses.
func kindOf(t *testing.T, n *attach.Node, kind string) map[string][]netlink.Addr {
	t.Helper()
	out := map[string][]netlink.Addr{}
	err := n.In("host", func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if l.Type() != kind {
				continue
			}
			out[l.Attrs().Name], err = netlink.AddrList(l, netlink.FAMILY_V4)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
