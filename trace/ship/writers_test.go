package ship

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/tracewire/tracewire/trace"
)

// TestMain lets this program be a writer.
func TestMain(m *testing.M) {
	if dir := os.Getenv("TRACEWIRE_TEST_WRITER"); dir != "" {
		os.Exit(writer(dir, os.Args[1]))
	}
	os.Exit(m.Run())
}

// lines is how many operations a writer writes.
const lines = 20

// writer writes operations as the plugin does, and prints those that are in the
// spool.
func writer(dir, name string) int {
	for n := range lines {
		r := trace.NewRecorder(time.Now())
		_, root := r.Begin(fmt.Sprint(name, "/", n), time.Now(), trace.Origin{})
		root.End()
		if err := (trace.Spool{Dir: dir, MaxBytes: 1 << 30}).Write(r, nil); err == nil {
			fmt.Println(fmt.Sprint(name, "/", n))
		}
	}
	return 0
}

// TestWritersAndAReaderThatDeletes: fifty processes write, while segments are
// shipped and at once removed, as if their minute were over and an hour ago. Each
// line that a writer could write arrives, once.
func TestWritersAndAReaderThatDeletes(t *testing.T) {
	c := &collector{}
	served(t, protocolHTTP, c)
	dir := t.TempDir()
	s := opened(t, dir, nil)
	s.Now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	var seen sync.Map
	s.Each = func(line []byte) {
		if _, twice := seen.LoadOrStore(string(line), true); twice {
			t.Errorf("seen twice: %s", line)
		}
	}
	var writers sync.WaitGroup
	var mu sync.Mutex
	want := map[string]int{}
	for w := range 50 {
		writers.Go(func() {
			cmd := exec.Command(os.Args[0], fmt.Sprint(w))
			cmd.Env = append(os.Environ(), "TRACEWIRE_TEST_WRITER="+dir)
			out, err := cmd.Output()
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for line := range strings.Lines(string(out)) {
				want[strings.TrimSpace(line)] = 1
			}
		})
	}
	var done atomic.Bool
	go func() { writers.Wait(); done.Store(true) }()
	var both sync.WaitGroup
	for _, do := range [][]func() error{{s.See}, {func() error { return Drain(t.Context(), s) }, s.Tidy}} {
		both.Go(func() { untilThen(t, &done, do...) })
	}
	both.Wait()
	untilThen(t, &done, s.Tidy) // what was sent before it was seen
	got := map[string]int{}
	for _, n := range c.names() {
		got[n]++
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	n := 0
	seen.Range(func(any, any) bool { n++; return true })
	if left, _ := filepath.Glob(dir + "/*.jsonl"); n != len(want) || len(want) < 50*lines/2 || len(left) > 0 {
		t.Errorf("%d lines, %d were handed on, %v is left", len(want), n, left)
	}
}

// untilThen does some things again and again, and once more when all is done.
func untilThen(t *testing.T, done *atomic.Bool, all ...func() error) {
	t.Helper()
	for last := false; !last; {
		last = done.Load()
		for _, do := range all {
			if err := do(); err != nil {
				t.Error(err)
				return
			}
		}
	}
}

// TestSegmentThatComesMeanwhile: a mark stays that was set while another
// goroutine lists the segments.
func TestSegmentThatComesMeanwhile(t *testing.T) {
	dir := t.TempDir()
	s := opened(t, dir, nil)
	counts := map[string]int{}
	s.Each = func(line []byte) { counts[string(line)]++ }
	var done atomic.Bool
	var lister sync.WaitGroup
	lister.Go(func() { untilThen(t, &done, func() error { _, err := s.segments(); return err }) })
	want := map[string]int{}
	for n := range 300 {
		text := fmt.Sprintf("{\"n\":%d}", n)
		want[text] = 1
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("2026%04d%s", n, trace.SegmentSuffix)), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.See(); err != nil {
			t.Fatal(err)
		}
	}
	done.Store(true)
	lister.Wait()
	if err := s.See(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestRun: a spool is waited for, what comes is sent, and what is left when the
// agent has to stop too.
func TestRun(t *testing.T) {
	c := &collector{}
	served(t, protocolHTTP, c)
	dir := filepath.Join(t.TempDir(), "state", "spool")
	to, err := NewTraces(t.Context(), os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	s := NewSpool(dir, to)
	seen := make(chan struct{}, 2)
	s.Each = func([]byte) { seen <- struct{}{} }
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { s.Run(ctx); close(ended) }()
	write(t, dir, "first")
	<-seen
	write(t, dir, "last")
	stop()
	<-ended
	if diff := cmp.Diff([]string{"first", "last"}, c.names()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestBusy: a spool that another agent has is waited for, and said to be stuck.
func TestBusy(t *testing.T) {
	c := &collector{}
	served(t, protocolHTTP, c)
	dir := t.TempDir()
	first := opened(t, dir, nil)
	s := NewSpool(dir, first.Traces)
	sent, said := make(chan struct{}), make(chan struct{})
	s.Each = func([]byte) { close(sent) }
	s.Log = zerolog.New(io.Discard).Hook(zerolog.HookFunc(func(*zerolog.Event, zerolog.Level, string) { close(said) }))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { s.Run(ctx); close(ended) }()
	<-said
	if got, want := s.Stats(), dir+": another agent follows it"; got.LastError != want || got.Since.IsZero() {
		t.Errorf("%+v, want %s", got, want)
	}
	write(t, dir, "a")
	first.place.close()
	first.place.lock = -1
	<-sent
	stop()
	<-ended
	if diff := cmp.Diff([]string{"a"}, c.names()); diff != "" || !s.Stats().Since.IsZero() {
		t.Errorf("%+v (-want +got):\n%s", s.Stats(), diff)
	}
}

func write(t *testing.T, dir, name string) {
	t.Helper()
	r := trace.NewRecorder(time.Now())
	_, root := r.Begin(name, time.Now(), trace.Origin{})
	root.End()
	if err := (trace.Spool{Dir: dir, MaxBytes: 1 << 20}).Write(r, nil); err != nil {
		t.Fatal(err)
	}
}
