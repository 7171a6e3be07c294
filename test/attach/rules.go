//go:build linux

package attach

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Nft runs nft(8) in the host's namespace.
func (n *Node) Nft(args ...string) (string, error) { return n.program("nft", args...) }

// Rules is the host's ruleset of nf_tables as nft(8) prints it, without counts.
func (n *Node) Rules() (string, error) { return n.Nft("-s", "list", "ruleset") }

// Iptables is the host's chains and rules of both nat tables, as iptables(8)
// prints them.
func (n *Node) Iptables() (string, error) {
	four, err := n.program("iptables", "-t", "nat", "-S")
	if err != nil {
		return "", err
	}
	six, err := n.program("ip6tables", "-t", "nat", "-S")
	return four + six, err
}

func (n *Node) program(name string, args ...string) (string, error) {
	var out, stderr bytes.Buffer
	err := n.In("host", func() error {
		cmd := exec.Command(name, args...)
		cmd.Stdout, cmd.Stderr = &out, &stderr
		return cmd.Run()
	})
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, stderr.String())
	}
	return out.String(), nil
}

// ofAttachments is what lines of a ruleset have that stand for an attachment:
// names of our tables, of the reference's chains, and words of comments.
var ofAttachments = []string{"table inet tracewire_", "CNI-", "cni-br-iface", "macspoofchk", "dnat to", ", net: ", `name: \"`, "id: "}

// RulesLeft is the rules, chains and tables that stand for an attachment; none
// where nft(8) is missing.
func (n *Node) RulesLeft() (out []string, err error) {
	all, err := n.Rules()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil
	}
	for line := range strings.Lines(all) {
		for _, mark := range ofAttachments {
			if strings.Contains(line, mark) {
				out = append(out, strings.TrimSpace(line))
				break
			}
		}
	}
	return out, err
}
