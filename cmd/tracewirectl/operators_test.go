package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const operators = "/opt/cni/bin/tracewirectl"

// checked adds CHECKs to a node's usual past: two that the operator's command had
// run, one of a runtime, and one of a plugin that does not tell.
func (n *node) checked() {
	n.t.Helper()
	for i, runtime := range []string{operators, "/usr/bin/crio", "", operators} {
		n.operate(operation{command: "CHECK", id: web, pod: "default/web-5d4b9c7f6-x2x9k", trace: 0xb0 + byte(i), after: time.Duration(40+i) * time.Minute,
			took: time.Millisecond, code: 110, runtime: runtime})
	}
}

// TestOperatorsChecks: what check and audit had run is out of the way, and told of.
func TestOperatorsChecks(t *testing.T) {
	n := newNode(t)
	n.morning()
	n.checked()
	const leftOut = "left out: 2 CHECKs that tracewirectl had run (--all)\n"
	for _, tt := range []struct {
		args string
		code int
		want []string // in the output or the complaint
		not  []string
	}{
		{"history --failed", 0, []string{"a4a4a4a4", "b1b1b1b1", "b2b2b2b2", leftOut}, []string{"b0b0b0b0", "b3b3b3b3"}},
		{"history --failed --all", 0, []string{"b0b0b0b0", "b1b1b1b1", "b3b3b3b3"}, []string{"left out"}},
		{"history --failed -o json", 0, []string{`"runtime": "/usr/bin/crio"`}, []string{"tracewirectl", "left out"}},
		{"history --failed -o json --all", 0, []string{`"runtime": "/opt/cni/bin/tracewirectl"`}, []string{"left out"}},
		{"history --since 17m", 1, []string{"nothing found: no such operation in DIR/log/tracewire.jsonl; left out: 1 CHECK that tracewirectl had run (--all)"}, nil},
		{"trace default/web-5d4b9c7f6-x2x9k", 0, []string{"b2b2b2b2", "left out: 1 CHECK that"}, []string{"b3b3b3b3"}},
		{"trace", 0, []string{"b2b2b2b2"}, []string{"b3b3b3b3"}},
		{"trace --all", 0, []string{"b3b3b3b3", "  called by   /opt/cni/bin/tracewirectl"}, []string{"left out"}},
		{"trace b3b3b3b3", 0, []string{"b3b3b3b3"}, []string{"left out"}},
		{"trace --last 3 -o json", 0, []string{"b1b1b1b1", "b2b2b2b2", "a4a4a4a4"}, []string{"b3b3b3b3", "left out"}},
	} {
		t.Run(tt.args, func(t *testing.T) {
			code, out, complaint := n.run(strings.Fields(tt.args)...)
			if code != tt.code {
				t.Errorf("code %d, %s", code, complaint)
			}
			for _, w := range tt.want {
				if !strings.Contains(out+complaint, w) {
					t.Errorf("no %q in\n%s%s", w, out, complaint)
				}
			}
			for _, w := range tt.not {
				if strings.Contains(out+complaint, w) {
					t.Errorf("%q in\n%s%s", w, out, complaint)
				}
			}
		})
	}
}

// TestFollowedOperatorsChecks: nor are they in the way of who follows.
func TestFollowedOperatorsChecks(t *testing.T) {
	n := newNode(t)
	n.morning()
	n.checked()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	out := &hooked{wrote: func(string) { cancel() }}
	code, complaint := n.runTo(ctx, out, "history", "-f")
	if got := out.text.String(); code != 0 || complaint != "" || strings.Contains(got, "b3b3b3b3") || !strings.HasSuffix(got, "left out: 2 CHECKs that tracewirectl had run (--all)\n") {
		t.Errorf("code %d, %s\n%s", code, complaint, got)
	}
}

// TestCallerIsTold: the plugin tells who called it, and the operator's CHECKs do not
// stand before a pod's ADD.
func TestCallerIsTold(t *testing.T) {
	w := newWorld(t, podnet, 1)
	w.must(exec.Command("ip", "link", "set", "tb0", "down").Run())
	w.plug("check")
	w.plug("audit", "--check") // twice, as there are findings
	_, out, complaint := w.ctl("trace", "default/pod-p0")
	w.expect(0, 0, out, complaint, "ADD  podnet/p0:eth0", "left out: 3 CHECKs that tracewirectl had run (--all)")
	code, out, complaint := w.ctl("history", "--failed")
	w.expect(1, code, out, complaint, "left out: 3 CHECKs that tracewirectl had run (--all)")
	code, out, complaint = w.ctl("history", "--failed", "--all", "-o", "json")
	w.expect(0, code, out, complaint, `"command": "CHECK"`, `"runtime": "/opt/cni/bin/tracewirectl"`)
	code, out, complaint = w.ctl("history", "-o", "json")
	w.expect(0, code, out, complaint, `"command": "ADD"`, `"runtime": "/`)
}

// TestNamesAreFoundAlike: a pod's name alone names it for every command, and what has
// no record is not unknown as long as libcni has an entry.
func TestNamesAreFoundAlike(t *testing.T) {
	w := newWorld(t, podnet, 1)
	for command, says := range map[string]string{"show": "default/pod-p0", "trace": "podnet/p0:eth0", "check": "1 attachment checked"} {
		code, out, complaint := w.ctl(command, "pod-p0")
		w.expect(0, code, out, complaint, says)
	}
	w.must(os.Remove(w.Dir + "/state/attachments/podnet/p0:eth0"))
	w.must(exec.Command("ip", "link", "del", "tb0").Run())
	w.must(w.In("p0", func() error { return exec.Command("ip", "link", "del", "eth0").Run() }))
	for _, name := range []string{"pod-p0", "default/pod-p0", "p0", "podnet/p0:eth0", "10.215.0.2"} {
		code, out, complaint := w.plug("show", name)
		w.expect(1, code, out, complaint, "tracewirectl: no record of podnet/p0:eth0; libcni has an entry: tracewirectl audit tells more\n")
	}
	code, out, complaint := w.plug("show", "pod-p1")
	w.expect(1, code, out, complaint, "tracewirectl: nothing found: no attachment pod-p1\n")
}

// TestTraceOfARepair: the plugin's part of a repair, which has a root of its own, is
// drawn with it.
func TestTraceOfARepair(t *testing.T) {
	n := newNode(t)
	n.morning()
	n.operate(operation{command: "DEL", id: web, trace: 0xa5, after: 40*time.Minute + time.Millisecond, took: time.Millisecond})
	n.operate(operation{command: "FIX", id: web, trace: 0xa5, after: 40 * time.Minute, took: 3 * time.Millisecond, mended: "stale-record", repair: "del"})
	for _, args := range []string{"trace", "trace default/web-5d4b9c7f6-x2x9k", "trace a5a5a5a5"} {
		code, out, complaint := n.run(strings.Fields(args)...)
		fix, del := strings.Index(out, "FIX  podnet/1635e8a1b2c3:eth0"), strings.Index(out, "\n\nDEL  podnet/1635e8a1b2c3:eth0")
		if code != 0 || fix != 0 || del < 0 || strings.Contains(out, "a3a3a3a3") || !strings.Contains(out, "\n  mends       stale-record: del\n") {
			t.Errorf("%s: code %d, %s\n%s", args, code, complaint, out)
		}
	}
}
