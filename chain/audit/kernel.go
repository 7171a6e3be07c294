package audit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/chain/codes"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/ipam"
)

// judgeEnds suspects host ends of ours without a record, and ports of the
// networks' bridges that nobody tells of.
func (l *look) judgeEnds(ctx context.Context) {
	bridges := map[string]bool{}
	for _, n := range l.nets.all {
		maps.Copy(bridges, n.bridges)
	}
	for _, r := range l.records {
		for _, name := range r.hosts {
			if e := l.named[name]; e != nil {
				e.known = true
			}
		}
	}
	for _, e := range l.named {
		switch unknown := bridges[e.bridge] && !e.known; {
		case e.owner.Network != "" || e.hashed:
			l.orphan(ctx, e)
		case unknown && e.Peer == 0:
			l.orphan(ctx, e)
		case unknown && l.kernel.Peer(e.Link) >= 0:
			l.unknownPort(ctx, e)
		}
	}
}

// orphan suspects a host end whose attachment has no record, or that leads to
// nothing.
func (l *look) orphan(ctx context.Context, e *end) {
	if l.records[e.owner] != nil || e.hashed && l.recordOf(e.Alias) {
		return
	}
	l.suspect(ctx, suspect{
		Finding: l.orphaned(e), id: e.owner.ContainerID, stamps: []string{fmt.Sprint(e.Index)},
		still: func(*Finding) bool { return e.owner.Network == "" || !l.node.recorded(e.owner) },
		holds: func(now *veth.Survey) bool { return has(now, e) },
	})
}

// recordOf tells whether a record's attachment has an alias that is a hash.
func (l *look) recordOf(alias string) bool {
	for a := range l.records {
		if veth.Alias(a.String()) == alias {
			return true
		}
	}
	return false
}

// orphaned is the finding of an orphan, and how it is removed: by the
// configuration of its network, or where none is known by one that has no more
// than the name.
func (l *look) orphaned(e *end) Finding {
	f := Finding{Kind: OrphanVeth, Network: e.owner.Network, Interface: e.Name}
	switch {
	case e.hashed:
		f.says(Kernel, fmt.Sprintf("%s has the alias %q", e.Name, e.Alias))
		return f.reported("its alias is a hash: whose it was is not known")
	case e.owner.Network == "":
		f.says(Kernel, fmt.Sprintf("%s is a port of %s, and its other end is gone", e.Name, e.bridge))
		return f.reported("it does not prove to be ours")
	}
	f.Attachment = &e.owner
	f.says(Kernel, fmt.Sprintf("%s has the alias %q", e.Name, e.Alias))
	f.says(Records, "no record of it")
	l.alsoSay(&f, e.owner)
	path := l.node.entryPath(e.owner)
	there, _ := l.sandbox(e.owner.ContainerID)
	switch kept, ok := lostIn(path, e.owner); {
	case ok && kept.dir().Recorded(e.owner):
		return f.reported("its record is in " + kept.dir().Path + ", where was not looked")
	case ok && slices.Contains(kept.Host, e.Name):
		return f.mendedBy(Repair{Action: WriteRecord, Attachment: e.owner, Path: path, Stamp: kept.Stamp})
	case there || path != "":
		return f.reported("its record is lost, and it may live: libcni or the runtime knows it")
	case l.inhabited(e):
		return f.reported("processes are in its pod's namespace, or may be where not all are seen and the runtime was not asked")
	}
	f.says(Kernel, "no process is seen in the namespace of its other end")
	bare := fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"type":%q}`, e.owner.Network, conflist.PluginType)
	return f.mendedBy(Repair{Action: Del, Attachment: e.owner, Conf: cmp.Or(l.nets.named(e.owner.Network).conf, bare)})
}

// inhabited tells that processes are in the namespace of a pair's other end: of
// another runtime's pod perhaps. Where not all are seen, one that was asked tells.
func (l *look) inhabited(e *end) bool {
	at := l.kernel.Peer(e.Link)
	return at > 0 && (l.kernel.Spaces[at].Inhabited || l.node.Sandboxes == nil && !l.kernel.Everyone)
}

// has tells that a host end is still there, as it was, and does not go just now.
func has(k *veth.Survey, e *end) bool {
	now, ok := k.Link(e.Index)
	same := ok && now.Name == e.Name && now.Alias == e.Alias && now.Master == e.Master
	return same && now.Peer == e.Peer && now.PeerNS == e.PeerNS && !k.Dying(now)
}

// unknownPort suspects a port of a network's bridge.
func (l *look) unknownPort(ctx context.Context, e *end) {
	f := Finding{Kind: UnknownOwner, Network: l.networkAt(e), Interface: e.Name}
	f.says(Kernel, fmt.Sprintf("%s is a port of %s and has no alias of ours", e.Name, e.bridge))
	f.says(Records, "no record names it")
	f.says(Libcni, "no entry of a living attachment names it")
	f.says(IPAM, "no address of its pod is reserved")
	f = f.reported("it does not prove to be ours")
	l.suspect(ctx, suspect{
		Finding: f, stamps: []string{fmt.Sprint(e.Index)}, still: func(*Finding) bool { return true },
		holds: func(now *veth.Survey) bool { return has(now, e) && !l.leased(now, e) && !l.hostsByNow().has(e.Name) },
	})
}

// leased tells that an address of the pod behind a port is reserved by now, on a
// network of the port's bridge.
func (l *look) leased(k *veth.Survey, e *end) bool {
	var dirs []string
	for _, n := range l.nets.all {
		if n.bridges[e.bridge] {
			dirs = slices.AppendSeq(dirs, maps.Keys(n.stores))
		}
	}
	for a := range k.Addresses {
		if onPeer(k, a, e) && slices.ContainsFunc(dirs, func(dir string) bool {
			h, err := ipam.Look(filepath.Join(dir, a.String()))
			return err == nil && h.State == ipam.Reserved
		}) {
			return true
		}
	}
	return false
}

// hostsByNow is the host ends that libcni tells of at the end, read once for all
// suspects.
func (l *look) hostsByNow() hashes {
	if l.hostsNow.set != nil {
		return l.hostsNow
	}
	l.hostsNow = newHashes()
	for f, err := range cache.Files(l.node.CacheDirs...) {
		l.unread(Libcni, f.Path, err)
		for _, name := range f.Host { // of what cannot be read none
			l.hostsNow.add(name)
		}
	}
	return l.hostsNow
}

// judgeAddresses suspects those that two pods of one bridge or network have, or
// two records.
func (l *look) judgeAddresses(ctx context.Context) {
	for a, places := range l.kernel.Addresses {
		if len(places) < 2 {
			continue
		}
		groups := map[string][]veth.Place{}
		for _, p := range places {
			if e := l.endAt(p); e != nil && e.bridge != "" {
				groups[e.bridge] = append(groups[e.bridge], p)
			} else if e != nil && e.owner.Network != "" {
				groups["network "+e.owner.Network] = append(groups["network "+e.owner.Network], p)
			}
		}
		for _, both := range groups {
			if len(both) > 1 {
				l.duplicate(ctx, a, both)
			}
		}
	}
	l.judgeRecorded(ctx)
}

// duplicate suspects an address of two interfaces.
func (l *look) duplicate(ctx context.Context, a netip.Addr, both []veth.Place) {
	f := Finding{Kind: DuplicateAddress, Network: l.networkAt(l.endAt(both[0])), Address: a}
	if l.twice(f.Network, a) {
		return
	}
	var stamps []string
	for _, p := range both {
		f.says(Kernel, "the address is on "+l.placeSays(p))
		stamps = append(stamps, fmt.Sprint(l.endAt(p).Index))
	}
	slices.Sort(stamps)
	f = f.reported(undecided)
	l.suspect(ctx, suspect{
		Finding: f, stamps: stamps, still: func(*Finding) bool { return true },
		holds: func(now *veth.Survey) bool {
			return !slices.ContainsFunc(both, func(p veth.Place) bool { return !has(now, l.endAt(p)) || !onPeer(now, a, l.endAt(p)) })
		},
	})
}

// onPeer tells that the other end of a pair has an address.
func onPeer(k *veth.Survey, a netip.Addr, e *end) bool {
	return slices.ContainsFunc(k.Addresses[a], func(p veth.Place) bool { return p.Index == e.Peer && p.Space == k.Peer(e.Link) })
}

// networkAt is the network of a host end: its owner's, else the first by name of
// those on its bridge.
func (l *look) networkAt(e *end) (name string) {
	if e.owner.Network != "" {
		return e.owner.Network
	}
	for _, n := range l.nets.all {
		if n.bridges[e.bridge] && (name == "" || n.name < name) {
			name = n.name
		}
	}
	return name
}

// judgeRecorded suspects addresses that two living records have, and those of
// one that are not reserved for it.
func (l *look) judgeRecorded(ctx context.Context) {
	owner := map[double]*record{}
	for _, r := range l.records {
		if r.told {
			continue
		}
		for _, a := range r.addresses {
			if other := owner[double{r.Network, a}]; other != nil {
				l.both(ctx, a, r, other)
			}
			owner[double{r.Network, a}] = r
			if s := l.nets.stores[r.config.store]; s != nil {
				l.lacks(ctx, s, r.Attachment, a, Evidence{Records, fmt.Sprintf("%s is attached with it since %s", r.Attachment, r.began.Format(time.DateTime))}, r.same)
			}
		}
	}
}

// both suspects an address of two records.
func (l *look) both(ctx context.Context, a netip.Addr, r, other *record) {
	if l.twice(r.Network, a) {
		return
	}
	f := Finding{Kind: DuplicateAddress, Network: r.Network, Address: a}
	for _, one := range []*record{r, other} {
		f.says(Records, fmt.Sprintf("%s has it since %s", one.Attachment, one.began.Format(time.DateTime)))
	}
	f.says(Kernel, l.placed(a))
	f = f.reported(undecided)
	l.suspect(ctx, suspect{Finding: f, still: func(*Finding) bool { return r.same() && other.same() }})
}

// again reads the record once more, and tells whether it says what it said.
func (r *record) again() (now cache.Record, same bool) {
	now, err := r.dir.Read(r.Attachment)
	return now, err == nil && now.State == r.state && now.Began.Equal(r.began)
}

func (r *record) same() bool {
	_, same := r.again()
	return same
}

// judgeChecked hands on what CHECK found of the attachments that live. What a
// store lacks is found there.
func (l *look) judgeChecked(ctx context.Context) {
	for _, c := range l.node.Checked {
		r := l.records[c.Attachment]
		if r == nil || r.told || r.state != cache.Attached {
			continue
		}
		l.counts.Checked++
		l.unread(Check, c.String(), c.Err)
		taken := slices.ContainsFunc(c.Findings, l.taken)
		for _, d := range c.Findings {
			if d.Code == "ipam.reservation" && l.nets.stores[r.config.store] != nil {
				continue
			}
			f := Finding{Kind: Drift, Network: c.Network, Attachment: &c.Attachment}
			f.says(Check, fmt.Sprintf("%s: expected %s, found %s", d.Code, d.Expected, d.Found))
			l.suspect(ctx, suspect{Finding: l.drifted(f, r, d.Code, taken), id: c.ContainerID, stamps: []string{d.Code, d.Expected, d.Found}, still: func(*Finding) bool { return r.same() }})
		}
	}
}

// taken tells that an address which a pod lacks is on an interface: another has it
// by now.
func (l *look) taken(d delegates.Finding) bool {
	p, err := netip.ParsePrefix(d.Expected)
	return d.Code == "address.missing" && err == nil && len(l.kernel.Addresses[p.Addr()]) > 0
}

// drifted says how a difference is put right.
func (l *look) drifted(f Finding, r *record, code string, taken bool) Finding {
	reason, _ := codes.ReasonOf(code) // of a newer plugin's nothing is known
	switch {
	case taken:
		return f.reported("another interface has an address that is its own: who is to have it comes first")
	case reason.Restores:
		f = f.mendedBy(restored(r))
		f.Fix = "put right " + code + ", and what else CHECK finds"
		return f
	case code == "delegate.check":
		return f.reported("what the plugin behind it made cannot be made again: the pod has to be")
	case reason.Mends:
		return f.reported("DEL and a new ADD mend it: " + reason.Hint)
	}
	return f.reported(cmp.Or(reason.Hint, "what it is, this version does not know"))
}

// restored is the repair of what an attachment lacks that lives.
func restored(r *record) Repair { return Repair{Action: Restore, Attachment: r.Attachment} }
