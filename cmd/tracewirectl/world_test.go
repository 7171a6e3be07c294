//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
	"github.com/tracewire/tracewire/test/sandboxes"
)

// podnet is a network with a plugin behind ours.
const podnet = `{"cniVersion": "1.1.0", "name": "podnet", "plugins": [
	{"type": "tracewire", "bridge": "tb0", "isGateway": true, "ipMasq": true,
		"ipam": {"type": "host-local", "dataDir": "@DIR@/ipam", "ranges": [[{"subnet": "10.215.0.0/24"}]]},
		"tracewire": {"stateDir": "@DIR@/state", "log": {"path": "@DIR@/tracewire/log.jsonl"}}},
	{"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}]}`

// world is a node whose network is a real one, and the command as it is installed.
type world struct {
	*attach.Node
	t   *testing.T
	bin string
	env []string
}

// TestMain runs the tests apart: an audit sees all processes and namespaces of the
// machine.
func TestMain(m *testing.M) { os.Exit(netns.Apart(m)) }

// newWorld makes a node with pods p0, p1 and so on. The test's thread is in its
// namespace, and so are the programs that it starts.
func newWorld(t *testing.T, list string, pods int) *world {
	t.Helper()
	bin, reference := os.Getenv("TRACEWIRE_BIN"), os.Getenv("TRACEWIRE_REFERENCE")
	if bin == "" || reference == "" || os.Getenv("TRACEWIRE_SANDBOX") == "" {
		t.Skip("needs the programs and a sandbox: run make test")
	}
	netns.Enter(t)
	if err := ownFolders(bin); err != nil {
		t.Fatal(err)
	}
	n, err := attach.NewNode(t.TempDir(), pluginDir, reference)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	w := &world{Node: n, t: t, bin: pluginDir + "/tracewirectl"}
	w.env = []string{"NETCONFPATH=" + n.Dir + "/net.d", "CNI_PATH=" + pluginDir + ":" + reference, "COLUMNS=100", "PATH=" + os.Getenv("PATH"), "TZ=UTC"}
	w.put("net.d/10-podnet.conflist", list)
	w.must(n.Load([]byte(list)))
	for i := range pods {
		w.add(fmt.Sprintf("p%d", i))
	}
	return w
}

// pluginDir is where the programs are, as on a node.
const pluginDir = "/opt/cni/bin"

// ownFolders gives the test's thread, and the programs that it starts, the usual
// folders for itself: other packages' tests use them at the same time.
func ownFolders(bin string) error {
	errs := []error{unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")}
	programs, err := os.Open(bin) // it may be below one of them
	if err != nil {
		return err
	}
	defer func() { _ = programs.Close() }()
	for _, dir := range []string{"/run", "/opt", "/var/lib", "/var/log", "/etc/systemd"} {
		if there(dir) {
			errs = append(errs, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"))
		}
	}
	errs = append(errs, os.MkdirAll("/run/netns", 0o755), os.MkdirAll("/var/lib/cni", 0o755), os.MkdirAll(pluginDir, 0o755))
	return errors.Join(append(errs, unix.Mount(fmt.Sprintf("/proc/self/fd/%d", programs.Fd()), pluginDir, "", unix.MS_BIND, ""))...)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// put writes a file below the node's folder.
func (w *world) put(name, content string) {
	w.t.Helper()
	path := filepath.Join(w.Dir, name)
	w.must(os.MkdirAll(filepath.Dir(path), 0o755))
	w.must(os.WriteFile(path, []byte(strings.ReplaceAll(content, attach.Dir, w.Dir)), 0o600))
}

func (w *world) attachment(pod string) attach.Attachment {
	return attach.Attachment{ContainerID: pod, IfName: "eth0", NetNS: w.PodPath(pod), Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "pod-" + pod}}}
}

// add attaches a pod.
func (w *world) add(pod string) {
	w.t.Helper()
	_, err := w.Pod(pod)
	w.must(err)
	_, err = w.Add(w.t.Context(), w.attachment(pod))
	w.must(err)
}

// ctl runs the command, from the test's thread.
func (w *world) ctl(args ...string) (code int, out, complaint string) {
	w.t.Helper()
	var o, e strings.Builder
	cmd := exec.CommandContext(w.t.Context(), w.bin, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = w.env, &o, &e
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		w.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), w.Normal(o.String()), w.Normal(e.String())
}

// plug runs a command that runs plugins.
func (w *world) plug(args ...string) (code int, out, complaint string) {
	w.t.Helper()
	return w.ctl(append(args, "--cache-dir", w.Dir+"/cache")...)
}

// expect holds an exit code, and lines of the output.
func (w *world) expect(want, code int, out, complaint string, lines ...string) {
	w.t.Helper()
	if code != want {
		w.t.Errorf("exit code %d, want %d", code, want)
	}
	for _, l := range lines {
		if !strings.Contains(out+complaint, l) {
			w.t.Errorf("no %q", l)
		}
	}
	if w.t.Failed() {
		w.t.Logf("output\n%s\nerrors\n%s", out, complaint)
	}
}

// left is the names in a folder of the node, but for locks and cursors.
func (w *world) left(dir string) (out []string) {
	entries, _ := os.ReadDir(filepath.Join(w.Dir, dir)) // a missing one has none
	for _, e := range entries {
		if e.Name() != "lock" && !strings.HasPrefix(e.Name(), "last_reserved_ip") {
			out = append(out, e.Name())
		}
	}
	return out
}

func TestCheckAsARuntime(t *testing.T) {
	w := newWorld(t, podnet, 2)
	code, out, complaint := w.plug("check")
	w.expect(0, code, out, complaint, "2 attachments checked, no findings\n")
	w.must(exec.Command("ip", "link", "set", "tb0", "down").Run())
	code, out, complaint = w.plug("check")
	w.expect(1, code, out, complaint, "podnet/p0:eth0  default/pod-p0  bridge.down", "2 attachments checked, 2 findings on 2 of them\n")
	code, out, complaint = w.plug("check", "default/pod-p1", "-o", "json")
	w.expect(1, code, out, complaint, `"reason": "bridge.down"`, `"plugins": [
      "tracewire",
      "tuning"
    ],
    "wholeList": true`)
	w.must(exec.Command("ip", "link", "set", "tb0", "up").Run())
	w.must(os.Remove(w.Dir + "/cache/results/podnet-p1-eth0"))
	code, out, complaint = w.plug("check")
	w.expect(0, code, out, complaint, "2 attachments checked, no findings\nof 1 only tracewire's part")
	code, out, complaint = w.plug("check", "--plugin-dir", "/nowhere")
	w.expect(2, code, out, complaint, `could not look at 2 attachments: podnet/p0:eth0: tracewire: failed to find plugin "tracewire" in path [/nowhere]`)
}

func TestGCAsARuntime(t *testing.T) {
	for name, list := range map[string]string{"1.1.0": podnet, "1.0.0": strings.Replace(podnet, `"1.1.0"`, `"1.0.0"`, 1), "no list": podnet} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, list, 3)
			w.must(os.Remove(w.Dir + "/cache/results/podnet-p1-eth0"))
			if name == "no list" {
				w.must(os.Remove(w.Dir + "/net.d/10-podnet.conflist"))
			}
			args := []string{"gc", "--cri", sandboxes.Serve(w.t, "p2", "another"), "--state-dir", w.Dir + "/state"}
			code, out, complaint := w.plug(args...)
			w.expect(0, code, out, complaint, "podnet: 1 attachment valid, 0 stale, 2 too young to tell (--grace); GC has run\n")
			args = append(args, "--grace", "0s")
			code, out, complaint = w.plug(append(args, "--dry-run")...)
			w.expect(0, code, out, complaint, "record  p0", "record  p1", "podnet: 1 attachment valid, 2 stale; nothing was done (--dry-run)\n")
			if got := w.left("ipam/podnet"); len(got) != 3 {
				t.Errorf("reserved: %v", got)
			}
			code, out, complaint = w.plug(args...)
			w.expect(0, code, out, complaint, "podnet: 1 attachment valid, 2 stale; removed\n")
			if got := [][]string{w.left("ipam/podnet"), w.left("state/attachments/podnet"), w.left("cache/results")}; !slices.EqualFunc(got, [][]string{{"10.215.0.4"}, {"p2:eth0"}, {"podnet-p2-eth0"}}, slices.Equal) {
				t.Errorf("left: %v", got)
			}
		})
	}
}

// TestHistoryOfGC: whose address a GC took, by its record or by its reservation, has
// it no more.
func TestHistoryOfGC(t *testing.T) {
	w := newWorld(t, podnet, 3)
	p1, p2 := types.GCAttachment{ContainerID: "p1", IfName: "eth0"}, types.GCAttachment{ContainerID: "p2", IfName: "eth0"}
	w.must(os.RemoveAll(w.Dir + "/cache/results")) // else libcni's own part of GC is their DEL
	w.must(w.GC(t.Context(), []types.GCAttachment{p1, p2}))
	w.last("10.215.0.2", "p0", "GC")
	w.last("10.215.0.3", "p1", "ADD")
	w.must(os.Remove(w.Dir + "/state/attachments/podnet/p1:eth0"))
	w.must(w.GC(t.Context(), []types.GCAttachment{p2}))
	w.last("10.215.0.3", "p1", "GC")
	w.last("10.215.0.4", "p2", "ADD")
}

// TestHistoryOfReclaim: whose address an ADD took after a reboot has it no more. The
// history has both owners, with their times (calico#13858, aws#3887).
func TestHistoryOfReclaim(t *testing.T) {
	for name, lose := range map[string]string{"record": "", "reservation": "state/attachments/podnet/p0:eth0"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, strings.Replace(podnet, "10.215.0.0/24", "10.215.0.0/30", 1), 1)
			w.must(os.RemoveAll(w.Dir + "/cache/results"))
			if lose != "" {
				w.must(os.Remove(filepath.Join(w.Dir, lose)))
			}
			w.must(w.Boot("1b4e28ba-2fa1-41d2-883f-0016d3cca427"))
			w.add("p1")
			_, out, _ := w.ctl("history", "--ip", "10.215.0.2", "-o", "json")
			var all []struct{ Command, ContainerID string }
			w.must(json.Unmarshal([]byte(out), &all))
			want := []struct{ Command, ContainerID string }{{"ADD", "p0"}, {"ADD", "p1"}, {"RECLAIM", "p0"}} // it began before
			if !slices.Equal(all, want) {
				t.Errorf("got %v", all)
			}
			if _, out, _ = w.ctl("history", "--ip", "10.215.0.2", "--at", "0s"); strings.Contains(out, "/p0:") {
				t.Errorf("p0 is there:\n%s", out)
			}
		})
	}
}

// last holds by what the history of an address ends, and that nobody holds it then.
func (w *world) last(ip, pod, want string) {
	w.t.Helper()
	_, out, complaint := w.ctl("history", "--ip", ip)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	row := strings.Fields(lines[len(lines)-1])
	if len(row) < 5 || !slices.Equal(row[1:5], []string{want, "podnet/" + pod + ":eth0", "default/pod-" + pod, ip}) {
		w.t.Errorf("%s of %s: want %s\n%s%s", ip, pod, want, out, complaint)
	}
	code, out, _ := w.ctl("history", "--ip", ip, "--at", "0s")
	if held := code == 0; held != (want == "ADD") {
		w.t.Errorf("%s is held: %v\n%s", ip, held, out)
	}
}

// TestGCOfTwoRuntimes: the pods of a runtime that was not asked are not gone.
func TestGCOfTwoRuntimes(t *testing.T) {
	w := newWorld(t, podnet, 1)
	_, err := w.Pod("other")
	w.must(err)
	cnitool := exec.Command(os.Getenv("TRACEWIRE_REFERENCE")+"/cnitool", "add", "podnet", w.PodPath("other"))
	cnitool.Env = w.env
	w.must(cnitool.Run())
	code, out, complaint := w.plug("gc", "--cri", sandboxes.Serve(w.t))
	w.expect(2, code, out, complaint, "tracewirectl: network podnet has attachments that ", "/cnitool made, whose socket was not asked: give each runtime's by --cri\n")
	if got := w.left("state/attachments/podnet"); len(got) != 2 {
		t.Errorf("left: %v", got)
	}
	code, out, complaint = w.plug("gc")
	w.expect(2, code, out, complaint, "--cri is missing")
	code, out, complaint = w.plug("gc", "--cri", "/nowhere.sock")
	w.expect(2, code, out, complaint, "--cri: runtime at /nowhere.sock: no such file or directory")
}

// TestGCOfNoPods: a runtime that lists none is one that has none, or not the one.
func TestGCOfNoPods(t *testing.T) {
	w := newWorld(t, podnet, 2)
	args := []string{"gc", "--cri", "unix://" + sandboxes.Serve(w.t), "--grace", "0s"}
	const refusal = "tracewirectl: nothing was done: the runtimes that were asked list no pod, and 2 attachments live, as podnet/p"
	code, out, complaint := w.plug(append(args, "--dry-run")...)
	w.expect(0, code, out, complaint, "2 stale; nothing was done (--dry-run)", refusal)
	code, out, complaint = w.plug(args...)
	w.expect(2, code, out, complaint, refusal)
	if got := w.left("state/attachments/podnet"); len(got) != 2 {
		t.Errorf("left: %v", got)
	}
	w.must(w.Vanish("p0"))
	w.must(w.Vanish("p1"))
	code, out, complaint = w.plug(append(args, "--grace", "1h")...)
	w.expect(0, code, out, complaint, "podnet: 0 attachments valid, 0 stale, 2 too young to tell (--grace); GC has run\n")
	code, out, complaint = w.plug(args...)
	w.expect(0, code, out, complaint, "podnet: 0 attachments valid, 2 stale; removed\n")
	w.add("p2")
	code, out, complaint = w.plug(append(args, "--empty")...)
	w.expect(0, code, out, complaint, "podnet: 0 attachments valid, 1 stale; removed\n")
	code, out, complaint = w.plug(args...)
	w.expect(0, code, out, complaint, "podnet: 0 attachments valid, 0 stale; GC has run\n")
}

// TestGCWithoutRecords: reservations are all that tells of a network's pods, and
// files that are no records tell of none.
func TestGCWithoutRecords(t *testing.T) {
	w := newWorld(t, podnet, 2)
	w.must(os.RemoveAll(w.Dir + "/cache/results"))
	w.must(os.RemoveAll(w.Dir + "/state/attachments"))
	w.put("state/attachments/podnet/no attachment's", "")
	code, out, complaint := w.plug("gc", "--cri", sandboxes.Serve(w.t, "p1"), "--grace", "0s", "--dry-run")
	w.expect(0, code, out, complaint, "address  p0", "podnet: 1 attachment valid, 2 stale; nothing was done (--dry-run)\n")
	if strings.Contains(out, "p1") {
		t.Errorf("p1 is to go:\n%s", out)
	}
	code, out, complaint = w.plug("gc", "--cri", sandboxes.Serve(w.t, "p1"), "--grace", "0s")
	w.expect(0, code, out, complaint, "2 stale; removed\n")
	if got := [][]string{w.left("ipam/podnet"), w.left("state/attachments/podnet")}; !slices.EqualFunc(got, [][]string{{"10.215.0.3"}, nil}, slices.Equal) {
		t.Errorf("left: %v", got)
	}
}

// TestGCOfNoNetwork names the network that is not there, and what is.
func TestGCOfNoNetwork(t *testing.T) {
	w := newWorld(t, podnet, 0)
	code, out, complaint := w.plug("gc", "--cri", sandboxes.Serve(w.t, "p1"), "--network", "podnt")
	w.expect(1, code, out, complaint, "tracewirectl: nothing found: no network podnt among those of tracewire: podnet\n")
}

// leak leaves a reservation of a container that nobody knows.
func (w *world) leak(address, id string) {
	if id != "" {
		id += "\r\neth0"
	}
	w.put("ipam/podnet/"+address, id)
}

func TestAudit(t *testing.T) {
	w := newWorld(t, podnet, 1)
	code, out, complaint := w.plug("audit")
	w.expect(0, code, out, complaint, "no findings in 1 record (1 checked), ")
	w.leak("10.215.0.77", "gone")
	code, out, complaint = w.plug("audit")
	w.expect(1, code, out, complaint, "leaked-address (error, 1)\n", "10.215.0.77 of podnet", "ipam: reserved for ", "run the plugin's DEL for\n", "1 finding in 1 record (1 checked), ")
	code, out, complaint = w.plug("audit", "-o", "json")
	w.expect(1, code, out, complaint, `{"version":1,"findings":[
{"id":"`, `"kind":"leaked-address"`, `],"unread":[
],"counts":{"records":1,`)
	if !json.Valid([]byte(out)) {
		t.Error("is not one document")
	}
	code, out, complaint = w.plug("audit", "--network", "other")
	w.expect(0, code, out, complaint, "no findings in 1 record, ")
	code, out, complaint = w.plug("audit", "--cri", sandboxes.Serve(w.t, "p0", "gone"))
	w.expect(1, code, out, complaint, "reservation-without-attachment")
}

// TestAuditWatches: what comes and goes is told, past a runtime that does not answer.
func TestAuditWatches(t *testing.T) {
	w := newWorld(t, podnet, 1)
	w.leak("10.215.0.77", "gone")
	cri := sandboxes.Serve(t, "p0")
	cmd := exec.CommandContext(t.Context(), w.bin, "audit", "--watch", "--every", "1s", "--cache-dir", w.Dir+"/cache", "--cri", cri)
	cmd.Env = w.env
	out, in, err := os.Pipe()
	w.must(err)
	cmd.Stdout, cmd.Stderr = in, in
	w.must(cmd.Start())
	w.must(in.Close())
	lines := bufio.NewScanner(out)
	until := func(text string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Fatalf("no %q", text)
	}
	until("+ leaked-address 10.215.0.77 of podnet")
	w.must(os.Rename(cri, cri+".away"))
	until("cri.sock")
	w.must(os.Rename(cri+".away", cri))
	w.must(os.Remove(w.Dir + "/ipam/podnet/10.215.0.77"))
	until("- leaked-address 10.215.0.77 of podnet")
	w.must(cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestAuditChecks: CHECK is run where that is cheap, and is a source like others
// only for who asks for it.
func TestAuditChecks(t *testing.T) {
	w := newWorld(t, podnet, 1)
	w.must(netlink.LinkSetDown(w.hostOf("p0")))
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{nil, 1, "drift (error, 1)\n"},
		{[]string{"--check"}, 1, "host.down: expected "},
		{[]string{"--check=never"}, 0, "no findings in 1 record, "},
		{[]string{"--check=maybe"}, 2, `--check is always, never or auto, not "maybe"`},
		{[]string{"--plugin-dir", w.Dir}, 0, "no findings in 1 record, "},
		{[]string{"--plugin-dir", pluginDir}, 1, "drift (error, 1)\n"}, // tuning, which is behind us, is not there
		{[]string{"--plugin-dir", w.Dir, "--check"}, 2, "could not look at everything"},
	} {
		code, out, complaint := w.plug(append([]string{"audit"}, tt.args...)...)
		w.expect(tt.code, code, out, complaint, tt.says)
	}
}

func TestFix(t *testing.T) {
	w := newWorld(t, podnet, 2)
	w.leak("10.215.0.77", "gone")
	w.leak("10.215.0.78", "") // what a crash leaves
	w.must(w.Vanish("p1"))
	code, out, complaint := w.plug("audit", "--fix", "--yes")
	w.expect(1, code, out, complaint, "repairs of what was seen first now, or not for long enough: run it again in 60 s\n", "nothing was repaired yet")
	code, out, complaint = w.plug("audit", "--fix", "--grace", "0s")
	w.expect(2, code, out, complaint, "leaked-address ", "run the plugin's DEL for podnet/gone:eth0", "stale-record ", "tracewirectl: nothing was done: ", " without --yes, and nobody to ask\n")
	if got := w.left("ipam/podnet"); len(got) != 4 {
		t.Errorf("reserved: %v", got)
	}
	code, out, complaint = w.plug("audit", "--fix", "--grace", "0s", "--yes")
	w.expect(0, code, out, complaint, " repairs made\n")
	if got := w.left("ipam/podnet"); !slices.Equal(got, []string{"10.215.0.2"}) {
		t.Errorf("reserved: %v", got)
	}
	code, out, complaint = w.plug("audit", "--fix", "--yes")
	w.expect(0, code, out, complaint, "nothing to repair\n")
	code, out, complaint = w.ctl("trace", "podnet/gone:eth0", "--last", "9")
	w.expect(0, code, out, complaint, "audit.fix", "audit.del", "cni.DEL")
	code, out, complaint = w.ctl("history", "--container", "gone")
	w.expect(0, code, out, complaint, "FIX  podnet/gone:eth0  leaked-address: del  10.215.0.77  ", "DEL  podnet/gone:eth0")
}

// TestTwoChecks: what only one CHECK of two finds is nothing, nor is what is told of
// an attachment that is another by now.
func TestTwoChecks(t *testing.T) {
	w := newWorld(t, podnet, 1)
	all, err := records([]string{w.Dir + "/state"})
	w.must(err)
	down, route := finding{Plugin: "tracewire", Reason: "pod.down"}, finding{Plugin: "tracewire", Reason: "route"}
	another := all[0]
	another.Began = another.Began.Add(-time.Second)
	for name, tt := range map[string]struct {
		of            stored
		first, second checked
		findings      []finding
		err           string
	}{
		"both":    {all[0], checked{Findings: []finding{down, route}}, checked{Findings: []finding{route}}, []finding{route}, ""},
		"one":     {all[0], checked{Findings: []finding{down}}, checked{Findings: []finding{route}}, nil, ""},
		"an end":  {all[0], checked{Error: "no"}, checked{Findings: []finding{route}}, []finding{route}, ""},
		"errors":  {all[0], checked{Error: "no"}, checked{Error: "no"}, nil, "no"},
		"another": {another, checked{Error: "no"}, checked{Error: "no", Findings: []finding{route}}, nil, ""},
	} {
		if got := tt.of.both(tt.first, tt.second); !slices.Equal(got.Findings, tt.findings) || got.Error != tt.err {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestFixThatFails: a repair that failed is told, and in the exit code, beside what
// is found; so is what could not be read.
func TestFixThatFails(t *testing.T) {
	w := newWorld(t, podnet, 1)
	w.leak("10.215.0.77", "gone")
	code, out, complaint := w.plug("audit", "--fix", "--yes")
	w.expect(1, code, out, complaint, "1 repair of what was seen first now")
	code, out, complaint = w.plug("audit", "--fix", "--grace", "0s", "--yes", "--plugin-dir", w.Dir)
	w.expect(2, code, out, complaint, "0 repairs made, 1 failed, 1 finding left\n", "tracewirectl: 1 repair failed\n")
	w.must(os.WriteFile(w.Dir+"/ipam/other", nil, 0o600))
	w.put("net.d/20-othernet.conflist", strings.Replace(otherNet, "othernet", "other", 1))
	code, out, complaint = w.plug("audit", "-o", "json")
	w.expect(2, code, out, complaint, `"kind":"leaked-address"`, "could not look at everything: ipam: ")
}

// ported is podnet with portmap of a backend.
func ported(backend string) string {
	return strings.Replace(podnet, `{"type": "tuning"`, `{"type": "portmap", "backend": "`+backend+`", "capabilities": {"portMappings": true}}, {"type": "tuning"`, 1)
}

// publish attaches a pod with a port of the host's.
func (w *world) publish(pod, backend string) {
	w.t.Helper()
	w.must(w.Load([]byte(ported(backend))))
	_, err := w.Pod(pod)
	w.must(err)
	a := w.attachment(pod)
	a.Capabilities = map[string]any{"portMappings": []any{map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
	_, err = w.Add(w.t.Context(), a)
	w.must(err)
}

// lose takes a pod away with all that tells of it: what is left is rules.
func (w *world) lose(pod string) error {
	w.t.Helper()
	reservation := w.Dir + "/ipam/podnet/" + w.addressOf(pod).Addr().String()
	return errors.Join(w.Vanish(pod), w.forget(pod), os.Remove(reservation))
}

// TestFixPorts: the rules of a pod that vanished go by portmap's own DEL.
func TestFixPorts(t *testing.T) {
	netns.Need(t, "iptables", "ip6tables", "nft")
	for _, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			w := newWorld(t, ported(backend), 0)
			w.publish("p0", backend)
			w.publish("p1", backend)
			w.must(w.lose("p1"))
			code, out, complaint := w.plug("audit", "--fix", "--grace", "0s", "--yes")
			w.expect(1, code, out, complaint, "1 repair of what was seen first now")
			code, out, complaint = w.plug("audit", "--fix", "--grace", "0s", "--yes")
			w.expect(0, code, out, complaint, "stale-portmap ", "run portmap's DEL for podnet/p1:eth0", "1 repair made\n")
			var ports []string
			for _, command := range [][]string{{"nft", "list", "ruleset"}, {"iptables", "-t", "nat", "-S"}} {
				b, _ := exec.Command(command[0], command[1:]...).Output()
				ports = append(ports, regexp.MustCompile(`10\.215\.0\.\d+:80`).FindAllString(string(b), -1)...)
			}
			if len(ports) == 0 || slices.ContainsFunc(ports, func(s string) bool { return s != "10.215.0.2:80" }) {
				t.Errorf("mapped: %v", ports)
			}
			code, out, complaint = w.ctl("trace", "p1", "--last", "9")
			w.expect(0, code, out, complaint, "audit.fix", "audit.del")
		})
	}
}

// TestFixLeavesTheForeign: another's reservation is told of and stays, however long.
func TestFixLeavesTheForeign(t *testing.T) {
	w := newWorld(t, podnet, 1)
	w.must(os.MkdirAll("/var/lib/cni/networks/other", 0o755))
	w.must(os.WriteFile("/var/lib/cni/networks/other/10.9.0.2", []byte("somebody\r\neth0"), 0o600))
	for range 2 {
		code, out, complaint := w.plug("audit", "--fix", "--grace", "0s", "--yes")
		w.expect(1, code, out, complaint, "1 finding only reported")
	}
	if _, err := os.Stat("/var/lib/cni/networks/other/10.9.0.2"); err != nil {
		t.Error(err)
	}
}

// otherNet is a second network in the same state directory.
var otherNet = strings.NewReplacer(`"podnet"`, `"othernet"`, "tb0", "tb1", "10.215", "10.216").Replace(podnet)

// TestFixOfNetworksInTurns: who looks at one network forgets nothing of the others.
func TestFixOfNetworksInTurns(t *testing.T) {
	w := newWorld(t, podnet, 1)
	w.put("net.d/20-othernet.conflist", otherNet)
	w.put("ipam/othernet/10.216.0.9", "gone\r\neth0")
	w.leak("10.215.0.77", "gone")
	for _, want := range []struct{ name, says string }{
		{"podnet", "1 repair of what was seen first now"}, {"othernet", "1 repair of what was seen first now"},
		{"podnet", "1 repair made"}, {"othernet", "1 repair made"},
	} {
		_, out, complaint := w.plug("audit", "--fix", "--grace", "0s", "--yes", "--network", want.name)
		if !strings.Contains(out, want.says) {
			t.Errorf("%s: no %q\n%s%s", want.name, want.says, out, complaint)
		}
	}
}

// TestFixTwice: two at the same time remember what both saw.
func TestFixTwice(t *testing.T) {
	w := newWorld(t, podnet, 1)
	w.put("net.d/20-othernet.conflist", otherNet)
	w.put("ipam/othernet/10.216.0.9", "gone\r\neth0")
	w.leak("10.215.0.77", "gone")
	var both []*exec.Cmd
	for _, name := range []string{"podnet", "othernet"} {
		cmd := exec.CommandContext(t.Context(), w.bin, "audit", "--fix", "--network", name, "--cache-dir", w.Dir+"/cache")
		cmd.Env = w.env
		w.must(cmd.Start())
		both = append(both, cmd)
	}
	for _, cmd := range both {
		_ = cmd.Wait() // 1: there are findings
	}
	m, err := openMemory(t.Context(), w.Dir+"/state")
	w.must(err)
	defer m.close()
	if seen := m.recall().Seen; len(seen) != 2 {
		t.Errorf("remembered: %v", seen)
	}
}

// TestFixForgetsNothingUnread: a look that could not read something is none.
func TestFixForgetsNothingUnread(t *testing.T) {
	w := newWorld(t, podnet, 1)
	w.leak("10.215.0.77", "gone")
	code, out, complaint := w.plug("audit", "--fix")
	w.expect(1, code, out, complaint, "1 repair of what was seen first now")
	w.must(os.Rename(w.Dir+"/ipam/podnet", w.Dir+"/ipam/away"))
	w.must(os.WriteFile(w.Dir+"/ipam/podnet", nil, 0o600))
	code, out, complaint = w.plug("audit", "--fix", "--grace", "0s", "--yes")
	w.expect(2, code, out, complaint, "nothing was repaired: could not look at everything: ipam: ")
	w.must(os.Remove(w.Dir + "/ipam/podnet"))
	w.must(os.Rename(w.Dir+"/ipam/away", w.Dir+"/ipam/podnet"))
	code, out, complaint = w.plug("audit", "--fix", "--grace", "0s", "--yes")
	w.expect(0, code, out, complaint, "1 repair made")
}

// TestFixBesideABrokenList: it may be of a network that has attachments.
func TestFixBesideABrokenList(t *testing.T) {
	w := newWorld(t, podnet, 1)
	w.leak("10.215.0.77", "gone")
	code, out, complaint := w.plug("audit", "--fix")
	w.expect(1, code, out, complaint, "1 repair of what was seen first now")
	w.put("net.d/20-othernet.conflist", otherNet[:len(otherNet)/2])
	code, out, complaint = w.plug("audit", "--fix", "--grace", "0s", "--yes")
	w.expect(2, code, out, complaint, "net.d/20-othernet.conflist: unexpected end of JSON input\n", "nothing was repaired: a list that cannot be read")
	w.must(os.Remove(w.Dir + "/net.d/20-othernet.conflist"))
	code, out, complaint = w.plug("audit", "--fix", "--grace", "0s", "--yes")
	w.expect(0, code, out, complaint, "1 repair made")
}

// TestFixOnAnothersNode: on a node that never had us a folder is made once there is
// something to remember.
func TestFixOnAnothersNode(t *testing.T) {
	const state = "/var/lib/cni/tracewire"
	w := newWorld(t, strings.ReplaceAll(podnet, `"tracewire", "bridge"`, `"bridge", "bridge"`), 0)
	code, out, complaint := w.plug("audit", "--fix", "--yes")
	w.expect(0, code, out, complaint, "nothing to repair\n")
	if there(state) {
		t.Error(state + " was made for nothing")
	}
	w.put("cache/results/podnet-gone-eth0", "")
	code, out, complaint = w.plug("audit", "--fix", "--yes")
	w.expect(1, code, out, complaint, "1 finding only reported", "nothing to repair\n")
	cri := sandboxes.Serve(w.t)
	code, out, complaint = w.plug("audit", "--fix", "--yes", "--cri", cri)
	w.expect(1, code, out, complaint, "1 repair of what was seen first now", "remembered in "+state+", which was made for it: tracewire has kept nothing on this node\n")
	if info, err := os.Stat(state); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	code, out, complaint = w.plug("audit", "--fix", "--yes", "--grace", "0s", "--cri", cri)
	w.expect(0, code, out, complaint, "broken-libcni-entry", "1 repair made\n")
	code, out, complaint = w.plug("gc", "--cri", cri)
	w.expect(0, code, out, complaint, "no network of tracewire's is on this node")
	code, out, complaint = w.plug("uninstall", "--yes")
	w.expect(0, code, out, complaint, state)
	if there(state) {
		t.Error(state + " stays")
	}
}
