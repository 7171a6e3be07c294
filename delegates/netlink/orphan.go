//go:build (amd64 || arm64) && !race

package netlink

import (
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/proc"
)

// A child that outlives us is somebody else's to reap: of the nearest ancestor
// that asked for orphans, or of pid 1 of our pid namespace. Not every one does,
// and none can be asked. So one child is remembered, and as long as that one is a
// zombie no more are made.

// memoryPath holds the number of a child of this boot, and when it was made. It is
// missing before the first one.
const memoryPath = "/run/tracewire/reaped"

// memory is the file, open.
type memory int

// recall opens the memory. It is an error where nothing can be remembered.
func recall() (memory, error) {
	const flags = unix.O_RDWR | unix.O_CREAT | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK
	fd, err := unix.Open(memoryPath, flags, 0o600)
	if err == unix.ENOENT {
		_ = os.MkdirAll("/run/tracewire", 0o755)
		fd, err = unix.Open(memoryPath, flags, 0o600)
	}
	return memory(fd), err
}

func (m memory) close() { _ = unix.Close(int(m)) }

// fate is what became of a child.
type fate int

const (
	gone   fate = iota // somebody reaped it
	going              // it, or its parent, is at work
	zombie             // nobody did
)

// fate is the remembered child's.
func (m memory) fate() fate {
	b := make([]byte, 32)
	n, _ := unix.Pread(int(m), b, 0)
	var pid int
	var made proc.Ticks
	if _, err := fmt.Sscan(string(b[:max(0, n)]), &pid, &made); err != nil {
		return gone
	}
	child, ours := proc.Of(pid), self()
	switch {
	case child.Name == "" || child.Name != ours:
		return gone // the number may be another's by now
	case child.State != "Z" || proc.Now()-made < patient || proc.Of(child.Parent).Name == ours:
		return going
	}
	return zombie
}

// patient is the age at which a child should be reaped. It ends after five ticks,
// but some inits look only every other second.
const patient = proc.Ticks(10 * time.Second / proc.Tick)

// keep remembers a child, and when it was made. The text is always as long, so
// that it replaces another.
func (m memory) keep(pid int) {
	_, _ = unix.Pwrite(int(m), fmt.Appendf(nil, "%10d %19d\n", pid, proc.Now()), 0)
}

// self is our own name, which a child has too.
func self() string {
	var b [16]byte // TASK_COMM_LEN
	if unix.Prctl(unix.PR_GET_NAME, uintptr(unsafe.Pointer(&b)), 0, 0, 0) != nil {
		return ""
	}
	return String(b[:])
}
