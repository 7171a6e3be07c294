package ship

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/otel/attribute"
	sdklog "go.opentelemetry.io/otel/sdk/log"

	"github.com/tracewire/tracewire/trace"
)

// logCollector takes log records, but one whose body is "bad".
type logCollector struct {
	mu   sync.Mutex
	took []plog.Logs
}

// ServeHTTP implements http.Handler.
func (c *logCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	q := plogotlp.NewExportRequest()
	if err != nil || q.UnmarshalProto(b) != nil || r.URL.Path != "/v1/logs" || strings.Contains(string(b), "\x0a\x03bad") {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took = append(c.took, q.Logs())
}

// asMaps is the records, with those of the resource's and the record's fields
// that say something.
func (c *logCollector) asMaps() (out []map[string]any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.took {
		for _, rl := range l.ResourceLogs().All() {
			for _, sl := range rl.ScopeLogs().All() {
				for _, r := range sl.LogRecords().All() {
					out = append(out, map[string]any{
						"service": rl.Resource().Attributes().AsRaw()["service.name"], "scope": sl.Scope().Name(),
						"time": r.Timestamp().AsTime(), "observed": r.ObservedTimestamp().AsTime(), "severity": r.SeverityNumber(), "text": r.SeverityText(),
						"body": r.Body().AsRaw(), "trace": r.TraceID().String(), "span": r.SpanID().String(), "attributes": r.Attributes().AsRaw(),
					})
				}
			}
		}
	}
	return out
}

func logged(t *testing.T) (c *logCollector, open func(path string) *Log) {
	t.Helper()
	c = &logCollector{}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", s.URL)
	return c, func(path string) *Log {
		to, err := NewLogs(t.Context(), os.Getenv)
		if err != nil {
			t.Fatal(err)
		}
		l := NewLog(path, to)
		l.Pause = func(context.Context, time.Duration) error { return nil }
		l.Resource = []attribute.KeyValue{attribute.String("service.name", "tracewire")}
		if err := l.Open(); err != nil {
			t.Fatal(err)
		}
		return l
	}
}

// TestLogs: a line is a record, with its ids, and all that is no field of a
// record as attributes.
func TestLogs(t *testing.T) {
	c, open := logged(t)
	path := filepath.Join(t.TempDir(), "log.jsonl")
	text := `{"level":"error","time":"2026-03-01T14:05:00.123456789Z","trace_id":"0102030405060708090a0b0c0d0e0f10","span_id":"0102030405060708","cni.addresses":["10.1.0.2/24"],"cni.error.code":11,"duration_ms":1.25,"cni.reaped":true,"message":"cni.ADD"}` + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l := open(path)
	defer l.Close()
	if err := Drain(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 1, 14, 5, 0, 123456789, time.UTC)
	want := []map[string]any{{
		"service": "tracewire", "scope": trace.Scope, "time": at, "observed": at, "severity": plog.SeverityNumberError, "text": "ERROR", "body": "cni.ADD",
		"trace": "0102030405060708090a0b0c0d0e0f10", "span": "0102030405060708",
		"attributes": map[string]any{"cni.addresses": []any{"10.1.0.2/24"}, "cni.error.code": int64(11), "duration_ms": 1.25, "cni.reaped": true},
	}}
	if diff := cmp.Diff(want, c.asMaps()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestLogOfNoCollector: what was rotated before the collector came is sent.
func TestLogOfNoCollector(t *testing.T) {
	c, open := logged(t)
	path := filepath.Join(t.TempDir(), "log.jsonl")
	for name, message := range map[string]string{path + ".1": "a", path: "b"} {
		line := `{"level":"info","time":"2026-03-01T14:05:00Z","message":"` + message + `"}` + "\n"
		if err := os.WriteFile(name, []byte(line+"torn\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l := open(path)
	defer l.Close()
	l.Once = true
	to := l.Logs
	l.Logs = nobody{}
	for range 2 {
		if err := Drain(t.Context(), l); !errors.Is(err, ErrLeft) {
			t.Fatal(err)
		}
	}
	l.Logs = to
	if err := Drain(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, r := range c.asMaps() {
		body, _ := r["body"].(string)
		got += body
	}
	if s := l.Stats(); got != "ab" || s.Sent != 2 || s.Broken != 2 {
		t.Errorf("got %s, %+v", got, s)
	}
}

// nobody takes nothing.
type nobody struct{}

func (nobody) Send(context.Context, []sdklog.Record) Answer { return Answer{Text: "nobody is there"} }

// TestLogGoesOn: after a stop nothing is sent again, through a rotation too; a
// line that is refused or cannot be read takes no other with it.
func TestLogGoesOn(t *testing.T) {
	c, open := logged(t)
	path := filepath.Join(t.TempDir(), "log.jsonl")
	line := func(message string) string {
		return `{"level":"info","time":"2026-03-01T14:05:00Z","message":"` + message + `"}` + "\n"
	}
	put := func(text string) error {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
			_ = f.Close()
		}
		return err
	}
	var stats Stats
	for _, step := range []func() error{
		func() error { return put(line("a")) },
		func() error { return put(line("b") + "torn\n" + line("bad") + line("c")) },
		func() error { return os.Rename(path, path+".1") },
		func() error { return put(line("d")) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
		l := open(path)
		if err := Drain(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		l.Close()
		stats = stats.Plus(l.Stats())
	}
	got := ""
	for _, r := range c.asMaps() {
		body, _ := r["body"].(string)
		got += body
	}
	if got != "abcd" || stats.Sent != 4 || stats.Dropped != 1 || stats.Broken != 1 {
		t.Errorf("got %s, %+v", got, stats)
	}
}
