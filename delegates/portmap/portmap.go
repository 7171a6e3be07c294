// Package portmap reads what the reference plugin portmap made, with either of
// its backends (plugins v1.10.0, plugins/meta/portmap).
package portmap

import (
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/iptables"
	"github.com/tracewire/tracewire/delegates/nft"
)

// Backend is one of the plugin's, as its key backend names it.
type Backend string

// The backends. Without the key the plugin takes iptables where that is there.
const (
	Iptables Backend = "iptables"
	Nftables Backend = "nftables"
)

// Rules is what a backend has for one container: on one network with iptables,
// on all of its networks with nftables, whose rules name none.
type Rules struct {
	Backend Backend
	// Mark is one of Marks of each attachment that it may be of: the chain's name, or
	// the container's id.
	Mark string
	Name string // of the chain, or of the table
	// Network and ContainerID are what the comments tell; "" where they do not.
	Network, ContainerID string
	Maps                 []Map
	// Stamp is another for other rules. With nftables those that are made anew are
	// others, with iptables only those that say something else.
	Stamp string
}

// Marks is what Rules has of an attachment, by backend.
func Marks(a delegates.Attachment) [2]string {
	return [2]string{chainOf(a.Network, a.ContainerID), a.ContainerID}
}

// Map is one port of the host's that leads to a pod's. One without a Protocol
// only masquerades what goes to the pod's address.
type Map struct {
	Protocol string     // "tcp", "udp", "sctp"
	Host     netip.Addr // invalid for all of the host's
	Port     uint16     // of the host
	To       netip.AddrPort
}

func (m Map) String() string {
	host := strconv.Itoa(int(m.Port))
	switch {
	case m.Protocol == "":
		return "masquerade to " + m.To.Addr().String()
	case m.Host.IsValid():
		host = netip.AddrPortFrom(m.Host, m.Port).String()
	}
	return fmt.Sprintf("%s %s to %s", m.Protocol, host, m.To)
}

// Addresses is the pod's.
func (r Rules) Addresses() (out []netip.Addr) {
	for _, m := range r.Maps {
		if a := m.To.Addr(); !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// Look is the rules of all containers: of nf_tables, and of rules of iptables
// (iptables.Nat). A kernel or a node without has none.
func Look(nat []string) ([]Rules, error) {
	out := inChains(nat)
	marked, err := inTables()
	return append(out, marked...), err
}

// The chain that leads to those of containers, and how their names begin.
const (
	top    = "CNI-HOSTPORT-DNAT"
	prefix = "CNI-DN-"
)

// chainOf is the chain of a container on a network.
func chainOf(network, id string) string {
	const length = 28 - len(prefix) // the plugin's names have 28 bytes
	sum := sha512.Sum512([]byte(network + id))
	return prefix + hex.EncodeToString(sum[:])[:length]
}

// collection is rules by mark, in the order they were met.
type collection struct {
	all []*Rules
	of  map[string]*Rules
}

func (c *collection) named(mark, name string, backend Backend) *Rules {
	if c.of[mark] == nil {
		c.of[mark] = &Rules{Backend: backend, Mark: mark, Name: name}
		c.all = append(c.all, c.of[mark])
	}
	return c.of[mark]
}

func (c *collection) rules() (out []Rules) {
	for _, r := range c.all {
		out = append(out, *r)
	}
	return out
}

// inChains is the chains of iptables, of either family, whether a rule leads to
// them or not.
func inChains(nat []string) []Rules {
	c := collection{of: map[string]*Rules{}}
	for _, line := range nat {
		of, target := iptables.Chain(line), iptables.Target(line)
		switch {
		case of == top && strings.HasPrefix(target, prefix):
			r := c.named(target, target, Iptables)
			if network, id, ok := iptables.Names(line); ok && chainOf(network, id) == target {
				r.Network, r.ContainerID = network, id
			}
		case strings.HasPrefix(of, prefix):
			r := c.named(of, of, Iptables)
			if m, ok := mapIn(line); ok {
				r.Maps = append(r.Maps, m)
			}
		}
	}
	for _, r := range c.all {
		r.Stamp = fmt.Sprint(r.Maps)
	}
	return c.rules()
}

// mapIn reads a rule of a container's chain that changes the destination.
func mapIn(line string) (m Map, ok bool) {
	words := strings.Fields(line)
	after := func(word string) string {
		if i := slices.Index(words, word); i >= 0 && i+1 < len(words) {
			return words[i+1]
		}
		return ""
	}
	to, err := netip.ParseAddrPort(after("--to-destination"))
	if err != nil {
		return m, false
	}
	port, _ := strconv.ParseUint(after("--dport"), 10, 16)
	host, _ := netip.ParsePrefix(after("-d"))
	return Map{Protocol: after("-p"), Host: host.Addr(), Port: uint16(port), To: to}, true
}

// tables and chains is where the rules of nf_tables are, known by the container
// id that their comments are.
var (
	tables = [...]nft.Table{{Family: nft.IPv4, Name: "cni_hostport"}, {Family: nft.IPv6, Name: "cni_hostport"}}
	chains = [...]string{"hostports", "hostip_hostports", "masquerading"}
)

func inTables() ([]Rules, error) {
	conn, err := nft.Dial()
	if nft.Lacking(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	c := collection{of: map[string]*Rules{}}
	var errs []error
	for _, t := range tables {
		for _, name := range chains {
			rules, err := conn.Rules(nft.Chain{Table: t, Name: name})
			errs = append(errs, err)
			for _, r := range rules {
				c.add(r)
			}
		}
	}
	return c.rules(), errors.Join(errs...)
}

// protocols is those that ports can be mapped of.
var protocols = map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp"}

// add takes in a rule of nf_tables. One without a comment is not the plugin's.
func (c *collection) add(rule nft.Rule) {
	if rule.Comment == "" {
		return
	}
	r := c.named(rule.Comment, rule.Chain.Table.Name, Nftables)
	r.ContainerID = rule.Comment
	r.Stamp += fmt.Sprintf("%d:%d ", rule.Chain.Table.Family, rule.Handle)
	switch d := rule.Destination(); {
	case d.Instead.IsValid():
		r.Maps = append(r.Maps, Map{Protocol: protocols[d.Protocol], Host: d.Address, Port: d.Port, To: d.Instead})
	case d.Address.IsValid() && !slices.Contains(r.Addresses(), d.Address):
		r.Maps = append(r.Maps, Map{To: netip.AddrPortFrom(d.Address, 0)})
	}
}
