//go:build linux

// Package kill ends the plugin with SIGKILL at every point of ADD and of DEL
// (trace/point), in every mode, lets a runtime do each of the things that it may
// do next, and looks for what is left: nothing may be, and the node has to go
// on. make test-kill builds the binary with points and runs it.
package kill

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Of the environment: the folder of the binary with points, and for a worker its
// mode and folder.
const (
	envBin    = "TRACEWIRE_KILL"
	envWorker = "TRACEWIRE_KILL_WORKER"
	envDir    = "TRACEWIRE_KILL_DIR"
	envTable  = "TRACEWIRE_TABLE" // a file that the test runner prints at its end
)

// TestMain makes the process a worker when TestKill started it as one: a node
// needs threads, children and mounts that no other test has.
func TestMain(m *testing.M) {
	name := os.Getenv(envWorker)
	if name == "" {
		os.Exit(m.Run())
	}
	if err := work(name, os.Getenv(envDir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// seen is what a worker tells of one point.
type seen struct {
	Verb  string
	N     int               // of the point, from 1
	Point string            // its name
	Left  map[string]string // by follow-up: what was wrong, "" for nothing
	After string            // what was left after all of them, "" for nothing
}

// fewest is how many cells there are at least, unless some are chosen.
const fewest = 200

// atOnce is how many workers run at the same time.
const atOnce = 2

func TestKill(t *testing.T) {
	if os.Getenv(envBin) == "" {
		t.Skip("runs by make test-kill")
	}
	if !root() {
		t.Skip("needs root: run make test-kill as root")
	}
	all := &table{rows: map[string]map[string]count{}}
	t.Cleanup(func() { all.print(t) })
	turn := make(chan struct{}, atOnce)
	var group sync.WaitGroup
	defer group.Wait()
	for _, m := range modes { // not Parallel, which has its own order
		turn <- struct{}{}
		group.Go(func() {
			defer func() { <-turn }()
			t.Run(m.name, func(t *testing.T) { play(t, m, all) })
		})
	}
}

// root tells that we are the machine's, not a user namespace's (user_namespaces(7)).
func root() bool {
	ids, err := os.ReadFile("/proc/self/uid_map")
	return os.Geteuid() == 0 && (err != nil || strings.HasSuffix(strings.TrimSpace(string(ids)), " 4294967295"))
}

// play runs a mode's worker, and makes a test of each point.
func play(t *testing.T, m mode, all *table) {
	for _, program := range m.needs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs the program %s: run make test-kill", program)
		}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), envWorker+"="+m.name, envDir+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var s seen
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Errorf("%v: %s", err, lines.Bytes())
			continue
		}
		t.Run(fmt.Sprintf("%s/%d %s", s.Verb, s.N, s.Point), func(t *testing.T) { s.report(t, m, all) })
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, said.String())
	}
}

func (s seen) report(t *testing.T, m mode, all *table) {
	if s.After != "" {
		t.Errorf("killed %s in %s, after all: %s", s.Point, s.Verb, s.After)
	}
	for follow, left := range s.Left {
		all.add(m.name, follow, left != "")
		if left != "" {
			t.Errorf("killed %s in %s, then %s: %s", s.Point, s.Verb, follow, left)
		}
	}
}

// table counts cells and leaks by mode and follow-up.
type table struct {
	mu   sync.Mutex
	rows map[string]map[string]count
}

type count struct{ cells, leaks int }

func (c count) String() string { return fmt.Sprintf("%d/%d", c.cells, c.leaks) }

func (t *table) add(mode, follow string, leak bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows[mode] == nil {
		t.rows[mode] = map[string]count{}
	}
	c := t.rows[mode][follow]
	c.cells++
	if leak {
		c.leaks++
	}
	t.rows[mode][follow] = c
}

// print writes the table to where the test runner prints it from.
func (t *table) print(tb testing.TB) {
	tb.Helper()
	var b strings.Builder
	line := func(first string, cell func(follow string) string) {
		fmt.Fprintf(&b, "%-22s", first)
		for _, f := range follows {
			fmt.Fprintf(&b, " %14s", cell(f.name))
		}
		b.WriteString("\n")
	}
	var sum count
	line("killed, cells/leaks", func(follow string) string { return follow })
	for _, m := range modes {
		line(m.name, func(follow string) string {
			c := t.rows[m.name][follow]
			sum.cells, sum.leaks = sum.cells+c.cells, sum.leaks+c.leaks
			return c.String()
		})
	}
	fmt.Fprintf(&b, "%d cells, %d leaks\n", sum.cells, sum.leaks)
	if only := flag.Lookup("test.run").Value.String(); only == "" && sum.cells < fewest {
		tb.Errorf("%d cells, where there are %d at least: points or modes are lost", sum.cells, fewest)
	}
	if path := os.Getenv(envTable); path != "" {
		if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
			tb.Error(err)
		}
	}
	tb.Log("\n" + b.String())
}
