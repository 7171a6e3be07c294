// Package ship sends what the plugin wrote into spool and log to a collector,
// and waits for it, so that the plugin waits for nobody. What is sent is never
// changed: sent twice it is the same. It alone imports network exporters.
package ship

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/tracewire/tracewire/trace/read"
)

// Bounds of what is held in memory, in bytes: of lines that are sent at once,
// and of a request.
const (
	maxBatch   = 1 << 20
	maxRequest = 3 << 20
)

// Spool ships a folder of segments, in order.
type Spool struct {
	sending
	Dir      string
	State    string // folder of the checkpoint; empty: the spool's own
	MaxBytes int64  // budget of the spool, as the plugin has it; 0: not known
	Traces   Traces
	Policy   Policy
	Now      func() time.Time
	// Each is handed every line once, sent or not; nil: nobody is interested. It is
	// called by Follow alone.
	Each func(line []byte)

	place checkpoint
	judge judge
	marks struct {
		sync.Mutex
		of map[string]mark
	}
}

// NewSpool is a Spool that ships all.
func NewSpool(dir string, to Traces) *Spool { return &Spool{Dir: dir, Traces: to, Now: time.Now} }

// Open takes the spool for this agent. The folder has to be there.
func (s *Spool) Open() (err error) {
	if _, err := os.Stat(s.Dir); err != nil {
		return err
	}
	if s.place, err = openCheckpoint(s.Dir, s.State, "agent", s.Dir); err != nil {
		return err
	}
	s.judge.Policy = s.Policy
	s.marks.of = map[string]mark{}
	if err := s.place.load(&s.marks.of); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Log.Warn().Err(err).Msg("checkpoint cannot be read: all of the spool is sent again")
	}
	if s.marks.of == nil {
		s.marks.of = map[string]mark{}
	}
	if s.Policy.Parent {
		s.recall()
	}
	return nil
}

// recall has the policy look again at what was sent before this agent started.
func (s *Spool) recall() {
	all, _ := s.segments()
	for _, g := range all {
		f, err := read.Open(g.path)
		if err != nil {
			continue
		}
		for at := int64(0); at < g.Sent; {
			chunk, skipped, err := read.Chunk(f, at, int(min(maxBatch, g.Sent-at)))
			n := int64(len(chunk)) + skipped
			if err != nil || n == 0 {
				break
			}
			lines, _ := s.parse(slices.Collect(bytes.Lines(chunk)))
			s.judge.ships(lines)
			at += n
		}
		_ = f.Close()
	}
}

// parse reads lines. Those that cannot be read are left out, and are in errs.
func (s *Spool) parse(lines [][]byte) (out []ptrace.Traces, errs []error) {
	var u ptrace.JSONUnmarshaler
	for _, line := range lines {
		td, err := u.UnmarshalTraces(line)
		if err != nil {
			errs = append(errs, fmt.Errorf("line of %d bytes: %w", len(line), err))
			continue
		}
		out = append(out, td)
	}
	return out, errs
}

// Close lets go of the spool.
func (s *Spool) Close() { s.place.close() }

// Ship sends the next batch. It returns false when there is none.
func (s *Spool) Ship(ctx context.Context) (more bool, err error) {
	b, err := s.next(sent)
	if err != nil || b.empty() {
		s.count(func(st *Stats) { st.Oldest = time.Time{} })
		return false, err
	}
	td := s.chosen(b)
	if n := td.SpanCount(); n > 0 {
		s.count(func(st *Stats) { st.Oldest = oldest(td) })
		if err := s.send(ctx, td); err != nil {
			return true, err
		}
	}
	s.settled()
	s.advance(b.marks, sent)
	return true, nil
}

// oldest is when the first span ended.
func oldest(td ptrace.Traces) (at time.Time) {
	each(td, func(sp ptrace.Span) { at = earlier(at, sp.EndTimestamp().AsTime()) })
	return at
}

// chosen is the spans of a batch that are to be sent. What is not is pending.
func (s *Spool) chosen(b batch) ptrace.Traces {
	lines, errs := s.parse(b.lines)
	for _, err := range errs {
		s.Log.Warn().Err(err).Msg("line of the spool cannot be read")
	}
	all, kept := ptrace.NewTraces(), 0
	for i, ship := range s.judge.ships(lines) {
		if !ship {
			kept += lines[i].SpanCount()
			continue
		}
		lines[i].ResourceSpans().MoveAndAppendTo(all.ResourceSpans())
	}
	s.pending = Stats{Broken: uint64(b.torn + len(errs)), Unsampled: uint64(kept)}
	return all
}

// send sends spans in as many requests as it takes. What is refused is halved
// until it is known which span it is for.
func (s *Spool) send(ctx context.Context, td ptrace.Traces) error {
	n := td.SpanCount()
	if n > 1 && (&ptrace.ProtoMarshaler{}).TracesSize(td) > maxRequest {
		return s.halves(ctx, td)
	}
	a, err := s.try(ctx, func(ctx context.Context) Answer { return s.Traces.Send(ctx, td) })
	if err != nil {
		return err
	}
	if a.Verdict == Refused && n > 1 {
		return s.halves(ctx, td)
	}
	s.settle(a, n)
	return nil
}

func (s *Spool) halves(ctx context.Context, td ptrace.Traces) error {
	rest := halve(td)
	if err := s.send(ctx, td); err != nil {
		return err
	}
	return s.send(ctx, rest)
}

// halve takes the second half of the spans out of td. Lines are only taken apart
// where there is one.
func halve(td ptrace.Traces) (rest ptrace.Traces) {
	rest = ptrace.NewTraces()
	n, i := td.ResourceSpans().Len(), 0
	if n == 1 {
		halveLine(td.ResourceSpans().At(0), rest.ResourceSpans().AppendEmpty(), td.SpanCount())
		return rest
	}
	td.ResourceSpans().RemoveIf(func(rs ptrace.ResourceSpans) bool {
		i++
		second := i > (n+1)/2
		if second {
			rs.MoveTo(rest.ResourceSpans().AppendEmpty())
		}
		return second
	})
	return rest
}

// halveLine moves the second half of a line's n spans to another line.
func halveLine(from, to ptrace.ResourceSpans, n int) {
	from.Resource().CopyTo(to.Resource())
	to.SetSchemaUrl(from.SchemaUrl())
	i := 0
	for _, ss := range from.ScopeSpans().All() {
		scope := to.ScopeSpans().AppendEmpty()
		ss.Scope().CopyTo(scope.Scope())
		scope.SetSchemaUrl(ss.SchemaUrl())
		ss.Spans().RemoveIf(func(sp ptrace.Span) bool {
			i++
			second := i > (n+1)/2
			if second {
				sp.MoveTo(scope.Spans().AppendEmpty())
			}
			return second
		})
	}
}

// See hands all lines that are new to Each.
func (s *Spool) See() error {
	for {
		b, err := s.next(seen)
		if err != nil || b.empty() {
			return err
		}
		for _, line := range b.lines {
			s.Each(line)
		}
		s.advance(b.marks, seen)
	}
}
