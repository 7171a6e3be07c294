//go:build linux

package cases

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
)

// holders is who can be in the way, each stopped by SIGSTOP while it holds a
// lock, by the lock.
var holders = map[string]func(*testing.T, *attach.Node) int{
	"host-local's":       holdsReservations,
	"of the attachment":  holdsAttachment,
	"of another network": holdsNothing,
}

// holdsReservations is a process that holds the lock of host-local's folder.
func holdsReservations(t *testing.T, n *attach.Node) int {
	t.Helper()
	netns.Need(t, "flock")
	path := filepath.Join(n.Dir, "ipam", "net", "lock")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("flock", "--no-fork", path, "sleep", "1000")
	pid := begun(t, cmd)
	await(t, "a holder of the flock", func() bool { return slices.Contains(lockers(t, false), pid) })
	return stop(t, pid)
}

// holdsAttachment is an ADD of the attachment, in the midst of its IPAM plugin.
func holdsAttachment(t *testing.T, n *attach.Node) int {
	t.Helper()
	up, _ := pipe(t, n.Dir)
	stdin, a := conf(t, n, map[string]string{"ipam": `{"type": "hangs"}`}), pod1(t, n)
	cmd := exec.Command(filepath.Join(os.Getenv("TRACEWIRE_BIN"), "tracewire"))
	cmd.Env, cmd.Stdin = append(n.Environment("ADD", a), "PIPE="+filepath.Join(n.Dir, "pipe")), strings.NewReader(stdin)
	pid := begun(t, cmd)
	up()
	return stop(t, pid)
}

// holdsNothing leaves lock files behind that nobody holds, whoever they name.
func holdsNothing(t *testing.T, n *attach.Node) int {
	t.Helper()
	for _, path := range []string{"ipam/net/lock", "state/lock"} {
		path = filepath.Join(n.Dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("1\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return 0
}

func begun(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

func stop(t *testing.T, pid int) int {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return pid
}

// lockers is the processes that hold a lock, or that wait for one (proc_locks(5)).
func lockers(t *testing.T, waiting bool) (pids []int) {
	t.Helper()
	b, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := slices.DeleteFunc(strings.Fields(line), func(s string) bool { return s == "->" })
		var pid int
		if _, err := fmt.Sscan(f[4], &pid); err == nil && strings.Contains(line, "->") == waiting {
			pids = append(pids, pid)
		}
	}
	return pids
}

// await waits until something is so.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(stepTime); !is(); {
		if time.Now().After(end) {
			t.Fatalf("there never was %s", what)
		}
	}
}

// hanging is an IPAM plugin that tells when it runs, and never ends.
var hanging = map[string]string{"hangs": `[ "$CNI_COMMAND" = ADD ] || exit 0; exec 9>"$PIPE"; echo up >&9; exec sleep 1000`}

// TestLockIsHeld: by a process that is stopped. The wait is over with the
// operation's time, the error names the holder, and what was made meanwhile is
// taken back. Once the holder is gone all works; a lock file alone means nothing
// (nerdctl#3783).
func TestLockIsHeld(t *testing.T) {
	for name, hold := range holders {
		t.Run(name, func(t *testing.T) {
			n, _ := scripted(t, hanging)
			pid := hold(t, n)
			stdin, a := conf(t, n, map[string]string{"tracewire.timeout": `"300ms"`}), pod1(t, n)
			verbs := map[string][]string{"host-local's": {"ADD"}, "of the attachment": {"ADD", "DEL"}}[name]
			for _, verb := range verbs {
				in := input{code: 11, names: []string{fmt.Sprintf("is locked by process %d (", pid)}}
				in.answered(t, n, raw(t, n, verb, stdin, n.Environment(verb, a)))
			}
			if pid != 0 {
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			stdin = conf(t, n, nil)
			must(t, n, "DEL", stdin, a)
			nothingLeft(t, n)
			must(t, n, "ADD", stdin, a)
			must(t, n, "DEL", stdin, a)
			nothingLeft(t, n)
		})
	}
}

// TestSlowADDHoldsNobodyUp: while one ADD hangs in its IPAM plugin others of the
// network come and go. No lock of all is held across slow work (azure#242,
// azure#194).
func TestSlowADDHoldsNobodyUp(t *testing.T) {
	n, _ := scripted(t, hanging)
	pid := holdsAttachment(t, n)
	stdin, slow := conf(t, n, nil), pod1(t, n)
	for i := 2; i < 5; i++ {
		must(t, n, "ADD", stdin, podOf(t, n, i))
		must(t, n, "DEL", stdin, podOf(t, n, i))
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	must(t, n, "DEL", stdin, slow)
	nothingLeft(t, n)
}

// TestStoppedWhileItWaits: who is told to stop while it waits for a lock says so,
// and who holds it.
func TestStoppedWhileItWaits(t *testing.T) {
	for _, name := range []string{"host-local's", "of the attachment"} {
		t.Run(name, func(t *testing.T) {
			n, _ := scripted(t, hanging)
			holder := holders[name](t, n)
			a, out := pod1(t, n), bytes.Buffer{}
			ctx, cancel := context.WithTimeout(t.Context(), stepTime)
			defer cancel()
			cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv("TRACEWIRE_BIN"), "tracewire"))
			cmd.Env, cmd.Stdin, cmd.Stdout = n.Environment("ADD", a), strings.NewReader(conf(t, n, nil)), &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			await(t, "one that waits", func() bool { return slices.Contains(lockers(t, true), cmd.Process.Pid) })
			if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			call := attach.Call{Plugin: "tracewire", Verb: "ADD", Stdout: out.Bytes(), Exit: cmd.ProcessState.ExitCode()}
			in := input{code: 11, names: []string{"told to stop by a signal while", fmt.Sprintf("is locked by process %d (", holder)}}
			in.answered(t, n, call)
			if err := call.Sound(); err != nil {
				t.Error(err)
			}
		})
	}
}
