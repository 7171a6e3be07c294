package trace

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	api "go.opentelemetry.io/otel/trace"
)

// operate makes the same spans through any provider: every kind of attribute,
// event, link and status that the API knows.
func operate(ctx context.Context, p api.TracerProvider) {
	at := time.Unix(1700000000, 123456789)
	// Without tracestate: the official exporter leaves out a link's.
	link := api.Link{SpanContext: byUs(parent, ""), Attributes: []attribute.KeyValue{attribute.String("why", "because")}}
	ctx, root := p.Tracer(Scope).Start(ctx, "cni.ADD", api.WithTimestamp(at), api.WithSpanKind(api.SpanKindServer),
		api.WithAttributes(attribute.String("s", "text \"quoted\"\n\t\u2028 ü"), attribute.Bool("b", true), attribute.Int64("i", -1<<62),
			attribute.Float64("f", 1.5), attribute.StringSlice("ss", []string{"a", "b"}), attribute.IntSlice("is", []int{1, 2}),
			attribute.BoolSlice("bs", []bool{true, false}), attribute.Float64Slice("fs", []float64{0.25}), attribute.StringSlice("none", nil)),
		api.WithLinks(link))
	root.AddLink(link)
	root.SetAttributes(attribute.String("s", "another"), attribute.String("", "no key"))
	_, child := p.Tracer(Scope).Start(ctx, "a", api.WithTimestamp(at.Add(time.Millisecond)))
	child.AddEvent("event", api.WithTimestamp(at.Add(2*time.Millisecond)), api.WithAttributes(attribute.Int("n", 1)))
	child.RecordError(errors.New("broken"), api.WithTimestamp(at.Add(3*time.Millisecond)))
	child.SetStatus(codes.Error, "broken")
	child.SetStatus(codes.Unset, "not taken")
	child.End(api.WithTimestamp(at.Add(4 * time.Millisecond)))
	child.SetName("too late")
	child.End()
	_, fine := p.Tracer(Scope).Start(ctx, "b", api.WithTimestamp(at.Add(5*time.Millisecond)))
	fine.SetStatus(codes.Error, "for now")
	fine.SetStatus(codes.Ok, "dropped")
	fine.SetName("c")
	fine.End(api.WithTimestamp(at.Add(6 * time.Millisecond)))
	_, alone := p.Tracer(Scope).Start(ctx, "alone", api.WithNewRoot(), api.WithTimestamp(at))
	alone.End(api.WithTimestamp(at))
	root.End(api.WithTimestamp(at.Add(7 * time.Millisecond)))
}

// bySDK is what arrives at a collector from the official SDK and exporter.
func bySDK(ctx context.Context, t *testing.T, res []attribute.KeyValue) ptrace.Traces {
	t.Helper()
	var got []byte
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			body, _ = gzip.NewReader(r.Body)
		}
		got, _ = io.ReadAll(body)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	defer srv.Close()
	exp, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(srv.URL+"/v1/traces"))
	if err != nil {
		t.Fatal(err)
	}
	tp := sdk.NewTracerProvider(sdk.WithBatcher(exp), sdk.WithResource(resource.NewSchemaless(res...)))
	operate(ctx, tp)
	if err := tp.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	td, err := (&ptrace.ProtoUnmarshaler{}).UnmarshalTraces(got)
	if err != nil {
		t.Fatal(err)
	}
	return td
}

func byRecorder(ctx context.Context, t *testing.T, res []attribute.KeyValue) ptrace.Traces {
	t.Helper()
	r := NewRecorder(time.Now())
	operate(ctx, r)
	line := r.OTLP(res)
	if !bytes.HasSuffix(line, []byte("\n")) || bytes.Count(line, []byte("\n")) != 1 {
		t.Fatalf("not one line: %q", line)
	}
	td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
	if err != nil {
		t.Fatal(err)
	}
	return td
}

// TestSameAsSDK compares what the recorder writes with what the official SDK
// and its exporter send for the same spans, field by field; ids, which are
// random, by what they point at.
func TestSameAsSDK(t *testing.T) {
	res := []attribute.KeyValue{attribute.String("service.name", "tracewire")}
	for _, tt := range []struct{ name, parent, state string }{
		{"no parent", "", ""},
		{"a remote parent", parent, "k=v"},
		{"a parent with the random flag", parent[:53] + "03", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := t.Context()
			if tt.parent != "" {
				ctx = api.ContextWithRemoteSpanContext(ctx, byUs(tt.parent, tt.state))
			}
			if diff := cmp.Diff(flat(bySDK(ctx, t, res)), flat(byRecorder(ctx, t, res))); diff != "" {
				t.Errorf("(-SDK +recorder)\n%s", diff)
			}
		})
	}
}

// seen is all that a span holds, ids by the names of the spans they are.
type seen struct {
	Name, Trace, Parent, State, Kind, Status, Message string
	Flags                                             uint32
	Start, End                                        int64
	Attributes                                        map[string]any
	Events                                            []map[string]any
	Links                                             []map[string]any
}

type all struct {
	Resource map[string]any
	Scope    string
	Spans    map[string]seen
}

func flat(td ptrace.Traces) all {
	rs := td.ResourceSpans().At(0)
	ss := rs.ScopeSpans().At(0)
	out := all{Resource: rs.Resource().Attributes().AsRaw(), Scope: ss.Scope().Name(), Spans: map[string]seen{}}
	names := map[string]string{spanID: "the remote parent"}
	traces := map[string]string{traceID: "the remote trace"}
	for _, s := range ss.Spans().All() {
		names[s.SpanID().String()] = s.Name()
		if s.ParentSpanID().IsEmpty() {
			traces[s.TraceID().String()] = "of " + s.Name()
		}
	}
	for _, s := range ss.Spans().All() {
		x := seen{
			Name: s.Name(), Trace: traces[s.TraceID().String()], Parent: names[s.ParentSpanID().String()], State: s.TraceState().AsRaw(),
			Kind: s.Kind().String(), Status: s.Status().Code().String(), Message: s.Status().Message(), Flags: s.Flags(),
			Start: int64(s.StartTimestamp()), End: int64(s.EndTimestamp()), Attributes: s.Attributes().AsRaw(),
		}
		for _, e := range s.Events().All() {
			x.Events = append(x.Events, map[string]any{"name": e.Name(), "at": int64(e.Timestamp()), "attributes": e.Attributes().AsRaw()})
		}
		for _, l := range s.Links().All() {
			x.Links = append(x.Links, map[string]any{"trace": l.TraceID().String(), "span": l.SpanID().String(),
				"state": l.TraceState().AsRaw(), "flags": l.Flags(), "attributes": l.Attributes().AsRaw()})
		}
		out.Spans[s.Name()] = x
	}
	return out
}

// TestOddStrings: what is not UTF-8 is replaced, what is too long is cut, and
// the line stays one line of JSON.
func TestOddStrings(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"not UTF-8", "a\xffb", "a\ufffdb"},
		{"control characters", "a\x00\n\r\u2028", "a\x00\n\r\u2028"},
		{"too long", strings.Repeat("x", maxValue+1), strings.Repeat("x", maxValue)},
		{"too long in the middle of a rune", strings.Repeat("x", maxValue-1) + "ü", strings.Repeat("x", maxValue-1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := NewRecorder(time.Now())
			_, s := r.Tracer("").Start(t.Context(), "s", api.WithAttributes(attribute.String("k", tt.in)))
			s.End()
			td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(r.OTLP(nil))
			if err != nil {
				t.Fatal(err)
			}
			got := td.ResourceSpans().At(0).ScopeSpans().At(0).Spans().At(0).Attributes().AsRaw()["k"]
			if got != tt.want {
				t.Errorf("%.40q, want %.40q", got, tt.want)
			}
		})
	}
}
