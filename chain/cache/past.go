package cache

import (
	"strings"

	"github.com/tracewire/tracewire/trace"
)

// Tell writes the operation that wrote last, where it did not tell of itself, with
// what is known of its pod, unless the spool has it all the same. It tells whether
// it wrote it: a loss is counted. A spool that cannot be read is an error.
func (r *Record) Tell(to func() trace.Sink, pod ...trace.KeyValue) (written bool, err error) {
	past, untold := r.Untold()
	if !untold {
		return false, nil
	}
	sink := to()
	if told, err := sink.Spool.Has(past.Span, past.Began); told || err != nil {
		return false, err
	}
	past.Attributes = append(past.Attributes, pod...)
	_ = sink.Write(past.Recorder())
	return true, nil
}

// Untold is the operation that wrote last, where it did not tell of itself: its
// process was killed. ok is false where it did.
func (r *Record) Untold() (p trace.Past, ok bool) {
	if r.Told || r.State == None || r.State == Unreadable || r.last.Span == "" {
		return p, false
	}
	phases := r.Phases()
	p = trace.Past{Name: r.last.Name, Span: r.last.Span, Parent: r.last.Parent, Began: r.last.began, Ended: r.last.until}
	if r.Deleting != "" {
		p.Link = r.Span
	}
	for _, x := range phases {
		p.Phases = append(p.Phases, trace.Phase(x))
	}
	p.Attributes = trace.Given(
		trace.KeyCommand.String(strings.TrimPrefix(p.Name, "cni.")),
		trace.KeyName.String(r.Network),
		trace.KeyID.String(r.ContainerID),
		trace.KeyContainer.String(r.ContainerID),
		trace.KeyIfName.String(r.IfName),
		trace.KeyNetNS.String(r.NetNS),
		trace.KeyRecord.String(string(r.State)))
	return p, true
}
