package audit

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/masquerade"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/ipam"
)

// readEntries streams libcni's files: what they claim is marked, and what is
// wrong with one is suspected, and then it is forgotten.
func (l *look) readEntries(ctx context.Context) {
	for f, err := range cache.Files(l.node.CacheDirs...) {
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			l.unread(Libcni, f.Path, err)
			l.byName(filepath.Base(f.Path))
			continue
		}
		l.counts.Entries++
		l.entry(ctx, f)
	}
}

func (l *look) entry(ctx context.Context, f cache.File) {
	if f.Network == "" { // broken, or of an old libcni
		l.byName(f.Name)
	}
	if f.Broken != nil {
		l.brokenEntry(ctx, f)
		return
	}
	l.ids.add(f.ContainerID)
	configs := l.nets.listed(f)
	stale := l.staleEntry(ctx, f)
	l.claims(f.Attachment, !stale)
	for _, name := range f.Host {
		if e := l.named[name]; e != nil && !stale {
			e.known = true
		}
	}
	if !stale && f.Network != "" && l.records[f.Attachment] == nil {
		l.unreserved(ctx, f, configs)
	}
}

// byName takes down a file whose name is all that tells whose it is. It is never
// split: each part may hold hyphens. What may be its name is put together.
func (l *look) byName(name string) {
	l.damaged.add(name)
	for i, c := range name {
		if _, asked := l.bare[name[:i+1]]; c == '-' && asked {
			l.bare[name[:i+1]] = true
		}
	}
}

// begins is how the names of all files of a container on a network begin.
func begins(a delegates.Attachment) string {
	a.IfName = ""
	return cache.EntryName(a)
}

// foreign tells that no configuration of ours is of a network, and that the runtime
// was not asked: what is left of it there may be of use.
func (l *look) foreign(network string) bool {
	return l.node.Sandboxes == nil && l.nets.confOf(network) == ""
}

const foreignEntry = "its network is none of ours, and the runtime was not asked"

// brokenEntry suspects a file that libcni cannot read. While it is there the
// runtime's DEL fails; without it that goes by the list and the record.
func (l *look) brokenEntry(ctx context.Context, f cache.File) {
	out := Finding{Kind: BrokenLibcniEntry, Path: f.Path, Since: f.Changed, Network: l.networkOf(f.Name)}
	out.says(Libcni, f.Broken.Error())
	if l.foreign(out.Network) {
		out = out.reported(foreignEntry)
	} else {
		out = out.mendedBy(Repair{Action: RemoveEntry, Path: f.Path, Stamp: f.Stamp})
	}
	l.suspect(ctx, suspect{Finding: out, stamps: []string{f.Stamp}, still: func(*Finding) bool {
		now, err := cache.ReadFile(f.Path) // libcni writes it in place: half of it may have been read, and its time be the same
		return err == nil && now.Broken != nil && now.Stamp == f.Stamp
	}})
}

// networkOf is the network that a file's name begins with, the longest of those
// that are known; "" where none does.
func (l *look) networkOf(name string) (network string) {
	for i, c := range name {
		if _, known := l.nets.all[name[:i]]; c == '-' && known {
			network = name[:i]
		}
	}
	return network
}

// staleEntry suspects an entry whose namespace is gone, and its sandbox. One
// that tells of no namespace may live. The loopback's is left behind by runtimes
// that never delete it: it is nobody's only once the sandbox is known to be gone.
func (l *look) staleEntry(ctx context.Context, f cache.File) bool {
	there, says := l.sandbox(f.ContainerID)
	loopback := f.IfName == "lo"
	if !gone(f) || there || loopback && l.node.Sandboxes == nil {
		return false
	}
	out := Finding{Kind: StaleLibcniEntry, Path: f.Path, Since: f.Changed, Network: f.Network, Attachment: &f.Attachment}
	out.says(Libcni, fmt.Sprintf("%s on %s in %s", f.ContainerID, f.IfName, f.NetNS[0]))
	out.says(Namespaces, "no network namespace is at "+f.NetNS[0])
	out.says(Runtime, says)
	switch r := l.records[f.Attachment]; {
	case f.Network == "":
		out = out.reported("it does not tell whose it is")
	case r != nil && (!r.told || r.lives):
		out = out.reported("its record speaks for it: it goes with its DEL")
	case l.marked[f.Attachment] != nil:
		out = out.reported("an interface speaks for it: it goes with its DEL")
	case l.holds(f):
		out = out.reported("an interface has an address that is reserved for it: it may live, wherever its path leads")
	case l.foreign(f.Network):
		out = out.reported(foreignEntry)
	case !loopback && l.nets.confOf(f.Network) == "" && l.remains(f.Attachment):
		out = out.reported("its network is none of ours, and a DEL of what it left needs it: an address or rules")
	default:
		out = out.mendedBy(l.entryEnds(f))
	}
	l.suspect(ctx, suspect{Finding: out, id: f.ContainerID, stamps: []string{f.Stamp}, still: func(*Finding) bool {
		return cache.Stamp(f.Path) == f.Stamp && gone(f)
	}})
	return true
}

// remains tells that an address is reserved for an attachment's container, or that
// rules of masquerade or portmap are of it.
func (l *look) remains(a delegates.Attachment) bool {
	for _, s := range l.nets.stores {
		l.heldIn(s)
		if s.holders[a.ContainerID] {
			return true
		}
	}
	if len(l.rules) > 0 {
		for _, mark := range masquerade.Marks(a) {
			if len(l.rules[mark]) > 0 {
				return true
			}
		}
	}
	for _, p := range l.ports {
		if p.ContainerID == a.ContainerID {
			return true
		}
	}
	return false
}

// holds tells that an interface has one of an entry's addresses, which is reserved
// for its container.
func (l *look) holds(f cache.File) bool {
	return slices.ContainsFunc(f.Addresses, func(a netip.Addr) bool {
		if len(l.kernel.Addresses[a]) == 0 {
			return false
		}
		for _, s := range l.nets.named(f.Network).stores {
			if l.heldIn(s)[a].Holder.ContainerID == f.ContainerID {
				return true
			}
		}
		return false
	})
}

// entryEnds is how a stale entry goes: with all that its attachment left where a
// configuration of ours is of the network, and no interface has one of its addresses.
func (l *look) entryEnds(f cache.File) Repair {
	r := Repair{Action: RemoveEntry, Attachment: f.Attachment, Path: f.Path, Stamp: f.Stamp}
	has := func(a netip.Addr) bool { return len(l.kernel.Addresses[a]) > 0 }
	if conf := l.nets.confOf(f.Network); conf != "" && !l.kernel.Blind && !l.kernel.Partial && !slices.ContainsFunc(f.Addresses, has) {
		r.Action, r.Conf = EndEntry, conf
	}
	return r
}

// livingEntry reads an attachment's entry at a path; ok is false where that is
// another's, or cannot be read, or tells that the namespace is gone.
func livingEntry(path string, a delegates.Attachment) (f cache.File, ok bool) {
	f, err := cache.ReadFile(path)
	return f, err == nil && f.Broken == nil && f.Attachment == a && !gone(f)
}

// gone tells that an entry's namespaces are.
func gone(f cache.File) bool {
	return len(f.NetNS) > 0 && !slices.ContainsFunc(f.NetNS, func(path string) bool { return !veth.Missing(path) })
}

// unreserved suspects the addresses of a living attachment of another plugin's
// that are of a store's ranges and not reserved there.
func (l *look) unreserved(ctx context.Context, f cache.File, configs []config) {
	for _, c := range configs {
		if c.store == "" || c.network != f.Network {
			continue
		}
		s := l.nets.stores[c.store]
		for _, a := range f.Addresses {
			if s.serves(a) {
				l.lacks(ctx, s, f.Attachment, a, Evidence{Libcni, fmt.Sprintf("%s has %s in %s", f.ContainerID, a, f.NetNS)}, func() bool {
					return cache.Stamp(f.Path) == f.Stamp
				})
			}
		}
	}
}

// lacks suspects an address that an attachment has and that is not reserved, or
// is for another.
func (l *look) lacks(ctx context.Context, s *store, a delegates.Attachment, address netip.Addr, tells Evidence, still func() bool) {
	if len(l.kernel.Addresses[address]) == 0 {
		return
	}
	h, reserved := l.heldIn(s)[address]
	if reserved && (h.State != ipam.Reserved || h.Holder.ContainerID == a.ContainerID) {
		return // one that names nobody is told of for itself
	}
	if reserved && l.twice(a.Network, address) {
		return
	}
	path := filepath.Join(s.dir, address.String())
	f := Finding{Kind: AttachmentWithoutReservation, Network: a.Network, Attachment: &a, Address: address, Path: path, Evidence: []Evidence{tells}}
	if reserved {
		f.Kind, f.Since = DuplicateAddress, h.Changed
		f.says(IPAM, "it is reserved for "+h.Holder.String())
		f = f.reported(undecided)
	} else {
		f.says(IPAM, "no reservation in "+s.dir)
		f = l.reservable(f, s, a)
	}
	f.says(Kernel, l.placed(address))
	l.suspect(ctx, suspect{Finding: f, id: a.ContainerID, stamps: []string{h.Stamp}, still: func(*Finding) bool {
		now, err := ipam.Look(path)
		return still() && (err != nil) == !reserved && now.Stamp == h.Stamp
	}, holds: func(k *veth.Survey) bool { return len(k.Addresses[address]) > 0 }})
}

// undecided is why an address of two is only reported.
const undecided = "which of the two is to have it is not for the node to tell"

// reservable says how an address is reserved again.
func (l *look) reservable(f Finding, s *store, a delegates.Attachment) Finding {
	if !s.ours {
		return f.reported(notOurs)
	}
	return f.mendedBy(Repair{Action: Reserve, Attachment: a, Path: s.dir, Address: f.Address})
}

// entrySays is what libcni keeps of an attachment.
func (l *look) entrySays(a delegates.Attachment) string {
	if path := l.node.entryPath(a); path != "" {
		return "an entry in " + path
	}
	return "no entry"
}

// entryPath is where libcni has a file of an attachment's name; "" for nowhere.
func (n Node) entryPath(a delegates.Attachment) string {
	for _, dir := range n.CacheDirs {
		path := filepath.Join(dir, cache.EntryName(a))
		if _, err := os.Lstat(path); err == nil {
			return path
		}
	}
	return ""
}
