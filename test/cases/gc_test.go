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
