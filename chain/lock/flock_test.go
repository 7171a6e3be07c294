package lock

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// childFile makes this test binary a process that holds the file's flock until
// its standard input ends.
const childFile = "TRACEWIRE_TEST_FLOCK"

func TestMain(m *testing.M) {
	if path := os.Getenv(childRange); path != "" {
		holdRange(path)
	}
	if path := os.Getenv(childFile); path != "" {
		if _, err := Flock(context.Background(), path); err != nil {
			os.Exit(1)
		}
		_, _ = os.Stdout.WriteString("held\n")
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// holder starts a process that holds the flock; let ends it.
func holder(t *testing.T, path string) (pid int, let func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childFile+"="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	let = sync.OnceFunc(func() { _ = in.Close(); _ = cmd.Wait() })
	t.Cleanup(let)
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("the holder said %q", line)
	}
	return cmd.Process.Pid, let
}

func soon(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestFlockNamesTheHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	pid, let := holder(t, path)

	began := time.Now()
	_, err := Flock(soon(t, 50*time.Millisecond), path)
	held, _ := errors.AsType[*Held](err)
	if diff := cmp.Diff(&Held{What: path, PID: pid}, held); diff != "" {
		t.Errorf("Flock: %v (-want +got)\n%s", err, diff)
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("waited %s", d)
	}
	let()
	unlock, err := Flock(soon(t, 5*time.Second), path)
	if err != nil {
		t.Fatalf("the late grant of the first wait was kept: %v", err)
	}
	unlock()
}

func TestFlockWaitsForItsTurn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var wg sync.WaitGroup
	var in atomic.Int32 // the race detector knows nothing of flock(2)
	for range 16 {
		wg.Go(func() {
			unlock, err := Flock(soon(t, 10*time.Second), path)
			if err != nil {
				t.Error(err)
				return
			}
			if n := in.Add(1); n != 1 {
				t.Errorf("%d at once", n)
			}
			in.Add(-1)
			unlock()
		})
	}
	wg.Wait()
}

func TestFlockOpens(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("elsewhere", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, path, want string }{
		{"no folder", filepath.Join(dir, "none", "lock"), "open " + dir + "/none/lock: no such file or directory"},
		{"a symbolic link", filepath.Join(dir, "link"), "open " + dir + "/link: too many levels of symbolic links"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Flock(t.Context(), tt.path)
			if err == nil || err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestHolderIn(t *testing.T) {
	const table = `1: POSIX  ADVISORY  WRITE 11 fd:01:7 0 EOF
2: FLOCK  ADVISORY  WRITE 12 fd:01:70 0 EOF
3: FLOCK  ADVISORY  WRITE 13 fd:01:7 0 EOF
3: -> FLOCK  ADVISORY  WRITE 14 fd:01:7 0 EOF
4: -> FLOCK  ADVISORY  WRITE 15 fd:01:9 0 EOF
5: FLOCK  ADVISORY  WRITE 0 fd:01:10 0 EOF
6: FLOCK
`
	for _, tt := range []struct {
		name, file string
		want       int
	}{
		{"held and waited for", "fd:01:7", 13},
		{"held", "fd:01:70", 12},
		{"only waited for", "fd:01:9", 0},
		{"of another pid namespace", "fd:01:10", 0},
		{"unknown", "fd:02:7", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := holderIn(table, tt.file); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func FuzzHolderIn(f *testing.F) {
	for _, table := range []string{"1: FLOCK  ADVISORY  WRITE 4711 fd:01:393217 0 EOF\n", "1: -> FLOCK  ADVISORY  WRITE 4712 fd:01:393217 0 EOF\n", "1: FLOCK ADVISORY WRITE -1 fd:01:393217\n", "1: FLOCK", ""} {
		f.Add(table)
	}
	f.Fuzz(func(t *testing.T, table string) {
		if pid := holderIn(table, "fd:01:393217"); pid < 0 {
			t.Errorf("%d", pid)
		}
	})
}
