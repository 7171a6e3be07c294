// Package read turns spool and log back into values, and draws an operation as
// a waterfall. It writes to neither.
package read

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/tracewire/tracewire/trace"
)

// Span is one span of the spool.
type Span struct {
	TraceID    string     `json:"traceID"` // 32 hex digits
	SpanID     string     `json:"spanID"`  // 16 hex digits
	ParentID   string     `json:"parentID,omitempty"`
	Name       string     `json:"name"`
	Start      time.Time  `json:"start"`
	End        time.Time  `json:"end"`
	Attributes Attributes `json:"attributes,omitempty"`
	Events     []Event    `json:"events,omitempty"`
	Links      []Link     `json:"links,omitempty"`
	Failed     bool       `json:"failed,omitempty"`
	Message    string     `json:"message,omitempty"` // of the status, where it failed
	Resource   Attributes `json:"-"`                 // the same for all spans of an operation
}

// Duration is the time from start to end.
func (s Span) Duration() time.Duration { return s.End.Sub(s.Start) }

// Event is something that happened in a span, a warning for the most part.
type Event struct {
	Name       string     `json:"name"`
	Time       time.Time  `json:"time"`
	Attributes Attributes `json:"attributes,omitempty"`
}

// Link points to a span of another operation.
type Link struct {
	TraceID    string     `json:"traceID"`
	SpanID     string     `json:"spanID"`
	Attributes Attributes `json:"attributes,omitempty"`
	// Target says what is linked to, "ADD of podnet/1635e8:eth0". It is empty
	// until a reader who found that operation fills it.
	Target string `json:"target,omitempty"`
}

// Attribute is a key and its value: a string, bool, int64, float64, a slice of
// those, Attributes, or nil.
type Attribute struct {
	Key   trace.Key
	Value any
}

// Attributes is a list of them in the order they were written.
type Attributes []Attribute

// Value is the value of a key, nil where there is none.
func (a Attributes) Value(key trace.Key) any {
	for _, kv := range a {
		if kv.Key == key {
			return kv.Value
		}
	}
	return nil
}

// Text is the string of a key, "" where there is none or another type.
func (a Attributes) Text(key trace.Key) string {
	s, _ := a.Value(key).(string)
	return s
}

// Texts is the strings of a key, nil where there are none.
func (a Attributes) Texts(key trace.Key) (out []string) {
	list, _ := a.Value(key).([]any)
	for _, v := range list {
		if s, ok := v.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// Int is the whole number of a key, 0 where there is none.
func (a Attributes) Int(key trace.Key) int64 {
	n, _ := a.Value(key).(int64)
	return n
}

// MarshalJSON writes one object, keys in their order.
func (a Attributes) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, kv := range a {
		if i > 0 {
			b = append(b, ',')
		}
		key, err := json.Marshal(string(kv.Key))
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(kv.Value)
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, key...), ':'), value...)
	}
	return append(b, '}'), nil
}

// request is an ExportTraceServiceRequest (OpenTelemetry protocol
// specification, JSON encoding). Keys that are not here are passed over.
type request struct {
	ResourceSpans []struct {
		Resource   wireAttrs `json:"resource"`
		ScopeSpans []struct {
			Spans []wireSpan `json:"spans"`
		} `json:"scopeSpans"`
	} `json:"resourceSpans"`
}

type wireAttrs struct {
	Attributes []wireAttr `json:"attributes"`
}

type wireSpan struct {
	wireAttrs
	TraceID  string  `json:"traceId"`
	SpanID   string  `json:"spanId"`
	ParentID string  `json:"parentSpanId"`
	Name     string  `json:"name"`
	Start    integer `json:"startTimeUnixNano"`
	End      integer `json:"endTimeUnixNano"`
	Events   []struct {
		wireAttrs
		Name string  `json:"name"`
		Time integer `json:"timeUnixNano"`
	} `json:"events"`
	Links []struct {
		wireAttrs
		TraceID string `json:"traceId"`
		SpanID  string `json:"spanId"`
	} `json:"links"`
	Status struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"status"`
}

type wireAttr struct {
	Key   trace.Key `json:"key"`
	Value wireValue `json:"value"`
}

// wireValue has one of its fields set, or none for an empty value.
type wireValue struct {
	String *string  `json:"stringValue"`
	Bool   *bool    `json:"boolValue"`
	Int    *integer `json:"intValue"`
	Double *double  `json:"doubleValue"`
	Bytes  *string  `json:"bytesValue"`
	Array  *struct {
		Values []wireValue `json:"values"`
	} `json:"arrayValue"`
	List *struct {
		Values []wireAttr `json:"values"`
	} `json:"kvlistValue"`
}

// integer is a 64-bit integer, which JSON carries as a string or as a number.
type integer int64

func (i *integer) UnmarshalJSON(b []byte) error {
	n, err := strconv.ParseInt(strings.Trim(string(b), `"`), 10, 64)
	*i = integer(n)
	return err
}

func (i integer) time() time.Time { return time.Unix(0, int64(i)).UTC() }

// double is a number, or the name of one that JSON does not have.
type double float64

func (d *double) UnmarshalJSON(b []byte) error {
	f, err := strconv.ParseFloat(strings.Trim(string(b), `"`), 64)
	*d = double(f)
	return err
}

// statusError is STATUS_CODE_ERROR.
const statusError = 2

// decode reads one line of the spool.
func decode(line []byte) (spans []Span, err error) {
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		return nil, err
	}
	for _, rs := range r.ResourceSpans {
		resource := rs.Resource.attributes()
		for _, ss := range rs.ScopeSpans {
			for _, w := range ss.Spans {
				if !hexDigits(w.TraceID, 32) || !hexDigits(w.SpanID, 16) {
					return nil, fmt.Errorf("span %q: ids are not hex", w.Name)
				}
				spans = append(spans, w.span(resource))
			}
		}
	}
	return spans, nil
}

// hexDigits tells whether s is n hex digits of lower case.
func hexDigits(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

func (w wireSpan) span(resource Attributes) Span {
	s := Span{
		TraceID: w.TraceID, SpanID: w.SpanID, ParentID: w.ParentID, Name: w.Name,
		Start: w.Start.time(), End: w.End.time(), Attributes: w.attributes(),
		Failed: w.Status.Code == statusError, Message: w.Status.Message, Resource: resource,
	}
	for _, e := range w.Events {
		s.Events = append(s.Events, Event{Name: e.Name, Time: e.Time.time(), Attributes: e.attributes()})
	}
	for _, l := range w.Links {
		s.Links = append(s.Links, Link{TraceID: l.TraceID, SpanID: l.SpanID, Attributes: l.attributes()})
	}
	return s
}

func (w wireAttrs) attributes() Attributes { return attributes(w.Attributes) }

func attributes(wire []wireAttr) (out Attributes) {
	for _, a := range wire {
		out = append(out, Attribute{a.Key, a.Value.value()})
	}
	return out
}

func (v wireValue) value() any {
	switch {
	case v.String != nil:
		return *v.String
	case v.Bool != nil:
		return *v.Bool
	case v.Int != nil:
		return int64(*v.Int)
	case v.Double != nil:
		return v.Double.value()
	case v.Bytes != nil:
		return *v.Bytes // base64, as it came
	case v.Array != nil:
		out := make([]any, len(v.Array.Values))
		for i, x := range v.Array.Values {
			out[i] = x.value()
		}
		return out
	case v.List != nil:
		return attributes(v.List.Values)
	}
	return nil
}

// value is the number, or the name of one that JSON could not carry on.
func (d double) value() any {
	f := float64(d)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return f
}
