package read

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/trace"
)

var exact = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

// logged is the log's lines of operations on these containers, as the plugin
// writes them at debug.
func logged(t *testing.T, ids ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log.jsonl")
	for _, id := range ids {
		r := record(t, trace.KeyCommand.String("ADD"), trace.KeyName.String("podnet"), trace.KeyID.String(id), trace.KeyIfName.String("eth0"),
			trace.KeyPodNamespace.String("default"), trace.KeyPod.String("web-0"), trace.KeyPodUID.String("5b1c"),
			trace.KeyAddresses.StringSlice([]string{"10.22.0.5/16", "fd00::5/64"}),
			trace.KeyErrorCode.Int64(104), trace.KeyErrorType.String("kernel refused"),
			trace.KeyRuntime.String("/usr/bin/containerd"), trace.KeyFinding.String("leaked-address"), trace.KeyRepair.String("del"))
		if err := (trace.Log{Path: path, Level: "debug"}).Write(r); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestLogReadsWhatThePluginWrote(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log.jsonl")
	put(t, path, logged(t, "1635e8"))
	var got []Entry
	torn, err := Log(path, func(e Entry) bool { got = append(got, e); return true })
	if err != nil || torn != 0 || len(got) != 1 {
		t.Fatalf("got %d entries, %d torn, %v", len(got), torn, err)
	}
	want := Entry{
		Time: begun, Command: "ADD", Network: "podnet", ContainerID: "1635e8", IfName: "eth0",
		PodNamespace: "default", Pod: "web-0", PodUID: "5b1c", Addresses: prefixes([]string{"10.22.0.5/16", "fd00::5/64"}),
		Duration: 4380 * time.Microsecond, Outcome: Failed, Error: "bridge: route.add: no route",
		ErrorCode: 104, ErrorType: "kernel refused", TraceID: got[0].TraceID,
		Runtime: "/usr/bin/containerd", Kind: "leaked-address", Repair: "del",
	}
	if diff := cmp.Diff(want, got[0], exact); diff != "" {
		t.Error("(-want +got):\n" + diff)
	}
	if len(got[0].TraceID) != 32 {
		t.Errorf("trace id %q", got[0].TraceID)
	}
}

func TestParseEntry(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		want       Entry
		ok, torn   bool
	}{
		{"an operation", `{"time":"2026-03-01T14:05:00.5+01:00","message":"cni.DEL","outcome":"ok","duration_ms":0.677}`,
			Entry{Time: time.Date(2026, 3, 1, 13, 5, 0, 5e8, time.UTC), Command: "DEL", Outcome: OK, Duration: 677 * time.Microsecond}, true, false},
		{"a phase", `{"time":"2026-03-01T14:05:00Z","message":"veth.create"}`, Entry{}, false, false},
		{"an end by another's", `{"level":"info","time":"2026-03-01T14:05:00Z","cni.command":"GC","cni.name":"podnet","cni.id":"c1","cni.addresses":["10.22.0.5/32"],"message":"attachment.gone"}`,
			Entry{Time: time.Date(2026, 3, 1, 14, 5, 0, 0, time.UTC), Command: "GC", Network: "podnet", ContainerID: "c1", Addresses: prefixes([]string{"10.22.0.5/32"}), Outcome: OK}, true, false},
		{"another program's", `{"msg":"hello"}`, Entry{}, false, false},
		{"an address that is none", `{"message":"cni.ADD","cni.addresses":["x","10.0.0.1/8"]}`,
			Entry{Command: "ADD", Addresses: prefixes([]string{"10.0.0.1/8"})}, true, false},
		{"torn", `{"time":"2026-03-01T14`, Entry{}, false, true},
		{"no JSON", `hello`, Entry{}, false, true},
		{"another type", `{"message":7}`, Entry{}, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok, err := parseEntry([]byte(tt.line))
			if ok != tt.ok || (err != nil) != tt.torn {
				t.Errorf("got ok=%t, %v", ok, err)
			}
			if diff := cmp.Diff(tt.want, got, exact); diff != "" {
				t.Error("(-want +got):\n" + diff)
			}
		})
	}
}

func ids(entries []Entry) (out []string) {
	for _, e := range entries {
		out = append(out, e.ContainerID)
	}
	return out
}

func TestLogRotated(t *testing.T) {
	a, b := logged(t, "a"), logged(t, "b")
	for _, tt := range []struct {
		name, old, now string // "-" for no file
		want           []string
		torn           int
		err            error
	}{
		{"none", "-", "-", nil, 0, fs.ErrNotExist},
		{"the log alone", "-", b, []string{"b"}, 0, nil},
		{"both", a, b, []string{"a", "b"}, 0, nil},
		{"just renamed", a, "-", []string{"a"}, 0, nil},
		{"just truncated", a, "", []string{"a"}, 0, nil},
		{"torn", a[:30] + "\n", b + "{", []string{"b"}, 2, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log.jsonl")
			for suffix, text := range map[string]string{".1": tt.old, "": tt.now} {
				if text != "-" {
					put(t, path+suffix, text)
				}
			}
			var got []Entry
			torn, err := Log(path, func(e Entry) bool { got = append(got, e); return true })
			if torn != tt.torn || !errors.Is(err, tt.err) {
				t.Errorf("got %d torn, %v", torn, err)
			}
			if diff := cmp.Diff(tt.want, ids(got)); diff != "" {
				t.Error("(-want +got):\n" + diff)
			}
		})
	}
}

// TestFollow changes a log step by step, and waits after each until what the
// step added has been told.
func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log.jsonl")
	add := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
			_ = f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	f := logged(t, "f")
	steps := []struct {
		name string
		do   func()
		want []string
	}{
		{"appended", func() { add(logged(t, "b", "c")) }, []string{"b", "c"}},
		{"renamed, and written through the old name's descriptor", func() {
			add(logged(t, "d"))
			must(os.Rename(path, path+".1"))
		}, []string{"d"}},
		{"made again", func() { add(logged(t, "e")) }, []string{"e"}},
		{"half a line", func() { add(f[:len(f)-40]) }, nil},
		{"its other half", func() { add(f[len(f)-40:]) }, []string{"f"}},
		{"truncated", func() { must(os.Truncate(path, 0)); time.Sleep(50 * time.Millisecond); add(logged(t, "g")) }, []string{"g"}},
		{"replaced", func() { must(os.Remove(path)); add(logged(t, "h")) }, []string{"h"}},
	}
	put(t, path, logged(t, "a"))
	ctx, cancel := context.WithCancel(t.Context())
	told, done := make(chan []Entry, 100), make(chan error)
	go func() {
		done <- Follow(ctx, path, 5*time.Millisecond, func(e []Entry) { told <- slices.Clone(e) })
	}()
	if diff := cmp.Diff([]string{"a"}, ids(<-told)); diff != "" {
		t.Error("the past (-want +got):\n" + diff)
	}
	for _, s := range steps {
		s.do()
		var got []Entry
		deadline := time.After(5 * time.Second)
		for len(got) < len(s.want) {
			select {
			case e := <-told:
				got = append(got, e...)
			case <-deadline:
				t.Fatalf("%s: got %v", s.name, ids(got))
			}
		}
		if diff := cmp.Diff(s.want, ids(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s.name, diff)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestFollowALogThatIsNotThereYet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log.jsonl")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []string
	err := Follow(ctx, path, time.Millisecond, func(e []Entry) {
		got = append(got, strings.Join(ids(e), ","))
		if len(got) == 1 {
			put(t, path, logged(t, "a"))
			return
		}
		cancel()
	})
	if diff := cmp.Diff([]string{"", "a"}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
