package trace

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/otel/attribute"
	api "go.opentelemetry.io/otel/trace"
)

var errBroken = errors.New("broken")

// watcher is told of rows, and refuses those that are named.
type watcher struct {
	said   []string
	refuse map[string]error
}

func (w *watcher) Begin(row, _ string) error { return w.say("begin " + row) }
func (w *watcher) End(row string) error      { return w.say("end " + row) }

func (w *watcher) say(what string) error {
	w.said = append(w.said, what)
	return w.refuse[what]
}

// spans is what a recorder kept, a span a line, in the order they began:
// its level, name, status and events.
func spans(t *testing.T, r *Recorder) string {
	t.Helper()
	td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(r.OTLP(nil))
	if err != nil {
		t.Fatal(err)
	}
	level := map[string]int{}
	var b strings.Builder
	for _, s := range td.ResourceSpans().At(0).ScopeSpans().At(0).Spans().All() {
		n := 0
		if !s.ParentSpanID().IsEmpty() {
			n = level[s.ParentSpanID().String()] + 1
		}
		level[s.SpanID().String()] = n
		b.WriteString(strings.Repeat("  ", n) + s.Name())
		if s.Status().Code() == ptrace.StatusCodeError {
			b.WriteString(" [" + s.Status().Message() + "]")
		}
		for _, e := range s.Events().All() {
			b.WriteString(" !" + e.Name())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// operation runs do in a root span.
func operation(t *testing.T, do func(context.Context)) *Recorder {
	t.Helper()
	r := NewRecorder(time.Now())
	ctx, root := r.Tracer(Scope).Start(t.Context(), "cni.ADD")
	do(ctx)
	root.End()
	return r
}

func TestRows(t *testing.T) {
	good := func(context.Context) error { return nil }
	bad := func(context.Context) error { return errBroken }
	nested := func(do func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			return Rows(ctx, nil, Row{"b", good}, Row{"c", do}, Row{"d", good})
		}
	}
	for _, tt := range []struct {
		name   string
		rows   []Row
		refuse map[string]error
		said   []string
		want   string
		failed string
		err    string
	}{
		{"none", nil, nil, nil, "cni.ADD\n", "", ""},
		{"in order", []Row{{"a", good}, {"b", good}}, nil, []string{"begin a", "end a", "begin b", "end b"}, "cni.ADD\n  a\n  b\n", "", ""},
		{"nested", []Row{{"a", nested(good)}}, nil, []string{"begin a", "end a"}, "cni.ADD\n  a\n    b\n    c\n    d\n", "", ""},
		{"one fails", []Row{{"a", good}, {"b", bad}, {"c", good}}, nil, []string{"begin a", "end a", "begin b"}, "cni.ADD\n  a\n  b [broken] !exception\n", "b", "b: broken"},
		{"the first to fail has the exception", []Row{{"a", nested(bad)}, {"e", good}}, nil, []string{"begin a"}, "cni.ADD\n  a [c: broken]\n    b\n    c [broken] !exception\n", "c", "a: c: broken"},
		{"its begin cannot be written", []Row{{"a", good}, {"b", good}}, map[string]error{"begin b": errBroken}, []string{"begin a", "end a", "begin b"}, "cni.ADD\n  a\n  b [broken] !exception\n", "b", "b: broken"},
		{"its end cannot be written", []Row{{"a", good}, {"b", good}}, map[string]error{"end a": errBroken}, []string{"begin a", "end a"}, "cni.ADD\n  a [broken] !exception\n", "a", "a: broken"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := &watcher{refuse: tt.refuse}
			r := operation(t, func(ctx context.Context) {
				err := Rows(ctx, w, tt.rows...)
				if got := errText(err); got != tt.err || err != nil && !errors.Is(err, errBroken) {
					t.Errorf("error %s, want %s", got, tt.err)
				}
			})
			if diff := cmp.Diff(tt.want, spans(t, r)); diff != "" {
				t.Errorf("spans (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(tt.said, w.said); diff != "" {
				t.Errorf("watcher (-want +got)\n%s", diff)
			}
			if got := r.Failed(); got != tt.failed {
				t.Errorf("%q failed first, want %q", got, tt.failed)
			}
		})
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestRowsEndWithTheContext(t *testing.T) {
	w := &watcher{}
	r := operation(t, func(ctx context.Context) {
		ctx, cancel := context.WithCancel(ctx)
		err := Rows(ctx, w, Row{"a", func(context.Context) error { cancel(); return nil }}, Row{"b", func(context.Context) error { t.Error("b runs"); return nil }})
		if !errors.Is(err, context.Canceled) || err.Error() != "b: context canceled" {
			t.Errorf("error %v", err)
		}
	})
	if got := spans(t, r); got != "cni.ADD\n  a\n" {
		t.Errorf("spans\n%s", got)
	}
	if diff := cmp.Diff([]string{"begin a", "end a"}, w.said); diff != "" {
		t.Errorf("watcher (-want +got)\n%s", diff)
	}
}

// TestWithoutASpan: all of it works in a program that records nothing.
func TestWithoutASpan(t *testing.T) {
	ctx := t.Context()
	Set(ctx, KeyPod.String("web-0"))
	Warn(ctx, "warning")
	Link(ctx, byUs(parent, ""))
	ran := false
	if err := Run(ctx, "a", func(context.Context) error { ran = true; return errBroken }); !errors.Is(err, errBroken) || !ran {
		t.Errorf("ran %t, error %v", ran, err)
	}
	if err := Rows(ctx, nil, Row{"a", func(context.Context) error { return errBroken }}); errText(err) != "a: broken" {
		t.Errorf("error %v", err)
	}
}

func TestSetWarnAndLink(t *testing.T) {
	r := operation(t, func(ctx context.Context) {
		Set(ctx, KeyPod.String("web-0"), KeyReaped.Bool(true))
		Set(ctx, KeyPod.String("web-1"))
		Warn(ctx, "warning", KeyError.String("of something"))
		Link(ctx, byUs(parent, ""))
		Link(ctx, api.SpanContext{}) // nothing to link to
	})
	td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(r.OTLP(nil))
	if err != nil {
		t.Fatal(err)
	}
	s := td.ResourceSpans().At(0).ScopeSpans().At(0).Spans().At(0)
	if diff := cmp.Diff(map[string]any{"k8s.pod.name": "web-1", "cni.reaped": true}, s.Attributes().AsRaw()); diff != "" {
		t.Errorf("attributes (-want +got)\n%s", diff)
	}
	if s.Events().Len() != 1 || s.Links().Len() != 1 {
		t.Fatalf("%d events and %d links", s.Events().Len(), s.Links().Len())
	}
	if diff := cmp.Diff(map[string]any{"error.message": "of something"}, s.Events().At(0).Attributes().AsRaw()); diff != "" {
		t.Errorf("event (-want +got)\n%s", diff)
	}
	if l := s.Links().At(0); l.TraceID().String() != traceID || l.SpanID().String() != spanID {
		t.Errorf("link to %s %s", l.TraceID(), l.SpanID())
	}
}

func TestSpansThatStillRun(t *testing.T) {
	r := NewRecorder(time.Now())
	_, s := r.Tracer(Scope).Start(t.Context(), "cni.ADD")
	if !s.IsRecording() || s.TracerProvider() != api.TracerProvider(r) {
		t.Error("not recording")
	}
	if bytes.Contains(r.OTLP(nil), []byte(`"endTimeUnixNano":"-`)) {
		t.Error("has no end")
	}
	s.End()
	s.SetAttributes(attribute.String("late", "late"))
	s.RecordError(nil)
	if s.IsRecording() || bytes.Contains(r.OTLP(nil), []byte("late")) {
		t.Error("still recording")
	}
}
