//go:build (amd64 || arm64) && !race

package netlink

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
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
	var made int64
	if _, err := fmt.Sscan(string(b[:max(0, n)]), &pid, &made); err != nil {
		return gone
	}
	child, ours := status(pid), self()
	switch {
	case child.name == "" || child.name != ours:
		return gone // the number may be another's by now
	case child.state != "Z" || uptime()-made < patient || status(child.parent).name == ours:
		return going
	}
	return zombie
}

// patient is the age, in hundredths of a second, at which a child should be
// reaped. It ends after five of them, but some inits look only every other second.
const patient = 1000

// uptime is the time since the boot in hundredths of a second. It steps with no clock.
func uptime() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return t.Nano() / 10_000_000
}

// keep remembers a child, and when it was made. The text is always as long, so
// that it replaces another.
func (m memory) keep(pid int) {
	_, _ = unix.Pwrite(int(m), fmt.Appendf(nil, "%10d %19d\n", pid, uptime()), 0)
}

// process is what proc_pid_stat(5) tells of one.
type process struct {
	name   string
	state  string // "Z" is a zombie
	parent int
}

// status is a process's, the zero one where there is none.
func status(pid int) process {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return process{}
	}
	defer func() { _ = unix.Close(fd) }()
	b := make([]byte, 512)
	n, _ := unix.Read(fd, b)
	return parseStatus(b[:max(0, n)])
}

func parseStatus(b []byte) (p process) {
	from, to := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')') // a name may hold either
	if from < 0 || to < from {
		return p
	}
	rest := bytes.Fields(b[to+1:]) // the third field and what follows
	if len(rest) < 2 {
		return p
	}
	p.name, p.state = string(b[from+1:to]), string(rest[0])
	p.parent, _ = strconv.Atoi(string(rest[1]))
	return p
}

// self is our own name, which a child has too.
func self() string {
	var b [16]byte // TASK_COMM_LEN
	if unix.Prctl(unix.PR_GET_NAME, uintptr(unsafe.Pointer(&b)), 0, 0, 0) != nil {
		return ""
	}
	return String(b[:])
}
