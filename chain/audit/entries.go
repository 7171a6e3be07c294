package audit

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
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
func begins(a delegates.Attachment) string { return a.Network + "-" + a.ContainerID + "-" }

// brokenEntry suspects a file that libcni cannot read.
func (l *look) brokenEntry(ctx context.Context, f cache.File) {
	out := Finding{Kind: BrokenLibcniEntry, Path: f.Path, Since: f.Changed, Network: l.networkOf(f.Name)}
	out.says(Libcni, f.Broken.Error())
	r := Repair{Action: RemoveEntry, Path: f.Path, Stamp: f.Stamp}
	if who := l.speaksFor(f.Name); who != "" {
		out = out.reported(who + " speaks for it: it goes with its DEL")
	} else {
		out = out.mendedBy(r)
	}
	l.suspect(ctx, suspect{Finding: out, stamps: []string{f.Stamp}, still: func(*Finding) bool { return cache.Stamp(f.Path) == f.Stamp }})
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

// speaksFor tells who knows of an attachment whose name is put together as a
// file's is: a record, an interface, or a sandbox of the runtime's.
func (l *look) speaksFor(name string) string {
	if l.speakers == nil {
		l.speakers = l.speaking()
	}
	if who := l.speakers[name]; who != "" {
		return who
	}
	if l.kernel.Blind {
		return "an interface that cannot be looked for"
	}
	rest := strings.TrimPrefix(name, l.networkOf(name)+"-")
	for i, c := range rest {
		if _, there := l.sandboxes[rest[:i]]; c == '-' && there {
			return "a sandbox"
		}
	}
	return ""
}

// speaking is the names of those who have a record, or an interface with their
// mark or with an address that is reserved for them.
func (l *look) speaking() map[string]string {
	out := map[string]string{}
	for _, s := range l.nets.stores {
		for a, h := range l.heldIn(s) {
			if len(l.kernel.Addresses[a]) > 0 {
				out[entryName(attachment(s, h))] = "an interface"
			}
		}
	}
	for a := range l.marked {
		out[entryName(a)] = "an interface"
	}
	for a := range l.records {
		out[entryName(a)] = "a record"
	}
	return out
}

// entryName is what libcni calls an attachment's file.
func entryName(a delegates.Attachment) string {
	return a.Network + "-" + a.ContainerID + "-" + a.IfName
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
	switch {
	case f.Network == "":
		out = out.reported("it does not tell whose it is")
	case l.records[f.Attachment] != nil:
		out = out.reported("its record speaks for it: it goes with its DEL")
	case l.marked[f.Attachment] != nil:
		out = out.reported("an interface speaks for it: it goes with its DEL")
	default:
		out = out.mendedBy(Repair{Action: RemoveEntry, Attachment: f.Attachment, Path: f.Path, Stamp: f.Stamp})
	}
	l.suspect(ctx, suspect{Finding: out, id: f.ContainerID, stamps: []string{f.Stamp}, still: func(*Finding) bool {
		return cache.Stamp(f.Path) == f.Stamp && gone(f)
	}})
	return true
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
		path := filepath.Join(dir, entryName(a))
		if _, err := os.Lstat(path); err == nil {
			return path
		}
	}
	return ""
}
