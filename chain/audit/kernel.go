package audit

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/ipam"
)

// judgeEnds suspects host ends of ours without a record, and ports of the
// networks' bridges that nobody tells of.
func (l *look) judgeEnds(ctx context.Context) {
	bridges := map[string]*network{}
	for _, n := range l.nets.all {
		for b := range n.bridges {
			bridges[b] = n
		}
	}
	for _, r := range l.records {
		for _, name := range r.hosts {
			if e := l.named[name]; e != nil {
				e.known = true
			}
		}
	}
	for _, e := range l.named {
		switch n := bridges[e.bridge]; {
		case e.owner.Network != "" || e.hashed:
			l.orphan(ctx, e)
		case n != nil && !e.known && e.Peer == 0:
			l.orphan(ctx, e)
		case n != nil && !e.known && l.kernel.Peer(e.Link) >= 0:
			l.unknownPort(ctx, n, e)
		}
	}
}

// orphan suspects a host end whose attachment has no record, or that leads to
// nothing.
func (l *look) orphan(ctx context.Context, e *end) {
	if e.hashed {
		for a := range l.records {
			if veth.Alias(a.String()) == e.Alias {
				return
			}
		}
	} else if l.records[e.owner] != nil {
		return
	}
	f := Finding{Kind: OrphanVeth, Network: e.owner.Network, Interface: e.Name}
	f.says(Kernel, fmt.Sprintf("%s has the alias %q", e.Name, e.Alias))
	switch {
	case e.owner.Network != "":
		f.Attachment = &e.owner
		f.says(Records, "no record of it")
		l.alsoSay(&f, e.owner)
		conf := l.nets.named(e.owner.Network).conf
		if conf == "" {
			conf = fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"type":"tracewire"}`, e.owner.Network)
		}
		if l.spoken(e.owner) {
			f = f.reported("its record is lost, and it may live: libcni or the runtime knows it")
			break
		}
		f = f.mendedBy(Repair{Action: Del, Attachment: e.owner, Conf: conf})
	case e.hashed:
		f = f.reported("its alias is a hash: whose it was is not known")
	default:
		f.Evidence = []Evidence{{Kernel, fmt.Sprintf("%s is a port of %s, and its other end is gone", e.Name, e.bridge)}}
		f = f.reported("it does not prove to be ours")
	}
	l.suspect(ctx, suspect{
		Finding: f, id: e.owner.ContainerID, stamps: []string{fmt.Sprint(e.Index)},
		still: func(*Finding) bool { return e.owner.Network == "" || !l.recorded(e.owner) },
		holds: func(now *veth.Survey) bool { return has(now, e) },
	})
}

// spoken tells that libcni or the runtime knows of an attachment.
func (l *look) spoken(a delegates.Attachment) bool {
	there, _ := l.sandbox(a.ContainerID)
	return there || l.node.entryPath(a) != ""
}

// has tells that a host end is still there, as it was, and does not go just now.
func has(k *veth.Survey, e *end) bool {
	now, ok := k.Link(e.Index)
	same := ok && now.Name == e.Name && now.Alias == e.Alias && now.Master == e.Master
	return same && now.Peer == e.Peer && now.PeerNS == e.PeerNS && !k.Dying(now)
}

// unknownPort suspects a port of a network's bridge.
func (l *look) unknownPort(ctx context.Context, n *network, e *end) {
	f := Finding{Kind: UnknownOwner, Network: n.name, Interface: e.Name}
	f.says(Kernel, fmt.Sprintf("%s is a port of %s and has no alias of ours", e.Name, e.bridge))
	f.says(Records, "no record names it")
	f.says(Libcni, "no entry of a living attachment names it")
	f.says(IPAM, "no address of its pod is reserved")
	f = f.reported("it does not prove to be ours")
	l.suspect(ctx, suspect{
		Finding: f, stamps: []string{fmt.Sprint(e.Index)}, still: func(*Finding) bool { return true },
		holds: func(now *veth.Survey) bool { return has(now, e) && !l.leased(now, n, e) && !l.hostsByNow().has(e.Name) },
	})
}

// leased tells that an address of the pod behind a host end is reserved by now.
func (l *look) leased(k *veth.Survey, n *network, e *end) bool {
	for a := range k.Addresses {
		if !onPeer(k, a, e) {
			continue
		}
		for _, s := range n.stores {
			if h, err := ipam.Look(filepath.Join(s.dir, a.String())); err == nil && h.State == ipam.Reserved {
				return true
			}
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
	for f := range cache.Files(l.node.CacheDirs...) {
		for _, name := range f.Host {
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
	f = f.reported("which of them is to have it is not for the node to tell")
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
	type key struct {
		network string
		address netip.Addr
	}
	owner := map[key]*record{}
	for _, r := range l.records {
		if r.told {
			continue
		}
		for _, a := range r.addresses {
			if other := owner[key{r.Network, a}]; other != nil {
				l.both(ctx, a, r, other)
			}
			owner[key{r.Network, a}] = r
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
	f = f.reported("which of them is to have it is not for the node to tell")
	l.suspect(ctx, suspect{Finding: f, still: func(*Finding) bool { return r.same() && other.same() }})
}

// same tells that the record says what it said.
func (r *record) same() bool {
	now, err := r.dir.Read(r.Attachment)
	return err == nil && now.State == r.state && now.Began.Equal(r.began)
}

// judgeRules suspects masquerade whose attachment is no more.
func (l *look) judgeRules(ctx context.Context) {
	for _, r := range l.records {
		l.claims(r.Attachment, true)
	}
	for a := range l.marked {
		l.claims(a, true)
	}
	l.claimLeases()
	for _, all := range l.rules {
		for _, r := range all {
			if !r.live {
				l.staleRule(ctx, r)
			}
		}
	}
}

// claimLeases marks the rules of those for whom an address is reserved that an
// interface has, and of the runtime's sandboxes.
func (l *look) claimLeases() {
	if len(l.rules) == 0 {
		return
	}
	names := map[string]bool{"eth0": true}
	for _, s := range l.nets.stores {
		for a, h := range l.heldIn(s) {
			if h.State == ipam.Reserved {
				l.claims(attachment(s, h), len(l.kernel.Addresses[a]) > 0)
				names[h.Holder.IfName] = true
			}
		}
	}
	for _, n := range l.nets.all {
		for id := range l.sandboxes {
			for name := range names {
				l.claims(delegates.Attachment{Network: n.name, ContainerID: id, IfName: name}, true)
			}
		}
	}
}

// staleRule suspects one.
func (l *look) staleRule(ctx context.Context, r *rule) {
	f := Finding{Kind: StaleMasquerade, Network: r.Network, Path: r.Name}
	if r.ContainerID != "" {
		f.Attachment = &r.Attachment
		f.says(Records, "no record of it")
		l.alsoSay(&f, r.Attachment)
	}
	says := r.What + " " + r.Name
	if r.What == "table" {
		says += " of network " + r.Network
	}
	f.Evidence = append([]Evidence{{Rules, says}}, f.Evidence...)
	f.says(Kernel, "no interface is known to be its attachment's")
	l.suspect(ctx, suspect{
		Finding: l.unruled(f, r), id: r.ContainerID, stamps: []string{fmt.Sprint(r.Handle)},
		still: func(*Finding) bool { return r.known || r.ContainerID == "" || !l.appeared(r.Attachment) },
		holds: func(*veth.Survey) bool { return l.ruleIsThere(ctx, r) },
	})
}

// unruled says how a rule is removed that stands for nobody.
func (l *look) unruled(f Finding, r *rule) Finding {
	conf := l.nets.named(r.Network).conf
	switch {
	case r.known:
		return f.reported("somebody knows its attachment, which is gone: the end of what speaks for it comes first")
	case len(l.damaged.set) > 0 && r.What == "rule" && r.ContainerID == "":
		return f.reported("a file of libcni's that cannot be read may be of its attachment")
	case r.What == "rule":
		return f.mendedBy(Repair{Action: RemoveRule, Path: r.Name})
	case r.What == "table":
		return f.reported("it goes with the network's next DEL or GC")
	case conf == "" || r.ContainerID == "":
		return f.reported("no configuration of its network is known")
	}
	who := r.Attachment
	if who.IfName == "" {
		who.IfName = "eth0" // the chain is the container's, whatever its interface
	}
	return f.mendedBy(Repair{Action: Del, Attachment: who, Conf: conf})
}

// ruleIsThere lists the rules again, once for all suspects.
func (l *look) ruleIsThere(ctx context.Context, r *rule) bool {
	if l.rulesNow == nil {
		l.rulesNow = lookAgain(ctx)
	}
	return l.rulesNow[r.Found]
}

// judgeChecked hands on what CHECK found.
func (l *look) judgeChecked(ctx context.Context) {
	for _, c := range l.node.Checked {
		for _, d := range c.Findings {
			f := Finding{Kind: Drift, Network: c.Network, Attachment: &c.Attachment}
			f.says(Check, fmt.Sprintf("%s: expected %s, found %s", d.Code, d.Expected, d.Found))
			f = f.reported("the pod may have changed it itself: a new ADD mends it")
			l.suspect(ctx, suspect{Finding: f, id: c.ContainerID, stamps: []string{d.Code, d.Expected, d.Found}, still: func(*Finding) bool { return true }})
		}
	}
}
