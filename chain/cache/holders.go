package cache

import (
	"net/netip"
	"slices"

	"github.com/tracewire/tracewire/delegates"
)

// Holders is who holds addresses of a network in a boot: what is told by records
// and by libcni, and by what Marked and Gone find. What proves nothing holds.
type Holders struct {
	Dir     Dir
	Boot    string // the boot; empty where it is not known: then every record is of it
	Records []Stored
	Entries []Entry
	Routed  []netip.Addr // that the host has a route of their own to
	Foreign bool         // somebody lives there whom none of this tells of
	// Marked tells whether something of this kernel is proven to be an attachment's.
	Marked func(delegates.Attachment) bool
	// Gone tells that no network namespace is at a path.
	Gone func(path string) bool
}

// Lives tells that an attachment may hold an address. Where a record of this
// boot says which ones it holds, that is all of them.
func (h Holders) Lives(a delegates.Attachment, address netip.Addr) bool {
	for _, r := range h.Records {
		if !h.of(r, a) || r.Earlier(h.Boot) {
			continue
		}
		if r.State != Attached || a.IfName == "" {
			return true
		}
		all := delegates.Addresses(r.Reserved.Get())
		return len(all) == 0 || slices.Contains(all, address)
	}
	return h.Known(a) || slices.Contains(h.Routed, address)
}

// Strangers tells that somebody lives there of whom nothing is known: any
// address may be theirs.
func (h Holders) Strangers() bool { return h.Foreign }

// Known tells that an attachment may live by what others than its record tell.
func (h Holders) Known(a delegates.Attachment) bool {
	return h.Marked(a) || slices.ContainsFunc(h.Entries, func(e Entry) bool { return e.is(a) && !h.gone(e) })
}

// Left tells that an attachment has a record, and that it is of an earlier boot.
func (h Holders) Left(a delegates.Attachment) bool {
	return slices.ContainsFunc(h.Records, func(r Stored) bool { return h.of(r, a) && r.Earlier(h.Boot) })
}

// of tells whether a record is an attachment's: one that cannot be read, or of a
// name that is a hash, by its file.
func (h Holders) of(r Stored, a delegates.Attachment) bool {
	if r.State == Unreadable && a.IfName != "" {
		return h.Dir.File(a) == r.Path
	}
	return r.ContainerID == a.ContainerID && (a.IfName == "" || r.IfName == a.IfName)
}

// Named tells whether libcni knows of a host's interface by its name.
func (h Holders) Named(name string) bool {
	return slices.ContainsFunc(h.Entries, func(e Entry) bool { return slices.Contains(e.Host, name) })
}

// gone tells that an entry's namespaces are; one that tells of none may live.
func (h Holders) gone(e Entry) bool {
	return len(e.NetNS) > 0 && !slices.ContainsFunc(e.NetNS, func(path string) bool { return !h.Gone(path) })
}
