//go:build linux

package attach

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// usual is where networks and results of others than the node's may be.
const usual = "/var/lib/cni"

// Ctl runs the operator's command on the node, whose one list is that which
// counts, and returns its answer in JSON. That there are findings is no error. Of
// the machine's usual folder it sees nothing. CHECKs that it runs are at once, in
// no order: Operations and Spans leave them out.
func (n *Node) Ctl(ctx context.Context, words ...string) ([]byte, error) {
	lists := filepath.Join(n.Dir, "net.d")
	if err := n.setUp(lists); err != nil {
		return nil, err
	}
	program, err := n.Exec.FindInPath("tracewirectl", n.path)
	if err != nil {
		return nil, err
	}
	defer n.leaveOut()()
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, program, append(words, "-o", "json", "--cache-dir", filepath.Join(n.Dir, "cache"))...)
	cmd.Env = []string{"NETCONFPATH=" + lists, "CNI_PATH=" + strings.Join(n.path, ":"), "PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil && (cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 1) {
		return nil, fmt.Errorf("tracewirectl %s: %w: %s", strings.Join(words, " "), err, n.Normal(complaint.String()))
	}
	return out.Bytes(), nil
}

// leaveOut makes what is called afterwards leave out the CHECKs that come until then.
func (n *Node) leaveOut() (afterwards func()) {
	before := map[string]bool{}
	earlier, _ := n.Operations() // what cannot be read is told by who asks for it
	for _, o := range earlier {
		before[o.Root.SpanID] = true
	}
	return func() {
		all, _ := n.Operations()
		for _, o := range all {
			if o.Root.Name == "cni.CHECK" && !before[o.Root.SpanID] {
				n.aside[o.Root.SpanID] = true
			}
		}
	}
}

// setUp makes the node one on which the command finds the list, and no other's
// things.
func (n *Node) setUp(lists string) error {
	if err := os.MkdirAll(lists, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(lists, "10-node.conflist"), n.list.Bytes, 0o600); err != nil {
		return err
	}
	if n.apart {
		return nil
	}
	n.apart = true
	if err := n.ownMounts(); err != nil {
		return err
	}
	return unix.Mount("tmpfs", usual, "tmpfs", 0, "mode=0755")
}
