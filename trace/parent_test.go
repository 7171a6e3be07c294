package trace

import (
	"strings"
	"testing"

	api "go.opentelemetry.io/otel/trace"

	"go.opentelemetry.io/contrib/propagators/envcar"
	"go.opentelemetry.io/otel/propagation"
)

const (
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	spanID  = "00f067aa0ba902b7"
	parent  = "00-" + traceID + "-" + spanID + "-01"
)

// byUpstream is what OpenTelemetry's own carrier and propagator read.
func byUpstream(t testing.TB, traceparent, tracestate string) api.SpanContext {
	t.Helper()
	carrier := propagation.MapCarrier{"traceparent": traceparent, "tracestate": tracestate}
	return api.SpanContextFromContext(propagation.TraceContext{}.Extract(t.Context(), carrier))
}

func byUs(traceparent, tracestate string) api.SpanContext {
	return Parent(func(k string) string { return map[string]string{EnvParent: traceparent, EnvState: tracestate}[k] })
}

func TestParent(t *testing.T) {
	for _, tt := range []struct {
		name, parent, state string
		valid, sampled      bool
		keeps               string // tracestate
	}{
		{"none", "", "", false, false, ""},
		{"sampled", parent, "", true, true, ""},
		{"not sampled", parent[:53] + "00", "", true, false, ""},
		{"random flag", parent[:53] + "03", "", true, true, ""},
		{"reserved flag", parent[:53] + "04", "", false, false, ""},
		{"with state", parent, "a=1,b=2", true, true, "a=1,b=2"},
		{"with a state that is malformed", parent, "=", true, true, ""},
		{"with a long state", parent, "k=" + strings.Repeat("x", 1000), true, true, ""},
		{"all zeros", "00-" + strings.Repeat("0", 32) + "-" + spanID + "-01", "", false, false, ""},
		{"zero span", "00-" + traceID + "-" + strings.Repeat("0", 16) + "-01", "", false, false, ""},
		{"upper case", strings.ToUpper(parent), "", false, false, ""},
		{"version ff", "ff" + parent[2:], "", false, false, ""},
		{"a later version", "cc" + parent[2:], "", true, true, ""},
		{"a later version with more", "cc" + parent[2:] + "-more", "", true, true, ""},
		{"version 00 with more", parent + "-more", "", false, false, ""},
		{"cut short", parent[:54], "", false, false, ""},
		{"with a line feed", parent + "\n", "", false, false, ""},
		{"not hex", "00-" + strings.Repeat("g", 32) + "-" + spanID + "-01", "", false, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, want := byUs(tt.parent, tt.state), byUpstream(t, tt.parent, tt.state)
			if !got.Equal(want) {
				t.Errorf("got %+v, OpenTelemetry reads %+v", got, want)
			}
			if got.IsValid() != tt.valid || got.IsSampled() != tt.sampled || got.TraceState().String() != tt.keeps {
				t.Errorf("valid %t, sampled %t, state %q", got.IsValid(), got.IsSampled(), got.TraceState())
			}
		})
	}
}

// TestParentByEnvironment reads the variables that envcar reads.
func TestParentByEnvironment(t *testing.T) {
	t.Setenv(EnvParent, parent)
	t.Setenv(EnvState, "a=1")
	want := api.SpanContextFromContext(propagation.TraceContext{}.Extract(t.Context(), &envcar.Carrier{}))
	got := Parent(func(k string) string { return map[string]string{EnvParent: parent, EnvState: "a=1"}[k] })
	if !want.IsValid() || !got.Equal(want) {
		t.Errorf("got %+v, envcar reads %+v", got, want)
	}
}

func TestFormatAndParseContext(t *testing.T) {
	c := byUs(parent, "")
	if got := Format(c); got != parent {
		t.Errorf("%s, want %s", got, parent)
	}
	if got := ParseContext(Format(c)); !got.Equal(c) {
		t.Errorf("%+v, want %+v", got, c)
	}
	if Format(api.SpanContext{}) != "" || ParseContext("").IsValid() {
		t.Error("an invalid context has a text, or none has a context")
	}
}

func FuzzParent(f *testing.F) {
	for _, s := range []string{"", parent, "cc" + parent[2:] + "-x", parent + "-", strings.ToUpper(parent)} {
		f.Add(s, "a=1")
	}
	f.Fuzz(func(t *testing.T, traceparent, tracestate string) {
		if got, want := byUs(traceparent, tracestate), byUpstream(t, traceparent, tracestate); !got.Equal(want) {
			t.Errorf("%q %q: got %+v, OpenTelemetry reads %+v", traceparent, tracestate, got, want)
		}
	})
}

// FuzzContext: what Format writes is read back, and nothing else is taken for it.
func FuzzContext(f *testing.F) {
	for _, text := range []string{parent, "", "00-", parent + "-", "ff" + parent[2:], "cc" + parent[2:] + "-more", parent[:54], strings.ToUpper(parent), "\x00" + parent} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c := ParseContext(text)
		if again := ParseContext(Format(c)); !again.Equal(c) {
			t.Errorf("%q is %+v, and then %+v", text, c, again)
		}
	})
}
