//go:build linux

// Package netns gives a test network namespaces that vanish with it.
package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// Enter moves the calling test's thread into a fresh network namespace for
// good: the Go runtime ends the thread with the test. A subtest runs on another
// thread and enters one itself.
func Enter(t testing.TB) {
	t.Helper()
	needRoot(t, nil)
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		needRoot(t, err)
		t.Fatalf("new network namespace: %v", err)
	}
}

// New returns a network namespace whose Path can be handed to a plugin as
// CNI_NETNS for as long as the test runs.
func New(t testing.TB) ns.NetNS {
	t.Helper()
	needRoot(t, nil)
	n, err := ns.TempNetNS()
	if err != nil {
		needRoot(t, err)
		t.Fatalf("new network namespace: %v", err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return unnamed{n}
}

// Need skips a test where one of the programs is missing.
func Need(t testing.TB, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs the program %s: run make test", program)
		}
	}
}

// needRoot skips a test that has no right to make network namespaces.
func needRoot(t testing.TB, err error) {
	t.Helper()
	if os.Geteuid() != 0 || errors.Is(err, unix.EPERM) {
		t.Skip("needs root: run make test")
	}
}

// unnamed is a namespace that only a descriptor of this process holds: no mount
// is left behind when the process is killed.
type unnamed struct{ ns.NetNS }

func (u unnamed) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), u.Fd()) }
