package audit

import "time"

// Grace is how long something has to be found before it is mended.
const Grace = 60 * time.Second

// Look is what an audit found that can be mended, or what it keeps of earlier ones.
// Who repairs keeps it for the next audit, as JSON.
type Look struct {
	Version int              `json:"version"`
	Boot    string           `json:"boot"`
	Seen    map[string]Sight `json:"seen"` // by ID
}

// Sight is when something was found first, and what has to be asked to find it again.
type Sight struct {
	First   time.Duration `json:"first"` // since the kernel started
	Network string        `json:"network,omitempty"`
	Checked bool          `json:"checked,omitempty"` // CHECK told of it
	Asked   bool          `json:"asked,omitempty"`   // it takes a runtime that was asked
}

// sight is a finding's, at its first time.
func sight(f Finding, now time.Duration) Sight {
	ofLoopback := f.Kind == StaleLibcniEntry && f.Attachment != nil && f.Attachment.IfName == "lo"
	return Sight{First: now, Network: f.Network, Checked: f.Kind == Drift, Asked: ofLoopback}
}

// Scope is what an audit looks for.
type Scope struct {
	Network string // the one it looks at; "" for all
	Checked bool   // CHECK was run
	Asked   bool   // a runtime was asked
}

// Scope is what an audit of the node looks for.
func (n Node) Scope() Scope { return Scope{n.Network, n.Checked != nil, n.Sandboxes != nil} }

// covers tells that an audit would have found something that is still there.
func (s Scope) covers(x Sight) bool {
	return (s.Network == "" || s.Network == x.Network) && (s.Checked || !x.Checked) && (s.Asked || !x.Asked)
}

// Planner decides what is to be mended now: what carries proof that it may be,
// and was found by two looks at least Grace apart, and by each between them that
// looked for it.
type Planner struct {
	Earlier Look
	Boot    string        // of this boot; where it is not known nothing is mended
	Uptime  time.Duration // when the audit began, since the kernel started (CLOCK_BOOTTIME): no step of a clock is in it
	Grace   time.Duration // Grace, where nothing else is asked for
	Scope   Scope         // of the audit

	next    Look
	planned map[Repair]bool
}

// Due takes a finding in, and tells whether its Repair is to be carried out. Of
// findings with the same repair one is due.
func (p *Planner) Due(f Finding) bool {
	if f.Repair == nil || p.Boot == "" {
		return false
	}
	if p.planned == nil {
		p.planned, p.next = map[Repair]bool{}, p.Next()
	}
	now := sight(f, p.Uptime)
	before, known := p.earlier(f.ID)
	if known {
		now.First = before.First
	}
	p.next.Seen[f.ID] = now
	if !known || p.Uptime-now.First < p.Grace || p.planned[*f.Repair] {
		return false
	}
	p.planned[*f.Repair] = true
	return true
}

// earlier is what was seen before, in this boot.
func (p *Planner) earlier(id string) (s Sight, known bool) {
	s, known = p.Earlier.Seen[id]
	return s, known && p.Earlier.Boot == p.Boot && s.First >= 0 && s.First <= p.Uptime
}

// Next is what the Planner of the next audit is to be given as Earlier: what was
// found, and what was found earlier and not looked for now.
func (p *Planner) Next() Look {
	if p.next.Seen == nil {
		p.next = Look{Version: Version, Boot: p.Boot, Seen: map[string]Sight{}}
		for id := range p.Earlier.Seen {
			if s, known := p.earlier(id); known && !p.Scope.covers(s) {
				p.next.Seen[id] = s
			}
		}
	}
	return p.next
}
