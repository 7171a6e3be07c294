//go:build linux

package cases

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
	"github.com/tracewire/tracewire/trace/read"
)

// passes begins a delegate that answers what it was given. Its configuration is
// in conf, and dir, its key "dir", has a line of each of its runs.
const passes = `#!/bin/sh
conf=$(cat)
dir=$(echo "$conf" | sed 's/.*"dir":"\([^"]*\)".*/\1/')
echo "$CNI_COMMAND ${0##*/}" >> "$dir/runs"
answer() { echo "$conf" | sed 's/.*"prevResult":\(.*\),"type":.*/\1/'; }
`

// scripted is a node with executables of the test's own, and their folder.
func scripted(t *testing.T, scripts map[string]string) (n *attach.Node, dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, body := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(passes+body+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return node(t, dir), dir
}

// of is the configuration of plain with such delegates.
func of(t *testing.T, n *attach.Node, dir string, names ...string) string {
	t.Helper()
	var all []string
	for _, name := range names {
		all = append(all, `{"type": "`+name+`", "dir": "`+dir+`"}`)
	}
	return conf(t, n, map[string]string{"delegates": array(all)})
}

// runs is what was run, since the last time it was asked.
func runs(t *testing.T, dir string) []string {
	t.Helper()
	path := filepath.Join(dir, "runs")
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// must runs our plugin, whose answer is no error.
func must(t *testing.T, n *attach.Node, verb, stdin string, a attach.Attachment) {
	t.Helper()
	if err := raw(t, n, verb, stdin, n.Environment(verb, a)).Err(); err != nil {
		t.Fatalf("%s: %s", verb, describe(err))
	}
}

// TestDelegateIsGivenEnvironment: one of each variable, ours in their places, a
// parent for its spans, and the runtime's own besides.
func TestDelegateIsGivenEnvironment(t *testing.T) {
	n, dir := scripted(t, map[string]string{"tell": `tr '\0' '\n' < /proc/$$/environ > "$dir/env.$CNI_COMMAND"
id=${TRACEPARENT#*-}
mkdir -p "$dir/spool"
printf '{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"%s","spanId":"00000000000000%s","parentSpanId":"%s","name":"theirs","startTimeUnixNano":"1","endTimeUnixNano":"2"}]}]}]}\n' \
	"${id%%-*}" "$([ $CNI_COMMAND = ADD ] && echo aa || echo bb)" "$(echo $id | cut -d- -f2)" >> "$dir/spool/0.jsonl"
[ "$CNI_COMMAND" != ADD ] || answer`})
	stdin := string(put(t, json.RawMessage(of(t, n, dir, "tell")), []string{"tracewire", "spool"}, `{"dir": "`+dir+`/spool"}`))
	a := pod1(t, n)
	a.Args = [][2]string{{"K8S_POD_NAME", "web-0"}}
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, verb := range []string{"ADD", "DEL"} {
		env := append(n.Environment(verb, a), "TRACEPARENT=00-11111111111111111111111111111111-2222222222222222-01", "TRACEPARENT="+parent, "COLOUR=red", "COLOUR=blue", "CNI_ODD=7")
		if err := raw(t, n, verb, stdin, env).Err(); err != nil {
			t.Fatal(describe(err))
		}
		given(t, n, dir, verb)
	}
	parents(t, dir, strings.Split(parent, "-")[1])
	nothingLeft(t, n)
}

// given looks at the environment of one run.
func given(t *testing.T, n *attach.Node, dir, verb string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "env."+verb))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if _, twice := got[key]; twice {
			t.Errorf("%s: %s stands twice", verb, key)
		}
		got[key] = value
	}
	for key, want := range map[string]string{
		"CNI_COMMAND": verb, "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_NETNS": n.PodPath("pod1"), "CNI_ARGS": "K8S_POD_NAME=web-0;IgnoreUnknown=1",
		"CNI_PATH": strings.Join([]string{dir, os.Getenv("TRACEWIRE_BIN"), os.Getenv("TRACEWIRE_REFERENCE")}, ":"), "CNI_ODD": "7", "COLOUR": "blue", "PATH": os.Getenv("PATH"),
	} {
		if got[key] != want {
			t.Errorf("%s: %s is %q, want %q", verb, key, got[key], want)
		}
	}
}

// parents tells that a delegate's own spans are children of the spans of its runs.
func parents(t *testing.T, dir, traceID string) {
	t.Helper()
	ids, theirs := map[string]string{}, map[string]string{}
	_, err := read.Spool(filepath.Join(dir, "spool"), func(o read.Operation) bool {
		if o.Root.Name == "theirs" {
			theirs[map[string]string{"aa": "cni.ADD", "bb": "cni.DEL"}[o.Root.SpanID[14:]]] = o.Root.TraceID + " " + o.Root.ParentID
		}
		o.Root.Walk(func(_ int, s read.Node) {
			if s.Name == "exec" {
				ids[o.Root.Name] = traceID + " " + s.SpanID
			}
		})
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ids, theirs); diff != "" || len(ids) != 2 {
		t.Errorf("spans of the runs, parents of the delegate's: -want +got\n%s", diff)
	}
}

// pipe is a named pipe that a plugin holds open as long as it lives, and its
// children too: "up" tells that it runs.
func pipe(t *testing.T, dir string) (up, gone func()) {
	t.Helper()
	path := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	opened := make(chan *os.File, 1)
	go func() {
		if f, err := os.OpenFile(path, os.O_RDONLY, 0); err == nil {
			opened <- f
		}
	}()
	var f *os.File
	var r *bufio.Reader
	wait := func(do func() error) {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- do() }()
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(stepTime):
			t.Fatal("it never came so far")
		}
	}
	up = func() {
		t.Helper()
		wait(func() error {
			f = <-opened
			r = bufio.NewReader(f)
			_, err := r.ReadString('\n')
			return err
		})
	}
	gone = func() {
		t.Helper()
		wait(func() error {
			_, err := io.Copy(io.Discard, r)
			return errors.Join(err, f.Close())
		})
	}
	return up, gone
}

// TestDelegateThatHangs is killed with its children when the time is over.
func TestDelegateThatHangs(t *testing.T) {
	n, dir := scripted(t, map[string]string{"first": `[ "$CNI_COMMAND" != ADD ] || answer`,
		"hangs": `[ "$CNI_COMMAND" = ADD ] || exit 0; exec 9>"$dir/pipe"; sleep 1000 & setsid sleep 1000 & echo up >&9; exec sleep 1000`})
	up, gone := pipe(t, dir)
	stdin := string(put(t, json.RawMessage(of(t, n, dir, "first", "hangs")), []string{"tracewire", "timeout"}, `"500ms"`))
	a := pod1(t, n)
	in := input{code: 11, names: []string{"delegate hangs", "deadline"}}
	in.answered(t, n, raw(t, n, "ADD", stdin, n.Environment("ADD", a)))
	up()
	gone()
	if diff := cmp.Diff([]string{"ADD first", "ADD hangs", "DEL hangs", "DEL first"}, runs(t, dir)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	nothingLeft(t, n)
}

// TestKilledWhileADelegateRuns: the delegate dies with us, and DEL frees all.
func TestKilledWhileADelegateRuns(t *testing.T) {
	for _, mode := range []string{"bridge", "delegate"} {
		t.Run(mode, func(t *testing.T) {
			n, dir := scripted(t, map[string]string{"first": `[ "$CNI_COMMAND" != ADD ] || answer`,
				"waits": `[ "$CNI_COMMAND" = ADD ] || exit 0; exec 9>"$dir/pipe"; echo up >&9; exec sleep 1000`})
			up, gone := pipe(t, dir)
			stdin := of(t, n, dir, "first", "waits")
			want := []string{"ADD first", "ADD waits", "DEL waits", "DEL first"}
			if mode == "delegate" {
				stdin = conf(t, n, alone(`{"type": "ptp", "ipam": `+strings.ReplaceAll(hostLocal, attach.Dir, n.Dir)+`}`, `{"type": "waits", "dir": "`+dir+`"}`))
				want = []string{"ADD waits", "DEL waits"}
			}
			a := pod1(t, n)
			cmd := exec.Command(filepath.Join(os.Getenv("TRACEWIRE_BIN"), "tracewire"))
			cmd.Env, cmd.Stdin, cmd.SysProcAttr = n.Environment("ADD", a), strings.NewReader(stdin), &syscall.SysProcAttr{Setpgid: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			up()
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			gone()
			must(t, n, "DEL", stdin, a)
			if diff := cmp.Diff(want, runs(t, dir)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			nothingLeft(t, n)
			must(t, n, "ADD", of(t, n, dir, "first"), a)
			must(t, n, "DEL", of(t, n, dir, "first"), a)
			nothingLeft(t, n)
		})
	}
}

// TestWhatAKilledDelegateStarted: of an operation that is killed the kernel ends
// the delegate, but not what that one had started. Whoever meets the record next
// ends it before anything is taken back, and nobody else's: also where the agent
// has told of the operation meanwhile.
func TestWhatAKilledDelegateStarted(t *testing.T) {
	for _, verb := range []string{"DEL", "ADD", "GC", "DEL after it was told"} {
		t.Run(verb, func(t *testing.T) {
			n, dir := scripted(t, map[string]string{"first": `[ "$CNI_COMMAND" != ADD ] || answer`,
				"waits": `[ "$CNI_COMMAND" = ADD ] || exit 0; exec 9>"$dir/pipe"
sleep 1000 & setsid sleep 1000 &
env -u TRACEWIRE_OPERATION sleep 1000 9>&- & echo $! >"$dir/other"
echo up >&9; wait`})
			up, gone := pipe(t, dir)
			stdin, a := of(t, n, dir, "first", "waits"), pod1(t, n)
			cmd := exec.Command(filepath.Join(os.Getenv("TRACEWIRE_BIN"), "tracewire"))
			cmd.Env, cmd.Stdin = n.Environment("ADD", a), strings.NewReader(stdin)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			up()
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			other := spared(t, dir)
			switch verb {
			case "DEL after it was told":
				toldByAgent(t, n)
				must(t, n, "DEL", stdin, a)
			case "ADD":
				must(t, n, "ADD", of(t, n, dir, "first"), a)
			case "GC":
				must(t, n, "GC", string(put(t, json.RawMessage(stdin), []string{"cni.dev/valid-attachments"}, `[]`)), attach.Attachment{})
			default:
				must(t, n, "DEL", stdin, a)
			}
			gone()
			if err := unix.Kill(other, 0); err != nil {
				t.Errorf("another's process is gone: %v", err)
			}
			spans, err := n.Spans()
			if want := "an earlier operation was killed: what its plugins left running is ended"; err != nil || !strings.Contains(spans, want) {
				t.Errorf("%v, spans do not tell:\n%s", err, spans)
			}
			must(t, n, "DEL", stdin, a)
			nothingLeft(t, n)
		})
	}
}

// spared is a process that a script wrote down as other. It ends with the test.
func spared(t *testing.T, dir string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	return pid
}

// TestDelegateWhoseDELFails keeps the record, and nothing else of what is not
// its own; the next DEL asks it alone. The runtime may take the namespace away
// meanwhile (podman#350).
func TestDelegateWhoseDELFails(t *testing.T) {
	for name, tt := range map[string]struct {
		breaks, mends func(dir string) error
		says          string
		ran, again    []string
	}{
		"an error": {
			func(dir string) error { return os.WriteFile(filepath.Join(dir, "broken"), nil, 0o600) },
			func(dir string) error { return os.Remove(filepath.Join(dir, "broken")) },
			"odd: the switch is away", []string{"DEL last", "DEL odd", "DEL first"}, []string{"DEL odd"},
		},
		"its executable is gone": {
			func(dir string) error { return os.Rename(filepath.Join(dir, "odd"), filepath.Join(dir, "away")) },
			func(dir string) error { return os.Rename(filepath.Join(dir, "away"), filepath.Join(dir, "odd")) },
			"odd: no executable in CNI_PATH", []string{"DEL last", "DEL first"}, []string{"DEL odd"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			const pass = `[ "$CNI_COMMAND" != ADD ] || answer`
			n, dir := scripted(t, map[string]string{"first": pass, "last": pass,
				"odd": pass + `
[ "$CNI_COMMAND" = ADD ] || [ ! -e "$dir/broken" ] || { echo '{"code": 120, "msg": "the switch is away"}'; exit 1; }`})
			stdin, a := of(t, n, dir, "first", "odd", "last"), pod1(t, n)
			must(t, n, "ADD", stdin, a)
			runs(t, dir)
			if err := tt.breaks(dir); err != nil {
				t.Fatal(err)
			}
			in := input{code: 11, names: []string{"delegate odd", tt.says}}
			in.answered(t, n, raw(t, n, "DEL", stdin, n.Environment("DEL", a)))
			if diff := cmp.Diff(tt.ran, runs(t, dir)); diff != "" {
				t.Errorf("the first DEL: -want +got\n%s", diff)
			}
			var st unix.Stat_t
			if err := unix.Stat(a.NetNS, &st); err != nil {
				t.Fatal(err)
			}
			if who := within(t, st.Ino); len(who) > 0 {
				t.Errorf("in the pod's namespace: %q", who)
			}
			left, err := n.Left()
			if diff := cmp.Diff([]string{"state/attachments/net/c1:eth0"}, left); diff != "" || err != nil {
				t.Errorf("left: -want +got\n%s%v", diff, err)
			}
			if err := tt.mends(dir); err != nil {
				t.Fatal(err)
			}
			must(t, n, "DEL", stdin, a)
			if diff := cmp.Diff(tt.again, runs(t, dir)); diff != "" {
				t.Errorf("the second DEL: -want +got\n%s", diff)
			}
			nothingLeft(t, n)
		})
	}
}

// TestSecondEntry: a list has one entry of ours. The error names both, the
// first's pod is as it was, and the runtime's DEL removes all.
func TestSecondEntry(t *testing.T) {
	macvlan := map[string]string{"bridge": "", "isGateway": "", "ipam": "", "tracewire.mode": `"delegate"`, "delegates": `[{"type": "ptp", "ipam": ` + hostLocal + `}]`}
	for name, tt := range map[string]struct {
		first, second map[string]string
		names         []string
	}{
		"mode bridge, mode delegate":   {nil, alone(`{"type": "tuning"}`), []string{"type", "mode bridge", "mode delegate with tuning"}},
		"mode delegate, mode delegate": {macvlan, alone(`{"type": "tuning"}`), []string{"mode delegate with ptp", "mode delegate with tuning"}},
		"mode delegate, the same":      {macvlan, macvlan, []string{"mode delegate with ptp"}},
		"mode bridge, mode bridge":     {nil, map[string]string{"bridge": `"tb1"`}, []string{"mode bridge"}},
		"mode delegate, mode ptp":      {macvlan, map[string]string{"tracewire.mode": `"ptp"`, "bridge": ""}, []string{"mode delegate with ptp", "mode ptp"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(t)
			ctx, cancel := context.WithTimeout(t.Context(), stepTime)
			defer cancel()
			list := func(entries ...string) {
				t.Helper()
				if err := n.Load([]byte(strings.ReplaceAll(`{"cniVersion": "1.1.0", "name": "net", "plugins": `+array(entries)+`}`, attach.Dir, n.Dir))); err != nil {
					t.Fatal(err)
				}
			}
			first, second, a := conf(t, n, tt.first), conf(t, n, tt.second), pod1(t, n)
			list(first)
			answer, err := n.Add(ctx, a)
			if err != nil {
				t.Fatal(describe(err))
			}
			prev, err := json.Marshal(answer)
			if err != nil {
				t.Fatal(err)
			}
			before, err := n.Left()
			if err != nil {
				t.Fatal(err)
			}
			n.Exec.Calls()
			stdin := string(put(t, json.RawMessage(strings.ReplaceAll(second, attach.Dir, n.Dir)), []string{"prevResult"}, string(prev)))
			in := input{code: 7, names: tt.names}
			in.answered(t, n, raw(t, n, "ADD", stdin, n.Environment("ADD", a)))
			after, err := n.Left()
			if diff := cmp.Diff(before, after); diff != "" || err != nil {
				t.Errorf("-before +after\n%s%v", diff, err)
			}
			if err := errors.Join(n.Check(ctx, a), n.Ping("pod1", "10.77.0.1")); err != nil {
				t.Errorf("the first's pod: %s", describe(err))
			}
			list(first, second)
			if err := n.Del(ctx, a); err != nil {
				t.Error(describe(err))
			}
			nothingLeft(t, n)
			_, err = n.Add(ctx, a)
			if problem := expected(err, "7 must stand once in a list", n.Normal); problem != nil {
				t.Errorf("the list: %v", problem)
			}
			if err := n.Del(ctx, a); err != nil {
				t.Error(describe(err))
			}
			nothingLeft(t, n)
		})
	}
}

// TestCnitool runs a list of ours with delegates, and the reference's portmap
// behind it.
func TestCnitool(t *testing.T) {
	needSandbox(t)
	netns.Need(t, "nft")
	n := node(t)
	dir := t.TempDir()
	list := `{"cniVersion": "1.1.0", "name": "net", "plugins": [` + conf(t, n, with(`{"type": "tuning", "mtu": 1400}`, shaped)) + `,
		{"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}}]}`
	if err := os.WriteFile(filepath.Join(dir, "10-net.conflist"), []byte(strings.ReplaceAll(list, attach.Dir, n.Dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	pod1(t, n)
	caps, err := json.Marshal(publish)
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"add", "check", "del", "del"} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("TRACEWIRE_REFERENCE"), "cnitool"), verb, "net", n.PodPath("pod1"))
		cmd.Env = []string{"NETCONFPATH=" + dir, "CNI_PATH=" + os.Getenv("TRACEWIRE_BIN") + ":" + os.Getenv("TRACEWIRE_REFERENCE"), "CAP_ARGS=" + string(caps), "PATH=" + os.Getenv("PATH")}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("cnitool %s: %v: %s", verb, err, out)
		}
		if verb == "add" {
			published(t, n, nil)
			if all := qdiscs(t, n, "host"); len(all) != 3 {
				t.Errorf("queueing disciplines %q", all)
			}
		}
	}
	nothingLeft(t, n)
	for _, where := range []string{"/var/lib/cni/results", "/run/cni/tuning"} {
		if left, err := os.ReadDir(where); err != nil && !errors.Is(err, os.ErrNotExist) || len(left) > 0 {
			t.Errorf("left in %s: %v, %v", where, left, err)
		}
	}
	if spans, err := n.Spans(); err != nil || !slices.Contains(strings.Split(spans, "\n"), "  delegate bandwidth") {
		t.Errorf("%s%v", spans, err)
	}
}

// TestReadmeExample: the list in mode delegate that the README has does what it
// says there.
func TestReadmeExample(t *testing.T) {
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(b), "```json\n")
	list, _, _ = strings.Cut(list, "```")
	const ours = `"stateDir": "@DIR@/state", "log": {"path": "@DIR@/log/tracewire.jsonl"}, `
	l := &life{Node: node(t)}
	outside(t, l)
	list = strings.NewReplacer(`"eth1"`, `"up-out"`, `"type": "host-local",`, `"type": "host-local", "dataDir": "@DIR@/ipam",`, `"tracewire": {`, `"tracewire": {`+ours).Replace(list)
	if err := l.Load([]byte(list)); err != nil {
		t.Fatalf("%v: %s", err, list)
	}
	l.attachment = pod1(t, l.Node)
	l.attachment.Capabilities = map[string]any{"mac": "02:00:00:00:00:07"}
	l.seen = every(kind("macvlan"), reaches("10.77.0.1"))
	l.set = map[string]string{"delegates": `[{"type": "macvlan"}, {"type": "tuning"}]`}
	l.usual(t)
	nothingLeft(t, l.Node)
}

// toldByAgent writes into each record that its operation was told of.
func toldByAgent(t *testing.T, n *attach.Node) {
	t.Helper()
	dir := cache.Dir{Path: filepath.Join(n.Dir, "state", "attachments")}
	all, err := dir.List()
	if err != nil || len(all) == 0 {
		t.Fatalf("%d records, %v", len(all), err)
	}
	for _, r := range all {
		j, err := dir.Open(r.Record, r.Attachment, time.Now())
		if err == nil {
			err = errors.Join(j.Told(), j.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
