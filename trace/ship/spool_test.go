package ship

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/otel/attribute"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/tracewire/tracewire/trace"
)

// operation is an operation's line, as the plugin writes it.
func operation(names ...string) string {
	r := trace.NewRecorder(time.Now())
	ctx, root := r.Begin(names[0], time.Now(), trace.Origin{})
	for _, n := range names[1:] {
		_, s := r.Tracer("").Start(ctx, n)
		s.SetAttributes(attribute.Int64("cni.error.code", 1<<53+1))
		s.End()
	}
	root.End()
	return string(r.OTLP(trace.Resource("test", "boot", func(string) string { return "" })))
}

// spool is a folder of segments.
func spool(t *testing.T, segments map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range segments {
		if err := os.WriteFile(filepath.Join(dir, name+trace.SegmentSuffix), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// opened is a spool that this test ships to where the environment says. What it
// would wait for is added to pauses.
func opened(t *testing.T, dir string, pauses *[]time.Duration) *Spool {
	t.Helper()
	to, err := NewTraces(t.Context(), os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	s := NewSpool(dir, to)
	s.Pause = func(_ context.Context, d time.Duration) error {
		if pauses != nil {
			*pauses = append(*pauses, d)
		}
		return nil
	}
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// TestAnswers: what is done on each answer that the specification knows, in both
// protocols.
func TestAnswers(t *testing.T) {
	unavailable := reply{http: http.StatusServiceUnavailable, grpc: codes.Unavailable}
	for _, tt := range []struct {
		name   string
		script []reply
		want   Stats
		pauses int           // that were made
		least  time.Duration // the first of them
	}{
		{"taken", nil, Stats{Sent: 4}, 0, 0},
		{"unavailable, twice", []reply{unavailable, unavailable}, Stats{Sent: 4, Failures: 2}, 2, 0},
		{"to be tried later", []reply{{http: http.StatusServiceUnavailable, grpc: codes.Unavailable, after: 70 * time.Second}}, Stats{Sent: 4, Failures: 1}, 1, 70 * time.Second},
		{"too many, and says when", []reply{{http: http.StatusTooManyRequests, grpc: codes.ResourceExhausted, after: 7 * time.Second}}, Stats{Sent: 4, Failures: 1}, 1, 7 * time.Second},
		{"a part was not taken", []reply{{http: http.StatusOK, rejected: 3, message: "bad names"}}, Stats{Sent: 1, Rejected: 3}, 0, 0},
		{"a warning", []reply{{http: http.StatusOK, message: "soon full"}}, Stats{Sent: 4}, 0, 0},
		{"a token that is out of date", []reply{{http: http.StatusUnauthorized, grpc: codes.Unauthenticated}}, Stats{Sent: 4, Failures: 1}, 1, 0},
		{"not for us", []reply{{http: http.StatusForbidden, grpc: codes.PermissionDenied}}, Stats{Sent: 4, Failures: 1}, 1, 0},
		{"not there", []reply{{http: http.StatusNotFound, grpc: codes.Unimplemented}}, Stats{Sent: 4, Failures: 1}, 1, 0},
		{"broken, of unknown cause", []reply{{http: http.StatusInternalServerError, grpc: codes.Unknown}}, Stats{Sent: 4, Failures: 1}, 1, 0},
		{"broken inside", []reply{{http: http.StatusNotImplemented, grpc: codes.Internal}}, Stats{Sent: 4, Failures: 1}, 1, 0},
		{"elsewhere", []reply{{http: http.StatusFound, grpc: codes.FailedPrecondition}}, Stats{Sent: 4, Failures: 1}, 1, 0},
		{"black hole, twice", []reply{{hang: true}, {hang: true}}, Stats{Sent: 4, Failures: 2}, 2, 0},
		{"refused once: in halves", []reply{{http: http.StatusBadRequest, grpc: codes.InvalidArgument}}, Stats{Sent: 4}, 0, 0},
	} {
		for _, protocol := range []string{protocolHTTP, protocolGRPC} {
			t.Run(tt.name+" by "+protocol, func(t *testing.T) {
				t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "10000")
				if strings.HasPrefix(tt.name, "black hole") {
					t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100")
				}
				c := &collector{script: tt.script}
				served(t, protocol, c)
				var pauses []time.Duration
				s := opened(t, spool(t, map[string]string{"20260101T0000Z": operation("a", "b") + operation("c", "d")}), &pauses)
				if err := Drain(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, s.Stats(), cmpopts.IgnoreFields(Stats{}, "LastError")); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if len(pauses) != tt.pauses || tt.pauses > 0 && pauses[0] < tt.least {
					t.Errorf("pauses of %v, want %d, the first of at least %s", pauses, tt.pauses, tt.least)
				}
				if more, err := s.Ship(t.Context()); more || err != nil {
					t.Errorf("sent again: %v, %v", more, err)
				}
			})
		}
	}
}

// TestDeniedSpool: who is not let in loses nothing, and says since when and why.
func TestDeniedSpool(t *testing.T) {
	denied := true
	c := &collector{refuses: func(ptrace.Traces) *reply {
		if denied {
			return &reply{http: http.StatusUnauthorized, grpc: codes.Unauthenticated}
		}
		return nil
	}}
	for _, protocol := range []string{protocolHTTP, protocolGRPC} {
		denied, c.took = true, nil
		served(t, protocol, c)
		s := opened(t, spool(t, map[string]string{"20260101T0000Z": operation("a")}), nil)
		s.Once = true
		if err := Drain(t.Context(), s); !errors.Is(err, ErrLeft) {
			t.Errorf("%s: %v", protocol, err)
		}
		if got := s.Stats(); got.Dropped != 0 || got.Since.IsZero() || !strings.Contains(got.LastError, "nauth") {
			t.Errorf("%s: %+v", protocol, got)
		}
		denied = false
		if err := Drain(t.Context(), s); err != nil {
			t.Errorf("%s: %v", protocol, err)
		}
		if diff := cmp.Diff([]string{"a"}, c.names()); diff != "" || !s.Stats().Since.IsZero() {
			t.Errorf("%s: %+v (-want +got):\n%s", protocol, s.Stats(), diff)
		}
	}
}

// TestCountedOnce: what is sent again, because a part of it could not be sent,
// counts once.
func TestCountedOnce(t *testing.T) {
	bad, away := reply{http: http.StatusBadRequest}, reply{http: http.StatusBadGateway}
	c := &collector{script: []reply{bad, good, away, away}} // in halves, of which one is taken; then nothing
	served(t, protocolHTTP, c)
	s := opened(t, spool(t, map[string]string{"20260101T0000Z": policyLine(t, "a", "1", true, false, 0) + "torn\n" +
		policyLine(t, "b", "2", false, false, 0) + policyLine(t, "c", "3", true, false, 0)}), nil)
	s.Once, s.judge.Policy = true, Policy{Parent: true}
	for range 2 {
		if err := Drain(t.Context(), s); !errors.Is(err, ErrLeft) {
			t.Fatal(err)
		}
	}
	if err := Drain(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	want := Stats{Sent: 2, Unsampled: 1, Broken: 1, Failures: 2, LastError: "502 Bad Gateway"}
	if diff := cmp.Diff(want, s.Stats()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestOtherServers: what another server says than one for OTLP is not taken for
// an answer.
func TestOtherServers(t *testing.T) {
	body := func(kind, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = w.Write([]byte(text))
		}
	}
	login := http.NewServeMux()
	login.Handle("/login", body("", ""))
	login.Handle("/", http.RedirectHandler("/login", http.StatusFound))
	for _, tt := range []struct {
		name   string
		server http.Handler
		want   Answer
	}{
		{"a redirect", login, Answer{Text: "302 Found"}},
		{"a page", body("text/html; charset=utf-8", "<html>"), Answer{Text: "200 OK with text/html that is no answer to OTLP: is text"}},
		{"another API", body("application/json", `{"error":"login"}`), Answer{Text: "200 OK with application/json that is no answer to OTLP"}},
		{"what is no protobuf", body("application/x-protobuf", "<html>"), Answer{Text: "200 OK with application/x-protobuf that is no answer to OTLP"}},
		{"nothing", body("text/plain", ""), Answer{Verdict: Accepted}},
		{"JSON", body("application/json", `{"partialSuccess":{"rejectedSpans":"1","errorMessage":"long"}}`), Answer{Verdict: Accepted, Rejected: 1, Text: "long"}},
		{"JSON of logs", body("application/json", `{"partialSuccess":{"rejectedLogRecords":2}}`), Answer{Verdict: Accepted, Rejected: 2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := httptest.NewServer(tt.server)
			t.Cleanup(server.Close)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
			to, err := NewTraces(t.Context(), os.Getenv)
			if err != nil {
				t.Fatal(err)
			}
			got := to.Send(t.Context(), spans(t))
			text := got.Text
			if got.Text = tt.want.Text; got != tt.want || !strings.HasPrefix(text, tt.want.Text) {
				t.Errorf("%+v, %s, want %+v", got, text, tt.want)
			}
		})
	}
}

// TestRefusedSpan: a span that the collector refuses takes no other with it.
func TestRefusedSpan(t *testing.T) {
	c := &collector{refuses: func(td ptrace.Traces) (r *reply) {
		each(td, func(s ptrace.Span) {
			if s.Name() == "bad" {
				r = &reply{http: http.StatusBadRequest, grpc: codes.InvalidArgument}
			}
		})
		return r
	}}
	served(t, protocolHTTP, c)
	s := opened(t, spool(t, map[string]string{
		"20260101T0000Z": operation("a", "b", "bad", "c") + operation("d") + operation("e"),
		"20260101T0001Z": operation("f", "g"),
	}), nil)
	if err := Drain(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b", "c", "d", "e", "f", "g"}, sorted(c.names())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := s.Stats(); got.Dropped != 1 || got.Sent != 7 {
		t.Errorf("%+v", got)
	}
}

func sorted(s []string) []string { slices.Sort(s); return s }

// TestUnchanged: what arrives is what the plugin wrote, also when it is sent
// again because the agent was killed before its checkpoint.
func TestUnchanged(t *testing.T) {
	for _, protocol := range []string{protocolHTTP, protocolGRPC} {
		t.Run(protocol, func(t *testing.T) {
			c := &collector{}
			served(t, protocol, c)
			line := operation("cni.ADD", "ipam")
			dir := spool(t, map[string]string{"20260101T0000Z": line})
			for range 2 {
				s := opened(t, dir, nil)
				if err := Drain(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				s.Close()
				if err := os.Remove(filepath.Join(dir, "agent.checkpoint")); err != nil {
					t.Fatal(err)
				}
			}
			want, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces([]byte(line))
			if err != nil {
				t.Fatal(err)
			}
			if len(c.took) != 2 {
				t.Fatalf("%d requests", len(c.took))
			}
			for _, td := range c.took {
				if a, b := asJSON(t, want), asJSON(t, td); a != b {
					t.Errorf("want %s\ngot %s", a, b)
				}
			}
		})
	}
}

func asJSON(t *testing.T, td ptrace.Traces) string {
	t.Helper()
	b, err := (&ptrace.JSONMarshaler{}).MarshalTraces(td)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestGoesOn: after a stop nothing is sent again, and what came is sent.
func TestGoesOn(t *testing.T) {
	c := &collector{}
	served(t, protocolHTTP, c)
	dir := spool(t, map[string]string{"20260101T0000Z": operation("a"), "20260101T0001Z": operation("b")})
	name := filepath.Join(dir, "20260101T0000Z"+trace.SegmentSuffix)
	for _, step := range []func() error{
		func() error { return nil },
		func() error { return add(name, operation("c")) }, // a late writer's, to one that was acknowledged
		func() error { return nil },
		func() error {
			return errors.Join(os.Remove(name), os.WriteFile(name+".new", []byte(operation("d")), 0o600), os.Rename(name+".new", name))
		},
		func() error { return os.WriteFile(filepath.Join(dir, "agent.checkpoint"), nil, 0o600) }, // a power cut: all again
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
		s := opened(t, dir, nil)
		if err := Drain(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	if diff := cmp.Diff([]string{"a", "b", "c", "d", "d", "b"}, c.names()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func add(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// TestBroken: lines that cannot be read are counted and passed over; the end of a
// line is waited for while its minute lasts.
func TestBroken(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 1, 30, 0, time.UTC)
	a, b := operation("a"), operation("b")
	for _, tt := range []struct {
		name, past, present string
		want                []string
		broken              uint64
	}{
		{"torn in the middle", a[:40] + "\n" + b, "", []string{"b"}, 1},
		{"no JSON", "x\n{}\n\n" + a, "", []string{"a"}, 1},
		{"a line that has no end", a + b[:40], "", []string{"a"}, 1},
		{"a line feed is missing, and no more", a + strings.TrimSuffix(b, "\n"), "", []string{"a", "b"}, 0},
		{"is being written", a, b[:40], []string{"a"}, 0},
		{"too long", strings.Repeat("x", 9<<20) + "\n" + a, "", []string{"a"}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &collector{}
			served(t, protocolHTTP, c)
			s := opened(t, spool(t, map[string]string{"20260101T0000Z": tt.past, "20260101T0001Z": tt.present}), nil)
			s.Now = func() time.Time { return now }
			if err := Drain(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, c.names()); diff != "" || s.Stats().Broken != tt.broken {
				t.Errorf("%d broken (-want +got):\n%s", s.Stats().Broken, diff)
			}
		})
	}
}

// TestTidy: segments go when they were acknowledged to their end, and are old or
// in the way.
func TestTidy(t *testing.T) {
	now := time.Date(2026, 1, 1, 1, 1, 30, 0, time.UTC)
	line := operation("a")
	segments := map[string]string{"20260101T0000Z": line, "20260101T0001Z": line, "20260101T0100Z": line, "20260101T0101Z": line}
	for _, tt := range []struct {
		name   string
		budget int
		do     func(t *testing.T, s *Spool, dir string)
		want   []string
	}{
		{"an hour ago", 1 << 20, nil, []string{"20260101T0001Z", "20260101T0100Z", "20260101T0101Z"}},
		{"budget", len(line) * 3, nil, []string{"20260101T0100Z", "20260101T0101Z"}},
		{"this minute's stays", 1, nil, []string{"20260101T0101Z"}},
		{"written to", 1 << 20, func(t *testing.T, _ *Spool, dir string) {
			if err := add(filepath.Join(dir, "20260101T0000Z.jsonl"), "x"); err != nil {
				t.Fatal(err)
			}
		}, []string{"20260101T0000Z", "20260101T0001Z", "20260101T0100Z", "20260101T0101Z"}},
		{"of a clock that was ahead", 1 << 20, func(t *testing.T, s *Spool, dir string) {
			if err := os.Rename(filepath.Join(dir, "20260101T0001Z.jsonl"), filepath.Join(dir, "20360101T0001Z.jsonl")); err != nil {
				t.Fatal(err)
			}
			if err := Drain(t.Context(), s); err != nil { // a new name is sent anew
				t.Fatal(err)
			}
		}, []string{"20260101T0100Z", "20260101T0101Z"}},
		{"not seen yet", 1, func(_ *testing.T, s *Spool, _ string) { s.Each = func([]byte) {} }, []string{"20260101T0000Z", "20260101T0001Z", "20260101T0100Z", "20260101T0101Z"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			served(t, protocolHTTP, &collector{})
			dir := spool(t, segments)
			s := opened(t, dir, nil)
			s.Now, s.MaxBytes = func() time.Time { return now }, int64(tt.budget)
			if err := Drain(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if tt.do != nil {
				tt.do(t, s, dir)
			}
			if err := s.Tidy(); err != nil {
				t.Fatal(err)
			}
			left, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			for i := range left {
				left[i] = strings.TrimSuffix(filepath.Base(left[i]), ".jsonl")
			}
			if diff := cmp.Diff(tt.want, left); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestBatchesAreBounded: what is held of a spool does not grow with it.
func TestBatchesAreBounded(t *testing.T) {
	line := operation("a", strings.Repeat("b", 4000))
	dir := spool(t, map[string]string{"20260101T0000Z": strings.Repeat(line, 1000), "20260101T0001Z": strings.Repeat(line, 1000)})
	s := opened(t, dir, nil)
	s.Each = func([]byte) {}
	lines, batches := 0, 0
	for {
		b, err := s.next(seen)
		if err != nil {
			t.Fatal(err)
		}
		if b.empty() {
			break
		}
		if n := len(bytes.Join(b.lines, nil)); n > maxBatch+len(line) {
			t.Errorf("a batch of %d bytes", n)
		}
		lines += len(b.lines)
		batches++
		s.advance(b.marks, seen)
	}
	if least := 2000 * len(line) / maxBatch; lines != 2000 || batches < least || batches > least*2 {
		t.Errorf("%d lines in %d batches", lines, batches)
	}
}

// TestTwoAgents: a spool has one.
func TestTwoAgents(t *testing.T) {
	dir := spool(t, nil)
	opened(t, dir, nil)
	err := NewSpool(dir, nil).Open()
	if got, want := fmt.Sprint(err), dir+": another agent follows it"; got != want {
		t.Errorf("error %s, want %s", got, want)
	}
}

// TestCheckpointThatCannotBeKept: all is sent all the same, and that another start
// sends it again is told.
func TestCheckpointThatCannotBeKept(t *testing.T) {
	c := &collector{}
	served(t, protocolHTTP, c)
	dir := spool(t, map[string]string{"20260101T0000Z": operation("a"), "20260101T0001Z": strings.Repeat(operation("b"), 3000)})
	if err := os.MkdirAll(filepath.Join(dir, "agent.checkpoint.new", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := opened(t, dir, nil)
	if err := Drain(t.Context(), s); err != nil {
		t.Error(err)
	}
	if st := s.Stats(); st.Sent != 3001 || !strings.HasPrefix(st.Unsaved, "checkpoint cannot be saved: ") {
		t.Errorf("%+v", st)
	}
	if left := s.Left(); !strings.Contains(left, ": 0 bytes") {
		t.Errorf("left: %s", left)
	}
}

// TestCheckpointOfAnother: what others planted in the checkpoint's place is
// neither followed nor waited for.
func TestCheckpointOfAnother(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(path string) error{
		"link": func(path string) error { return os.Symlink(victim, path) },
		"pipe": func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			served(t, protocolHTTP, &collector{})
			dir := spool(t, map[string]string{"20260101T0000Z": operation("a")})
			for _, end := range []string{"", ".new"} {
				if err := plant(filepath.Join(dir, "agent.checkpoint"+end)); err != nil {
					t.Fatal(err)
				}
			}
			s := opened(t, dir, nil)
			if err := Drain(t.Context(), s); err != nil || s.Stats().Sent != 1 || s.Stats().Unsaved != "" {
				t.Errorf("%v, %+v", err, s.Stats())
			}
			if b, err := os.ReadFile(victim); err != nil || string(b) != "theirs" {
				t.Errorf("%v, %s", err, b)
			}
			if b, err := os.ReadFile(filepath.Join(dir, "agent.checkpoint")); err != nil || !strings.Contains(string(b), "20260101T0000Z") {
				t.Errorf("%v, %s", err, b)
			}
		})
	}
}
