package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/portmap"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/ipam"
)

// portmapType is the reference plugin's.
const portmapType = "portmap"

// ports is what portmap has for a container.
type ports struct {
	portmap.Rules
	live, known bool // as a rule's
}

// readPorts lists portmap's rules, of nf_tables and of iptables' table nat.
func (l *look) readPorts(nat []string) error {
	all, err := portmap.Look(nat)
	for _, r := range all {
		p := &ports{Rules: r}
		l.ports[r.Mark] = p
		if a := l.portsOf(p); a.Network != "" {
			l.bare[begins(a)] = false
		}
	}
	return err
}

// claimPorts marks the rules that are of an attachment. The loopback has none,
// and its entries outlive their container.
func (l *look) claimPorts(a delegates.Attachment, live bool) {
	if len(l.ports) == 0 || a.IfName == "lo" {
		return
	}
	for _, mark := range portmap.Marks(a) {
		if p := l.ports[mark]; p != nil {
			p.known, p.live = true, p.live || live
		}
	}
}

// judgePorts suspects the rules that nobody claimed, whose sandbox is gone, and
// that lead to no pod that may be theirs.
func (l *look) judgePorts(ctx context.Context) {
	for _, p := range l.ports {
		a := l.portsOf(p)
		if there, _ := l.sandbox(p.ContainerID); !p.live && !there && !l.leads(l.kernel, p, a) {
			l.stalePorts(ctx, p, a)
		}
	}
}

// portsOf is whose rules are. The network of those that name none is the one
// whose ranges have their addresses. Runtimes' usual name stands for the
// interface's: the rules are the container's, whatever it is.
func (l *look) portsOf(p *ports) delegates.Attachment {
	a := delegates.Attachment{Network: p.Network, ContainerID: p.ContainerID, IfName: "eth0"}
	if a.Network != "" {
		return a
	}
	var networks []string
	for _, s := range l.nets.stores {
		if slices.ContainsFunc(p.Addresses(), s.serves) && !slices.Contains(networks, s.network) {
			networks = append(networks, s.network)
		}
	}
	if len(networks) == 1 {
		a.Network = networks[0]
	}
	return a
}

// leads tells that an interface that the rules lead to speaks for them: the host
// leads to it, and it is not proven to be another's.
func (l *look) leads(k *veth.Survey, p *ports, a delegates.Attachment) bool {
	for _, address := range p.Addresses() {
		if len(held(k, address, a, p.ContainerID != "")) > 0 && l.holder(p, a, address) == "" {
			return true
		}
	}
	return false
}

// holder is another container that an address of the rules is reserved for by
// now on their network; "" where there is none.
func (l *look) holder(p *ports, a delegates.Attachment, address netip.Addr) string {
	net := l.nets.all[a.Network]
	if net == nil || p.ContainerID == "" {
		return ""
	}
	for _, s := range net.stores {
		h, reserved := l.heldIn(s)[address]
		if reserved && h.State == ipam.Reserved && h.Holder.ContainerID != p.ContainerID {
			return h.Holder.ContainerID
		}
	}
	return ""
}

// stalePorts suspects one container's.
func (l *look) stalePorts(ctx context.Context, p *ports, a delegates.Attachment) {
	f := Finding{Kind: StalePortmap, Network: a.Network, Path: p.Name}
	f.says(Rules, p.says())
	if p.ContainerID != "" {
		f.Attachment = &delegates.Attachment{Network: a.Network, ContainerID: a.ContainerID}
		f.says(Records, "no record of it")
		l.alsoSay(&f, a)
	}
	for _, address := range p.Addresses() {
		if other := l.holder(p, a, address); other != "" {
			f.says(IPAM, fmt.Sprintf("%s is reserved for %s", address, other))
		}
		f.says(Kernel, address.String()+": "+l.placed(address))
	}
	l.suspect(ctx, suspect{
		Finding: l.unmapped(f, p, a), id: p.ContainerID, stamps: []string{p.Stamp},
		still: func(*Finding) bool { return p.known || p.ContainerID == "" || !l.node.knows(a) },
		holds: func(now *veth.Survey) bool {
			return l.rulesAgain(ctx).ports[p.Mark] == p.Stamp && !l.leads(now, p, a) && !l.holdersNow(now)[p.ContainerID]
		},
	})
}

// says is the rules in one line.
func (p *ports) says() string {
	all := make([]string, len(p.Maps))
	for i, m := range p.Maps {
		all[i] = m.String()
	}
	where := "chain " + p.Name
	if p.Backend == portmap.Nftables {
		where = "rules of " + p.ContainerID + " in table " + p.Name
	}
	return where + ": " + strings.Join(all, ", ")
}

// unmapped says how rules are removed that stand for nobody: by portmap, where a
// list with an entry of ours has it.
func (l *look) unmapped(f Finding, p *ports, a delegates.Attachment) Finding {
	damaged, asked := l.bare[begins(a)]
	elsewhere := func(address netip.Addr) bool {
		return l.holder(p, a, address) == "" && slices.ContainsFunc(l.kernel.Addresses[address], func(at veth.Place) bool { return apart(l.kernel, at) })
	}
	net := l.nets.all[a.Network]
	switch {
	case p.known:
		return f.reported("somebody knows its attachment, which is gone: the end of what speaks for it comes first")
	case p.ContainerID == "":
		return f.reported("its rules do not tell whose they are")
	case damaged, !asked && len(l.damaged.set) > 0:
		return f.reported("a file of libcni's that cannot be read may be of its attachment")
	case a.Network == "":
		return f.reported("its rules name no network, and no range of one alone has its addresses")
	case net == nil || net.portmap == "":
		return f.reported("no list with tracewire has portmap for its network")
	case l.kernel.Partial:
		return f.reported("a namespace could not be looked at: it may have the address")
	case slices.ContainsFunc(p.Addresses(), elsewhere):
		return f.reported("an interface in another namespace has the address")
	}
	return f.mendedBy(Repair{Action: Del, Attachment: a, Conf: p.conf(net.portmap), Path: p.Name, Stamp: p.Stamp})
}

// conf is what portmap is given for a DEL of the rules. It does nothing without
// the ports, and refuses conditions that are not for the backend that made them.
func (p *ports) conf(of string) string {
	var m map[string]any
	_ = json.Unmarshal([]byte(of), &m) // was written as JSON
	for _, key := range []string{"conditionsV4", "conditionsV6", "externalSetMarkChain"} {
		delete(m, key)
	}
	m["backend"], m["runtimeConfig"] = p.Backend, map[string]any{"portMappings": p.mappings()}
	b, _ := json.Marshal(m) // was read from JSON
	return string(b)
}

// mapping is a capability arg as portmap reads it.
type mapping struct {
	Host      uint16 `json:"hostPort"`
	Container uint16 `json:"containerPort"`
	Protocol  string `json:"protocol"`
}

// mappings is the ports, or where the rules tell none any one: what is removed
// goes by the container.
func (p *ports) mappings() (out []mapping) {
	for _, m := range p.Maps {
		if m.Protocol != "" && m.Port > 0 && m.To.Port() > 0 {
			out = append(out, mapping{m.Port, m.To.Port(), m.Protocol})
		}
	}
	if len(out) == 0 {
		out = []mapping{{1, 1, "tcp"}}
	}
	return out
}

// portmapIn is the configuration of portmap, as a runtime hands it to a DEL, in a
// list that has an entry of ours: behind it, or among its delegates; "" for none.
func portmapIn(list []conflist.Entry) string {
	var conf []byte
	ours := false
	for _, e := range list {
		ours = ours || e.Ours()
		if e.Type == portmapType {
			conf = e.Doc.Raw
		}
		for _, d := range e.Delegates {
			if e.Ours() && d.Type == portmapType {
				conf = d.Conf
			}
		}
	}
	if !ours || conf == nil {
		return ""
	}
	return lasting(conflist.Read(conf))
}

// learnPorts takes in how portmap is run in lists, the entries of one after
// those of another. The first counts: the conflists' come before libcni's and the
// records'.
func (n *networks) learnPorts(lists []conflist.Entry) {
	for len(lists) > 0 {
		first := lists[0]
		end := slices.IndexFunc(lists, func(e conflist.Entry) bool { return e.File != first.File })
		if end < 0 {
			end = len(lists)
		}
		if net := n.named(first.Name); net.portmap == "" {
			net.portmap = portmapIn(lists[:end])
		}
		lists = lists[end:]
	}
}

// errUnread is why a DEL is not due after all.
var errUnread = errors.New("what could not be read may speak for it")

// portsByPlugin leaves a repair to portmap, which takes no lock of ours and does
// not look, if another audit finds the very same to be due.
func (n Node) portsByPlugin(ctx context.Context, r Repair) error {
	due, unread := false, false
	n.Network, n.Checked = r.Attachment.Network, nil
	_, err := n.Audit(ctx, Told{
		Finding: func(f Finding) { due = due || f.Repair != nil && *f.Repair == r },
		Unread:  func(Unread) { unread = true },
	})
	switch {
	case err != nil:
		return err
	case unread:
		return errUnread
	case due:
		return ErrPlugin
	}
	return nil
}
