// Package trace records what an operation did as OpenTelemetry spans and log
// lines, and appends them to spool and log once, when it is over. It is the
// only room of the plugin that knows OpenTelemetry.
package trace

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	api "go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
)

// Scope is the name of the instrumentation scope of every span.
const Scope = "github.com/tracewire/tracewire"

// Recorder implements OpenTelemetry's TracerProvider and keeps every span in
// memory, sampled by the parent or not. It stands in for the SDK, which costs
// each start of a process 0.5 ms and more.
type Recorder struct {
	embedded.TracerProvider

	mu     sync.Mutex
	start  time.Time // with its monotonic reading: a clock that steps bends no span
	spans  []*span   // in the order they began
	failed *span     // the span that failed first: where the trouble began
}

// NewRecorder returns a Recorder whose clock starts at start.
func NewRecorder(start time.Time) *Recorder { return &Recorder{start: start} }

// Tracer implements OpenTelemetry's TracerProvider. The name is not looked at:
// a plugin has one scope.
func (r *Recorder) Tracer(string, ...api.TracerOption) api.Tracer { return tracer{r: r} }

func (r *Recorder) now() time.Time { return r.start.Add(time.Since(r.start)) }

// Failed is the name of the span that failed first, "" when none did.
func (r *Recorder) Failed() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil {
		return ""
	}
	return r.failed.name
}

type tracer struct {
	embedded.Tracer
	r *Recorder
}

// Start implements OpenTelemetry's Tracer.
func (t tracer) Start(ctx context.Context, name string, options ...api.SpanStartOption) (context.Context, api.Span) {
	return t.start(ctx, name, options...)
}

func (t tracer) start(ctx context.Context, name string, options ...api.SpanStartOption) (context.Context, *span) {
	cfg := api.NewSpanStartConfig(options...)
	parent := api.SpanContextFromContext(ctx)
	if cfg.NewRoot() {
		parent = api.SpanContext{}
	}
	s := &span{r: t.r, name: name, parent: parent, kind: api.ValidateSpanKind(cfg.SpanKind()), start: cfg.Timestamp()}
	s.context = childOf(parent)
	if s.start.IsZero() {
		s.start = t.r.now()
	}
	for _, l := range cfg.Links() {
		s.AddLink(l)
	}
	s.SetAttributes(cfg.Attributes()...)
	t.r.mu.Lock()
	t.r.spans = append(t.r.spans, s)
	t.r.mu.Unlock()
	return api.ContextWithSpan(ctx, s), s
}

// childOf is a new span's context: its parent's trace, or a new one that is sampled.
func childOf(parent api.SpanContext) api.SpanContext {
	c := api.SpanContextConfig{TraceID: parent.TraceID(), TraceFlags: parent.TraceFlags(), TraceState: parent.TraceState()}
	if !parent.TraceID().IsValid() {
		c.TraceFlags |= api.FlagsSampled
	}
	for !c.TraceID.IsValid() {
		binary.LittleEndian.PutUint64(c.TraceID[:8], rand.Uint64())
		binary.LittleEndian.PutUint64(c.TraceID[8:], rand.Uint64())
	}
	for !c.SpanID.IsValid() {
		binary.LittleEndian.PutUint64(c.SpanID[:], rand.Uint64())
	}
	return api.NewSpanContext(c)
}

// span implements OpenTelemetry's Span. Its fields are guarded by the
// recorder's mutex.
type span struct {
	embedded.Span
	r *Recorder

	name       string
	context    api.SpanContext
	parent     api.SpanContext
	kind       api.SpanKind
	start, end time.Time // end is zero while it runs
	attrs      []attribute.KeyValue
	events     []event
	notes      []event // of the log alone
	links      []api.Link
	code       codes.Code
	message    string
	mild       bool // its failure is a warning of the log
}

type event struct {
	name  string
	at    time.Time
	attrs []attribute.KeyValue
	warn  bool // also a line of the log
}

func (s *span) SpanContext() api.SpanContext       { return s.context }
func (s *span) TracerProvider() api.TracerProvider { return s.r }

func (s *span) IsRecording() bool {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	return s.end.IsZero()
}

// change runs do under the lock, while the span runs.
func (s *span) change(do func()) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if s.end.IsZero() {
		do()
	}
}

func (s *span) SetName(name string) { s.change(func() { s.name = name }) }

func (s *span) End(options ...api.SpanEndOption) {
	cfg := api.NewSpanEndConfig(options...)
	at := cfg.Timestamp()
	if at.IsZero() {
		at = s.r.now()
	}
	s.change(func() { s.end = at })
}

func (s *span) SetAttributes(kv ...attribute.KeyValue) {
	s.change(func() {
		for _, a := range kv {
			s.attrs = put(s.attrs, a)
		}
	})
}

// put replaces the attribute of that key, or appends it.
func put(attrs []attribute.KeyValue, a attribute.KeyValue) []attribute.KeyValue {
	if !a.Valid() {
		return attrs
	}
	for i := range attrs {
		if attrs[i].Key == a.Key {
			attrs[i] = a
			return attrs
		}
	}
	return append(attrs, a)
}

func (s *span) AddEvent(name string, options ...api.EventOption) { s.addEvent(name, false, options...) }

func (s *span) addEvent(name string, warn bool, options ...api.EventOption) {
	cfg := api.NewEventConfig(append([]api.EventOption{api.WithTimestamp(s.r.now())}, options...)...)
	e := event{name: name, at: cfg.Timestamp(), attrs: cfg.Attributes(), warn: warn}
	s.change(func() { s.events = append(s.events, e) })
}

func (s *span) AddLink(l api.Link) {
	if !l.SpanContext.IsValid() {
		return
	}
	s.change(func() { s.links = append(s.links, l) })
}

func (s *span) SetStatus(code codes.Code, message string) {
	s.change(func() {
		if s.code > code {
			return
		}
		if s.code, s.message = code, ""; code == codes.Error {
			s.message = message
		}
	})
}

// RecordError adds the error as an exception event.
func (s *span) RecordError(err error, options ...api.EventOption) {
	if err == nil {
		return
	}
	s.AddEvent("exception", append(options, api.WithAttributes(
		attribute.String("exception.type", reflect.TypeOf(err).String()),
		attribute.String("exception.message", err.Error()),
	))...)
}

// fail marks the span as failed, and gives the first that fails the exception.
func (s *span) fail(err error) {
	s.SetStatus(codes.Error, err.Error())
	s.r.mu.Lock()
	first := s.r.failed == nil
	if first {
		s.r.failed = s
	}
	s.r.mu.Unlock()
	if first {
		s.RecordError(err)
	}
}
