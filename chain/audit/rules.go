package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/iptables"
	"github.com/tracewire/tracewire/delegates/masquerade"
	"github.com/tracewire/tracewire/delegates/portmap"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/ipam"
)

// rule is one of masquerade.
type rule struct {
	masquerade.Found
	live  bool // an attachment that may live has it
	known bool // an attachment that somebody tells of has it
}

// readRules lists masquerade's and portmap's.
func (l *look) readRules(ctx context.Context) {
	nat, errNat := iptables.Nat(ctx)
	all, errMasquerade := masquerade.Look(nat)
	for _, f := range all {
		l.rules[f.Mark] = append(l.rules[f.Mark], &rule{Found: f})
	}
	l.unread(Rules, "", errors.Join(errNat, errMasquerade, l.readPorts(nat)))
}

// rulesNow is the rules that are there at the end.
type rulesNow struct {
	masquerade map[masquerade.Found]bool
	ports      map[string]string // stamps by mark
}

// rulesAgain lists the rules again, once for all suspects, behind the operations
// that are at work: a DEL removes its record before its network's table.
func (l *look) rulesAgain(ctx context.Context) *rulesNow {
	if l.rulesNow != nil {
		return l.rulesNow
	}
	settle(ctx)
	l.rulesNow = &rulesNow{map[masquerade.Found]bool{}, map[string]string{}}
	nat, errNat := iptables.Nat(ctx)
	all, errMasquerade := masquerade.Look(nat)
	for _, f := range all {
		l.rulesNow.masquerade[f] = true
	}
	mapped, errPorts := portmap.Look(nat)
	for _, r := range mapped {
		l.rulesNow.ports[r.Mark] = r.Stamp
	}
	l.unread(Rules, "", errors.Join(errNat, errMasquerade, errPorts))
	return l.rulesNow
}

// claims marks the rules that are of an attachment.
func (l *look) claims(a delegates.Attachment, live bool) {
	l.claimPorts(a, live)
	l.claimRules(a, live)
}

func (l *look) claimRules(a delegates.Attachment, live bool) {
	if len(l.rules) == 0 {
		return
	}
	for _, mark := range masquerade.Marks(a) {
		for _, r := range l.rules[mark] {
			r.known, r.live = true, r.live || live
		}
	}
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
	if len(l.rules)+len(l.ports) == 0 {
		return
	}
	names := map[string]bool{"eth0": true}
	for _, s := range l.nets.stores {
		for a, h := range l.heldIn(s) {
			if h.State == ipam.Reserved {
				who, living := attachment(s, h), len(l.kernel.Addresses[a]) > 0
				l.claimRules(who, living)
				if living { // else it is wrong itself, and needs no ports
					l.claimPorts(who, true)
				}
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
		still: func(*Finding) bool {
			return r.ContainerID == "" && !l.serves(r.Network) || r.ContainerID != "" && (r.known || !l.node.knows(r.Attachment))
		},
		holds: func(now *veth.Survey) bool {
			return l.rulesAgain(ctx).masquerade[r.Found] && !l.holdersNow(now)[r.ContainerID]
		},
	})
}

// serves tells that a network has a record by now: the first ADD makes its table
// behind that.
func (l *look) serves(network string) bool {
	return network != "" && slices.ContainsFunc(l.node.dirs(), func(d cache.Dir) bool {
		all, err := d.Of(network)
		return len(all) > 0 || err != nil
	})
}

// unruled says how a rule is removed that stands for nobody.
func (l *look) unruled(f Finding, r *rule) Finding {
	conf := l.nets.confOf(r.Network)
	switch {
	case r.known:
		return f.reported("somebody knows its attachment, which is gone: the end of what speaks for it comes first")
	case len(l.damaged.set) > 0 && r.What == "rule" && r.ContainerID == "":
		return f.reported("a file of libcni's that cannot be read may be of its attachment")
	case r.What == "table" && masquerade.Info{Name: r.Name}.Of(r.Network):
		return f.mendedBy(Repair{Action: RemoveTable, Attachment: delegates.Attachment{Network: r.Network}, Path: r.Name})
	case r.What == "table":
		return f.reported("which network it is of is not known: its name is a hash")
	case conf == "" || r.ContainerID == "":
		return f.reported("no configuration of ours is of its network")
	case r.What == "rule":
		return f.mendedBy(Repair{Action: RemoveRule, Path: r.Name})
	}
	who := r.Attachment
	if who.IfName == "" {
		who.IfName = "eth0" // the chain is the container's, whatever its interface
	}
	return f.mendedBy(Repair{Action: Del, Attachment: who, Conf: conf})
}

// holdersNow is the containers that an address is reserved for by now which an
// interface has, read once for all suspects: what was known at the first look may
// have been made anew since, and libcni tells of it only when all is done.
func (l *look) holdersNow(now *veth.Survey) map[string]bool {
	if l.holders != nil {
		return l.holders
	}
	l.holders = map[string]bool{}
	for _, s := range l.nets.stores {
		for h, err := range ipam.In(s.dir) {
			l.unread(IPAM, h.Path, err)
			if err == nil && h.State == ipam.Reserved && len(now.Addresses[h.Address]) > 0 {
				l.holders[h.Holder.ContainerID] = true
			}
		}
	}
	return l.holders
}
