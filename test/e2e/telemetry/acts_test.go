//go:build linux

package telemetry

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The containers of the network lan: attached by operations, and these stay.
const (
	containers = 50
	atOnce     = 4
	gone       = 20 // detached by operations, one way or another
)

func pod(i int) string { return fmt.Sprintf("pod-%02d", i) }

// asksFor asks for n operations, some at once.
func (s *stage) asksFor(n int, of func(i int) call) {
	turn := make(chan struct{}, atOnce)
	var group sync.WaitGroup
	for i := range n {
		turn <- struct{}{}
		group.Go(func() {
			defer func() { <-turn }()
			s.ask(of(i))
		})
	}
	group.Wait()
}

// add and del are usual operations.
func (s *stage) add(id string) { s.ask(call{verb: "ADD", network: "lan", id: id}) }
func (s *stage) del(id string) {
	s.ask(call{verb: "DEL", network: "lan", id: id, links: []*ask{s.began(id)}})
}

// began is the ADD that an attachment stands on.
func (s *stage) began(id string) *ask {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.adds[id]
}

// operations is the life of a busy node, with everything that goes wrong on it.
func (s *stage) operations(t *testing.T) {
	s.asksFor(containers, func(i int) call { return call{verb: "ADD", network: "lan", id: pod(i)} })
	s.learn("lan", "learn") // not the first: that one has points of its own
	s.asksFor(containers/5, s.check)
	s.refused()
	s.kills()
	s.collectGarbage(t)
	s.asksFor(gone-10, func(i int) call {
		return call{verb: "DEL", network: "lan", id: pod(10 + i), links: []*ask{s.began(pod(10 + i))}}
	})
}

// check is a CHECK of a container that stays.
func (s *stage) check(i int) call {
	id := pod(gone + i%(containers-gone))
	return call{verb: "CHECK", network: "lan", id: id, links: []*ask{s.began(id)}}
}

// refused asks for what cannot be had; after a failure a runtime cleans up.
func (s *stage) refused() {
	first := s.began(pod(0))
	s.ask(call{verb: "ADD", network: "lan", id: pod(0), want: failed})
	s.adds[pod(0)] = first
	for i := range 3 {
		id := fmt.Sprint("elsewhere-", i)
		s.ask(call{verb: "ADD", network: "lan", id: id, ips: []string{"203.0.113.9/24"}, want: failed})
		s.ask(call{verb: "DEL", network: "lan", id: id})
	}
	s.ask(call{verb: "ADD", network: "small", id: "only"})
	for i := range 3 {
		id := fmt.Sprint("late-", i)
		s.ask(call{verb: "ADD", network: "small", id: id, want: failed})
		s.ask(call{verb: "DEL", network: "small", id: id})
	}
	s.ask(call{verb: "DEL", network: "small", id: "only", links: []*ask{s.began("only")}})
}

// kills kills operations, and does what a runtime may do then.
func (s *stage) kills() {
	for i, at := range []string{"after name of record", "after veth.create", "after address.add", "after result"} {
		id := fmt.Sprint("killed-", i)
		s.ask(call{verb: "ADD", network: "lan", id: id, at: at, want: interrupted})
		s.del(id)
	}
	killed := s.ask(call{verb: "ADD", network: "lan", id: "killed-again", at: "after plan", want: interrupted})
	s.ask(call{verb: "ADD", network: "lan", id: "killed-again", links: []*ask{killed}})
	s.del("killed-again")
	s.add("killed-del")
	s.ask(call{verb: "DEL", network: "lan", id: "killed-del", at: "after deleting", want: interrupted, links: []*ask{s.began("killed-del")}})
	s.del("killed-del")
	s.ask(call{verb: "ADD", network: "lan", id: "killed-gc", at: "after veth.create", want: interrupted})
}

// collectGarbage is a GC to which the first containers are stale: of some of
// them libcni's entry is lost, so that only our record knows them.
func (s *stage) collectGarbage(t *testing.T) {
	t.Helper()
	var valid []string
	var links []*ask
	var byLibcni []ask
	for i := range containers {
		switch {
		case i >= 10:
			valid = append(valid, pod(i))
		case i%2 == 0:
			byLibcni = append(byLibcni, ask{verb: "DEL", id: pod(i), links: []*ask{s.began(pod(i))}})
		default:
			links = append(links, s.began(pod(i)))
			if err := os.Remove("/var/lib/cni/results/lan-" + pod(i) + "-eth0"); err != nil {
				t.Fatal(err)
			}
		}
	}
	gc := s.ask(call{verb: "GC", network: "lan", valid: valid, links: append(links, s.began("killed-gc"))})
	s.also(gc, byLibcni...)
}

// polls is how often STATUS is asked.
const polls = 300

// status asks STATUS often: only a verdict that changes is told.
func (s *stage) status(t *testing.T) {
	poll := func(fails bool) {
		for range polls / 3 {
			err := s.cni.GetStatusNetworkList(context.Background(), s.lists["small"])
			if (err != nil) != fails {
				t.Fatalf("STATUS fails: %v, want %v", err, fails)
			}
		}
	}
	poll(false)
	s.ask(call{verb: "ADD", network: "small", id: "full"})
	poll(true)
	s.ask(call{verb: "DEL", network: "small", id: "full", links: []*ask{s.began("full")}})
	poll(false)
	s.verdicts = []*ask{{verb: "STATUS", outcome: failed, code: 50}, {verb: "STATUS", outcome: fine}}
	last := s.ask(s.check(0))
	within(t, "the operation after", func() error { _, _, err := look(last); return err })
	found, err := traces(search("tracewire", "cni.STATUS"))
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]int{}
	for _, trace := range found {
		for _, root := range trace.of("tracewire", "cni.STATUS") {
			codes[root.tag("otel.status_code")]++
		}
	}
	if diff := cmp.Diff(map[string]int{"ERROR": 1, "": 1}, codes); diff != "" {
		t.Errorf("spans of STATUS by status, want a failure and a success, -want +got:\n%s", diff)
	}
	levels := map[string]int{}
	for _, l := range s.logged(t) {
		if l.text("message") == "cni.STATUS" {
			levels[l.text("level")]++
		}
	}
	if diff := cmp.Diff(map[string]int{"warn": 1, "info": 1}, levels); diff != "" {
		t.Errorf("lines of STATUS by level, -want +got:\n%s", diff)
	}
}

// logged is the log's lines.
func (s *stage) logged(t *testing.T) []line {
	t.Helper()
	f, err := os.Open(logPath)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := lines(f)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// rotate runs logrotate with a file of docs/pipelines.
func (s *stage) rotate(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(pipelines(t, name))
	conf := filepath.Join(s.dir, name) // it wants to own what it reads
	if err = errors.Join(err, os.WriteFile(conf, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	run(t, "logrotate", "--force", "--state", filepath.Join(s.dir, "logrotate"), conf)
}

// rename rotates the log while operations go on.
func (s *stage) rename(t *testing.T) {
	var group sync.WaitGroup
	group.Go(func() { s.asksFor(30, s.check) })
	s.rotate(t, "logrotate-rename.conf")
	group.Wait()
}

// copytruncate rotates the log once its readers have all of it: what they have
// not read by then would be lost.
func (s *stage) copytruncate(t *testing.T) {
	within(t, "VictoriaLogs", func() error { _, err := victorious(s.asks); return err })
	within(t, "rsyslog", func() error { _, err := forwarded(s.asks); return err })
	s.rotate(t, "logrotate-copytruncate.conf")
	s.asksFor(10, s.check)
}

// alone goes on while nobody takes the telemetry.
func (s *stage) alone(t *testing.T) {
	s.collector.stop(t)
	for i := range 10 {
		s.add(fmt.Sprint("alone-", i))
		s.del(fmt.Sprint("alone-", i))
	}
	s.collect(t, logPath)
}

// inJaeger compares what Jaeger has with what was asked for.
func (s *stage) inJaeger(t *testing.T) {
	s.count(t, "Jaeger", "agent, Collector", account)
	s.onlyAsked(t)
	s.throughDelegate(t)
}

// onlyAsked looks for operations that nobody asked for.
func (s *stage) onlyAsked(t *testing.T) {
	t.Helper()
	want, got := map[string]int{}, map[string]int{}
	for _, a := range s.asks {
		want[a.verb]++
	}
	for verb := range want {
		found, err := traces(search("tracewire", "cni."+verb))
		if err != nil {
			t.Fatal(err)
		}
		for _, trace := range found {
			got[verb] += len(trace.of("tracewire", "cni."+verb))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("operations by verb, -asked +found:\n%s", diff)
	}
}

// throughDelegate follows every good ADD from the caller through the plugin into
// the delegate, in one trace.
func (s *stage) throughDelegate(t *testing.T) {
	t.Helper()
	want := []string{"caller run ADD", "tracewire cni.ADD", "tracewire delegate witness", "tracewire exec", "witness witness.ADD"}
	sum := tally{}
	for _, a := range s.asks {
		if a.verb != "ADD" || a.network != "lan" || a.outcome != fine {
			continue
		}
		found, err := traces("/" + a.trace)
		if err != nil || len(found) != 1 {
			t.Fatalf("%v: %d traces, %v", a, len(found), err)
		}
		spans := found[0].of(witness, "witness.ADD")
		sum.add(len(spans))
		for _, span := range spans {
			if diff := cmp.Diff(want, found[0].under(span)); diff != "" {
				t.Errorf("%v: from caller to delegate, -want +got:\n%s", a, diff)
			}
		}
	}
	s.rows = append(s.rows, row{"Jaeger", "caller to delegate", sum})
	if err := sum.ok(); err != nil {
		t.Error(err)
	}
}

// inPrometheus compares what was counted with what was asked for.
func (s *stage) inPrometheus(t *testing.T) {
	want, took := map[counted]int{}, map[counted]int{}
	for _, a := range append(s.asks, s.verdicts...) {
		want[counted{a.verb, a.outcome, fmt.Sprint(a.code)}]++
		took[counted{Verb: a.verb}]++
	}
	for _, q := range []struct {
		what, query string
		want        map[counted]int
	}{
		{"operations", "sum by (verb, outcome, code) (tracewire_operations_total)", want},
		{"durations", "sum by (verb) (tracewire_operation_duration_seconds_count)", took},
		{"polls of STATUS", "tracewire_status_polls_total", map[counted]int{{}: polls}},
		{"broken lines", "sum(tracewire_export_broken_lines_total)", map[counted]int{{}: 0}},
	} {
		var got map[counted]int
		within(t, "Prometheus, "+q.what, func() (err error) {
			got, err = promQL(q.query)
			if diff := cmp.Diff(q.want, got); err == nil && diff != "" {
				err = fmt.Errorf("-asked +counted:\n%s", diff)
			}
			return err
		})
		sum := tally{}
		for key, n := range q.want {
			sum.asked += n
			sum.found += got[key]
		}
		s.rows = append(s.rows, row{"Prometheus", q.what, sum})
	}
}

func (s *stage) inVictoriaLogs(t *testing.T) { s.count(t, "VictoriaLogs", "Collector", victorious) }

func (s *stage) inRsyslog(t *testing.T) {
	s.count(t, "rsyslog", "imfile, mmjsonparse", forwarded)
	if bad, err := os.ReadFile(rsyslogBad); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("lines that rsyslog could not read: %q, %v", bad, err)
	}
}

// spoolAsItIs sends the spool's lines, as they are, through a Collector that has
// nothing to a Jaeger that has nothing.
func (s *stage) spoolAsItIs(t *testing.T) {
	for _, p := range []*program{s.agent, s.collector, s.jaeger} {
		p.stop(t)
	}
	s.kept += "-anew"
	s.storeSpans(t)
	s.collect(t, logPath+".none")
	for range 2 { // as a shipper may that was killed: whoever sends the same again
		run(t, pipelines(t, "spool.sh"), spoolDir, "http://"+collectorHTTP)
	}
	s.count(t, "Jaeger", "spool.sh, Collector", account)
}

// logAsItIs sends the log's files to a VictoriaLogs that has nothing.
func (s *stage) logAsItIs(t *testing.T) {
	s.victoria.stop(t)
	s.storeLines(t)
	files, err := filepath.Glob(logPath + "*")
	if err != nil || len(files) != 3 {
		t.Fatalf("files of the log: %q, %v, want 3", files, err)
	}
	for _, file := range files {
		run(t, pipelines(t, "victoria-logs.sh"), s.plain(t, file), victoria)
	}
	s.count(t, "VictoriaLogs", "victoria-logs.sh", victorious)
}

// plain is the path of a file that is not compressed, or not any more.
func (s *stage) plain(t *testing.T, path string) string {
	t.Helper()
	if !strings.HasSuffix(path, ".gz") {
		return path
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	out := filepath.Join(s.dir, "plain")
	if err = errors.Join(err, os.WriteFile(out, b, 0o600)); err != nil {
		t.Fatal(err)
	}
	return out
}
