//go:build linux

// Package cases runs whole cases of a container's life against the built
// plugin, through libcni. A case is a folder:
//
//	in.conflist  the configuration list; @DIR@ is the case's own folder
//	steps        what happens, one step a line; its first lines say why
//	result.json  what the last ADD of each attachment answered
//	spans.txt    the span trees of all operations
//	kernel.txt   what the kernel had after the last ADD that succeeded
//	rules.txt    the rules at each step "rules", in cases that have one
//	audit.txt    what "audit", "look", "fix" and "uninstall" tell, in cases that have one
//	plugins      executables that stand before all others, in cases that bring some
//
// The five before plugins are written anew by `-update`: read what changed. Every case
// ends with nothing left: no interface but bridges, no reservation, no record.
package cases

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
)

var update = flag.Bool("update", false, "write the expectations of the cases anew")

// TestCases runs every folder that has steps.
func TestCases(t *testing.T) {
	folders, err := filepath.Glob("*/steps")
	if err != nil || len(folders) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, f := range folders {
		folder := filepath.Dir(f)
		t.Run(folder, func(t *testing.T) { run(t, folder) })
	}
}

func run(t *testing.T, folder string) {
	lines := readLines(t, filepath.Join(folder, "steps"))
	c := &story{Node: node(t, own(t, folder)...), folder: folder, results: map[string]any{}, macs: map[string]string{}, ran: map[string]int{}}
	c.load(t, "in.conflist")
	for i, line := range lines {
		word, rest, _ := strings.Cut(line, " ")
		if strings.HasPrefix(word, "expect-") {
			continue
		}
		c.step(t, line, word, strings.Fields(rest), wanted(lines[i+1:]))
	}
	c.compare(t)
	nothingLeft(t, c.Node)
	told(t, c.Node, c.ran)
	logSound(t, c.Node)
}

// wanted is the error that the lines after a step expect of it; empty for none.
func wanted(after []string) (want string) {
	if len(after) == 0 {
		return ""
	}
	want, expected := strings.CutPrefix(after[0], "expect-error ")
	switch {
	case expected:
		return want
	case after[0] == "expect-killed":
		return killed
	}
	return ""
}

// killed is what a step expects whose plugin is ended before it answers.
const killed = "killed"

// own is the folder of a case's own plugins, which stand before the others.
func own(t *testing.T, folder string) []string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(folder, "plugins"))
	if err != nil {
		t.Fatal(err)
	}
	if !exists(path) {
		return nil
	}
	return []string{path}
}

// node is a fresh node in a network namespace of the test's own. Plugins are
// looked for in first, then in ours and the reference's.
func node(t *testing.T, first ...string) *attach.Node {
	t.Helper()
	bin, reference := os.Getenv("TRACEWIRE_BIN"), os.Getenv("TRACEWIRE_REFERENCE")
	if bin == "" || reference == "" {
		t.Skip("needs the program tracewire: run make test")
	}
	netns.Enter(t)
	n, err := attach.NewNode(t.TempDir(), append(first, bin, reference)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

// readLines is a file's lines without comments and blank ones.
func readLines(t *testing.T, path string) (lines []string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

// story is a case as it runs.
type story struct {
	*attach.Node
	folder  string
	results map[string]any    // by attachment
	macs    map[string]string // that "same-mac" has seen, by interface
	kernel  string
	rules   string
	audits  string
	runtime string         // the socket that an audit asks; empty for none
	last    string         // the step before, that the next rules or findings are listed after
	ran     map[string]int // times that our plugin was run, by CNI_COMMAND
}

func (c *story) load(t *testing.T, name string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.folder, name))
	if err == nil {
		err = c.Load(b)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// stepTime bounds one step.
const stepTime = 20 * time.Second

// verbs is what a line of steps may begin with.
var verbs = map[string]func(*story, context.Context, *testing.T, []string) error{
	"add":        (*story).add,
	"check":      (*story).check,
	"del":        (*story).del,
	"gc":         (*story).gc,
	"status":     (*story).status,
	"raw":        (*story).raw,
	"at-once":    (*story).atOnce,
	"ping":       (*story).ping,
	"no-ping":    (*story).noPing,
	"tcp":        (*story).tcp,
	"link":       (*story).link,
	"sysctl":     (*story).sysctl,
	"count":      (*story).count,
	"neighbour":  (*story).neighbour,
	"conf":       (*story).conf,
	"forget":     (*story).forget,
	"needs":      (*story).needs,
	"netns-del":  (*story).netnsDel,
	"netns-file": (*story).netnsFile,
	"netns-dir":  (*story).netnsDir,
	"outside":    (*story).outside,
	"seen":       (*story).seen,
	"rules":      (*story).listRules,
	"nft":        (*story).nft,
	"lose":       (*story).lose,
	"empty":      (*story).empty,
	"spoil":      (*story).spoil,
	"untold":     (*story).untold,
	"boot":       (*story).boot,
	"reserve":    (*story).reserve,
	"audit":      (*story).audit,
	"look":       (*story).look,
	"fix":        (*story).fix,
	"later":      (*story).later,
	"uninstall":  (*story).uninstall,
	"sandboxes":  (*story).sandboxes,
	"process":    (*story).process,
	"old":        (*story).old,
}

// tellers is the steps that write down what there is, and change it for no other.
var tellers = map[string]bool{"rules": true, "audit": true, "uninstall": true}

func (c *story) step(t *testing.T, line, verb string, args []string, want string) {
	t.Helper()
	do, ok := verbs[verb]
	if !ok {
		t.Fatalf("%s: no such step", line)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	before, errBefore := c.Left()
	err := do(c, ctx, t, args)
	if !tellers[verb] {
		c.last = line
	}
	if problem := expected(err, want, c.Normal); problem != nil {
		t.Fatalf("%s: %v", line, problem)
	}
	if !c.heard(t, line) || verb == "at-once" {
		return
	}
	after, errAfter := c.Left()
	if diff := cmp.Diff(before, after); diff != "" || errBefore != nil || errAfter != nil {
		t.Errorf("%s: a failed ADD left or took something: -before +after:\n%s%v%v", line, diff, errBefore, errAfter)
	}
}

// heard counts and looks at the answers of our plugin, and tells whether one was
// an ADD that failed.
func (c *story) heard(t *testing.T, line string) (failed bool) {
	t.Helper()
	for _, call := range c.Exec.Calls() {
		if call.Plugin != "tracewire" {
			continue
		}
		c.ran[call.Verb]++
		if call.Exit == -1 { // it could answer nothing, and take nothing back
			continue
		}
		if err := call.Sound(); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		failed = failed || call.Verb == "ADD" && call.Exit != 0
	}
	return failed
}

// expected compares a step's error with "CODE part of the message or the
// details".
func expected(err error, want string, normal func(string) string) error {
	if want == "" || err == nil {
		if want != "" {
			return fmt.Errorf("no error, want %s", want)
		}
		return err
	}
	if want == killed {
		if !strings.Contains(err.Error(), " exited with -1") {
			return fmt.Errorf("is not killed: %w", err)
		}
		return nil
	}
	number, text, _ := strings.Cut(want, " ")
	code, bad := strconv.ParseUint(number, 10, 32)
	if bad != nil {
		return bad
	}
	var answer *types.Error
	if !errors.As(err, &answer) || answer.Code != uint(code) || !strings.Contains(normal(answer.Msg+"; "+answer.Details), text) {
		return fmt.Errorf("want code %d with %q, got %s", code, text, describe(err))
	}
	return nil
}

func describe(err error) string {
	var answer *types.Error
	if errors.As(err, &answer) {
		return fmt.Sprintf("code %d: %s; %s", answer.Code, answer.Msg, answer.Details)
	}
	return err.Error()
}

func (c *story) compare(t *testing.T) {
	t.Helper()
	spans, err := c.Spans()
	if err != nil {
		t.Error(err)
	}
	results, err := attach.Indent(c.results)
	if err != nil {
		t.Error(err)
	}
	for _, e := range []struct{ name, got string }{
		{"result.json", c.Normal(results)}, {"spans.txt", spans}, {"kernel.txt", c.kernel}, {"rules.txt", c.rules}, {"audit.txt", c.audits},
	} {
		if (e.name == "rules.txt" || e.name == "audit.txt") && e.got == "" {
			continue
		}
		path := filepath.Join(c.folder, e.name)
		if *update {
			if err := os.WriteFile(path, []byte(e.got), 0o644); err != nil {
				t.Error(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(e.got, "\n")); diff != "" {
			t.Errorf("%s: -want +got:\n%s", e.name, diff)
		}
	}
}

// nothingLeft is what holds at the end of every case.
func nothingLeft(t *testing.T, n *attach.Node) {
	t.Helper()
	if left, err := n.Left(); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, error %v", left, err)
	}
}

// told is what holds of the telemetry: one operation in the spool a run.
// STATUS may leave none.
func told(t *testing.T, n *attach.Node, ran map[string]int) {
	t.Helper()
	got, err := spooled(n)
	if err != nil {
		t.Error(err)
	}
	for verb, times := range ran {
		if may := verb == "STATUS"; got[verb] > times || got[verb] < times && !may && verb != "VERSION" {
			t.Errorf("the spool has %d operations %s, the plugin ran %d times", got[verb], verb, times)
		}
		delete(got, verb)
	}
	if len(got) > 0 {
		t.Errorf("the spool has operations that never ran: %v", got)
	}
}

// spooled is how many operations of a name the spool has.
func spooled(n *attach.Node) (map[string]int, error) {
	ops, err := n.Operations()
	got := map[string]int{}
	for _, o := range ops {
		got[strings.TrimPrefix(o.Root.Name, "cni.")]++
	}
	return got, err
}

// logSound is what holds of the log, where there is one: lines of JSON.
func logSound(t *testing.T, n *attach.Node) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(n.Dir, "log", "tracewire.jsonl"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for line := range strings.Lines(string(b)) {
		if !json.Valid([]byte(line)) || !utf8.ValidString(line) {
			t.Errorf("the log has the line %.200q", line)
		}
	}
}

// attachment reads "CONTAINER IFNAME POD [args=K=V;K=V] [cap=JSON]". POD "-" is
// an empty CNI_NETNS.
func (c *story) attachment(t *testing.T, args []string) attach.Attachment {
	t.Helper()
	if len(args) < 3 {
		t.Fatal("want CONTAINER IFNAME POD")
	}
	a := attach.Attachment{ContainerID: args[0], IfName: args[1]}
	if pod := args[2]; pod != "-" {
		a.NetNS = c.PodPath(pod)
	}
	for _, more := range args[3:] {
		key, value, _ := strings.Cut(more, "=")
		switch key {
		case "args":
			value = text(t, value)
			for pair := range strings.SplitSeq(value, ";") {
				k, v, _ := strings.Cut(pair, "=")
				a.Args = append(a.Args, [2]string{k, v})
			}
		case "cap":
			if err := json.Unmarshal([]byte(value), &a.Capabilities); err != nil {
				t.Fatalf("%s: %v", more, err)
			}
		default:
			t.Fatalf("%s: want args= or cap=", more)
		}
	}
	return a
}

func (c *story) add(ctx context.Context, t *testing.T, args []string) error {
	a := c.attachment(t, args)
	c.pod(t, args[2])
	r, err := c.Add(ctx, a)
	if err != nil {
		return err
	}
	return c.added(a, r)
}

// pod makes a pod where there is none of that name.
func (c *story) pod(t *testing.T, name string) {
	t.Helper()
	if name == "-" || exists(c.PodPath(name)) {
		return
	}
	if _, err := c.Pod(name); err != nil {
		t.Fatal(err)
	}
}

// added keeps what an ADD answered and made.
func (c *story) added(a attach.Attachment, result any) (err error) {
	c.results[a.ContainerID+" "+a.IfName] = result
	c.kernel, err = c.Kernel()
	return err
}

func (c *story) check(ctx context.Context, t *testing.T, args []string) error {
	return c.Check(ctx, c.attachment(t, args))
}

func (c *story) del(ctx context.Context, t *testing.T, args []string) error {
	return c.Del(ctx, c.attachment(t, args))
}

// status asks the whole list.
func (c *story) status(ctx context.Context, t *testing.T, _ []string) error {
	verdictDir(t, c.Node)
	return c.Status(ctx)
}

// ping sends from a pod, or the host, to an address, and may bound the wait for
// the answer: "ping pod1 10.77.0.1 200ms".
func (c *story) ping(_ context.Context, t *testing.T, args []string) error {
	if len(args) < 3 {
		return c.Ping(args[0], args[1])
	}
	bound, err := time.ParseDuration(args[2])
	if err != nil {
		t.Fatal(err)
	}
	return c.PingFor(args[0], args[1], bound)
}

// noPing is a ping that must stay without answer: "no-ping pod1 10.77.0.3".
func (c *story) noPing(_ context.Context, t *testing.T, args []string) error {
	if c.PingFor(args[0], args[1], 300*time.Millisecond) == nil {
		t.Errorf("%s reaches %s", args[0], args[1])
	}
	return nil
}

// tcp connects from one pod, or the host, to an address and port behind which
// another pod listens: "tcp pod2 10.77.0.1:18080 pod1 :80".
func (c *story) tcp(_ context.Context, t *testing.T, args []string) error {
	answer, err := c.TCP(args[0], args[1], args[2], args[3])
	if want := args[2] + " heard: hello from " + args[0] + "\n"; err == nil && answer != want {
		t.Errorf("got %q, want %q", answer, want)
	}
	return err
}

// conf changes the configuration list: "conf changed.conflist".
func (c *story) conf(_ context.Context, t *testing.T, args []string) error {
	c.load(t, args[0])
	return nil
}

// forget removes what libcni keeps of an attachment: "forget c1 eth0".
func (c *story) forget(_ context.Context, _ *testing.T, args []string) error {
	return os.Remove(filepath.Join(c.Dir, "cache", "results", c.Network()+"-"+args[0]+"-"+args[1]))
}

// needs skips the case where a program is missing: "needs nft".
func (c *story) needs(_ context.Context, t *testing.T, args []string) error {
	if i := slices.Index(args, "everyone"); i >= 0 {
		if all, _ := os.Readlink("/proc/self/ns/pid"); all != "pid:[4026531836]" {
			t.Skip("needs the machine's first namespace of processes")
		}
		args = slices.Delete(args, i, i+1)
	}
	netns.Need(t, args...)
	return nil
}

// untold tells whether log and spool are without a text: "untold s3cr3t".
func (c *story) untold(_ context.Context, t *testing.T, args []string) error {
	all := files(t, c.Dir)
	told := slices.DeleteFunc(all, func(f string) bool { return !strings.HasPrefix(f, "log/") && !strings.HasPrefix(f, "state/spool/") })
	if len(told) < 2 {
		t.Errorf("log and spool are not there: %q", all)
	}
	for _, f := range told {
		if b, err := os.ReadFile(filepath.Join(c.Dir, f)); err != nil || strings.Contains(string(b), args[0]) {
			t.Errorf("%s has %q, or cannot be read: %v", f, args[0], err)
		}
	}
	return nil
}

// netnsFile leaves a plain file where a pod's namespace was.
func (c *story) netnsFile(ctx context.Context, t *testing.T, args []string) error {
	if err := c.netnsDel(ctx, t, args); err != nil {
		return err
	}
	return os.WriteFile(c.PodPath(args[0]), nil, 0o644)
}

// netnsDir leaves a folder where a pod's namespace was.
func (c *story) netnsDir(ctx context.Context, t *testing.T, args []string) error {
	if err := c.netnsDel(ctx, t, args); err != nil {
		return err
	}
	return os.Mkdir(c.PodPath(args[0]), 0o755)
}

// boot starts the node anew: "boot 1" has that in its boot id, "boot now" is the
// machine's own. /run is fresh unless "boot 1 run-kept".
func (c *story) boot(_ context.Context, t *testing.T, args []string) error {
	id := "00000000-0000-0000-0000-00000000000" + args[0]
	if args[0] == "now" {
		id = ""
	}
	if dir := verdictDir(t, c.Node); len(args) == 1 {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return c.Boot(id)
}

// reserve leaves a reservation as host-local makes it: "reserve 10.77.0.2 c9 eth0".
func (c *story) reserve(_ context.Context, _ *testing.T, args []string) error {
	dir := filepath.Join(c.Dir, "ipam", c.Network())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, args[0]), []byte(strings.Join(args[1:], "\r\n")), 0o600)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
