//go:build linux

package cases

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain"
	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/trace"
	"github.com/tracewire/tracewire/trace/read"
)

// poll is a STATUS as kubelet has it made every five seconds.
func poll(t *testing.T, n *attach.Node, stdin string) attach.Call {
	t.Helper()
	return raw(t, n, "STATUS", stdin, n.Environment("STATUS", attach.Attachment{}))
}

// said is "CODE message", empty for success.
func said(n *attach.Node, c attach.Call) string {
	var answer *types.Error
	if errors.As(c.Err(), &answer) {
		return n.Normal(fmt.Sprint(answer.Code, " ", answer.Msg))
	}
	return strings.TrimSpace(string(c.Stdout))
}

// verdictDir is where a STATUS of the network net keeps its verdict; it goes with
// the test.
func verdictDir(t *testing.T, n *attach.Node) string {
	t.Helper()
	needSandbox(t)
	dir := chain.RunDir("net", filepath.Join(n.Dir, "state"), filepath.Join(n.Dir, "ipam"))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// reserve makes reservations of another's, from 10.77.0.first on, in this boot:
// after the list of what is of an earlier one was taken.
func reserve(t *testing.T, n *attach.Node, first, last int) {
	t.Helper()
	dir, run := filepath.Join(n.Dir, "ipam", "net"), verdictDir(t, n)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if os.MkdirAll(run, 0o755) == nil { // else no list can be taken
		if err := os.WriteFile(filepath.Join(run, "earlier-"+cache.BootID()), []byte("[]"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i := first; i <= last; i++ {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("10.77.0.", i)), []byte("other\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// heard is what spool and log have: span trees, and "level message" of each line.
func heard(t *testing.T, n *attach.Node) (spans, lines []string) {
	t.Helper()
	ops, err := n.Operations()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, o := range ops {
		spans = append(spans, read.Tree(o))
	}
	b, _ := os.ReadFile(filepath.Join(n.Dir, "log", "tracewire.jsonl"))
	for line := range strings.Lines(string(b)) {
		var l struct{ Level, Message string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l.Level+" "+l.Message)
	}
	return spans, lines
}

const exhausted = "50 the next ADD would fail: ipam: no addresses available: range set 10.77.0.1-10.77.0.6: 5 of 5 in use for 0 s (statusGrace of 0 s is over), in @DIR@/ipam/net"

// TestStatusTellsChanges: a node whose pool fills and is freed again (cni#859):
// what the next ADD would say, a span and a line for each change, and nothing at
// all for what is as before.
func TestStatusTellsChanges(t *testing.T) {
	n := node(t)
	verdictDir(t, n)
	stdin := conf(t, n, map[string]string{"ipam.ranges": `[[{"subnet": "10.77.0.0/29"}]]`, "tracewire.statusGrace": `"0s"`})
	var spans, lines []string
	var traces []string
	for i, step := range []struct {
		do    func()
		want  string
		spans []string
		lines []string
	}{
		{nil, "", nil, nil},
		{nil, "", nil, nil},
		{func() { reserve(t, n, 2, 6) }, exhausted, []string{"cni.STATUS [error]\n"}, []string{"warn cni.STATUS"}},
		{nil, exhausted, nil, nil},
		{func() { _ = os.RemoveAll(filepath.Join(n.Dir, "ipam")) }, "", []string{"cni.STATUS\n"}, []string{"info cni.STATUS"}},
		{nil, "", nil, nil},
	} {
		if step.do != nil {
			step.do()
		}
		call := poll(t, n, stdin)
		if got := said(n, call); got != step.want {
			t.Errorf("step %d: got %s\nwant %s", i, got, step.want)
		}
		spans, lines = append(spans, step.spans...), append(lines, step.lines...)
		gotSpans, gotLines := heard(t, n)
		if diff := cmp.Diff([][]string{spans, lines}, [][]string{gotSpans, gotLines}); diff != "" {
			t.Errorf("step %d: -want +got:\n%s", i, diff)
		}
		var answer types.Error
		if json.Unmarshal(call.Stdout, &answer) == nil {
			traces = append(traces, answer.Details)
		}
		if exists(filepath.Join(n.Dir, "state", "attachments")) || exists(filepath.Join(n.Dir, "state", "lock")) || i < 2 && exists(filepath.Join(n.Dir, "state")) {
			t.Errorf("step %d: something was made in the state directory", i)
		}
	}
	if len(traces) != 2 || traces[0] != traces[1] || !strings.Contains(traces[0], "trace: ") {
		t.Errorf("the second failure is not in the trace of the first: %q", traces)
	}
}

// TestStatusBearsExhaustion: within statusGrace, for ever where it is turned off,
// and while ADD still finds a file to take over (plugins#498). It is in the log
// once that the range set is nearly full.
func TestStatusBearsExhaustion(t *testing.T) {
	for name, set := range map[string]string{"statusGrace": `"1h"`, "statusOnExhaustion": `"never"`, "debris": ""} {
		t.Run(name, func(t *testing.T) {
			n := node(t)
			verdictDir(t, n)
			more := map[string]string{"ipam.ranges": `[[{"subnet": "10.77.0.0/29"}]]`, "tracewire.statusGrace": `"0s"`}
			reserve(t, n, 2, 6)
			if name == "debris" {
				if err := os.Truncate(filepath.Join(n.Dir, "ipam", "net", "10.77.0.4"), 0); err != nil {
					t.Fatal(err)
				}
			} else {
				more["tracewire."+name] = set
			}
			for range 3 {
				if got := said(n, poll(t, n, conf(t, n, more))); got != "" {
					t.Error(got)
				}
			}
			spans, lines := heard(t, n)
			if diff := cmp.Diff([][]string{nil, {"warn range set is nearly full"}}, [][]string{spans, lines}); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestStatusAfterItsGrace: the time since when it is exhausted is in the verdict
// file, counted from the start of the kernel.
func TestStatusAfterItsGrace(t *testing.T) {
	n := node(t)
	verdict := filepath.Join(verdictDir(t, n), "status")
	stdin := conf(t, n, map[string]string{"ipam.ranges": `[[{"subnet": "10.77.0.0/29"}]]`})
	reserve(t, n, 2, 6)
	if got := said(n, poll(t, n, stdin)); got != "" {
		t.Error(got)
	}
	longAgo(t, verdict, "full")
	if got := said(n, poll(t, n, stdin)); !strings.HasPrefix(got, "50 ") || !strings.Contains(got, "(statusGrace of 60 s is over)") {
		t.Error(got)
	}
}

// longAgo sets a time of the verdict file to the start of the kernel.
func longAgo(t *testing.T, path, key string) {
	t.Helper()
	var doc struct {
		Steps struct {
			IPAM map[string]any `json:"ipam"`
		} `json:"steps"`
	}
	d := json.NewDecoder(bytes.NewReader(content(t, path)))
	d.UseNumber() // nanoseconds
	if err := d.Decode(&doc); err != nil {
		t.Fatal(err)
	}
	in := doc.Steps.IPAM
	if key == "full" {
		in = in["sets"].([]any)[0].(map[string]any) //nolint:errcheck // a panic would be a failure too
	}
	in[key] = 1
	b, err := json.Marshal(doc)
	if err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestStatusOfPlugins: executed IPAM plugins and delegates have their say, one
// that knows no STATUS has none, and one that is missing fails the next ADD.
func TestStatusOfPlugins(t *testing.T) {
	const script = "#!/bin/sh\ncat >/dev/null\necho '%s'\nexit 1\n"
	for _, tt := range []struct {
		name   string
		plugin string // what the plugin answers to all; empty for a missing one
		set    map[string]string
		want   string
	}{
		{"missing IPAM", "", map[string]string{"ipam": `{"type": "fake"}`}, "50 the next ADD would fail: ipam: delegated plugin failed: fake: no executable in CNI_PATH "},
		{"missing delegate", "", map[string]string{"delegates": `[{"type": "fake"}]`}, "50 the next ADD would fail: delegate fake: delegated plugin failed: fake: no executable in CNI_PATH "},
		{"missing in mode delegate", "", map[string]string{"ipam": "", "tracewire.mode": `"delegate"`, "delegates": `[{"type": "fake"}]`}, "50 the next ADD would fail: delegate fake: "},
		{"IPAM is not available", `{"code": 50, "msg": "agent is not ready"}`, map[string]string{"ipam": `{"type": "fake"}`}, "50 the next ADD would fail: ipam: exec: delegated plugin failed: fake: agent is not ready (code 50)"},
		{"limited connectivity", `{"code": 51, "msg": "no way out"}`, map[string]string{"ipam": `{"type": "fake"}`}, "51 the next ADD would fail, and pods may have limited connectivity: ipam: exec: delegated plugin failed: fake: no way out (code 51)"},
		{"a delegate's own code", `{"code": 123, "msg": "oops"}`, map[string]string{"delegates": `[{"type": "fake"}]`}, "50 the next ADD would fail: delegate fake: exec: delegated plugin failed: fake: oops (code 123)"},
		{"IPAM knows no STATUS", `{"code": 4, "msg": "unknown CNI_COMMAND: STATUS"}`, map[string]string{"ipam": `{"type": "fake"}`}, ""},
		{"the reference's host-local", "", map[string]string{"tracewire.ipamExec": "true"}, ""},
		{"the reference's bandwidth and static", "", map[string]string{"ipam": `{"type": "static", "addresses": [{"address": "10.77.0.9/24"}]}`, "delegates": `[{"type": "bandwidth"}]`}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := node(t)
			needSandbox(t)
			env := n.Environment("STATUS", attach.Attachment{})
			if tt.plugin != "" {
				dir := filepath.Join(n.Dir, "plugins")
				if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "fake"), fmt.Appendf(nil, script, tt.plugin), 0o755)); err != nil {
					t.Fatal(err)
				}
				env = append(env, "CNI_PATH="+dir)
			}
			got := said(n, raw(t, n, "STATUS", conf(t, n, tt.set), env))
			if (got == "") != (tt.want == "") || !strings.HasPrefix(got, tt.want) {
				t.Errorf("got %s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestStatusOfFaults: what makes the next ADD fail, and what does not.
func TestStatusOfFaults(t *testing.T) {
	mount := func(options string, flags uintptr) func(dir string) error {
		return func(dir string) error {
			return errors.Join(os.MkdirAll(dir, 0o755), unix.Mount("tmpfs", dir, "tmpfs", flags, options))
		}
	}
	file := func(dir string) error { return os.WriteFile(dir, nil, 0o600) }
	for _, tt := range []struct {
		name, where string
		make        func(dir string) error
		want        string
	}{
		{"nothing there yet", "state", nil, ""},
		{"read-only state directory", "state", mount("", unix.MS_RDONLY), "50 the next ADD would fail: write @DIR@/state: read-only file system"},
		{"no inode left for records", "state", mount("nr_inodes=1", 0), "50 the next ADD would fail: write @DIR@/state: no space left on device"},
		{"a file in the state directory's place", "state", file, "50 the next ADD would fail: write @DIR@/state: not a directory"},
		{"read-only store", "ipam", mount("", unix.MS_RDONLY), "50 the next ADD would fail: write @DIR@/ipam: read-only file system"},
		{"a file in the store's place", "ipam", file, "50 the next ADD would fail: write @DIR@/ipam: not a directory"},
		{"a file in the log's place", "log", file, ""},
		{"read-only spool", "state/spool", mount("", unix.MS_RDONLY), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := node(t)
			verdictDir(t, n)
			dir := filepath.Join(n.Dir, tt.where)
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			if tt.make != nil {
				if err := tt.make(dir); errors.Is(err, unix.EPERM) {
					t.Skip("needs root: run make test")
				} else if err != nil {
					t.Fatal(err)
				}
			}
			stdin := conf(t, n, nil)
			for range 2 {
				if got := said(n, poll(t, n, stdin)); got != tt.want {
					t.Errorf("got %s\nwant %s", got, tt.want)
				}
			}
			a := pod1(t, n)
			if add := raw(t, n, "ADD", stdin, n.Environment("ADD", a)); (add.Exit == 0) != (tt.want == "") {
				t.Errorf("ADD exits with %d: %s", add.Exit, add.Stdout)
			}
			if err := raw(t, n, "DEL", stdin, n.Environment("DEL", a)).Err(); err != nil {
				t.Logf("DEL: %s", describe(err))
			}
		})
	}
}

// TestStatusWithoutItsFile: where the verdict cannot be kept, STATUS answers and
// tells nothing. Only a grace of none can be over then.
func TestStatusWithoutItsFile(t *testing.T) {
	n := node(t)
	dir := verdictDir(t, n)
	if err := errors.Join(os.MkdirAll(filepath.Dir(dir), 0o755), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	reserve(t, n, 2, 6)
	for grace, want := range map[string]string{`"0s"`: exhausted, `"1s"`: ""} {
		stdin := conf(t, n, map[string]string{"ipam.ranges": `[[{"subnet": "10.77.0.0/29"}]]`, "tracewire.statusGrace": grace})
		for range 2 {
			if got := said(n, poll(t, n, stdin)); got != want {
				t.Errorf("grace %s: got %s, want %s", grace, got, want)
			}
		}
	}
	if spans, lines := heard(t, n); len(spans)+len(lines) > 0 {
		t.Errorf("told: %q, %q", spans, lines)
	}
}

// TestBadInputOfSTATUS: the same errors as ADD's, each told once.
func TestBadInputOfSTATUS(t *testing.T) {
	for _, in := range []input{
		{name: "unknown key", set: map[string]string{"tracewire.colour": `"red"`}, code: 7, names: []string{"tracewire.colour", `"red"`}},
		{name: "grace", set: map[string]string{"tracewire.statusGrace": `"soon"`}, code: 7, names: []string{"tracewire.statusGrace", `"soon"`}},
		{name: "subnet", set: map[string]string{"ipam.ranges": `[[{"subnet": "10.77.0.0/33"}]]`}, code: 7, names: []string{"subnet", "10.77.0.0/33"}},
		{name: "mtu", set: map[string]string{"mtu": `"large"`}, code: 7, names: []string{"mtu", `"large"`}},
		{name: "no path", env: map[string]string{"CNI_PATH": ""}, code: 4, names: []string{"CNI_PATH"}},
		{name: "older version", set: map[string]string{"cniVersion": `"1.0.0"`}, code: 1, names: []string{"STATUS"}},
	} {
		t.Run(in.name, func(t *testing.T) {
			n := node(t)
			verdictDir(t, n)
			stdin, env := in.of(t, n, "STATUS")
			for range 2 {
				in.answered(t, n, raw(t, n, "STATUS", stdin, env))
			}
			if spans, lines := heard(t, n); len(spans) != 1 || len(lines) != 1 {
				t.Errorf("told: %q, %q", spans, lines)
			}
		})
	}
	t.Run("ranges that come with each ADD", func(t *testing.T) {
		n := node(t)
		verdictDir(t, n)
		if got := said(n, poll(t, n, conf(t, n, map[string]string{"ipam.ranges": "", "capabilities": `{"ipRanges": true}`}))); got != "" {
			t.Error(got)
		}
	})
}

// TestStatusBesideADDs: no verdict is torn or wrong, and no ADD fails.
func TestStatusBesideADDs(t *testing.T) {
	n := node(t)
	verdict := filepath.Join(verdictDir(t, n), "status")
	stdin := conf(t, n, nil)
	const pods, polls = 8, 16
	var all [pods]attach.Attachment
	for i := range all {
		pod := fmt.Sprintf("pod%02d", i)
		if _, err := n.Pod(pod); err != nil {
			t.Fatal(err)
		}
		all[i] = attach.Attachment{ContainerID: fmt.Sprintf("c%02d", i), IfName: "eth0", NetNS: n.PodPath(pod)}
	}
	run := func(verb string, a attach.Attachment) error {
		_, err := n.Run(t.Context(), "tracewire", []byte(stdin), n.Environment(verb, a))
		return err
	}
	one := func(i int) error {
		if i < pods {
			return errors.Join(run("ADD", all[i]), run("DEL", all[i]))
		}
		err := run("STATUS", attach.Attachment{})
		if b, missing := os.ReadFile(verdict); missing == nil && !json.Valid(b) {
			err = errors.Join(err, fmt.Errorf("the verdict has %q", b))
		}
		return err
	}
	if err := together(n, pods+polls, one); err != nil {
		t.Error(describe(err))
	}
	nothingLeft(t, n)
	told(t, n, map[string]int{"ADD": pods, "DEL": pods})
}

// TestStatusCounts: what a poll costs that finds all as it was: the folder of
// reservations is neither opened nor read, whatever is in it, and nothing is
// written.
func TestStatusCounts(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs the program strace: run make test")
	}
	n := node(t)
	verdict := filepath.Join(verdictDir(t, n), "status")
	reserve(t, n, 2, 200)
	stdin := conf(t, n, nil)
	first, _ := straced(t, n, strace, "STATUS", stdin, attach.Attachment{})
	if first.Listings == 0 {
		t.Errorf("the first: %+v", first)
	}
	longAgo(t, verdict, "seen") // else it lists once more
	straced(t, n, strace, "STATUS", stdin, attach.Attachment{})
	before := content(t, verdict)
	again, _ := straced(t, n, strace, "STATUS", stdin, attach.Attachment{})
	// Whether ADD could write to the folder, and take its lock; the verdict.
	if diff := cmp.Diff(counted{Leases: 2, OfRun: 2}, again); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if after := content(t, verdict); !slices.Equal(before, after) {
		t.Errorf("the verdict was written: %s, before %s", after, before)
	}
	reserve(t, n, 201, 201)
	changed, _ := straced(t, n, strace, "STATUS", stdin, attach.Attachment{})
	if changed.Listings == 0 {
		t.Errorf("after an ADD: %+v", changed)
	}
}

func content(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestStatusIsQuiet: polled every few seconds for days, it leaves no span and
// no line, and nothing outside of /run: a byte there counts it.
func TestStatusIsQuiet(t *testing.T) {
	n := node(t)
	verdictDir(t, n)
	stdin := conf(t, n, nil)
	first := polled()
	for range 20 {
		if call := raw(t, n, "STATUS", stdin, n.Environment("STATUS", attach.Attachment{})); call.Exit != 0 {
			t.Fatalf("%s", call.Stdout)
		}
	}
	if spans, lines := heard(t, n); len(spans)+len(lines) > 0 {
		t.Errorf("%s, %s", spans, lines)
	}
	if got := polled() - first; got != 20 {
		t.Errorf("%d counted", got)
	}
	for _, path := range []string{filepath.Join(n.Dir, "state"), filepath.Join(n.Dir, "ipam")} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func polled() int64 {
	info, err := os.Stat(trace.PolledPath)
	if err != nil {
		return 0
	}
	return info.Size()
}
