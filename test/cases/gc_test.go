//go:build linux

package cases

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
)

// TestGCOfTwoRuntimes: two runtimes serve one network, and each knows its own
// pods alone (cni#1086). GC spares what lives and is the other's, and ends it
// once its namespace is gone.
func TestGCOfTwoRuntimes(t *testing.T) {
	n := node(t)
	if err := n.Load([]byte(`{"cniVersion": "1.1.0", "name": "net", "plugins": [` + plain + `]}`)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	// Run by a shell that stays, the plugin has another parent than when libcni runs it.
	script := fmt.Sprintf("#!/bin/sh\n%s/tracewire\nexit $?\n", os.Getenv("TRACEWIRE_BIN"))
	if err := os.WriteFile(filepath.Join(n.Dir, "other"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	theirs := pod1(t, n)
	other := func(verb string, more map[string]string) error {
		_, err := n.Exec.ExecPlugin(ctx, filepath.Join(n.Dir, "other"), []byte(conf(t, n, more)), n.Environment(verb, theirs))
		return err
	}
	if err := other("ADD", nil); err != nil {
		t.Fatal(describe(err))
	}
	ours := attach.Attachment{ContainerID: "c2", IfName: "eth0", NetNS: n.PodPath("pod2")}
	if _, err := n.Pod("pod2"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Add(ctx, ours); err != nil {
		t.Fatal(describe(err))
	}
	if err := n.GC(ctx, []types.GCAttachment{}); err != nil { // c2 is not valid, and ours
		t.Fatal(describe(err))
	}
	left, err := n.Left()
	if err != nil || !strings.Contains(fmt.Sprint(left), "c1:eth0") || strings.Contains(fmt.Sprint(left), "c2") {
		t.Errorf("after our GC: %q, %v", left, err)
	}
	if err := n.Ping("pod1", "10.77.0.1"); err != nil {
		t.Errorf("the other runtime's pod: %v", err)
	}
	ops, err := n.Operations()
	if err != nil || !strings.Contains(fmt.Sprint(ops[len(ops)-1].Root), "it is spared") {
		t.Errorf("GC does not tell what it spared: %v", err)
	}
	if err := n.RemovePod("pod1"); err != nil {
		t.Fatal(err)
	}
	if err := n.GC(ctx, []types.GCAttachment{}); err != nil {
		t.Fatal(describe(err))
	}
	nothingLeft(t, n)
}

// TestGCOfReferencePods: pods of the reference's live on a node that moved, and
// the runtime does not name one of them any more and has lost its result. Its
// interface, rules and address go together, the other's stay: an address is free
// only once nobody answers on it (calico#5044).
func TestGCOfReferencePods(t *testing.T) {
	netns.Need(t, "nft", "iptables")
	for name, keys := range map[string]string{
		"bridge, macspoofchk":          `"type": "bridge", "bridge": "tb0", "isGateway": true, "macspoofchk": true`,
		"bridge, masquerade":           `"type": "bridge", "bridge": "tb0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "iptables"`,
		"ptp, masquerade by nf_tables": `"type": "ptp", "ipMasq": true, "ipMasqBackend": "nftables"`,
	} {
		t.Run(name, func(t *testing.T) {
			n := node(t)
			const list = `{"cniVersion": "1.1.0", "name": "net", "plugins": [{%s, "ipam": {"type": "host-local", "dataDir": "@DIR@/ipam", "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]}}]}`
			if err := n.Load([]byte(fmt.Sprintf(list, keys))); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), stepTime)
			defer cancel()
			for _, pod := range []string{"gone", "lives"} {
				if _, err := n.Pod(pod); err != nil {
					t.Fatal(err)
				}
				if _, err := n.Add(ctx, attach.Attachment{ContainerID: pod, IfName: "eth0", NetNS: n.PodPath(pod)}); err != nil {
					t.Fatal(describe(err))
				}
				if err := os.Remove(filepath.Join(n.Dir, "cache", "results", "net-"+pod+"-eth0")); err != nil {
					t.Fatal(err)
				}
			}
			mode := "bridge"
			if strings.Contains(keys, `"ptp"`) {
				mode = "ptp"
			}
			ours := strings.Replace(keys, `"type": "`+mode+`"`, `"type": "tracewire", "tracewire": {"mode": "`+mode+`", "stateDir": "@DIR@/state", "log": {"path": "@DIR@/log"}}`, 1)
			if err := n.Load([]byte(fmt.Sprintf(list, ours))); err != nil {
				t.Fatal(err)
			}
			if err := n.GC(ctx, []types.GCAttachment{{ContainerID: "lives", IfName: "eth0"}}); err != nil {
				t.Fatal(describe(err))
			}
			if err := n.Ping("lives", "10.77.0.1"); err != nil {
				t.Error(err)
			}
			links, err := n.Links()
			left, errLeft := n.Left()
			if all := fmt.Sprint(links, left); err != nil || errLeft != nil || strings.Contains(all, "gone") || !strings.Contains(all, "lives/eth0") || !strings.Contains(all, "10.77.0.3") || strings.Contains(all, "ipam/net/10.77.0.2 ") {
				t.Errorf("left: %s, %v%v", all, err, errLeft)
			}
			if err := n.GC(ctx, []types.GCAttachment{}); err != nil {
				t.Fatal(describe(err))
			}
			nothingLeft(t, n)
		})
	}
}
