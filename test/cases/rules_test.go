//go:build linux

package cases

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// outside makes a namespace beyond the node: "outside out 192.0.2.1/24
// 192.0.2.9/24", the node's end and the other, once or twice.
func (c *story) outside(_ context.Context, _ *testing.T, args []string) error {
	var here, there []string
	for i := 1; i+1 < len(args); i += 2 {
		here, there = append(here, args[i]), append(there, args[i+1])
	}
	return c.Outside(args[0], here, there)
}

// seen connects as tcp does, and tells which address the server sees:
// "seen pod1 192.0.2.9:80 out :80 192.0.2.1".
func (c *story) seen(_ context.Context, t *testing.T, args []string) error {
	talk, err := c.Connect(args[0], args[1], args[2], args[3])
	if err != nil {
		return err
	}
	defer talk.Close()
	if got := talk.Peer.Addr().String(); got != args[4] {
		t.Errorf("%s sees %s, want %s", args[2], got, args[4])
	}
	_, err = talk.Say("hello")
	return err
}

// listRules writes down the rules that there are: "rules nft", "rules iptables".
func (c *story) listRules(_ context.Context, _ *testing.T, args []string) error {
	list := c.Rules
	if args[0] == "iptables" {
		list = c.Iptables
	}
	text, err := list()
	if text == "" {
		text = "none\n"
	}
	c.rules += "# after: " + c.last + "\n" + c.Normal(text)
	return err
}

// nft runs the program in the host: "nft flush ruleset".
func (c *story) nft(_ context.Context, _ *testing.T, args []string) error {
	_, err := c.Nft(args...)
	return err
}

// lose removes a folder or file of the node: "lose state/attachments".
func (c *story) lose(_ context.Context, _ *testing.T, args []string) error {
	return os.RemoveAll(filepath.Join(c.Dir, args[0]))
}

// empty leaves a file of the node without content, as a crash does: "empty
// state/attachments/net/c1:eth0".
func (c *story) empty(_ context.Context, _ *testing.T, args []string) error {
	return os.WriteFile(filepath.Join(c.Dir, args[0]), nil, 0o600)
}

// spoil puts something else in a file's place: "spoil ipam/net/10.77.0.2 zeros".
func (c *story) spoil(_ context.Context, _ *testing.T, args []string) error {
	path := filepath.Join(c.Dir, args[0])
	put, ok := map[string]func() error{
		"zeros":  func() error { return os.WriteFile(path, make([]byte, 2_000_000), 0o600) },
		"bytes":  func() error { return os.WriteFile(path, []byte("\xff\x00\x01ELF"), 0o600) },
		"pipe":   func() error { return unix.Mkfifo(path, 0o600) },
		"link":   func() error { return os.Symlink(filepath.Join(c.Dir, "outside"), path) },
		"folder": func() error { return os.MkdirAll(filepath.Join(path, "in"), 0o700) },
	}[args[1]]
	if !ok {
		return fmt.Errorf("no such spoiling: %s", args[1])
	}
	return errors.Join(os.RemoveAll(path), put())
}
