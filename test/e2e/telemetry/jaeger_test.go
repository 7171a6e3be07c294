//go:build linux

package telemetry

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
)

// Where Jaeger takes spans and answers, by docs/pipelines/jaeger.yaml.
const (
	jaegerTakes   = "http://127.0.0.1:4318"
	jaegerGRPC    = "127.0.0.1:4317"
	jaegerAnswers = "http://127.0.0.1:16686"
)

// span is what Jaeger's API tells of one.
type span struct {
	TraceID, SpanID, OperationName, ProcessID string

	References []struct{ RefType, TraceID, SpanID string }
	Tags       []struct {
		Key   string
		Value any
	}
}

// traced is a trace as Jaeger's API tells it.
type traced struct {
	TraceID   string
	Spans     []span
	Processes map[string]struct{ ServiceName string }
}

// traces is the answer to a query: "/"+id, or "?service=…".
func traces(query string) (found []traced, err error) {
	body, err := get(jaegerAnswers + "/api/traces" + query)
	if err != nil {
		return nil, err
	}
	answer := struct{ Data *[]traced }{&found}
	return found, json.Unmarshal(body, &answer)
}

// search is the query for a service's traces with such a span.
func search(service, operation string) string {
	return "?limit=10000&lookback=1h&" + url.Values{"service": {service}, "operation": {operation}}.Encode()
}

// tag is a tag's value as text, "" where there is none.
func (s span) tag(key string) string {
	for _, t := range s.Tags {
		if t.Key == key {
			return fmt.Sprint(t.Value)
		}
	}
	return ""
}

// parent is the id of the span above, "" for a trace's first.
func (s span) parent() string {
	for _, r := range s.References {
		if r.RefType == "CHILD_OF" && r.TraceID == s.TraceID {
			return r.SpanID
		}
	}
	return ""
}

// follows tells that the span links to that one.
func (s span) follows(trace, id string) bool {
	return slices.ContainsFunc(s.References, func(r struct{ RefType, TraceID, SpanID string }) bool {
		return r.RefType == "FOLLOWS_FROM" && r.TraceID == trace && r.SpanID == id
	})
}

// of is the service's spans of that name.
func (t traced) of(service, name string) (found []span) {
	for _, s := range t.Spans {
		if s.OperationName == name && t.Processes[s.ProcessID].ServiceName == service {
			found = append(found, s)
		}
	}
	return found
}

// whole is an error where a span's parent is not in the trace nor is it that
// one, or where a span is there twice.
func (t traced) whole(above string) (err error) {
	ids := map[string]int{above: 1}
	for _, s := range t.Spans {
		if s.SpanID != above {
			ids[s.SpanID]++
		}
	}
	for _, s := range t.Spans {
		if p := s.parent(); p != "" && ids[p] == 0 {
			err = errors.Join(err, fmt.Errorf("trace %s: the parent %s of %s %s is missing", t.TraceID, p, s.OperationName, s.SpanID))
		}
		if ids[s.SpanID] > 1 {
			err = errors.Join(err, fmt.Errorf("trace %s: %s %s is there %d times", t.TraceID, s.OperationName, s.SpanID, ids[s.SpanID]))
		}
	}
	return err
}

// tally counts what was found of what was asked for.
type tally struct{ asked, found, doubled, missing int }

// add counts one that was found n times.
func (t *tally) add(n int) {
	t.asked++
	t.found += min(n, 1)
	t.doubled += max(n-1, 0)
	t.missing += max(1-n, 0)
}

func (t *tally) ok() error {
	if t.doubled+t.missing > 0 {
		return fmt.Errorf("%d asked, %d found, %d doubled, %d missing", t.asked, t.found, t.doubled, t.missing)
	}
	return nil
}

// seen is an operation as Jaeger has it.
type seen struct {
	root  span
	trace traced
}

// account looks for each operation in Jaeger, and tells what is wrong with it
// there.
func account(asks []*ask) (sum tally, err error) {
	all := map[*ask]seen{}
	for _, a := range asks {
		in, n, wrong := look(a)
		sum.add(n)
		if err = errors.Join(err, wrong); n == 1 {
			all[a] = in
		}
	}
	for a, in := range all {
		err = errors.Join(err, a.told(in.root), a.linked(in, all))
	}
	return sum, errors.Join(err, sum.ok())
}

// look finds an operation in its trace, tells how often it is there, and what is
// wrong with the whole.
func look(a *ask) (in seen, n int, err error) {
	found, err := traces("/" + a.trace)
	if err != nil || len(found) != 1 {
		return in, 0, fmt.Errorf("%v: %d traces: %w", a, len(found), err)
	}
	in.trace = found[0]
	for _, s := range in.trace.of("tracewire", "cni."+a.verb) {
		if a.verb == "GC" || s.tag("cni.id") == a.id {
			in.root = s
			n++
		}
	}
	if n != 1 {
		err = fmt.Errorf("%v: is there %d times", a, n)
	}
	return in, n, errors.Join(err, in.trace.whole(a.span))
}

// told tells what is wrong with an operation's root span: parent, status, code.
func (a *ask) told(s span) (err error) {
	if s.parent() != a.span {
		err = fmt.Errorf("%v: its parent is %s, want %s", a, s.parent(), a.span)
	}
	status := map[string]string{fine: "", failed: "ERROR", interrupted: "ERROR"}[a.outcome]
	if got := s.tag("otel.status_code"); got != status {
		err = errors.Join(err, fmt.Errorf("%v: its status is %q, want %q", a, got, status))
	}
	if is := s.tag("error.type") == interrupted; is != (a.outcome == interrupted) {
		err = errors.Join(err, fmt.Errorf("%v: interrupted is %v", a, is))
	}
	if code := s.tag("cni.error.code"); a.code != 0 && code != fmt.Sprint(a.code) {
		err = errors.Join(err, fmt.Errorf("%v: its error code is %s, want %d", a, code, a.code))
	}
	return err
}

// linked tells which links are missing: of the root span, or where GC removes
// several attachments, of the span of each.
func (a *ask) linked(in seen, all map[*ask]seen) (err error) {
	from := append(in.trace.of("tracewire", "attachment.remove"), in.root)
	for _, to := range a.links {
		if !slices.ContainsFunc(from, func(s span) bool { return s.follows(to.trace, all[to].root.SpanID) }) {
			err = errors.Join(err, fmt.Errorf("%v: no link to %v", a, to))
		}
	}
	return err
}

// under is the names of a span and all above it, the first of the trace first.
func (t traced) under(s span) []string {
	name := t.Processes[s.ProcessID].ServiceName + " " + s.OperationName
	for _, p := range t.Spans {
		if p.SpanID == s.parent() {
			return append(t.under(p), name)
		}
	}
	return []string{name}
}
