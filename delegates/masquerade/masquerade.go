// Package masquerade gives the pods' packets that leave their subnet the
// host's address: one nf_tables table a network, or the reference plugins'
// iptables chain for each container.
package masquerade

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/nft"
)

// Rules is the masquerade of one network by nf_tables. It needs Linux 5.7, or
// 5.2 without Bridge.
type Rules struct {
	Network string
	Bridge  string // the interface packets come from; "" for any
	// Ranges is the subnets that the configuration names. Without them each
	// ADD brings its own.
	Ranges []netip.Prefix
}

// prefix begins the name of every table of ours.
const prefix = "tracewire_"

// Table is the name of the table, in the family inet: a hash of the network,
// and one of bridge and ranges, whose order does not count.
func (r Rules) Table() string {
	return ofNetwork(r.Network) + hash(r.Bridge+"\x00"+texts(distinct(r.Ranges)))
}

// ofNetwork begins the names of all tables that a network ever had.
func ofNetwork(network string) string { return prefix + hash(network) + "_" }

// hash is 64 bits of one, in hex.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

func texts(subnets []netip.Prefix) string {
	var b strings.Builder
	for _, p := range subnets {
		b.WriteString(p.String() + " ")
	}
	return b.String()
}

// distinct is the subnets of addresses, each once, in order.
func distinct(addresses []netip.Prefix) (out []netip.Prefix) {
	for _, a := range addresses {
		out = append(out, a.Masked())
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// commentPrefix begins the comment of every table and rule of ours.
const commentPrefix = "tracewire "

// label is the network as comments name it: a name of more than 64 bytes by
// its hash, as nft(8) takes no comment of more than 128.
func label(network string) string {
	if len(network) <= 64 {
		return commentPrefix + network
	}
	sum := sha256.Sum256([]byte(network))
	return commentPrefix + "sha256:" + hex.EncodeToString(sum[:26])
}

func (r Rules) table() nft.Table {
	return nft.Table{Family: nft.Inet, Name: r.Table(), Comment: label(r.Network)}
}

func (r Rules) chain() nft.Chain {
	return nft.Chain{Table: r.table(), Name: "postrouting", Hook: &nft.Hook{Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: priority}}
}

// priority is NF_IP_PRI_NAT_SRC (linux/netfilter_ipv4.h).
const priority = 100

// rule is a subnet's: packets from it that go neither to it nor to a multicast
// group, by which pods talk to pods.
func (r Rules) rule(subnet netip.Prefix) nft.Rule {
	var from []nft.Expr
	if r.Bridge != "" {
		from = nft.From(r.Bridge)
	}
	return nft.Rule{Chain: r.chain(), Comment: r.comment(subnet), Exprs: nft.Exprs(from,
		nft.SameFamily(subnet.Addr()), nft.Source(subnet), nft.NotDestination(subnet), nft.NotDestination(multicast(subnet.Addr())),
		nft.Masquerade())}
}

func (r Rules) comment(subnet netip.Prefix) string { return label(r.Network) + " " + subnet.String() }

// multicast is the groups of an address's family.
func multicast(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{224}), 4)
	}
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xff}), 8)
}

// subnets is those that need a rule, for an attachment with these addresses.
func (r Rules) subnets(addresses []netip.Prefix) []netip.Prefix {
	if len(r.Ranges) > 0 {
		return distinct(r.Ranges)
	}
	return distinct(addresses)
}

// Ensure makes the table and the rules that are not there: of the ranges, or
// without ranges of the addresses' subnets. A table whose rules were flushed is
// filled again; a rule is known by its comment. Any number of Ensures may run
// at once: one that comes second to another looks again.
func (r Rules) Ensure(ctx context.Context, addresses []netip.Prefix) error {
	want := r.subnets(addresses)
	if len(want) == 0 {
		return nil
	}
	c, err := nft.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	if len(r.Ranges) > 0 {
		// One look-up tells that chain and rules are there.
		if n, err := c.Uses(r.chain()); err == nil && n >= len(want) {
			return nil
		}
	}
	return c.Change(ctx, func(t *nft.Transaction) error { return r.complete(c, t, want) })
}

// complete describes what is missing.
func (r Rules) complete(c *nft.Conn, t *nft.Transaction, want []netip.Prefix) error {
	have, err := c.Rules(r.chain())
	if err != nil {
		return err
	}
	missing := r.without(have, want)
	if len(have) == 0 && len(missing) > 0 {
		t.Ensure(r.table())
		t.Ensure(r.chain())
	}
	for _, subnet := range missing {
		t.Append(r.rule(subnet))
	}
	return nil
}

// without is the subnets that none of the rules is for.
func (r Rules) without(have []nft.Rule, want []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(want), func(subnet netip.Prefix) bool {
		return slices.ContainsFunc(have, func(h nft.Rule) bool { return h.Comment == r.comment(subnet) })
	})
}

// Restore makes the rules that Missing misses, in place of what has their comments
// and does something else.
func (r Rules) Restore(ctx context.Context, addresses []netip.Prefix) error {
	c, err := nft.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Change(ctx, func(t *nft.Transaction) error {
		have, err := c.Look(r.chain())
		for _, subnet := range r.undone(have, addresses) {
			t.Ensure(r.table())
			t.Ensure(r.chain())
			for _, h := range have {
				if h.Comment == r.comment(subnet) {
					t.Delete(h)
				}
			}
			t.Append(r.rule(subnet))
		}
		return err
	})
}

// Missing is the subnets, of the ranges or else of the addresses, that have no
// rule which does what Ensure's does.
func (r Rules) Missing(addresses []netip.Prefix) ([]netip.Prefix, error) {
	c, err := nft.Dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	have, err := c.Look(r.chain())
	return r.undone(have, addresses), err
}

// undone is the subnets that none of the rules does it for.
func (r Rules) undone(have []nft.Rule, addresses []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(r.subnets(addresses), func(subnet netip.Prefix) bool {
		want := r.rule(subnet).Exprs
		return slices.ContainsFunc(have, func(h nft.Rule) bool { return h.Does(want) })
	})
}
