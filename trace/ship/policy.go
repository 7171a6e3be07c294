package ship

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// Policy says which traces leave the node. The zero Policy is all of them.
type Policy struct {
	Parent bool          // those that the parent sampled, that have an error, or that are slow
	Slow   time.Duration // how long a slow span takes at least; 0: none is slow
}

// sampled is W3C Trace Context's flag.
const sampled = 1

// judge applies a policy to lines, each with all spans of an operation. What is
// told later of a trace that was shipped for its own sake is shipped too.
type judge struct {
	Policy
	kept traces
}

// ships tells for each line whether it is shipped.
func (j *judge) ships(lines []ptrace.Traces) []bool {
	out := make([]bool, len(lines))
	for i, td := range lines {
		flagged, notable := j.look(td)
		if out[i] = flagged || notable || !j.Parent; notable && j.Parent {
			each(td, func(s ptrace.Span) { j.kept.add(s.TraceID()) })
		}
	}
	for i, td := range lines {
		each(td, func(s ptrace.Span) { out[i] = out[i] || j.kept.has(s.TraceID()) })
	}
	return out
}

// look tells whether a line was sampled by the parent, and whether it has to be
// shipped all the same.
func (j *judge) look(td ptrace.Traces) (flagged, notable bool) {
	each(td, func(s ptrace.Span) {
		flagged = flagged || s.Flags()&sampled != 0
		took := s.EndTimestamp().AsTime().Sub(s.StartTimestamp().AsTime())
		notable = notable || s.Status().Code() == ptrace.StatusCodeError || j.Slow > 0 && took >= j.Slow
	})
	return flagged, notable
}

func each(td ptrace.Traces, do func(ptrace.Span)) {
	for _, rs := range td.ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			for _, s := range ss.Spans().All() {
				do(s)
			}
		}
	}
}

// maxTraces bounds how many traces are remembered.
const maxTraces = 4096

// traces is the last trace ids that were added.
type traces struct {
	known map[pcommon.TraceID]bool
	order []pcommon.TraceID
}

func (t *traces) has(id pcommon.TraceID) bool { return t.known[id] }

func (t *traces) add(id pcommon.TraceID) {
	if t.known[id] {
		return
	}
	if t.known == nil {
		t.known = map[pcommon.TraceID]bool{}
	}
	t.known[id] = true
	if t.order = append(t.order, id); len(t.order) > maxTraces {
		delete(t.known, t.order[0])
		t.order = t.order[1:]
	}
}
