//go:build linux

package cases

import (
	"context"
	"fmt"
	"testing"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
)

// TestMasqueradeWhileTheLastGoes: pods of one network come and go at once, so
// that the first ADD of one meets the last DEL of another, which takes the rules
// away. Each pod that has its answer is masqueraded until its own DEL.
func TestMasqueradeWhileTheLastGoes(t *testing.T) {
	const pods, rounds = 3, 20
	for backend, program := range map[string]string{"nftables": "nft", "iptables": "iptables"} {
		t.Run(backend, func(t *testing.T) {
			netns.Need(t, program)
			n := node(t)
			if err := n.Outside("out", []string{"192.0.2.1/24"}, []string{"192.0.2.9/24"}); err != nil {
				t.Fatal(err)
			}
			stdin := conf(t, n, map[string]string{"ipMasq": "true", "ipMasqBackend": `"` + backend + `"`, "ipam.routes": `[{"dst": "0.0.0.0/0"}]`})
			var all [pods]attach.Attachment
			for i := range all {
				name := fmt.Sprintf("pod%d", i)
				if _, err := n.Pod(name); err != nil {
					t.Fatal(err)
				}
				all[i] = attach.Attachment{ContainerID: name, IfName: "eth0", NetNS: n.PodPath(name)}
			}
			err := together(n, pods, func(i int) error {
				for range rounds {
					if err := comesAndGoes(n, stdin, all[i], 1000+i); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Error(describe(err))
			}
			nothingLeft(t, n)
		})
	}
}

// comesAndGoes is a pod's life with one connection to the outside.
func comesAndGoes(n *attach.Node, stdin string, a attach.Attachment, port int) error {
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	if _, err := n.Run(ctx, "tracewire", []byte(stdin), n.Environment("ADD", a)); err != nil {
		return fmt.Errorf("ADD: %w", err)
	}
	talk, err := n.Connect(a.ContainerID, fmt.Sprintf("192.0.2.9:%d", port), "out", fmt.Sprintf(":%d", port))
	if err != nil {
		return fmt.Errorf("%s is not masqueraded: %w", a.ContainerID, err)
	}
	talk.Close()
	_, err = n.Run(ctx, "tracewire", []byte(stdin), n.Environment("DEL", a))
	if err != nil {
		return fmt.Errorf("DEL: %w", err)
	}
	return nil
}
