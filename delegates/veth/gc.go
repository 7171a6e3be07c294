package veth

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/tracewire/tracewire/delegates"
)

// GC removes the host ends of a network's attachments that are not kept, and
// returns whose they were. Ours are proven by their alias (one that is a hash
// names no network: it stays). The reference plugins' have no mark: they are
// proven by a port of the bridge, or of none for "", whose pod's end has the name
// and an address that is reserved for the attachment.
func GC(ctx context.Context, network, bridge string, k delegates.Kept, wait bool) (gone []delegates.Attachment, err error) {
	host, err := Dial()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	all, err := host.Links()
	errs := []error{err}
	master := 0
	if bridge != "" {
		if master, err = host.Index(bridge); err != nil {
			master = -1 // there is none, and so it has no port
		}
	}
	for _, l := range all {
		a, ok := parseOwner(Owner(l.Alias))
		if l.Alias == "" && l.Master == master && !l.Ours() {
			a, ok = host.tenant(l, k.Leases)
		}
		if !ok || a.Network != network || k.Has(a) {
			continue
		}
		err := removeEnd(ctx, host, l, wait)
		if err == nil {
			gone = append(gone, a)
		}
		errs = append(errs, err)
	}
	return gone, errors.Join(errs...)
}

// tenant is the attachment for which an address is reserved that a pair's other
// end has, in whichever namespace.
func (c *Conn) tenant(l Link, leases []delegates.Lease) (a delegates.Attachment, ok bool) {
	if len(leases) == 0 || l.PeerNS < 0 || l.Peer == 0 {
		return a, false
	}
	pod, err := c.linkIn(l.PeerNS, l.Peer)
	if err != nil {
		return a, false
	}
	has, err := c.addresses(l.PeerNS, l.Peer)
	if err != nil {
		return a, false
	}
	for _, lease := range leases {
		there := slices.ContainsFunc(has, func(p netip.Prefix) bool { return p.Addr() == lease.Address })
		if there && (lease.IfName == "" || lease.IfName == pod.Name) {
			return lease.Attachment, true
		}
	}
	return a, false
}

// Tenants is the addresses that pods have, each behind a port of a bridge, or of
// none where that is 0. The attachment is the one that the host end's alias names,
// the zero one where it names none.
func (c *Conn) Tenants(bridge int) (out []delegates.Lease, err error) {
	all, err := c.Links()
	for _, l := range all {
		if l.PeerNS < 0 || l.Peer == 0 || l.Master != bridge {
			continue
		}
		has, err := c.addresses(l.PeerNS, l.Peer)
		if err != nil {
			continue // it went meanwhile
		}
		a, _ := parseOwner(Owner(l.Alias))
		for _, p := range has {
			if p.Addr().IsGlobalUnicast() {
				out = append(out, delegates.Lease{Address: p.Addr(), Attachment: a})
			}
		}
	}
	return out, err
}

// RoutedTenants is the addresses of pods behind no bridge.
func RoutedTenants() ([]delegates.Lease, error) {
	c, err := Dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Tenants(0)
}

// Marked looks at the aliases of all interfaces, and returns what tells of an
// attachment whether it has one: it lives then. An IfName of "" stands for any
// interface of the container.
func Marked() (func(delegates.Attachment) bool, error) {
	host, err := Dial()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	all, err := host.Links()
	var aliases []string
	for _, l := range all {
		if Owner(l.Alias) != "" {
			aliases = append(aliases, l.Alias)
		}
	}
	return func(a delegates.Attachment) bool {
		if a.IfName != "" {
			return slices.Contains(aliases, Alias(a.String()))
		}
		return slices.ContainsFunc(aliases, func(alias string) bool {
			return strings.HasPrefix(alias, aliasPrefix+a.String()) || !strings.Contains(alias, "/") // a hash may be of it
		})
	}, err
}

// parseOwner reads network/containerID:ifname.
func parseOwner(text string) (a delegates.Attachment, ok bool) {
	network, rest, slash := strings.Cut(text, "/")
	id, ifName, colon := strings.Cut(rest, ":")
	return delegates.Attachment{Network: network, ContainerID: id, IfName: ifName}, slash && colon
}

// Links lists all interfaces of the kind veth.
func (c *Conn) Links() ([]Link, error) { return c.interfaces("veth") }

// Interfaces lists all interfaces.
func (c *Conn) Interfaces() ([]Link, error) { return c.interfaces("") }

// OwnerOf is the attachment that an alias of ours names. hashed tells that it is
// ours and names none: the names were too long for it.
func OwnerOf(alias string) (a delegates.Attachment, hashed bool) {
	owner := Owner(alias)
	a, ok := parseOwner(owner)
	if !ok {
		return delegates.Attachment{}, owner != ""
	}
	return a, false
}
