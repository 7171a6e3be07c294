//go:build linux

package cases

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
)

// sick is system calls that a failing disk fails, by what is asked of it.
var sick = []struct {
	calls string
	first int
	sync  string // of tracewire.sync
}{
	{"write", 2, "never"}, // the first is to a file in memory, of standard input
	{"fsync,fdatasync", 1, "always"},
	{"linkat", 1, "never"},
	{"unlinkat", 1, "never"},
	{"mkdirat", 1, "never"},
}

// mostTurns bounds how many calls of a kind an operation makes.
const mostTurns = 60

// TestDiskIsSick: EIO for one call, each in its turn, or from one on for good.
// ADD succeeds, where it was only spool or log, or it is code 5 and leaves
// nothing, its answer's write included. DEL succeeds or is code 11, and the next
// one, on a disk that is well, ends all.
func TestDiskIsSick(t *testing.T) {
	netns.Need(t, "strace")
	for _, s := range sick {
		for _, on := range []string{"", "+"} {
			t.Run(s.calls+on, func(t *testing.T) {
				p := newPatient(t, s.sync)
				met := 0
				for _, verb := range []string{"ADD", "DEL"} {
					for n := s.first; n < mostTurns; n++ {
						if !p.turn(t, verb, fmt.Sprintf("%s:error=EIO:when=%d%s", s.calls, n, on)) {
							break
						}
						met++
					}
				}
				if met == 0 {
					t.Error("no operation met it")
				}
			})
		}
	}
}

// patient is rounds by a plugin that strace injects errors into.
type patient struct {
	*rounds
	inject, log string
}

func newPatient(t *testing.T, sync string) patient {
	t.Helper()
	dir := t.TempDir()
	p := patient{inject: filepath.Join(dir, "inject"), log: filepath.Join(dir, "strace")}
	script := fmt.Sprintf(`#!/bin/sh
[ -s %[1]s ] || exec %[3]s/tracewire
exec strace -f -qq -o %[2]s -e inject="$(cat %[1]s)" %[3]s/tracewire
`, p.inject, p.log, os.Getenv("TRACEWIRE_BIN"))
	if err := os.WriteFile(filepath.Join(dir, "tracewire"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	n := node(t, dir)
	// That the node forwards is a write too, to no disk, and is its own error.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	p.rounds = &rounds{Node: n, pod: pod1(t, n), stdin: conf(t, n, map[string]string{"tracewire.sync": `"` + sync + `"`}), record: filepath.Join(n.Dir, recordPath)}
	return p
}

// turn runs the verb with an injection, and tells whether a call met it.
func (p patient) turn(t *testing.T, verb, inject string) (met bool) {
	t.Helper()
	if verb == "DEL" {
		p.begin(t)
	}
	p.set(t, inject)
	call := p.run(t, verb)
	p.set(t, "")
	b, err := os.ReadFile(p.log)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"ADD": "5 " + unix.EIO.Error(), "DEL": "11 " + unix.EIO.Error()}[verb]
	if err := call.Err(); err != nil && len(call.Stdout) > 0 && expected(err, want, p.Normal) != nil {
		t.Errorf("%s with %s: %s", verb, inject, describe(err))
	}
	if left := p.left(t); verb == "ADD" && call.Exit != 0 && len(left) > 0 {
		t.Errorf("%s with %s left %q", verb, inject, left)
	}
	p.ended(t, inject, endings[1])
	return strings.Contains(string(b), "(INJECTED)")
}

// run runs the plugin. An answer that could not be written is on standard error,
// or nowhere.
func (p patient) run(t *testing.T, verb string) attach.Call {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	_, err := p.Run(ctx, "tracewire", []byte(p.stdin), p.Environment(verb, p.pod))
	calls := p.Exec.Calls()
	if len(calls) != 1 || calls[0].Exit != 0 && calls[0].Exit != 1 {
		t.Fatalf("%s: %v", verb, err)
	}
	call := calls[0]
	if call.Exit == 1 && len(call.Stdout) == 0 {
		call.Stdout = call.Stderr
	}
	return call
}

func (p patient) set(t *testing.T, inject string) {
	t.Helper()
	if err := os.WriteFile(p.inject, []byte(inject), 0o600); err != nil {
		t.Fatal(err)
	}
}
