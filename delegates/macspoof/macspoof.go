// Package macspoof drops the frames of a pod that come from another MAC than
// its own, by the rules of the reference bridge plugin (plugins v1.10.0,
// pkg/link/spoofcheck.go): either plugin can remove the other's.
package macspoof

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/nft"
)

// Check is the rules of one attachment.
type Check struct {
	ContainerID, IfName string
	Interface           string           // the host end; not needed to remove
	MAC                 net.HardwareAddr // the pod end's; not needed to remove
}

// ErrNoBridge marks a kernel without nf_tables for bridges
// (CONFIG_NF_TABLES_BRIDGE).
var ErrNoBridge = errors.New("kernel has no nf_tables for the family bridge")

// base is where all frames enter. Table and chain stay when an attachment goes.
var base = nft.Chain{Table: nft.Table{Family: nft.Bridge, Name: "nat"}, Name: "PREROUTING",
	Hook: &nft.Hook{Type: "filter", Number: unix.NF_INET_PRE_ROUTING, Priority: -300}}

// refID is what names chains and comments.
func (k Check) refID() string { return k.ContainerID + "-" + k.IfName }

func (k Check) comment() string { return "macspoofchk-" + k.refID() }

// chains is the one that the interface's frames go to, and the one that looks
// at their MAC.
func (k Check) chains() (iface, mac nft.Chain) {
	name := "cni-br-iface-" + k.refID()
	return nft.Chain{Table: base.Table, Name: name}, nft.Chain{Table: base.Table, Name: name + "-mac"}
}

// Ensure makes the rules in one transaction. What an earlier attachment of that
// name left is replaced. A container id of more than some 220 bytes makes a name
// that is too long for the kernel.
func (k Check) Ensure(ctx context.Context) error {
	c, err := nft.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	if there, err := c.Has(base); err == nil && there {
		t := &nft.Transaction{}
		k.create(t)
		if err := c.Apply(ctx, t); !errors.Is(err, unix.EEXIST) && !nft.Gone(err) {
			return err
		}
	}
	return explained(c.Change(ctx, func(t *nft.Transaction) error { return k.replace(c, t) }))
}

// create describes chains and rules.
func (k Check) create(t *nft.Transaction) {
	iface, mac := k.chains()
	t.Create(iface)
	t.Create(mac)
	k.fill(t)
}

// replace describes them in place of what is there, with what they stand on.
func (k Check) replace(c *nft.Conn, t *nft.Transaction) error {
	old, err := k.jumps(c)
	if err != nil {
		return err
	}
	iface, mac := k.chains()
	t.Ensure(base.Table)
	for _, ch := range []nft.Chain{base, iface, mac} {
		t.Ensure(ch)
	}
	t.Flush(iface)
	t.Flush(mac)
	for _, r := range old {
		t.Delete(r)
	}
	k.fill(t)
	return nil
}

// fill describes the rules.
func (k Check) fill(t *nft.Transaction) {
	iface, _ := k.chains()
	t.Append(k.rule(base, nft.From(k.Interface), nft.Jump(iface)))
	t.Append(k.enter())
	for _, r := range k.look() {
		t.Append(r)
	}
}

func (k Check) rule(c nft.Chain, lists ...[]nft.Expr) nft.Rule {
	return nft.Rule{Chain: c, Comment: k.comment(), Exprs: nft.Exprs(lists...)}
}

// enter is the rule of the interface's chain.
func (k Check) enter() nft.Rule {
	iface, mac := k.chains()
	return k.rule(iface, nft.Jump(mac))
}

// look is the rules of the chain that looks at the MAC, in their order.
func (k Check) look() []nft.Rule {
	_, mac := k.chains()
	return []nft.Rule{k.rule(mac, nft.SourceMAC(k.MAC), nft.Return()), k.rule(mac, nft.Drop())}
}

// jumps is the rules that lead to the chains: none, without a list of all
// attachments' rules, where the chain is not there.
func (k Check) jumps(c *nft.Conn) (out []nft.Rule, err error) {
	iface, _ := k.chains()
	there, err := c.Has(iface)
	if err != nil || !there {
		return nil, err
	}
	all, err := c.Rules(base)
	for _, r := range all {
		if r.Comment == k.comment() {
			out = append(out, r)
		}
	}
	return out, err
}

// Lacking tells what is wrong with the rules, "" for nothing. macs is what the
// pod's end may have. That a rule leads to the chains is told by their counts:
// the rules of all attachments are not listed.
func (k Check) Lacking(macs []net.HardwareAddr) (string, error) {
	c, err := nft.Dial()
	if err != nil {
		return "", err
	}
	defer c.Close()
	iface, mac := k.chains()
	uses, err := c.Uses(iface)
	if nft.Gone(err) {
		return "no chain " + iface.Name, nil
	}
	if err != nil {
		return "", err
	}
	for _, ch := range []struct {
		nft.Chain
		lists [][]nft.Rule // any of which it may have
	}{{iface, [][]nft.Rule{{k.enter()}}}, {mac, k.lists(macs)}} {
		have, err := c.Look(ch.Chain)
		if err != nil {
			return "", err
		}
		if !slices.ContainsFunc(ch.lists, func(want []nft.Rule) bool { return slices.EqualFunc(have, want, does) }) {
			return fmt.Sprintf("%d rules in chain %s, which are not those", len(have), ch.Name), nil
		}
	}
	if uses < 2 { // its own rule, and one that leads to it
		return "no rule that leads to chain " + iface.Name, nil
	}
	return "", nil
}

// lists is the rules that look at the MAC, for each that it may be.
func (k Check) lists(macs []net.HardwareAddr) (out [][]nft.Rule) {
	for _, m := range macs {
		k.MAC = m
		out = append(out, k.look())
	}
	return out
}

func does(have, want nft.Rule) bool { return have.Does(want.Exprs) }

// explained names a kernel that lacks the family: it has no chains of a type
// that it does not know.
func explained(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("%w: %w", ErrNoBridge, err)
	}
	return err
}

// turns bounds how often Remove looks again.
const turns = 10

// Remove removes the attachment's rules and chains, whichever plugin made them.
// What is gone is success. Unless wait is asked for, the kernel's waiting is
// left to a child process.
func (k Check) Remove(ctx context.Context, wait bool) error {
	c, err := nft.Dial()
	if nft.Lacking(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	for range turns {
		t, terr := k.removal(c)
		if terr != nil || t.Empty() {
			return terr
		}
		if _, err = c.Remove(ctx, t, wait); !nft.Gone(err) {
			return err
		}
	}
	return err
}

// removal describes the removal of what is there.
func (k Check) removal(c *nft.Conn) (*nft.Transaction, error) {
	t := &nft.Transaction{}
	old, err := k.jumps(c)
	if err != nil {
		return nil, err
	}
	for _, r := range old {
		t.Delete(r)
	}
	iface, mac := k.chains()
	for _, ch := range []nft.Chain{iface, mac} {
		there, err := c.Has(ch)
		if err != nil {
			return nil, err
		}
		if there {
			t.Delete(ch)
		}
	}
	return t, nil
}
