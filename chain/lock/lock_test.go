package lock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// childRange and childKey make this test binary a process that waits for a key
// of the lock file and holds it until its standard input ends.
const (
	childRange = "TRACEWIRE_TEST_RANGE"
	childKey   = "TRACEWIRE_TEST_KEY"
)

func holdRange(path string) {
	r, err := OpenRanges(path)
	if err == nil {
		_, err = r.Lock(context.Background(), os.Getenv(childKey))
	}
	if err != nil {
		os.Exit(1)
	}
	_, _ = os.Stdout.WriteString("held\n")
	_, _ = os.Stdin.Read(make([]byte, 1))
	os.Exit(0)
}

// child is a process that takes a key.
type child struct {
	cmd *exec.Cmd
	out *bufio.Reader
	let func() // ends it
}

// take starts a process that takes the key.
func take(t *testing.T, path, key string) child {
	t.Helper()
	cmd := exec.CommandContext(soon(t, time.Minute), os.Args[0])
	cmd.Env = append(os.Environ(), childRange+"="+path, childKey+"="+key)
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
	c := child{cmd, bufio.NewReader(out), sync.OnceFunc(func() { _ = in.Close(); _ = cmd.Wait() })}
	t.Cleanup(c.let)
	return c
}

// held waits until the process holds the key.
func (c child) held(t *testing.T) child {
	t.Helper()
	if line, _ := c.out.ReadString('\n'); line != "held\n" {
		t.Fatalf("the holder said %q", line)
	}
	return c
}

func open(t *testing.T, path string) *Ranges {
	t.Helper()
	r, err := OpenRanges(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// isHeld fails the test where err is not that of a wait for the key.
func isHeld(t *testing.T, err error, key string, pid int) {
	t.Helper()
	held, _ := errors.AsType[*Held](err)
	if diff := cmp.Diff(&Held{What: key, PID: pid}, held); diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

func TestRangesNameTheHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	c := take(t, path, "net/c1:eth0").held(t)
	r := open(t, path)

	began := time.Now()
	_, err := r.Lock(soon(t, 50*time.Millisecond), "net/c1:eth0")
	isHeld(t, err, "net/c1:eth0", c.cmd.Process.Pid)
	if d := time.Since(began); d < 50*time.Millisecond || d > 5*time.Second {
		t.Errorf("waited %s", d)
	}
	comm, readErr := os.ReadFile("/proc/self/comm") // the holder's program is ours
	want := fmt.Sprintf("net/c1:eth0 is locked by process %d (%s)", c.cmd.Process.Pid, strings.TrimSpace(string(comm)))
	if got := fmt.Sprint(err); readErr != nil || got != want {
		t.Errorf("error %s, want %s", got, want)
	}
	_, err = r.Lock(soon(t, 0), "net/c1:eth0") // the first wait goes on
	isHeld(t, err, "net/c1:eth0", c.cmd.Process.Pid)
}

// TestToldToStop: the error tells that, and who holds the lock all the same.
func TestToldToStop(t *testing.T) {
	dir := t.TempDir()
	c := take(t, filepath.Join(dir, "lock"), "key").held(t)
	r := open(t, filepath.Join(dir, "lock"))
	unlock, err := Flock(t.Context(), filepath.Join(dir, "flock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	for name, wait := range map[string]func(context.Context) error{
		"ranges": func(ctx context.Context) error { _, err := r.Lock(ctx, "key"); return err },
		"flock":  func(ctx context.Context) error { _, err := Flock(ctx, filepath.Join(dir, "flock")); return err },
	} {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		err := wait(ctx)
		holder := map[string]int{"ranges": c.cmd.Process.Pid, "flock": os.Getpid()}[name]
		if want := fmt.Sprintf("is locked by process %d (", holder); !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "context canceled while ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRangesOfOtherKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	take(t, path, "net/c1:eth0").held(t)
	r := open(t, path)
	for _, key := range []string{"net/c1:eth1", "net/c2:eth0", "net2/c1:eth0", "", strings.Repeat("x", 4096)} {
		unlock, err := r.Lock(soon(t, 5*time.Second), key)
		if err != nil {
			t.Fatalf("%.20s: %v", key, err)
		}
		unlock()
	}
}

func TestRangesGoWithTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	c := take(t, path, "key").held(t)
	r := open(t, path)
	got := make(chan error, 1)
	go func() { _, err := r.Lock(soon(t, 10*time.Second), "key"); got <- err }()
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("the holder was killed: %v", err)
	}
}

// TestRangesGiveALateGrantBack: the kernel cannot be told to stop waiting.
func TestRangesGiveALateGrantBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first := take(t, path, "key").held(t)
	r := open(t, path)
	_, err := r.Lock(soon(t, 20*time.Millisecond), "key")
	isHeld(t, err, "key", first.cmd.Process.Pid)
	first.let()
	second := take(t, path, "key").held(t)
	second.let()
	unlock, err := r.Lock(soon(t, 10*time.Second), "key")
	if err != nil {
		t.Fatalf("the late grant was kept: %v", err)
	}
	unlock()
}

func TestRangesUnlock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	r := open(t, path)
	unlock, err := r.Lock(t.Context(), "key")
	if err != nil {
		t.Fatal(err)
	}
	other, err := r.Lock(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	waits := take(t, path, "key")
	unlock()
	waits.held(t).let() // and the other key's lock is not gone with it
	_, err = r.Lock(soon(t, 20*time.Millisecond), "other")
	isHeld(t, err, "other", os.Getpid())
	blocked := take(t, path, "other")
	other()
	blocked.held(t)
}

// TestRangesWaitForTheirTurn: to the kernel all threads of a process are one
// holder, so they are kept apart here.
func TestRangesWaitForTheirTurn(t *testing.T) {
	r := open(t, filepath.Join(t.TempDir(), "lock"))
	var wg sync.WaitGroup
	var in [2]atomic.Int32
	for i := range 32 {
		wg.Go(func() {
			k := i % 2
			unlock, err := r.Lock(soon(t, 10*time.Second), fmt.Sprintf("key%d", k))
			if err != nil {
				t.Error(err)
				return
			}
			if n := in[k].Add(1); n != 1 {
				t.Errorf("%d at once", n)
			}
			in[k].Add(-1)
			unlock()
		})
	}
	wg.Wait()
	if len(r.busy) != 0 {
		t.Errorf("%d keys are busy", len(r.busy))
	}
}

func TestRangesInOneProcess(t *testing.T) {
	r := open(t, filepath.Join(t.TempDir(), "lock"))
	unlock, err := r.Lock(t.Context(), "key")
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Lock(soon(t, 20*time.Millisecond), "key")
	isHeld(t, err, "key", os.Getpid())
	unlock()
	again, err := r.Lock(soon(t, 5*time.Second), "key")
	if err != nil {
		t.Fatal(err)
	}
	again()
}

// TestLeftLockFile: a lock file that a process left means nothing, whatever is in it.
func TestLeftLockFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	take(t, path, "key").held(t).let()
	if err := os.WriteFile(path, []byte("4711\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	unlock, err := open(t, path).Lock(soon(t, 5*time.Second), "key")
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if b, err := os.ReadFile(path); err != nil || string(b) != "4711\n" {
		t.Errorf("the file holds %q: %v", b, err)
	}
}

func TestOpenRanges(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Symlink("elsewhere", filepath.Join(dir, "link")), os.Mkdir(filepath.Join(dir, "folder"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, path, want string }{
		{"missing", "lock", ""},
		{"there", "lock", ""},
		{"no folder", "none/lock", "open DIR/none/lock: no such file or directory"},
		{"a symbolic link", "link", "open DIR/link: too many levels of symbolic links"},
		{"a folder", "folder", "open DIR/folder: is a directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := OpenRanges(filepath.Join(dir, tt.path))
			got := ""
			if err != nil {
				got = strings.ReplaceAll(err.Error(), dir, "DIR")
			}
			if got != tt.want {
				t.Errorf("error %s, want %s", got, tt.want)
			}
			if err == nil {
				_ = r.Close()
			}
		})
	}
	if st, err := os.Stat(filepath.Join(dir, "lock")); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v, mode %s", err, st.Mode())
	}
}

func TestLockOfAClosedFile(t *testing.T) {
	r, err := OpenRanges(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	fd := r.fd
	r.fd = -1
	if _, err := r.Lock(t.Context(), "key"); err == nil || !strings.HasPrefix(err.Error(), "lock "+r.path+": ") {
		t.Errorf("error %v", err)
	}
	if len(r.busy) != 0 {
		t.Error("the key is busy")
	}
	r.fd = fd
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestHeldError(t *testing.T) {
	for _, tt := range []struct {
		held Held
		want string
	}{
		{Held{What: "key"}, "key is locked by another process"},
		{Held{What: "key", PID: 1 << 30}, "key is locked by process 1073741824 ()"}, // it is gone meanwhile
	} {
		if got := tt.held.Error(); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}
