//go:build linux

package main

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/chain/lock"
	"github.com/tracewire/tracewire/test/attach"
)

// leaveAs runs uninstall, and returns what it tells, a line a thing: what, path
// and what becomes of it.
func (w *world) leaveAs(args ...string) (code int, things []string) {
	w.t.Helper()
	code, out, complaint := w.plug(append([]string{"uninstall", "-o", "json"}, args...)...)
	var all []belonging
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		w.t.Fatalf("%v\n%s%s", err, out, complaint)
	}
	for _, b := range all {
		word := "-"
		switch {
		case b.Removed:
			word = "removed"
		case b.Error != "":
			word = "error: " + b.Error
		case b.Stays != "":
			word = "stays: " + b.Stays
		}
		things = append(things, b.What+" "+strings.ReplaceAll(b.Path, attach.Dir, "DIR")+" "+word)
	}
	return code, things
}

// filesBelow is the files of folders.
func filesBelow(dirs ...string) (out []string) {
	for _, dir := range dirs {
		_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error { // a missing one has none
			if err == nil {
				out = append(out, path)
			}
			return nil
		})
	}
	return out
}

// TestUninstall: what attachments do not need goes without them.
func TestUninstall(t *testing.T) {
	w := newWorld(t, podnet, 1)
	w.must(w.Status(t.Context()))
	w.put("state/spool/mine.txt", "mine")
	code, out, complaint := w.plug("uninstall")
	w.expect(0, code, out, complaint, "attachment  ", "stays: its record is needed to end\n", "would be removed", "stays: it is yours, and still\n", "nothing was done: --yes removes it\n")
	code, out, complaint = w.plug("uninstall", "--yes")
	w.expect(0, code, out, complaint, "1 attachment and what it needs stay, reservations too: --attachments ends them\n")
	if got := [][]string{w.left("state"), w.left("state/spool"), w.left("tracewire"), w.left("ipam/podnet")}; !slices.EqualFunc(got, [][]string{{"attachments", "networks", "spool"}, {"mine.txt"}, nil, {"10.215.0.2"}}, slices.Equal) {
		t.Errorf("left: %v", got)
	}
	w.must(w.Check(t.Context(), w.attachment("p0")))
	code, out, complaint = w.plug("uninstall", "--yes", "--attachments")
	w.expect(0, code, out, complaint, "state", "removed")
	if got := [][]string{w.left("state"), w.left("state/spool"), w.left("ipam/podnet"), w.left("cache/results")}; !slices.EqualFunc(got, [][]string{{"spool"}, {"mine.txt"}, nil, nil}, slices.Equal) {
		t.Errorf("left: %v", got)
	}
	if there("/run/tracewire") {
		t.Error("/run/tracewire is there")
	}
	if !there(w.bin) {
		t.Error("the command is gone")
	}
}

// aDay leaves all that a node has of us after a day.
func (w *world) aDay() {
	w.must(w.Status(w.t.Context()))
	for _, name := range []string{
		"state/spool/agent.checkpoint", "state/spool/agent.checkpoint.new", "state/spool/agent.lock", "state/quarantine/1.podnet", "state/audit.json", "state/audit.lock",
		"tracewire/.log.jsonl.agent.checkpoint", "tracewire/.log.jsonl.agent.lock", "tracewire/log.jsonl.1", "tracewire/log.jsonl.2.gz", "tracewire/log.jsonl-20260301.gz",
	} {
		w.put(name, "{}")
	}
	w.must(os.MkdirAll(agentDir, 0o700))
	for _, name := range []string{"agent-0011223344556677.checkpoint", "agent-0011223344556677.lock", "agent-audit.json", "agent-audit.json.new", ".log.jsonl.agent-0011223344556677.lock"} {
		w.must(os.WriteFile(filepath.Join(agentDir, name), nil, 0o600))
	}
	for _, name := range []string{"polled", "dropped", "reaped"} {
		w.must(os.WriteFile("/run/tracewire/"+name, []byte("x"), 0o600))
	}
}

// TestUninstallEverything: attachments stand as late as they go, and nothing of us
// is left.
func TestUninstallEverything(t *testing.T) {
	w := newWorld(t, podnet, 2)
	w.aDay()
	order := []string{
		"agent's files DIR/state/spool/agent.checkpoint", "agent's files DIR/tracewire/.log.jsonl.agent.checkpoint", "agent's files /var/lib/tracewire-agent",
		"broken records DIR/state/quarantine", "audit's memory DIR/state/audit.json", "verdicts /run/tracewire/*/status",
		"attachment podnet/p0:eth0", "attachment podnet/p1:eth0", "bridge tb0",
		"rules tracewire_3aa0627f1611cce1_00ff0f6e45f0116c", "traces DIR/state/spool", "log DIR/tracewire/log.jsonl.1", "log DIR/tracewire/log.jsonl.2.gz", "log DIR/tracewire/log.jsonl-20260301.gz",
		"log DIR/tracewire/log.jsonl", "log DIR/tracewire", "counters and lists /run/tracewire", "state DIR/state",
	}
	want := func(word string, left ...string) (out []string) {
		for _, thing := range order {
			if !slices.Contains(left, thing) {
				out = append(out, thing+" "+word)
			}
		}
		return out
	}
	const stay = "stays: --binaries removes it"
	last := []string{
		"program /opt/cni/bin/tracewire " + stay, "program /opt/cni/bin/tracewire-agent " + stay, "program /opt/cni/bin/tracewirectl " + stay,
		"addresses DIR/ipam/podnet stays: host-local may share it; 2 reservations", "list DIR/net.d/10-podnet.conflist stays: it is yours, and still names tracewire",
	}
	_, got := w.leaveAs("--attachments")
	if diff := cmp.Diff(append(want("-"), last...), got); diff != "" {
		t.Errorf("planned (-want +got)\n%s", diff)
	}
	code, got := w.leaveAs("--attachments", "--yes")
	last[3] = "addresses DIR/ipam/podnet stays: host-local may share it; 0 reservations"
	if diff := cmp.Diff(append(want("removed", "rules tracewire_3aa0627f1611cce1_00ff0f6e45f0116c"), last...), got); diff != "" || code != 0 { // the rules went with the last attachment
		t.Errorf("code %d (-want +got)\n%s", code, diff)
	}
	if left := filesBelow(w.Dir+"/state", w.Dir+"/tracewire", "/run/tracewire", agentDir); left != nil {
		t.Errorf("left: %v", left)
	}
	if exec.Command("ip", "link", "show", "tb0").Run() == nil {
		t.Error("the bridge is there")
	}
}

// install puts the programs where they may be removed, and returns the flags that
// name them.
func (w *world) install() (flags []string) {
	w.t.Helper()
	dir := filepath.Join(w.Dir, "bin")
	w.must(os.MkdirAll(dir, 0o755))
	for _, name := range []string{"tracewire", "tracewirectl", "tracewire-agent"} {
		b, err := os.ReadFile(filepath.Join(pluginDir, name))
		w.must(err)
		w.must(os.WriteFile(filepath.Join(dir, name), b, 0o700)) //nolint:gosec // programs
	}
	w.bin = filepath.Join(dir, "tracewirectl")
	w.put("net.d/10-tracewire.conflist.sample", "{}")
	return []string{"--plugin-dir", dir, "--plugin-dir", os.Getenv("TRACEWIRE_REFERENCE")}
}

// TestUninstallGoesOn: what fails half-way can be finished by another run.
func TestUninstallGoesOn(t *testing.T) {
	w := newWorld(t, podnet, 2)
	flags := w.install()
	w.aDay()
	code, got := w.leaveAs("--attachments", "--yes", "--binaries", "--plugin-dir", t.TempDir())
	for _, thing := range []string{
		"bridge tb0 stays: it has ports", "rules tracewire_3aa0627f1611cce1_00ff0f6e45f0116c stays: attachments of podnet need it",
		"traces DIR/state/spool stays: it tells why attachments could not be ended", "log DIR/tracewire/log.jsonl stays: it tells why attachments could not be ended",
		"state DIR/state stays: attachments need it", "program DIR/bin/tracewirectl stays: not all could be removed: run it again",
	} {
		if !slices.Contains(got, thing) {
			t.Errorf("no %q", thing)
		}
	}
	if code != 2 || t.Failed() {
		t.Fatalf("code %d\n%s", code, strings.Join(got, "\n"))
	}
	_, got = w.leaveAs(append(flags, "--binaries", "--yes")...)
	if want := "program DIR/bin/tracewire stays: attachments need it to be ended"; !slices.Contains(got, want) {
		t.Errorf("no %q in\n%s", want, strings.Join(got, "\n"))
	}
	w.install()
	code, got = w.leaveAs(append(flags, "--attachments", "--binaries", "--yes")...)
	if left := filesBelow(w.Dir+"/state", w.Dir+"/tracewire", "/run/tracewire", agentDir, w.Dir+"/bin"); code != 0 || len(left) != 1 || there(w.Dir+"/net.d/10-tracewire.conflist.sample") {
		t.Errorf("code %d, left %v\n%s", code, left, strings.Join(got, "\n"))
	}
}

// TestUninstallOfBrokenRecords: a record that tells nothing is in nobody's way.
func TestUninstallOfBrokenRecords(t *testing.T) {
	w := newWorld(t, podnet, 1)
	w.put("state/attachments/podnet/p0:eth0", "")
	w.put("state/attachments/podnet/no attachment's", "")
	w.put("state/attachments/othernet/gone:eth0", "{}") // no list tells of it
	code, got := w.leaveAs("--attachments", "--yes")
	if left := append(filesBelow(w.Dir+"/state"), w.left("ipam/podnet")...); code != 0 || left != nil {
		t.Errorf("code %d, left %v\n%s", code, left, strings.Join(got, "\n"))
	}
}

// TestUninstallLeavesTheForeign: a bridge with others' ports stays; a host end that
// no record tells of is an attachment of ours all the same.
func TestUninstallLeavesTheForeign(t *testing.T) {
	w := newWorld(t, podnet, 2)
	w.must(exec.Command("ip", "link", "add", "tap9", "type", "veth", "peer", "name", "tap9p").Run())
	w.must(exec.Command("ip", "link", "set", "tap9", "master", "tb0").Run())
	w.must(os.Remove(w.Dir + "/state/attachments/podnet/p1:eth0"))
	lost := "interface " + w.hostOf("p1").Attrs().Name
	_, got := w.leaveAs("--yes")
	if !slices.Contains(got, lost+" stays: no record tells of it: tracewirectl audit has the reason, --attachments ends it") {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
	code, got := w.leaveAs("--attachments", "--yes")
	if !slices.Contains(got, "bridge tb0 stays: it has ports of others: tap9") || !slices.Contains(got, lost+" removed") || code != 0 {
		t.Errorf("code %d\n%s", code, strings.Join(got, "\n"))
	}
	w.must(exec.Command("ip", "link", "del", "tap9").Run())
	_, got = w.leaveAs("--attachments", "--yes")
	if left := w.left("ipam/podnet"); !slices.Contains(got, "bridge tb0 removed") || len(left) > 0 {
		t.Errorf("%s\nreserved: %v", strings.Join(got, "\n"), left)
	}
}

// TestUninstallOfLostRecords: what an attachment needs stays with it, also where no
// record tells of it.
func TestUninstallOfLostRecords(t *testing.T) {
	w := newWorld(t, podnet, 1)
	kept := filepath.Join(w.Dir, "kept")
	record := w.Dir + "/state/attachments/podnet/p0:eth0"
	w.must(os.Rename(record, kept))
	code, got := w.leaveAs("--yes")
	w.must(os.MkdirAll(filepath.Dir(record), 0o700))
	w.must(os.Rename(kept, record))
	if err := w.Check(t.Context(), w.attachment("p0")); err != nil || code != 0 {
		t.Errorf("code %d, %v\n%s", code, err, strings.Join(got, "\n"))
	}
}

// TestUninstallBesideAnAgent: what an agent at work has open stays.
func TestUninstallBesideAnAgent(t *testing.T) {
	w := newWorld(t, podnet, 0)
	w.aDay()
	unlock, err := lock.Flock(t.Context(), w.Dir+"/state/spool/agent.lock")
	w.must(err)
	_, got := w.leaveAs("--yes")
	unlock()
	if !slices.ContainsFunc(got, func(s string) bool {
		return strings.HasPrefix(s, "agent's files DIR/state/spool/agent.checkpoint stays: tracewire-agent is at work, process ")
	}) {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
	if got := w.left("state/spool"); len(got) != 3 {
		t.Errorf("left: %v", got)
	}
	_, _ = w.leaveAs("--yes")
	if left := filesBelow(w.Dir + "/state"); left != nil {
		t.Errorf("left: %v", left)
	}
}

// TestUninstallInterrupted: who is told to stop begins nothing more.
func TestUninstallInterrupted(t *testing.T) {
	if os.Getenv("TRACEWIRE_SANDBOX") == "" {
		t.Skip("needs a sandbox: run make test")
	}
	n := newNode(t)
	n.attach(web, "default/web-0", "/run/netns/p", 1, true, result(t, "10.22.0.5/16"))
	before := filesBelow(n.state)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out strings.Builder
	code, complaint := n.runTo(ctx, &out, "uninstall", "--yes", "--attachments", "--cache-dir", t.TempDir(), "--plugin-dir", t.TempDir())
	if code != 2 || complaint != "tracewirectl: context canceled\n" || !strings.Contains(out.String(), "interrupted") {
		t.Errorf("code %d, %q\n%s", code, complaint, out.String())
	}
	if diff := cmp.Diff(before, filesBelow(n.state)); diff != "" {
		t.Error(diff)
	}
}
