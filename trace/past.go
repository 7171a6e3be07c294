package trace

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	api "go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"
)

// Interrupted is the status of spans whose process was killed.
const Interrupted = "interrupted"

// Past is an operation whose process was killed before it told of itself, as far
// as its record tells.
type Past struct {
	Name       string // "cni.ADD"
	Span       string // its traceparent
	Parent     string // its parent's, "" for none
	Link       string // another operation's, "" for none
	Began      time.Time
	Ended      time.Duration // since it began, of the last that is known of it
	Phases     []Phase       // in the order they began
	Attributes []attribute.KeyValue
}

// Phase is a phase of a past operation.
type Phase struct {
	Name       string
	Span       string        // id, by which others may know it already; empty where it is lost
	Begin, End time.Duration // since the operation began; End is 0 while it is open
}

// Recorder has the operation's spans, to be written as any other's: the root
// span with the ids that others know already, and the phases, one that began
// while another was open below it.
func (p Past) Recorder() *Recorder {
	p.Ended++ // what began last has a length: Jaeger mends a span without one, and keeps both when it comes twice
	r := NewRecorder(p.Began)
	root := p.span(r, Phase{Name: p.Name}, ParseContext(p.Parent))
	root.context = ParseContext(p.Span)
	root.attrs = slices.Concat(p.Attributes, []KeyValue{KeyErrorType.String(Interrupted)})
	if l := ParseContext(p.Link); l.IsValid() {
		root.links = []api.Link{{SpanContext: l}}
	}
	above := []*span{root}
	for _, phase := range p.Phases {
		for top := above[len(above)-1]; top.code == codes.Unset && !top.end.After(p.Began.Add(phase.Begin)); top = above[len(above)-1] {
			above = above[:len(above)-1]
		}
		above = append(above, p.span(r, phase, above[len(above)-1].context))
	}
	return r
}

// span is a phase's; one that is open was interrupted.
func (p Past) span(r *Recorder, phase Phase, parent api.SpanContext) *span {
	s := &span{r: r, name: phase.Name, context: childOf(parent), parent: parent, kind: api.SpanKindInternal,
		start: p.Began.Add(phase.Begin), end: p.Began.Add(phase.End)}
	if id, err := api.SpanIDFromHex(phase.Span); err == nil {
		s.context = s.context.WithSpanID(id)
	}
	if phase.End == 0 {
		s.end, s.code, s.message = p.Began.Add(p.Ended), codes.Error, Interrupted
	}
	r.spans = append(r.spans, s)
	return s
}

// aroundSegment is how long after its beginning an operation may have told of
// itself: it is looked for in the segments of those minutes.
const aroundSegment = 10 * time.Minute

// Has tells whether the spool has an operation's root span, which began at a
// time, told by itself then or, if it was killed, by another one just now.
func (s Spool) Has(traceparent string, began time.Time) (bool, error) {
	if s.Closed != nil {
		return false, s.Closed
	}
	c := ParseContext(traceparent)
	names, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) || s.MaxBytes == 0 || !c.IsValid() {
		return false, nil
	}
	now := time.Now()
	during := func(name string, from, to time.Time) bool {
		return name >= Segment(from)+SegmentSuffix && name <= Segment(to)+SegmentSuffix
	}
	want := appendIDs([]byte(`"spans":[`), c) // the root span comes first; links have ids, too
	for _, n := range names {
		if !during(n.Name(), began.Add(-time.Minute), began.Add(aroundSegment)) && !during(n.Name(), now.Add(-aroundSegment), now) {
			continue
		}
		if !n.Type().IsRegular() {
			continue // nobody wrote it there that we know, and it may block
		}
		there, err := contains(filepath.Join(s.Dir, n.Name()), want)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		if there {
			return true, nil
		}
	}
	return false, err
}

// window is what is held of a file that is looked through, in bytes.
const window = 64 << 10

// contains tells whether a file has some bytes in it. Windows overlap by as much
// as could stand across their edge.
func contains(path string, want []byte) (bool, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	b, kept := make([]byte, window), 0
	for {
		n, err := f.Read(b[kept:])
		kept += n
		if bytes.Contains(b[:kept], want) {
			return true, nil
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		edge := min(kept, len(want)-1)
		copy(b, b[kept-edge:kept])
		kept = edge
	}
}
