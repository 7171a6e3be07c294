package trace

import (
	"encoding/hex"
	"encoding/json"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	api "go.opentelemetry.io/otel/trace"
)

// maxValue bounds a string attribute in bytes: CNI_ARGS and errors can be of
// any length, and a line is one write.
const maxValue = 4096

// OTLP encodes the spans as one line of OTLP/JSON: an ExportTraceServiceRequest
// with hex ids and 64-bit integers as strings, ending in a line feed
// (OpenTelemetry protocol specification, JSON encoding). A span that still
// runs ends now.
func (r *Recorder) OTLP(resource []attribute.KeyValue) []byte {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	b := make([]byte, 0, 1024+len(r.spans)*512)
	b = append(b, `{"resourceSpans":[{"resource":{"attributes":`...)
	b = appendAttrs(b, resource)
	b = append(b, `},"scopeSpans":[{"scope":{"name":`...)
	b = appendString(b, Scope)
	b = append(b, `},"spans":[`...)
	for i, s := range r.spans {
		if i > 0 {
			b = append(b, ',')
		}
		b = s.append(b, now)
	}
	return append(b, "]}]}]}\n"...)
}

func (s *span) append(b []byte, now time.Time) []byte {
	b = appendIDs(b, s.context)
	if s.parent.HasSpanID() {
		id := s.parent.SpanID()
		b = append(b, `,"parentSpanId":"`...)
		b = append(hex.AppendEncode(b, id[:]), '"')
	}
	b = appendFlags(b, s.context.TraceFlags(), s.parent.IsRemote())
	b = append(b, `,"name":`...)
	b = appendString(b, s.name)
	b = append(b, `,"kind":`...)
	b = strconv.AppendInt(b, int64(s.kind), 10) // the API's numbers are OTLP's
	end := s.end
	if end.IsZero() {
		end = now
	}
	b = appendTime(b, "startTimeUnixNano", s.start)
	b = appendTime(b, "endTimeUnixNano", end)
	b = appendAttributes(b, s.attrs)
	b = s.appendEvents(b)
	b = s.appendLinks(b)
	return append(s.appendStatus(b), '}')
}

func (s *span) appendEvents(b []byte) []byte {
	for i, e := range s.events {
		b = appendList(b, "events", i)
		b = append(b, `{"name":`...)
		b = appendString(b, e.name)
		b = appendTime(b, "timeUnixNano", e.at)
		b = append(appendAttributes(b, e.attrs), '}')
	}
	return closeList(b, len(s.events))
}

func (s *span) appendLinks(b []byte) []byte {
	for i, l := range s.links {
		b = appendList(b, "links", i)
		b = appendIDs(b, l.SpanContext)
		b = appendFlags(b, l.SpanContext.TraceFlags(), l.SpanContext.IsRemote())
		b = append(appendAttributes(b, l.Attributes), '}')
	}
	return closeList(b, len(s.links))
}

func (s *span) appendStatus(b []byte) []byte {
	switch s.code {
	case codes.Ok:
		return append(b, `,"status":{"code":1}`...)
	case codes.Error:
		b = append(b, `,"status":{"message":`...)
		return append(appendString(b, s.message), `,"code":2}`...)
	default:
		return append(b, `,"status":{}`...)
	}
}

// appendIDs opens an object with the ids that spans and links share.
func appendIDs(b []byte, c api.SpanContext) []byte {
	t, i := c.TraceID(), c.SpanID()
	b = append(b, `{"traceId":"`...)
	b = hex.AppendEncode(b, t[:])
	b = append(b, `","spanId":"`...)
	b = append(hex.AppendEncode(b, i[:]), '"')
	if st := c.TraceState().String(); st != "" {
		b = append(b, `,"traceState":`...)
		b = appendString(b, st)
	}
	return b
}

// appendFlags adds the W3C flags and OTLP's two bits of its own: 0x100, whether
// the parent is remote is known; 0x200, it is.
func appendFlags(b []byte, f api.TraceFlags, remote bool) []byte {
	n := uint64(f) | 0x100
	if remote {
		n |= 0x200
	}
	b = append(b, `,"flags":`...)
	return strconv.AppendUint(b, n, 10)
}

func appendTime(b []byte, key string, t time.Time) []byte {
	b = append(b, `,"`...)
	b = append(b, key...)
	b = append(b, `":"`...)
	return append(strconv.AppendInt(b, t.UnixNano(), 10), '"')
}

func appendList(b []byte, key string, i int) []byte {
	if i > 0 {
		return append(b, ',')
	}
	b = append(b, `,"`...)
	b = append(b, key...)
	return append(b, `":[`...)
}

func closeList(b []byte, n int) []byte {
	if n == 0 {
		return b
	}
	return append(b, ']')
}

func appendAttributes(b []byte, kv []attribute.KeyValue) []byte {
	if len(kv) == 0 {
		return b
	}
	b = append(b, `,"attributes":`...)
	return appendAttrs(b, kv)
}

func appendAttrs(b []byte, kv []attribute.KeyValue) []byte {
	b = append(b, '[')
	for i, a := range kv {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"key":`...)
		b = appendString(b, string(a.Key))
		b = append(b, `,"value":`...)
		b = append(appendValue(b, a.Value), '}')
	}
	return append(b, ']')
}

func appendValue(b []byte, v attribute.Value) []byte {
	switch v.Type() {
	case attribute.BOOL:
		return append(strconv.AppendBool(append(b, `{"boolValue":`...), v.AsBool()), '}')
	case attribute.INT64:
		return append(strconv.AppendInt(append(b, `{"intValue":"`...), v.AsInt64(), 10), `"}`...)
	case attribute.FLOAT64:
		return append(appendDouble(append(b, `{"doubleValue":`...), v.AsFloat64()), '}')
	case attribute.STRINGSLICE:
		return appendSlice(b, v.AsStringSlice(), attribute.StringValue)
	case attribute.INT64SLICE:
		return appendSlice(b, v.AsInt64Slice(), attribute.Int64Value)
	case attribute.BOOLSLICE:
		return appendSlice(b, v.AsBoolSlice(), attribute.BoolValue)
	case attribute.FLOAT64SLICE:
		return appendSlice(b, v.AsFloat64Slice(), attribute.Float64Value)
	default:
		return append(appendString(append(b, `{"stringValue":`...), v.String()), '}')
	}
}

func appendSlice[T any](b []byte, vs []T, value func(T) attribute.Value) []byte {
	b = append(b, `{"arrayValue":{"values":[`...)
	for i, v := range vs {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendValue(b, value(v))
	}
	return append(b, `]}}`...)
}

// appendDouble writes what JSON has no number for as protobuf's JSON mapping does.
func appendDouble(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, `"NaN"`...)
	case math.IsInf(f, 1):
		return append(b, `"Infinity"`...)
	case math.IsInf(f, -1):
		return append(b, `"-Infinity"`...)
	}
	return strconv.AppendFloat(b, f, 'g', -1, 64)
}

// appendString appends s as a JSON string: invalid UTF-8 replaced, bounded.
func appendString(b []byte, s string) []byte {
	if len(s) > maxValue {
		cut := maxValue
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut]
	}
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			q, _ := json.Marshal(s) // a string can always be marshalled
			return append(b, q...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
