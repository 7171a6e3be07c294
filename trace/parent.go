package trace

import (
	"strings"

	api "go.opentelemetry.io/otel/trace"
)

// Environment variables of the trace context: OpenTelemetry specification,
// "Environment Variables as Context Propagation Carriers".
const (
	EnvParent = "TRACEPARENT"
	EnvState  = "TRACESTATE"
)

// Parent is the remote span that the environment names as our parent, by the
// rules of W3C Trace Context. It is the zero SpanContext where there is none
// or where it is malformed: a new trace begins.
func Parent(getenv func(string) string) api.SpanContext {
	c, ok := parseParent(getenv(EnvParent))
	if !ok {
		return api.SpanContext{}
	}
	// A malformed tracestate is dropped, and the parent stays (W3C, 3.3.1.1).
	c.TraceState, _ = api.ParseTraceState(getenv(EnvState))
	c.Remote = true
	return api.NewSpanContext(c)
}

// parseParent reads version-traceid-spanid-flags, all lower-case hex. A
// version we don't know may have more fields behind; version ff is forbidden.
func parseParent(h string) (c api.SpanContextConfig, ok bool) {
	f := strings.SplitN(h, "-", 5)
	if len(f) < 4 || len(f[0]) != 2 || len(f[3]) != 2 {
		return c, false
	}
	version, good := hexByte(f[0])
	flags, good2 := hexByte(f[3])
	if !good || !good2 || version == 0xff {
		return c, false
	}
	// Version 00 has four fields and two flags. An empty fifth is let through, as
	// OpenTelemetry's own propagator does.
	if version == 0 && (len(f) == 5 && f[4] != "" || flags > 3) {
		return c, false
	}
	var err1, err2 error
	c.TraceID, err1 = api.TraceIDFromHex(f[1])
	c.SpanID, err2 = api.SpanIDFromHex(f[2])
	c.TraceFlags = api.TraceFlags(flags) & (api.FlagsSampled | api.FlagsRandom)
	return c, err1 == nil && err2 == nil
}

// hexByte reads two lower-case hex digits.
func hexByte(s string) (b byte, ok bool) {
	const digits = "0123456789abcdef"
	hi, lo := strings.IndexByte(digits, s[0]), strings.IndexByte(digits, s[1])
	return byte(hi<<4 | lo&0xf), hi >= 0 && lo >= 0
}

// Format is the traceparent of a span, "" for an invalid one.
func Format(c api.SpanContext) string {
	if !c.IsValid() {
		return ""
	}
	return "00-" + c.TraceID().String() + "-" + c.SpanID().String() + "-" + c.TraceFlags().String()
}

// ParseContext reads what Format wrote; the zero SpanContext when it cannot.
func ParseContext(text string) api.SpanContext {
	return Parent(func(k string) string {
		if k == EnvParent {
			return text
		}
		return ""
	})
}
