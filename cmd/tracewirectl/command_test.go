package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

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
		{"nobody", "trace beef", 1, nil, "nothing found: no attachment beef"},
		{"no spool", "trace --state-dir /nowhere", 1, nil, "nothing found: no operation in /nowhere/spool"},
		{"none asked for", "trace --last 0", 2, nil, "--last is at least 1, not 0"},

		{"what failed", "history --failed", 0, []string{"12:30:00  ADD  podnet/1635f0000000:eth0  default/db-0  1.00 ms  error 100  a4a4a4a4"}, ""},
		{"a DEL has its ADD's pod and address", "history --container 99", 0, []string{
			"12:10:00  DEL  podnet/99aabbccddee:eth0  default/old-0  10.22.0.5  2.00 ms  ok       a2a2a2a2"}, ""},
		{"who held it first", "history --ip 10.22.0.5 --at 12:05", 0, []string{
			"12:00:00  ADD  podnet/99aabbccddee:eth0  default/old-0  10.22.0.5  4.00 ms  ok       a1a1a1a1",
			"12:10:00  DEL  podnet/99aabbccddee:eth0  default/old-0  10.22.0.5  2.00 ms  ok       a2a2a2a2"}, ""},
		{"who held it between", "history --ip 10.22.0.5 --at 12:15", 1, nil, "nothing found: no such operation in DIR/log/tracewire.jsonl"},
		{"no pod", "history --pod default/none", 1, nil, "nothing found: no such operation in DIR/log/tracewire.jsonl"},
		{"since", "history --since 35m --pod db-0", 0, []string{"12:30:00  ADD  podnet/1635f0000000:eth0  default/db-0  1.00 ms  error 100  a4a4a4a4"}, ""},
		{"no log", "history --log /nowhere", 1, nil, "nothing found: open /nowhere: no such file or directory"},
		{"no address", "history --ip ten", 2, nil, `--ip: "ten" is no address`},
		{"no time", "history --at soon", 2, nil, `--at: "soon" is no time: want "2006-01-02 15:04:05", "15:04" or an age such as 10m`},
		{"both", "history --at 12:00 --failed", 2, nil, "if any flags in the group [at failed] are set none of the others can be; [at failed] were all set"},

		{"an unfinished one", "show default/db-0", 1, []string{"pod end    eth0                     none", "  address  10.22.0.6/16             none"}, ""},
		{"a record alone", "show fd00::5", 1, []string{"runtime     /usr/bin/containerd", "namespace  cookie 7                 none", "host end   vethtw00000001           none", "  route    0.0.0.0/0 via 10.22.0.1  none"}, ""},
		{"several records", "show 1635", 2, nil, fmt.Sprintf("1635 is ambiguous: podnet/%s:eth0, podnet/%s:eth0", web, db)},
		{"no record", "show podnet/beef:eth0", 1, nil, "nothing found: no attachment podnet/beef:eth0"},
		{"no name", "show", 2, nil, "accepts 1 arg(s), received 0"},
		{"half a name", "show podnet/", 2, nil, `"podnet/" is no attachment: want a container id, NAMESPACE/POD, NETWORK/CONTAINER:IFNAME or an address`},

		{"a code", "explain 100", 0, []string{" 100  addresses exhausted  no address is free in a range set  the message has the figures; a larger"}, ""},
		{"no such code", "explain 12", 1, nil, "nothing found: no code 12: known are " + numbers()},
		{"no code at all", "explain twelve", 2, nil, `"twelve" is no code: known are ` + numbers()},
		{"version", "version", 0, []string{"tracewirectl dev "}, ""},
		{"no command", "bogus", 2, nil, `unknown command "bogus" for "tracewirectl"`},
		{"no flag", "trace --bogus", 2, nil, "unknown flag: --bogus"},
		{"no format", "trace -o yaml", 2, nil, `--output is one of text, json, not "yaml"`},
		{"no colour", "trace --color red", 2, nil, `--colour is one of auto, always, never, not "red"`},
		{"no folder", "trace --conf-dir /nowhere", 2, nil, "open /nowhere: no such file or directory"},
		{"help", "help history", 0, []string{"  tracewirectl history --failed --since 1h"}, ""},
		{"completion", "completion bash", 0, []string{"# bash completion V2 for tracewirectl "}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, out, complaint := n.run(strings.Fields(tt.args)...)
			if want := line(tt.complaint); code != tt.code || complaint != want {
				t.Errorf("got code %d, %q, want %d, %q", code, complaint, tt.code, want)
			}
			for _, l := range tt.want {
				if !strings.Contains("\n"+out, "\n"+l) {
					t.Errorf("no line %q in\n%s", l, out)
				}
			}
			for l := range strings.SplitSeq(out, "\n") {
				if n := utf8.RuneCountInString(l); n > 100 && !strings.HasPrefix(tt.args, "help") && !strings.HasPrefix(tt.args, "completion") {
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

// TestEveryCommandHasAnExample holds for commands of our own.
func TestEveryCommandHasAnExample(t *testing.T) {
	c := &command{}
	for _, cmd := range c.root(nil).Commands() {
		if cmd.Short == "" || cmd.Example == "" || !strings.Contains(cmd.Example, "tracewirectl "+cmd.Name()) {
			t.Errorf("%s: short %q, example %q", cmd.Name(), cmd.Short, cmd.Example)
		}
	}
}

func TestHistoryTable(t *testing.T) {
	n := newNode(t)
	n.morning()
	_, out, _ := n.run("history")
	want := `
TIME      CMD  ATTACHMENT                POD                 ADDRESSES     TOOK  OUTCOME    TRACE
12:00:00  ADD  podnet/99aabbccddee:eth0  default/old-0       10.22.0.5  4.00 ms  ok         a1a1a1a1
12:10:00  DEL  podnet/99aabbccddee:eth0  default/old-0       10.22.0.5  2.00 ms  ok         a2a2a2a2
12:20:00  ADD  podnet/1635e8a1b2c3:eth0  default/web-        10.22.0.5  5.00 ms  ok         a3a3a3a3
                                         5d4b9c7f6-x2x9k     fd00::5
12:30:00  ADD  podnet/1635f0000000:eth0  default/db-0                   1.00 ms  error 100  a4a4a4a4
`
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), out); diff != "" {
		t.Error("(-want +got):\n" + diff)
	}
	_, out, _ = n.run("history", "--failed", "--colour", "always")
	if !strings.Contains(out, "\x1b[31merror 100\x1b[0m") {
		t.Errorf("no red in %q", out)
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
		{"show default/web-0", 1, "attachment boot bytes compared differs path phases pod runtime since state"},
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
	for args, want := range map[string]string{"history": "1 lines of the log can not be read", "trace": "1 lines of the spool can not be read"} {
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
