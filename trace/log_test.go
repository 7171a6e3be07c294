package trace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	api "go.opentelemetry.io/otel/trace"
)

var began = time.Date(2026, 3, 1, 14, 5, 0, 123e6, time.UTC)

// secret is in the attributes of a phase, which are the trace's alone.
const secret = "hunter2"

// recorded is an ADD that failed in the second of its steps, or did not.
func recorded(t *testing.T, failed bool) *Recorder {
	t.Helper()
	r := NewRecorder(began)
	ctx, root := r.Tracer(Scope).Start(t.Context(), "cni.ADD", api.WithTimestamp(began), api.WithAttributes(
		KeyName.String("net"), KeyAddresses.StringSlice([]string{"10.1.0.2/24"}), KeyErrorCode.Int64(11), KeyReaped.Bool(true),
		KeyLockWait.Float64(0.25), KeyPod.String("w\x1b[31m\n"), attribute.String("long", strings.Repeat("x", 1<<20)), attribute.Int64Slice("numbers", []int64{1, 2})))
	_, ipam := r.Tracer(Scope).Start(ctx, "ipam", api.WithTimestamp(began.Add(time.Millisecond)), api.WithAttributes(attribute.String("password", secret)))
	ipam.AddEvent("silent", api.WithTimestamp(began))
	ipam.End(api.WithTimestamp(began.Add(3500 * time.Microsecond)))
	_, bridge := r.Tracer(Scope).Start(ctx, "bridge", api.WithTimestamp(began.Add(4*time.Millisecond)))
	Warn(api.ContextWithSpan(ctx, bridge), "standard error of fake", KeyStderr.String("noise"))
	if failed {
		bridge.SetStatus(codes.Error, "no route")
		root.SetStatus(codes.Error, "bridge: no route")
	}
	bridge.End(api.WithTimestamp(began.Add(5 * time.Millisecond)))
	root.End(api.WithTimestamp(began.Add(6 * time.Millisecond)))
	return r
}

// entries is the log's lines, without ids; the time of a warning, which is
// that of its event, is left out too.
func entries(t *testing.T, path string) (out []map[string]any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		m := map[string]any{}
		if err := json.Unmarshal([]byte(line), &m); err != nil || !strings.HasSuffix(line, "}\n") {
			t.Fatalf("%v: %s", err, line)
		}
		for key, n := range map[string]int{"trace_id": 32, "span_id": 16} {
			if id, _ := m[key].(string); len(id) != n {
				t.Errorf("%s is %v", key, m[key])
			}
			delete(m, key)
		}
		if m["level"] == "warn" {
			if _, err := time.Parse(time.RFC3339Nano, m["time"].(string)); err != nil { //nolint:errcheck // a panic would be a failure too
				t.Error(err)
			}
			delete(m, "time")
		}
		out = append(out, m)
	}
	return out
}

func TestLog(t *testing.T) {
	ipam := map[string]any{"level": "debug", "time": "2026-03-01T14:05:00.124Z", "duration_ms": 2.5, "outcome": "ok", "message": "ipam"}
	warning := map[string]any{"level": "warn", "cni.plugin.stderr": "noise", "message": "standard error of fake"}
	bridge := func(failed bool) map[string]any {
		m := map[string]any{"level": "debug", "time": "2026-03-01T14:05:00.127Z", "duration_ms": 1.0, "outcome": "ok", "message": "bridge"}
		if failed {
			m["outcome"], m["error"] = "error", "no route"
		}
		return m
	}
	summary := func(failed bool) map[string]any {
		m := map[string]any{
			"level": "info", "time": "2026-03-01T14:05:00.123Z", "duration_ms": 6.0, "outcome": "ok", "message": "cni.ADD",
			"cni.name": "net", "cni.addresses": []any{"10.1.0.2/24"}, "cni.error.code": 11.0, "cni.reaped": true, "cni.lock.wait_ms": 0.25,
			"k8s.pod.name": "w\x1b[31m\n", "long": strings.Repeat("x", maxValue), "numbers": []any{1.0, 2.0},
		}
		if failed {
			m["level"], m["outcome"], m["error"] = "error", "error", "bridge: no route"
		}
		return m
	}
	for _, tt := range []struct {
		level  string
		failed bool
		want   []map[string]any
	}{
		{"debug", false, []map[string]any{ipam, warning, bridge(false), summary(false)}},
		{"debug", true, []map[string]any{ipam, warning, bridge(true), summary(true)}},
		{"info", false, []map[string]any{warning, summary(false)}},
		{"info", true, []map[string]any{warning, summary(true)}},
		{"warn", false, []map[string]any{warning}},
		{"warn", true, []map[string]any{warning, summary(true)}},
		{"error", false, nil},
		{"error", true, []map[string]any{summary(true)}},
		{"off", true, nil},
		{"nonsense", true, nil},
	} {
		name := tt.level
		if tt.failed {
			name += ", failed"
		}
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log", "tracewire", "a.jsonl")
			if err := (Log{Path: path, Level: tt.level}).Write(recorded(t, tt.failed)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, entries(t, path)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			b, _ := os.ReadFile(path)
			if strings.Contains(string(b), secret) || strings.Contains(string(b), "\x1b") {
				t.Errorf("has what does not belong there: %s", b)
			}
		})
	}
}

// TestLogTellsWhatIsGone: in the log alone, as the trace has it as spans.
func TestLogTellsWhatIsGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.jsonl")
	r := NewRecorder(began)
	ctx, root := r.Begin("cni.GC", began, Origin{})
	TellGone(ctx, ByGC, KeyID.String("c1"))
	TellGone(Quiet(ctx), ByGC, KeyID.String("c2"))
	root.End()
	if err := (Log{Path: path, Level: "info"}).Write(r); err != nil {
		t.Fatal(err)
	}
	all := entries(t, path)
	for _, m := range all {
		delete(m, "time")
		delete(m, "duration_ms")
	}
	if diff := cmp.Diff([]map[string]any{{"level": "info", "cni.command": "GC", "cni.id": "c1", "message": Gone}, {"level": "info", "outcome": "ok", "message": "cni.GC"}}, all); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if n := len(r.spans[0].events); n != 0 {
		t.Errorf("the span has %d events", n)
	}
}

// TestLogOfAMildFailure: a warning, and so in a log of warnings and in none of errors.
func TestLogOfAMildFailure(t *testing.T) {
	for level, want := range map[string][]map[string]any{
		"info":  {{"level": "warn", "duration_ms": 0.0, "outcome": "error", "error": "no room", "message": "cni.STATUS"}},
		"warn":  {{"level": "warn", "duration_ms": 0.0, "outcome": "error", "error": "no room", "message": "cni.STATUS"}},
		"error": nil,
	} {
		r := NewRecorder(began)
		_, root := r.Begin("cni.STATUS", began, Origin{})
		root.FailMildly("no room")
		path := filepath.Join(t.TempDir(), "a.jsonl")
		if err := (Log{Path: path, Level: level}).Write(r); err != nil {
			t.Fatal(err)
		}
		got := entries(t, path)
		for _, e := range got {
			e["duration_ms"] = 0.0 // the span still runs
			delete(e, "time")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", level, diff)
		}
	}
}

func TestLogOfNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.jsonl")
	if err := (Log{Path: path, Level: "debug"}).Write(NewRecorder(began)); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was made: %v", err)
	}
}

// TestLogAppends: one write an operation, after what is there.
func TestLogAppends(t *testing.T) {
	path := filepath.Join(t.TempDir(), "folder", "a.jsonl")
	for range 3 {
		if err := (Log{Path: path, Level: "info"}).Write(recorded(t, false)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(entries(t, path)); n != 6 {
		t.Errorf("%d lines", n)
	}
	for p, want := range map[string]os.FileMode{path: 0o640, filepath.Dir(path): fs.ModeDir | 0o755} {
		if st, err := os.Stat(p); err != nil || st.Mode() != want {
			t.Errorf("%s: %v, mode %s", p, err, st.Mode())
		}
	}
}

// TestLogRemovedWhileOpen: no line that was written is only in a log that lost its
// name, as one does when it is rotated away and removed.
func TestLogRemovedWhileOpen(t *testing.T) {
	log := Log{Path: filepath.Join(t.TempDir(), "a.jsonl"), Level: "info"}
	written := make(chan int)
	go func() {
		n := 0
		for range 200 {
			switch err := log.Write(recorded(t, false)); {
			case err == nil:
				n++
			case !errors.Is(err, errUnlinked):
				t.Error(err)
			}
		}
		written <- n
	}()
	seen := 0
	take := func() { // what a log has by its end: nobody writes to it without a name
		f, err := os.Open(log.Path)
		if err != nil {
			return
		}
		defer func() { _ = f.Close() }()
		_ = os.Remove(log.Path)
		b, _ := io.ReadAll(f)
		seen += bytes.Count(b, []byte(`"message":"cni.ADD"`))
	}
	for {
		select {
		case n := <-written:
			take()
			if seen < n {
				t.Errorf("%d operations seen, %d written", seen, n)
			}
			return
		default:
			take()
		}
	}
}

func TestLogOfASpanThatStillRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.jsonl")
	r := NewRecorder(time.Now())
	ctx, _ := r.Tracer(Scope).Start(t.Context(), "cni.ADD")
	_ = Run(ctx, "a", func(context.Context) error { return nil })
	if err := (Log{Path: path, Level: "info"}).Write(r); err != nil {
		t.Fatal(err)
	}
	if got := entries(t, path); len(got) != 1 || got[0]["message"] != "cni.ADD" || got[0]["duration_ms"].(float64) < 0 { //nolint:errcheck // a panic would be a failure too
		t.Errorf("got %v", got)
	}
}

// TestLogThatNobodyRotates: it is renamed once it has more than its budget, by
// one of those who write at that time, and no line is lost.
func TestLogThatNobodyRotates(t *testing.T) {
	sandbox(t)
	dropped := func() int64 {
		st, err := os.Stat(DroppedPath)
		if err != nil {
			return 0
		}
		return st.Size()
	}
	before := dropped()
	path := filepath.Join(t.TempDir(), "log.jsonl")
	for name, size := range map[string]int64{path: maxLog + 1, path + ".1": 1} {
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, size)); err != nil {
			t.Fatal(err)
		}
	}
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			if err := (Log{Path: path, Level: "info"}).Write(recorded(t, false)); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	if err := (Log{Path: path, Level: "info"}).Write(recorded(t, false)); err != nil {
		t.Error(err)
	}
	lines := 0
	for _, name := range []string{path, path + ".1"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines += strings.Count(string(b), `"cni.ADD"`)
	}
	now, err := os.Stat(path)
	old, errOld := os.Stat(path + ".1")
	if err != nil || errOld != nil || now.Size() > 1<<20 || old.Size() <= maxLog || lines != 9 {
		t.Errorf("%d of 9 lines in %d and %d bytes, %v", lines, now.Size(), old.Size(), errors.Join(err, errOld))
	}
	if n := dropped() - before; n != 1 {
		t.Errorf("%d losses were counted", n)
	}
}
