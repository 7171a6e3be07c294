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
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/ptrace"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/trace"
	"github.com/tracewire/tracewire/trace/read"
)

// Bounds of what is held in memory, in bytes: of lines that are sent at once,
// and of a request.
const (
	maxBatch   = 1 << 20
	maxRequest = 3 << 20
)

// keep is how long segments stay after they were acknowledged, for those who
// look for a trace on the node.
const keep = time.Hour

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

// segment is a segment as it is now.
type segment struct {
	name string
	path string
	size int64
	mark
}

// segments is the segments, oldest first, with the marks they have. Marks of
// those that are gone are forgotten. They are listed under the lock: by an older
// list a segment that came since would be gone, and its mark with it.
func (s *Spool) segments() (out []segment, err error) {
	s.marks.Lock()
	defer s.marks.Unlock()
	paths, err := read.Segments(s.Dir)
	if err != nil {
		return nil, err
	}
	there := map[string]mark{}
	for _, path := range paths {
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil {
			continue
		}
		g := segment{name: filepath.Base(path), path: path, size: st.Size}
		if g.mark = s.marks.of[g.name]; g.Inode != st.Ino || max(g.Seen, g.Sent) > st.Size {
			g.mark = mark{Inode: st.Ino}
		}
		there[g.name] = g.mark
		out = append(out, g)
	}
	s.marks.of = there
	return out, nil
}

// advance moves marks on, and makes that last.
func (s *Spool) advance(to map[string]mark, which func(*mark) *int64) error {
	s.marks.Lock()
	defer s.marks.Unlock()
	for name, m := range to {
		now := s.marks.of[name]
		if now.Inode != m.Inode {
			continue // it is another one by now
		}
		*which(&now) = *which(&m)
		s.marks.of[name] = now
	}
	return s.place.save(s.marks.of)
}

func seen(m *mark) *int64 { return &m.Seen }
func sent(m *mark) *int64 { return &m.Sent }

// over tells that a segment's minute is over.
func (s *Spool) over(name string) bool { return name < trace.Segment(s.Now())+trace.SegmentSuffix }

// batch is lines that were read, and the marks behind them.
type batch struct {
	lines [][]byte
	torn  int
	marks map[string]mark
}

func (b batch) empty() bool { return len(b.marks) == 0 }

// next reads the next lines of the spool: maxBatch bytes, or the one line more that
// begins before them.
func (s *Spool) next(which func(*mark) *int64) (b batch, err error) {
	segments, err := s.segments()
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil // not made yet, or removed with its node's state
	}
	b.marks = map[string]mark{}
	room := int64(maxBatch)
	for _, g := range segments {
		if at := *which(&g.mark); err != nil || room <= 0 || at >= g.size {
			continue
		}
		var n int64
		n, err = s.read(g, which, int(room), &b)
		room -= n
	}
	return b, err
}

// read adds the next lines of a segment to a batch: n bytes.
func (s *Spool) read(g segment, which func(*mark) *int64, room int, b *batch) (n int64, err error) {
	f, err := read.Open(g.path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	at := which(&g.mark)
	chunk, skipped, err := read.Chunk(f, *at, room)
	if err != nil {
		return 0, err
	}
	if len(chunk) == 0 && skipped == 0 {
		if chunk, err = s.tail(f, g, *at); err != nil || len(chunk) == 0 {
			return 0, err
		}
	}
	if skipped > 0 {
		b.torn++
	}
	for line := range bytes.Lines(chunk) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			b.lines = append(b.lines, line)
		}
	}
	n = int64(len(chunk)) + skipped
	*at += n
	b.marks[g.name] = g.mark
	return n, nil
}

// tail is what stands behind the last line feed of a segment, once nobody can be
// writing it: its writer was killed, or the disk was full.
func (s *Spool) tail(f *os.File, g segment, at int64) ([]byte, error) {
	if !s.over(g.name) || !quiet(f, g.size) {
		return nil, nil
	}
	b := make([]byte, min(g.size-at, read.MaxLine))
	n, err := f.ReadAt(b, at)
	if n < len(b) {
		return nil, err
	}
	return b, nil
}

// quiet tells that a segment has a size, and that nobody was writing to it just
// now. Who comes later ends what is torn before it writes. The lock is let go at
// once: a writer that is refused it takes the segment for removed.
func quiet(f *os.File, size int64) bool {
	fd := int(f.Fd())
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	_ = unix.Flock(fd, unix.LOCK_UN)
	return err == nil && st.Size == size
}

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
	return true, s.advance(b.marks, sent)
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
	if n > 1 {
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
	n = td.SpanCount()
	from := td.ResourceSpans().At(0)
	to := rest.ResourceSpans().AppendEmpty()
	from.Resource().CopyTo(to.Resource())
	to.SetSchemaUrl(from.SchemaUrl())
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
	return rest
}

// Tidy removes segments that were acknowledged to their end: those of more than
// an hour ago, and the oldest while the spool has three quarters of its budget.
// At the whole of it the plugin would drop them as if they had never been sent.
func (s *Spool) Tidy() error {
	segments, err := s.segments()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	total := int64(0)
	for _, g := range segments {
		total += g.size
	}
	for _, g := range segments {
		old := g.name < trace.Segment(s.Now().Add(-keep))+trace.SegmentSuffix
		much := s.MaxBytes > 0 && total > s.MaxBytes/4*3
		done := g.Sent == g.size && (s.Each == nil || g.Seen == g.size)
		if !s.over(g.name) || !done || !old && !much {
			continue
		}
		if remove(g) {
			total -= g.size
		}
	}
	return err
}

// remove removes a segment, unless somebody writes to it, or it is not what was
// acknowledged any more.
func remove(g segment) bool {
	f, err := read.Open(g.path)
	if err != nil {
		return false
	}
	defer f.Close()
	var st unix.Stat_t
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil &&
		unix.Fstat(int(f.Fd()), &st) == nil && st.Ino == g.Inode && st.Size == g.Sent && st.Nlink > 0 &&
		unix.Unlink(g.path) == nil
}

// Left says what was not sent yet.
func (s *Spool) Left() string {
	all, _ := s.segments()
	total, segments := int64(0), 0
	for _, g := range all {
		if left := g.size - g.Sent; left > 0 {
			total, segments = total+left, segments+1
		}
	}
	return fmt.Sprintf("%s: %d bytes in %d segments are left", s.Dir, total, segments)
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
		if err := s.advance(b.marks, seen); err != nil {
			return err
		}
	}
}
