package audit

import "time"

// Grace is how long something has to be found before it is mended.
const Grace = 60 * time.Second

// Look is what an audit found that can be mended. Who repairs keeps it for the
// next audit, as JSON.
type Look struct {
	Version int                      `json:"version"`
	Boot    string                   `json:"boot"`
	Seen    map[string]time.Duration `json:"seen"` // by ID: since the kernel started, when it was found first
}

// Planner decides what is to be mended now: what carries proof that it may be,
// and was found by two looks at least Grace apart, and by each between them.
type Planner struct {
	Earlier Look
	Boot    string        // of this boot; where it is not known nothing is mended
	Uptime  time.Duration // when the audit began, since the kernel started (CLOCK_BOOTTIME): no step of a clock is in it
	Grace   time.Duration // Grace, where nothing else is asked for

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
	first, known := p.Earlier.Seen[f.ID]
	if known = known && p.Earlier.Boot == p.Boot && first <= p.Uptime; !known {
		first = p.Uptime
	}
	p.next.Seen[f.ID] = first
	if !known || p.Uptime-first < p.Grace || p.planned[*f.Repair] {
		return false
	}
	p.planned[*f.Repair] = true
	return true
}

// Next is what the Planner of the next audit is to be given as Earlier.
func (p *Planner) Next() Look {
	if p.next.Seen == nil {
		p.next = Look{Version: Version, Boot: p.Boot, Seen: map[string]time.Duration{}}
	}
	return p.next
}
