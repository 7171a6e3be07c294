package audit

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/ipam"
)

// readStores reads those that records and conflists name, and all of the data
// directories'. What libcni's entries name besides is read when it is met.
func (l *look) readStores(ctx context.Context) {
	for _, dataDir := range l.node.DataDirs {
		dirs, err := ipam.Stores(dataDir)
		l.unread(IPAM, dataDir, err)
		for _, dir := range dirs {
			l.nets.storeAt(dir, filepath.Base(dir))
		}
	}
	for _, s := range l.nets.stores {
		if ctx.Err() == nil {
			l.heldIn(s)
		}
	}
}

// heldIn is a store's reservations, read once.
func (l *look) heldIn(s *store) map[netip.Addr]ipam.Held {
	if s.held != nil {
		return s.held
	}
	s.held, s.holders = map[netip.Addr]ipam.Held{}, map[string]bool{}
	for h, err := range ipam.In(s.dir) {
		if err != nil {
			l.unread(IPAM, h.Path, err)
			continue
		}
		l.counts.Reservations++
		if _, other := s.held[h.Address]; other || !h.Address.IsValid() || h.State == ipam.Strange {
			s.strange = append(s.strange, h)
			continue
		}
		s.held[h.Address] = h
		s.holders[h.Holder.ContainerID] = h.State == ipam.Reserved
		if who := attachment(s, h); h.State == ipam.Reserved && who.IfName == "" {
			l.bare[begins(who)] = false
		}
	}
	return s.held
}

// judgeStores suspects the reservations that stand for nobody who lives.
func (l *look) judgeStores(ctx context.Context) {
	for _, s := range l.nets.stores {
		for a, h := range l.heldIn(s) {
			if h.State == ipam.Reserved {
				l.reservation(ctx, s, a, h)
			} else {
				l.emptyReservation(ctx, s, h)
			}
		}
		for _, h := range s.strange {
			l.strange(ctx, s, h)
		}
	}
}

// attachment is whose a reservation is.
func attachment(s *store, h ipam.Held) delegates.Attachment {
	return delegates.Attachment{Network: s.network, ContainerID: h.Holder.ContainerID, IfName: h.Holder.IfName}
}

// about is a finding on a file of a store.
func about(k Kind, s *store, h ipam.Held) Finding {
	return Finding{Kind: k, Network: s.network, Address: h.Address, Path: h.Path, Since: h.Changed}
}

// unchanged tells that a file of a store is as it was.
func unchanged(h ipam.Held) bool {
	now, err := ipam.Look(h.Path)
	return err == nil && now.Stamp == h.Stamp
}

// emptyReservation suspects a file that keeps an address and names nobody.
func (l *look) emptyReservation(ctx context.Context, s *store, h ipam.Held) {
	f := about(EmptyReservation, s, h)
	f.says(IPAM, "what stands there names nobody")
	f.says(Kernel, l.placed(h.Address))
	switch r := l.living(s.network, h.Address); {
	case !s.ours:
		f = f.reported(notOurs)
	case len(l.kernel.Addresses[h.Address]) > 0 && r != nil:
		f = f.mendedBy(Repair{Action: Reserve, Attachment: r.Attachment, Path: s.dir, Address: h.Address})
	case len(l.kernel.Addresses[h.Address]) > 0:
		f = f.reported("an interface has the address, and no record tells whose it is")
	default:
		f = f.mendedBy(Repair{Action: RemoveReservation, Address: h.Address, Path: h.Path, Stamp: h.Stamp})
	}
	l.suspect(ctx, suspect{Finding: f, stamps: []string{h.Stamp}, still: func(*Finding) bool { return unchanged(h) }})
}

const notOurs = "no list with tracewire in it uses the store: what is there is another's to remove"

// living is the record of an attachment that has an address, nil for none.
func (l *look) living(network string, a netip.Addr) *record {
	if l.byAddress == nil {
		l.byAddress = map[netip.Addr][]*record{}
		for _, r := range l.records {
			for _, own := range r.addresses {
				l.byAddress[own] = append(l.byAddress[own], r)
			}
		}
	}
	for _, r := range l.byAddress[a] {
		if r.Network == network && !r.told && r.state == cache.Attached {
			return r
		}
	}
	return nil
}

// strange suspects a file that is nobody's reservation, or a second one of an
// address.
func (l *look) strange(ctx context.Context, s *store, h ipam.Held) {
	f := about(UnknownOwner, s, h)
	f.says(IPAM, "what is there is no reservation that host-local would make")
	if h.Address.IsValid() {
		f.says(IPAM, "while it is there the address is not given to a pod")
	}
	if h.State != ipam.Strange && h.Address.IsValid() {
		f.Kind = DuplicateAddress
		f.Evidence = []Evidence{{IPAM, fmt.Sprintf("two files, this one and %s, are reservations of the address", s.held[h.Address].Path)}}
	}
	f = f.reported("it may be somebody's on purpose")
	l.suspect(ctx, suspect{Finding: f, stamps: []string{h.Stamp}, still: func(*Finding) bool { return unchanged(h) }})
}

// reservation suspects one of whose holder nobody knows, or whose address no
// interface has.
func (l *look) reservation(ctx context.Context, s *store, a netip.Addr, h ipam.Held) {
	who := attachment(s, h)
	l.explains(s, a)
	if r := l.records[who]; r != nil && r.told {
		return // goes with its record
	}
	knows := l.knows(who)
	if len(held(l.kernel, a, who, knows == nil)) > 0 {
		return
	}
	l.suspect(ctx, suspect{
		Finding: l.released(l.unheld(s, h, knows), s, who), id: who.ContainerID, stamps: []string{h.Stamp},
		still: func(*Finding) bool { return unchanged(h) && (knows != nil || !l.node.knows(who)) },
		holds: func(now *veth.Survey) bool { return len(held(now, a, who, knows == nil)) == 0 },
	})
}

// explains marks the host ends behind which a reserved address is.
func (l *look) explains(s *store, a netip.Addr) {
	bridges := l.nets.named(s.network).bridges
	for _, p := range l.kernel.Addresses[a] {
		if e := l.endAt(p); e != nil && (e.bridge == "" || bridges[e.bridge]) {
			e.known = true
		}
	}
}

// unheld is the finding of a reservation that nobody has, and who knows its
// holder, if anybody.
func (l *look) unheld(s *store, h ipam.Held, knows []Evidence) Finding {
	who := attachment(s, h)
	f := about(LeakedAddress, s, h)
	f.Attachment = &who
	f.says(IPAM, fmt.Sprintf("reserved for %s in %s", h.Holder, s.dir))
	if knows != nil {
		f.Kind = ReservationWithoutAttachment
		f.Evidence = append(f.Evidence, knows...)
	} else {
		f.says(Records, "no record of "+who.ContainerID)
		l.alsoSay(&f, who)
	}
	f.says(Kernel, l.placed(h.Address))
	return f
}

// released says how a reservation that stands for nobody is given back.
func (l *look) released(f Finding, s *store, who delegates.Attachment) Finding {
	net := l.nets.named(s.network)
	switch r := l.records[who]; {
	case f.Kind == ReservationWithoutAttachment && r != nil && r.state == cache.Attached && slices.Contains(r.addresses, f.Address):
		return f.mendedBy(restored(r))
	case f.Kind == ReservationWithoutAttachment && r != nil && r.state == cache.Attached && s.ours && !l.kernel.Partial:
		return f.mendedBy(Repair{Action: RemoveReservation, Attachment: who, Address: f.Address, Path: f.Path, Stamp: cache.Stamp(f.Path)})
	case f.Kind == ReservationWithoutAttachment:
		return f.reported(knownBy(f) + " knows the container: its DEL, or the end of that, comes first")
	case !s.ours:
		return f.reported(notOurs)
	case !possible(who.ContainerID):
		return f.reported("no runtime gives a container such an id: the file is somebody's own")
	case net.conf == "":
		return f.reported("no configuration of the network is known")
	case l.kernel.Partial:
		return f.reported("a namespace could not be looked at: it may have the address")
	case len(l.kernel.Addresses[f.Address]) > 0:
		return f.reported("an interface in another namespace has the address")
	}
	if who.IfName == "" {
		who.IfName = "eth0" // of an old host-local: DEL then releases what names the container alone
	}
	return f.mendedBy(Repair{Action: Del, Attachment: who, Conf: net.conf})
}

// possible tells that a text may be a container's id (CNI spec 1.1.0, section 2):
// letters, digits, and behind the first of them signs that no path is made of.
func possible(id string) bool {
	for i, c := range id {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("_.-", c)) {
			return false
		}
	}
	return id != ""
}

// knownBy is who says that it knows what a finding is about.
func knownBy(f Finding) string {
	words := map[Source]string{Records: "a record", Libcni: "libcni's entry", Runtime: "the runtime", Kernel: "an interface"}
	for _, e := range f.Evidence[1:] { // the first is the reservation
		if w := words[e.Source]; w != "" {
			return w
		}
	}
	return "somebody"
}

// held is the interfaces that have a reservation's address. Where nobody knows
// the holder they speak for it only where the host leads to them, and they are
// not proven to be another's.
func held(k *veth.Survey, a netip.Addr, who delegates.Attachment, strict bool) (out []veth.Place) {
	for _, p := range k.Addresses[a] {
		e, _ := k.HostEnd(p)
		owner, _ := veth.OwnerOf(e.Alias)
		if !strict || !apart(k, p) && (owner.Network == "" || owner.ContainerID == who.ContainerID) {
			out = append(out, p)
		}
	}
	return out
}

// apart tells that an interface is in a namespace that the host does not lead to.
func apart(k *veth.Survey, p veth.Place) bool { return p.Space != 0 && k.Spaces[p.Space].Number < 0 }

// placed says where an address is.
func (l *look) placed(a netip.Addr) string {
	places := l.kernel.Addresses[a]
	if len(places) == 0 {
		return "no interface has the address"
	}
	var out []string
	for _, p := range places {
		out = append(out, l.placeSays(p))
	}
	return "the address is on " + strings.Join(out, " and on ")
}

// placeSays names an interface.
func (l *look) placeSays(p veth.Place) string {
	name := p.Label
	if name == "" {
		name = fmt.Sprintf("interface %d", p.Index)
	}
	switch e := l.endAt(p); {
	case p.Space == 0:
		return name + " of the host"
	case e != nil:
		return name + " behind " + e.Name
	}
	return name + " in " + l.kernel.Spaces[p.Space].Path
}

// knows is what tells that a container is known, by its id alone; nil where
// nobody knows it.
func (l *look) knows(a delegates.Attachment) (out []Evidence) {
	for _, r := range l.byID[a.ContainerID] {
		out = append(out, Evidence{Records, fmt.Sprintf("%s is %s", r.Attachment, r.state)})
	}
	if l.ids.has(a.ContainerID) || l.damaged.has(cache.EntryName(a)) || l.bare[begins(a)] {
		out = append(out, Evidence{Libcni, "it has an entry of " + a.ContainerID})
	}
	if there, says := l.sandbox(a.ContainerID); there {
		out = append(out, Evidence{Runtime, says})
	}
	if e := l.byMark[a.ContainerID]; e != nil {
		out = append(out, Evidence{Kernel, e.Name + " is its host end"})
	}
	return out
}

// knows tells that a record or an entry of libcni's is of an attachment by now.
func (n Node) knows(a delegates.Attachment) bool { return n.recorded(a) || n.entryPath(a) != "" }
