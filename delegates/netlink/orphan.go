//go:build (amd64 || arm64) && !race

package netlink

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A child that outlives us is somebody else's to reap: of the nearest ancestor
// that asked for orphans, or of pid 1 of our pid namespace. Not every one does,
// and none can be asked. So one child is remembered, and as long as that one is a
// zombie no more are made.

// memoryPath holds the number of a child, of this boot. It is missing before the
// first one.
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
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:max(0, n)])))
	if err != nil {
		return gone
	}
	name, state, parent := status(pid)
	switch ours := self(); {
	case name == "" || name != ours:
		return gone // the number may be another's by now
	case state != "Z":
		return going
	default:
		if name, _, _ := status(parent); name == ours {
			return going
		}
	}
	return zombie
}

// keep remembers a child. The text is always as long, so that it replaces
// another.
func (m memory) keep(pid int) { _, _ = unix.Pwrite(int(m), fmt.Appendf(nil, "%10d\n", pid), 0) }

// status is a process's name, state and parent (proc_pid_stat(5)); no name where
// there is none.
func status(pid int) (name, state string, parent int) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", "", 0
	}
	defer func() { _ = unix.Close(fd) }()
	b := make([]byte, 512)
	n, _ := unix.Read(fd, b)
	return parseStatus(b[:max(0, n)])
}

func parseStatus(b []byte) (name, state string, parent int) {
	from, to := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')') // a name may hold either
	if from < 0 || to < from {
		return "", "", 0
	}
	rest := bytes.Fields(b[to+1:])
	if len(rest) < 2 {
		return "", "", 0
	}
	parent, _ = strconv.Atoi(string(rest[1]))
	return string(b[from+1 : to]), string(rest[0]), parent
}

// self is our own name, which a child has too.
func self() string {
	var b [16]byte // TASK_COMM_LEN
	if unix.Prctl(unix.PR_GET_NAME, uintptr(unsafe.Pointer(&b)), 0, 0, 0) != nil {
		return ""
	}
	return String(b[:])
}
