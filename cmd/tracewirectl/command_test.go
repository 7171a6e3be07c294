package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain/audit"
	"github.com/tracewire/tracewire/chain/codes"
	"github.com/tracewire/tracewire/conflist"
)

// TestCommands runs command lines over a node's usual past. A line of out that
// is wanted may stand anywhere.
func TestCommands(t *testing.T) {
	n := newNode(t)
	n.morning()
	n.attach(web, "default/web-5d4b9c7f6-x2x9k", filepath.Join(t.TempDir(), "gone"), 7, true, result(t, "10.22.0.5/16", "fd00::5/64"))
	n.attach(db, "default/db-0", "", 0, false, result(t, "10.22.0.6/16"))
	for _, tt := range []struct {
		name      string
		args      string
		code      int
		want      []string
		complaint string
	}{
		{"the last operation", "trace", 0, []string{"ADD  podnet/1635f0000000:eth0  default/db-0  2026-03-01 12:30:00.000  1.00 ms  error",
			"  error       code 100 a code: bridge: no such thing", "    ✗ bridge: no such thing"}, ""},
		{"a link that is found", "trace 99aa", 0, []string{"DEL  podnet/99aabbccddee:eth0  2026-03-01 12:10:00.000  2.00 ms  ok",
			"  links to    trace a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1, ADD of podnet/99aabbccddee:eth0, 10m0s before"}, ""},
		{"the last two of a pod that had two", "trace default/old-0 --last 2", 0, []string{"ADD  podnet/99aabbccddee:eth0  default/old-0  2026-03-01 12:00:00.000  4.00 ms  ok",
			"DEL  podnet/99aabbccddee:eth0  2026-03-01 12:10:00.000  2.00 ms  ok"}, ""},
		{"by address, the newest that had it", "trace 10.22.0.5", 0, []string{"  trace       a3a3a3a3a3a3a3a3a3a3a3a3a3a3a3a3"}, ""},
		{"by the begin of a trace id", "trace a2a2a2a2", 0, []string{"  trace       a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2"}, ""},
		{"by attachment as it is shown", "trace podnet/1635e8a1b2c3:eth0", 0, []string{"  trace       a3a3a3a3a3a3a3a3a3a3a3a3a3a3a3a3"}, ""},
		{"ambiguous", "trace 1635", 2, nil, fmt.Sprintf("1635 is ambiguous: podnet/%s:eth0, podnet/%s:eth0", web, db)},
		{"nobody", "trace beef", 1, nil, "nothing found: no attachment and no trace beef"},
		{"by the least of a trace id", "trace a2a2", 0, []string{"  trace       a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2"}, ""},
		{"too little of a trace id", "trace a2a", 1, nil, "nothing found: no attachment a2a"},
		{"no spool", "trace --state-dir /", 1, nil, "nothing found: no operation in /spool"},
		{"no state directory", "trace --state-dir /nowhere", 2, nil, "--state-dir: stat /nowhere: no such file or directory"},
		{"no folder of traces", "trace --spool /nowhere", 2, nil, "--spool: stat /nowhere: no such file or directory"},
		{"an empty name", "trace EMPTY", 2, nil, "ATTACHMENT or TRACE_ID is empty"},
		{"none asked for", "trace --last 0", 2, nil, "--last is at least 1, not 0"},

		{"what failed", "history --failed", 0, []string{"12:30:00  ADD  podnet/1635f0000000:eth0  default/db-0  1.00 ms  error 100  a4a4a4a4"}, ""},
		{"a DEL has its ADD's pod and address", "history --container 99", 0, []string{
			"12:10:00  DEL  podnet/99aabbccddee:eth0  default/old-0  10.22.0.5  2.00 ms  ok       a2a2a2a2"}, ""},
		{"who held it first", "history --ip 10.22.0.5 --at 12:05", 0, []string{
			"12:00:00  ADD  podnet/99aabbccddee:eth0  default/old-0  10.22.0.5  4.00 ms  ok       a1a1a1a1",
			"12:10:00  DEL  podnet/99aabbccddee:eth0  default/old-0  10.22.0.5  2.00 ms  ok       a2a2a2a2"}, ""},
		{"who held it between", "history --ip 10.22.0.5 --at 12:15", 1, nil, "nothing found: no such operation in DIR/log/tracewire.jsonl"},
		{"who held it when history says it began", "history --at 12:20:00", 0, []string{
			"12:20:00  ADD  1635e8a1b2c3:eth0  default/web-…-x2x9k  10.22.0.5,fd00::5  5.00 ms  ok       a3a3a3a3"}, ""},
		{"or in that minute", "history --at 12:20", 0, []string{"12:20:00  ADD  "}, ""},
		{"no pod", "history --pod default/none", 1, nil, "nothing found: no such operation in DIR/log/tracewire.jsonl"},
		{"since", "history --since 35m --pod db-0", 0, []string{"12:30:00  ADD  podnet/1635f0000000:eth0  default/db-0  1.00 ms  error 100  a4a4a4a4"}, ""},
		{"no log", "history --log /nowhere", 2, nil, "--log: stat /nowhere: no such file or directory"},
		{"no address", "history --ip ten", 2, nil, `--ip: "ten" is no address`},
		{"no time", "history --at soon", 2, nil, `--at: "soon" is neither a duration nor a time: ` +
			`want 90s, 10m, 2h, 7d, "15:04", "15:04:05", "01-02 15:04:05", "2006-01-02", "2006-01-02 15:04:05" or RFC 3339`},
		{"both", "history --at 12:00 --failed", 2, nil, "--at shows who held what at a time: it does not go with --failed"},

		{"no empty pod", "history --pod EMPTY", 2, nil, "--pod is empty"},
		{"no empty container", "history --container EMPTY", 2, nil, "--container is empty"},
		{"no empty address", "history --ip EMPTY", 2, nil, "--ip is empty"},
		{"no empty time", "history --at EMPTY", 2, nil, "--at is empty"},

		{"an unfinished one", "show default/db-0", 1, []string{"≠  pod end    eth0                     none", "≠    address  10.22.0.6/16             none", "the ADD did not end, 12 differences"}, ""},
		{"a record alone", "show fd00::5", 1, []string{"runtime     /usr/bin/containerd", "≠  netns cookie  7                        none", "≠  host end      vethtw00000001           none",
			"≠    route       0.0.0.0/0 via 10.22.0.1  none", "\n14 differences"}, ""},
		{"several records", "show 1635", 2, nil, fmt.Sprintf("1635 is ambiguous: podnet/%s:eth0, podnet/%s:eth0", web, db)},
		{"no record", "show podnet/beef:eth0", 1, nil, "nothing found: no attachment podnet/beef:eth0"},
		{"an empty record", "show EMPTY", 2, nil, "ATTACHMENT is empty"},
		{"no name", "show", 2, nil, "ATTACHMENT is missing; usage: tracewirectl show ATTACHMENT [flags]"},
		{"two names", "show a b", 2, nil, "one ATTACHMENT, not 2; usage: tracewirectl show ATTACHMENT [flags]"},
		{"a reason of CHECK", "explain host.down", 0, []string{"reason   host.down", "meaning  the host end is down", "next     `ip link set` turns it on again", "mends    DEL and a new ADD mend it", "fix      audit --fix puts it right, while the pod goes on"}, ""},
		{"one that stays", "explain host.peer", 0, []string{"mends    DEL and a new ADD do not mend it", "fix      audit --fix leaves it as it is"}, ""},
		{"half a name", "show podnet/", 2, nil, `"podnet/" is no attachment: want a container id, [NAMESPACE/]POD, NETWORK/CONTAINER:IFNAME or an address`},

		{"a kind of finding", "explain leaked-address", 0, []string{"kind      leaked-address", "severity  error", "meaning   a reservation whose container nobody knows"}, ""},
		{"a code", "explain 100", 0, []string{"code     100", "name     addresses exhausted", "meaning  no address is free in a range set", "next     the message has the figures; "}, ""},
		{"all by name", "explain", 0, []string{" 100  addresses exhausted", "bridge.down          the bridge is down", "leaked-address                  error     a reservation whose container nobody knows"}, ""},
		{"no such code", "explain 12", 1, nil, "code 12 is not one that tracewire answers; CNI's own codes are those below 100; the codes that it answers are " + numbers()},
		{"no such code of its own", "explain 120", 1, nil, "code 120 is not one that tracewire answers; the codes that it answers are " + numbers()},
		{"a code of CNI's", "explain 3", 1, nil, "code 3 is not one that tracewire answers; it is one of CNI's own codes: the container is unknown or does not exist, and the runtime needs no cleanup such as DEL"},
		{"no code at all", "explain twelve", 2, nil, `"twelve" is no code of tracewire, no reason of CHECK and no kind of finding; the codes that it answers are ` + numbers()},
		{"version", "version", 0, []string{"tracewirectl dev "}, ""},
		{"version as a flag", "--version", 0, []string{"tracewirectl dev "}, ""},
		{"no command", "bogus", 2, nil, `unknown command "bogus" for "tracewirectl"`},
		{"no flag", "trace --bogus", 2, nil, "unknown flag: --bogus"},
		{"no format", "trace -o yaml", 2, nil, `--output is one of text, json, not "yaml"`},
		{"no colour", "trace --color red", 2, nil, `--colour is one of auto, always, never, not "red"`},
		{"no folder", "trace --conf-dir /nowhere", 2, nil, "--conf-dir: stat /nowhere: no such file or directory"},
		{"help", "help history", 0, []string{"  tracewirectl history --failed --since 1h"}, ""},
		{"no help", "help nosuch", 2, nil, `unknown command "nosuch" for "tracewirectl"`},
		{"no help below a command", "help history nosuch", 2, nil, `unknown command "nosuch" for "tracewirectl history"`},
		{"no shell", "completion nosuch", 2, nil, `unknown command "nosuch" for "tracewirectl completion"`},
		{"completion", "completion bash", 0, []string{"# bash completion V2 for tracewirectl "}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := strings.Fields(tt.args)
			for i, a := range args {
				args[i] = strings.TrimSuffix(a, "EMPTY")
			}
			code, out, complaint := n.run(args...)
			if want := line(tt.complaint); code != tt.code || complaint != want {
				t.Errorf("got code %d, %q, want %d, %q", code, complaint, tt.code, want)
			}
			for _, l := range tt.want {
				if !strings.Contains("\n"+out, "\n"+l) {
					t.Errorf("no line %q in\n%s", l, out)
				}
			}
			for l := range strings.SplitSeq(out, "\n") {
				if n := utf8.RuneCountInString(l); n > 100 && !strings.HasPrefix(tt.args, "completion") {
					t.Errorf("%d columns: %s", n, l)
				}
			}
		})
	}
}

func line(complaint string) string {
	if complaint == "" {
		return ""
	}
	return "tracewirectl: " + complaint + "\n"
}

func numbers() string {
	var all []string
	for _, k := range codes.Table {
		all = append(all, fmt.Sprint(k.Number))
	}
	return strings.Join(all, ", ")
}

// TestHelp holds what every command's help is to be, cobra's own commands' too.
func TestHelp(t *testing.T) {
	n := newNode(t)
	for _, words := range [][]string{nil, {"trace"}, {"history"}, {"show"}, {"audit"}, {"check"}, {"gc"}, {"uninstall"}, {"explain"}, {"version"}, {"help"}, {"completion"},
		{"completion", "bash"}, {"completion", "zsh"}, {"completion", "fish"}, {"completion", "powershell"}} {
		t.Run(strings.Join(words, " "), func(t *testing.T) {
			cmd, _, err := (&command{}).root(nil).Find(words)
			if err == nil && len(words) == 1 && !strings.Contains(cmd.Example, "tracewirectl "+cmd.Name()) {
				t.Errorf("%v, example %q", err, cmd.Example)
			}
			code, out, complaint := n.run(append(words, "--help")...)
			if _, again, _ := n.run(append([]string{"help"}, words...)...); code != 0 || complaint != "" || out != again {
				t.Errorf("got code %d, %q, help says %s", code, complaint, cmp.Diff(out, again))
			}
			for l := range strings.SplitSeq(out, "\n") {
				if n := utf8.RuneCountInString(l); n > 80 {
					t.Errorf("%d columns: %s", n, l)
				}
			}
			_, list, _ := strings.Cut(out, "Available Commands:\n")
			_, flags, _ := strings.Cut(out, "Flags:\n")
			list, _, _ = strings.Cut(list, "\n\n")
			for l := range strings.SplitSeq(list+"\n"+flags, "\n") {
				if entry := described.FindStringSubmatch(l); len(entry) > 1 && entry[1] != strings.ToUpper(entry[1]) {
					t.Errorf("begins in lower case: %s", l)
				}
			}
		})
	}
}

// described finds the first letter of what a list says of a command or a flag.
var described = regexp.MustCompile(`^  (?:[a-z]|  ? ?  ?--|-[a-z], --)[a-zA-Z_|/ -]*?  +([A-Za-z])`)

func TestComplete(t *testing.T) {
	n := newNode(t)
	n.attach(web, "default/web-0", "", 0, true, result(t, "10.22.0.5/16"))
	n.attach(db, "/", "", 0, true, result(t))
	for _, tt := range []struct {
		args []string
		want string // the words
	}{
		{[]string{"show", ""}, "default/web-0 " + db},
		{[]string{"show", "d"}, "default/web-0"},
		{[]string{"show", "we"}, "web-0"},
		{[]string{"trace", "1635e"}, web},
		{[]string{"trace", "podnet/1635f"}, "podnet/" + db + ":eth0"},
		{[]string{"show", "10."}, "10.22.0.5"},
		{[]string{"show", "default/web-0", ""}, ""},
		{[]string{"explain", "10"}, "100 101 102 103 104 105 106 107"},
		{[]string{"explain", "100", ""}, ""},
		{[]string{"explain", "host."}, "host.missing host.peer host.down host.mtu host.master"},
		{[]string{"explain", "leaked"}, "leaked-address"},
		{[]string{"audit", "--cri", ""}, "/run/containerd/containerd.sock /run/crio/crio.sock"},
		{[]string{"check", "d"}, "default/web-0"},
		{[]string{"trace", "-o", ""}, "text json"},
		{[]string{"trace", "--colour", ""}, "auto always never"},
		{[]string{"history", "--at", ""}, ""},
		{[]string{"help", "e"}, "explain"},
		{[]string{"help", "explain", ""}, ""},
	} {
		code, out, complaint := n.run(append([]string{"__complete"}, tt.args...)...)
		var got []string
		for l := range strings.Lines(out) {
			if word, _, _ := strings.Cut(strings.TrimSpace(l), "\t"); !strings.HasPrefix(word, ":") {
				got = append(got, word)
			}
		}
		if code != 0 || strings.Join(got, " ") != tt.want {
			t.Errorf("%q: got code %d, %q, %q, want %q", tt.args, code, got, complaint, tt.want)
		}
	}
}

// TestExplainIsWhole: every name that can be explained is listed, at every width.
func TestExplainIsWhole(t *testing.T) {
	n := newNode(t)
	for _, columns := range []int{100, 80} {
		n.columns = fmt.Sprint(columns)
		_, out, _ := n.run("explain")
		for l := range strings.SplitSeq(out, "\n") {
			if got := utf8.RuneCountInString(l); got > columns {
				t.Errorf("%d columns: %s", got, l)
			}
		}
		for _, r := range codes.Reasons {
			if !strings.Contains(out, "\n"+r.Name+" ") {
				t.Errorf("no %s", r.Name)
			}
		}
		for _, k := range audit.Kinds {
			if !strings.Contains(out, "\n"+string(k.Kind)+" ") {
				t.Errorf("no %s", k.Kind)
			}
		}
	}
}

func TestHistoryTable(t *testing.T) {
	n := newNode(t)
	n.morning()
	n.operate(operation{command: "CHECK", id: coredns, pod: "kube-system/coredns-5d78c9869d-x7v2k", trace: 0xa6, after: 40 * time.Minute, took: 4 * time.Millisecond,
		addresses: []string{"10.22.117.205/16", "fd00::1:5/64"}, code: 110})
	for columns, want := range map[string]string{
		"130": `
TIME      CMD    ATTACHMENT                POD                               ADDRESSES                   TOOK  OUTCOME    TRACE
12:00:00  ADD    podnet/99aabbccddee:eth0  default/old-0                     10.22.0.5                4.00 ms  ok         a1a1a1a1
12:10:00  DEL    podnet/99aabbccddee:eth0  default/old-0                     10.22.0.5                2.00 ms  ok         a2a2a2a2
12:20:00  ADD    podnet/1635e8a1b2c3:eth0  default/web-5d4b9c7f6-x2x9k       10.22.0.5,fd00::5        5.00 ms  ok         a3a3a3a3
12:30:00  ADD    podnet/1635f0000000:eth0  default/db-0                                               1.00 ms  error 100  a4a4a4a4
12:40:00  CHECK  podnet/c0de1234abcd:eth0  kube-system/coredns-5d78c…-x7v2k  10.22.117.205,fd00::1:5  4.00 ms  error 110  a6a6a6a6
`,
		"100": `
TIME      CMD    ATTACHMENT        POD               ADDRESSES             TOOK  OUTCOME    TRACE
12:00:00  ADD    99aabbccdd…:eth0  default/old-0     10.22.0.5          4.00 ms  ok         a1a1a1a1
12:10:00  DEL    99aabbccdd…:eth0  default/old-0     10.22.0.5          2.00 ms  ok         a2a2a2a2
12:20:00  ADD    1635e8a1b2…:eth0  default/w…-x2x9k  10.22.0.5,fd00::5  5.00 ms  ok         a3a3a3a3
12:30:00  ADD    1635f00000…:eth0  default/db-0                         1.00 ms  error 100  a4a4a4a4
12:40:00  CHECK  c0de1234ab…:eth0  kube-syst…-x7v2k  10.22.117.205 +1   4.00 ms  error 110  a6a6a6a6
`,
		"80": `
TIME      CMD    ATTACHMENT    POD           ADDRESSES       OUTCOME    TRACE
12:00:00  ADD    99aabb…:eth0  defau…/old-0  10.22.0.5       ok         a1a1a1a1
12:10:00  DEL    99aabb…:eth0  defau…/old-0  10.22.0.5       ok         a2a2a2a2
12:20:00  ADD    1635e8…:eth0  defau…-x2x9k  10.22.0.5 +1    ok         a3a3a3a3
12:30:00  ADD    1635f0…:eth0  default/db-0                  error 100  a4a4a4a4
12:40:00  CHECK  c0de12…:eth0  kube-…-x7v2k  10.22.117.205…  error 110  a6a6a6a6
`,
		"60": `
TIME      CMD    ATTACHMENT  POD         ADDRESSES   OUTCOME
12:00:00  ADD    99aabbccd…  def…/old-0  10.22.0.5   ok
12:10:00  DEL    99aabbccd…  def…/old-0  10.22.0.5   ok
12:20:00  ADD    1635e8a1b…  def…-x2x9k  10.22.0.5…  ok
12:30:00  ADD    1635f0000…  def…t/db-0              error 100
12:40:00  CHECK  c0de1234a…  kub…-x7v2k  10.…7.205…  error 110
`,
		"": `
TIME                 CMD    ATTACHMENT                                                                    POD                                   ADDRESSES                   TOOK  OUTCOME    TRACE
2026-03-01 12:00:00  ADD    podnet/99aabbccddeeff0099aabbccddeeff0099aabbccddeeff0099aabbccddeeff00:eth0  default/old-0                         10.22.0.5                4.00 ms  ok         a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1
2026-03-01 12:10:00  DEL    podnet/99aabbccddeeff0099aabbccddeeff0099aabbccddeeff0099aabbccddeeff00:eth0  default/old-0                         10.22.0.5                2.00 ms  ok         a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2
2026-03-01 12:20:00  ADD    podnet/1635e8a1b2c3d4e51635e8a1b2c3d4e51635e8a1b2c3d4e51635e8a1b2c3d4e5:eth0  default/web-5d4b9c7f6-x2x9k           10.22.0.5,fd00::5        5.00 ms  ok         a3a3a3a3a3a3a3a3a3a3a3a3a3a3a3a3
2026-03-01 12:30:00  ADD    podnet/1635f000000000001635f000000000001635f000000000001635f00000000000:eth0  default/db-0                                                   1.00 ms  error 100  a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4
2026-03-01 12:40:00  CHECK  podnet/c0de1234abcd5678c0de1234abcd5678c0de1234abcd5678c0de1234abcd5678:eth0  kube-system/coredns-5d78c9869d-x7v2k  10.22.117.205,fd00::1:5  4.00 ms  error 110  a6a6a6a6a6a6a6a6a6a6a6a6a6a6a6a6
`,
	} {
		t.Run(columns, func(t *testing.T) {
			n.columns = columns
			_, out, _ := n.run("history")
			if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), out); diff != "" {
				t.Error("(-want +got):\n" + diff)
			}
		})
	}
	_, out, _ := n.run("history", "--failed", "--colour", "always")
	if !strings.Contains(out, "\x1b[31merror 100\x1b[0m") {
		t.Errorf("no red in %q", out)
	}
}

// TestHistoryOfRepairs: a repair's row tells what it mended and how, and what is on no
// attachment has its network.
func TestHistoryOfRepairs(t *testing.T) {
	n := newNode(t)
	n.operate(operation{command: "GC", trace: 0xa1, took: time.Millisecond})
	n.operate(operation{command: "ADD", id: web, pod: "default/web-5d4b9c7f6-x2x9k", trace: 0xa2, after: time.Minute, took: time.Millisecond, addresses: []string{"10.22.0.5/16"}})
	n.operate(operation{command: "FIX", id: web, trace: 0xa3, after: 2 * time.Minute, took: time.Millisecond, mended: "stale-libcni-entry", repair: "end-entry"})
	n.operate(operation{command: "FIX", trace: 0xa4, after: 3 * time.Minute, took: time.Millisecond, mended: "leaked-address", repair: "release", addresses: []string{"10.22.0.9/32"}})
	for columns, want := range map[string]string{
		"130": `
TIME      CMD  ATTACHMENT                POD                            ADDRESSES     TOOK  OUTCOME  TRACE
12:00:00  GC   podnet                                                              1.00 ms  ok       a1a1a1a1
12:01:00  ADD  podnet/1635e8a1b2c3:eth0  default/web-5d4b9c7f6-x2x9k    10.22.0.5  1.00 ms  ok       a2a2a2a2
12:02:00  FIX  podnet/1635e8a1b2c3:eth0  stale-libcni-entry: end-entry  10.22.0.5  1.00 ms  ok       a3a3a3a3
12:03:00  FIX  podnet                    leaked-address: release        10.22.0.9  1.00 ms  ok       a4a4a4a4
`,
		"80": `
TIME      CMD  ATTACHMENT    POD           ADDRESSES     TOOK  OUTCOME  TRACE
12:00:00  GC   podnet                                 1.00 ms  ok       a1a1a1a1
12:01:00  ADD  1635e8…:eth0  defau…-x2x9k  10.22.0.5  1.00 ms  ok       a2a2a2a2
12:02:00  FIX  1635e8…:eth0  stale-libcn…  10.22.0.5  1.00 ms  ok       a3a3a3a3
12:03:00  FIX  podnet        leaked-addr…  10.22.0.9  1.00 ms  ok       a4a4a4a4
`,
	} {
		n.columns = columns
		_, out, _ := n.run("history")
		if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), out); diff != "" {
			t.Error(columns + " (-want +got):\n" + diff)
		}
	}
}

func TestJSON(t *testing.T) {
	n := newNode(t)
	n.morning()
	n.attach(web, "default/web-0", "", 0, true, result(t, "10.22.0.5/16"))
	for _, tt := range []struct {
		args string
		code int
		want string // of the document's keys, the first element's in a list
	}{
		{"history", 0, "addresses command containerID durationNanos ifName network outcome pod podNamespace time traceID"},
		{"history --failed", 0, "command containerID durationNanos error errorCode errorType ifName network outcome pod podNamespace time traceID"},
		{"trace", 0, "command containerID durationNanos error errorCode errorType ifName network outcome pod podNamespace resource root time traceID"},
		{"show default/web-0", 1, "attachment boot bytes compared differs earlierBoot path phases pod runtime since state"},
		{"explain", 0, "code hint meaning name"},
		{"version", 0, "go platform version"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			code, out, complaint := n.run(append(strings.Fields(tt.args), "-o", "json")...)
			if code != tt.code || complaint != "" {
				t.Errorf("got code %d, %q", code, complaint)
			}
			if got := keys(t, out); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func keys(t *testing.T, doc string) string {
	t.Helper()
	if strings.HasPrefix(doc, "[") {
		var list []json.RawMessage
		if err := json.Unmarshal([]byte(doc), &list); err != nil {
			t.Fatal(err)
		}
		doc = string(list[0])
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal([]byte(doc), &m); err != nil {
		t.Fatal(err)
	}
	return strings.Join(slices.Sorted(maps.Keys(m)), " ")
}

func TestTornLinesAreToldOf(t *testing.T) {
	n := newNode(t)
	n.morning()
	for _, path := range []string{n.log, n.segment()} {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(`{"torn`); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	for args, want := range map[string]string{"history": "1 line of the log cannot be read", "trace": "1 line of the spool cannot be read"} {
		if code, _, complaint := n.run(args); code != 0 || complaint != line(want) {
			t.Errorf("%s: got code %d, %q", args, code, complaint)
		}
	}
}

func (n *node) segment() string {
	n.t.Helper()
	all, err := filepath.Glob(filepath.Join(n.state, "spool", "*"))
	if err != nil || len(all) == 0 {
		n.t.Fatalf("no segment: %v", err)
	}
	return all[len(all)-1]
}

// hooked is an output that tells what was written.
type hooked struct {
	text  strings.Builder
	wrote func(text string)
}

func (h *hooked) Write(b []byte) (int, error) {
	defer h.wrote(string(b))
	return h.text.Write(b)
}

func TestFollowedHistory(t *testing.T) {
	for _, tt := range []struct{ format, past, new string }{
		{"json", "a3a3a3a3", "a5a5a5a5"},
		{"text", "a3a3a3a3", "a5a5a5a5"},
	} {
		t.Run(tt.format, func(t *testing.T) {
			n := newNode(t)
			n.morning()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			out := &hooked{wrote: func(text string) {
				if strings.Contains(text, tt.past) {
					n.operate(operation{command: "CHECK", id: web, trace: 0xa5, after: 40 * time.Minute, took: time.Millisecond})
				}
				if strings.Contains(text, tt.new) {
					cancel()
				}
			}}
			code, complaint := n.runTo(ctx, out, "history", "-f", "--pod", "web-5d4b9c7f6-x2x9k", "-o", tt.format)
			past, after, ok := strings.Cut(out.text.String(), "CHECK")
			if code != 0 || complaint != "" || !ok || !strings.Contains(past, tt.past) || !strings.Contains(after, tt.new) {
				t.Errorf("got code %d, %q\n%s", code, complaint, out.text.String())
			}
			if heads := strings.Count(out.text.String(), "OUTCOME"); heads > 1 {
				t.Errorf("%d heads in\n%s", heads, out.text.String())
			}
		})
	}
}

// closed is an output that nobody reads any more.
type closed struct{ err error }

func (c closed) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: c.err}
}

func TestOutputThatIsClosed(t *testing.T) {
	n := newNode(t)
	n.morning()
	for err, want := range map[error]int{unix.EPIPE: 0, unix.ENOSPC: 2} {
		var complaint strings.Builder
		c := &command{out: closed{err}, err: &complaint, getenv: func(string) string { return n.conf }, now: time.Now, zone: time.UTC}
		if got := c.run(t.Context(), []string{"history"}); got != want || (complaint.Len() > 0) != (want > 0) {
			t.Errorf("%v: got code %d, %q", err, got, complaint.String())
		}
	}
}

func TestColoured(t *testing.T) {
	for _, tt := range []struct {
		flag     string
		terminal bool
		env      string
		want     bool
	}{
		{"auto", true, "", true},
		{"auto", false, "", false},
		{"auto", true, "NO_COLOR=1", false},
		{"auto", true, "TERM=dumb", false},
		{"always", false, "NO_COLOR=1", true},
		{"never", true, "", false},
	} {
		c := &command{terminal: tt.terminal, getenv: func(k string) string {
			v, _ := strings.CutPrefix(tt.env, k+"=")
			if v == tt.env {
				return ""
			}
			return v
		}}
		c.flags.colour = tt.flag
		if got := c.coloured(); got != tt.want {
			t.Errorf("%+v: got %t", tt, got)
		}
	}
}

func TestPlaces(t *testing.T) {
	usual := places{[]string{conflist.DefaultStateDir}, []string{conflist.DefaultStateDir + "/spool"}, []string{conflist.DefaultLogPath}}
	const two = `{"name":"b","plugins":[{"type":"bridge"},{"type":"tracewire","tracewire":{"spool":{"dir":"/b/spool"},"log":{"path":"/b/log"}}}]}`
	for _, tt := range []struct {
		name, args string
		files      map[string]string
		want       places
		complaint  string
	}{
		{"no conflist", "", nil, usual, ""},
		{"not ours", "", map[string]string{"a.conflist": `{"name":"a","plugins":[{"type":"bridge"}]}`}, usual, ""},
		{"ours, all defaults", "", map[string]string{"a.conflist": `{"name":"a","plugins":[{"type":"tracewire"}]}`}, usual, ""},
		{"a single configuration", "", map[string]string{"a.conf": `{"name":"a","type":"tracewire","tracewire":{"stateDir":"/a"}}`},
			places{[]string{"/a"}, []string{"/a/spool"}, []string{conflist.DefaultLogPath}}, ""},
		{"two networks", "", map[string]string{"a.conflist": `{"plugins":[{"type":"tracewire","tracewire":{"stateDir":"/a"}}]}`, "b.conflist": two},
			places{[]string{"/a", conflist.DefaultStateDir}, []string{"/a/spool", "/b/spool"}, []string{conflist.DefaultLogPath, "/b/log"}}, ""},
		{"flags go first", "--state-dir /f --log /l", map[string]string{"b.conflist": two}, places{[]string{"/f"}, []string{"/f/spool"}, []string{"/l"}}, ""},
		{"the spool by itself", "--spool /s", map[string]string{"b.conflist": two}, places{[]string{conflist.DefaultStateDir}, []string{"/s"}, []string{"/b/log"}}, ""},
		{"broken", "", map[string]string{"a.conflist": `{`, "b.txt": two}, usual, "DIR/a.conflist: unexpected end of JSON input"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := &node{t: t, conf: t.TempDir()}
			for name, text := range tt.files {
				n.file(filepath.Join(n.conf, name), text)
			}
			var complaint strings.Builder
			c := &command{err: &complaint, getenv: func(string) string { return n.conf }}
			if err := c.root(nil).ParseFlags(strings.Fields(tt.args)); err != nil {
				t.Fatal(err)
			}
			got, err := c.places()
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(places{})); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			if got := strings.ReplaceAll(complaint.String(), n.conf, "DIR"); got != line(tt.complaint) {
				t.Errorf("got %q", got)
			}
		})
	}
}
