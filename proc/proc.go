// Package proc tells of processes what the kernel does (proc_pid_stat(5)), at the
// cost of one read.
package proc

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Tick is the kernel's unit of a process's times: a hundredth of a second on all
// architectures that we run on (sysconf(3), _SC_CLK_TCK).
const Tick = 10 * time.Millisecond

// Ticks is a time since the boot. It steps with no clock.
type Ticks int64

// Now is the present.
func Now() Ticks {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // fails for an unknown clock only
	return Ticks(t.Nano() / int64(Tick))
}

// Process is what the kernel tells of one; the zero one where there is none.
type Process struct {
	Name   string // at most 15 bytes
	State  string // "Z" is a zombie
	Parent int
	Began  Ticks
}

// Of is the process of a number.
func Of(pid int) Process {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Process{}
	}
	defer unix.Close(fd)
	b := make([]byte, 512)
	n, _ := unix.Read(fd, b)
	return parse(b[:max(0, n)])
}

func parse(b []byte) (p Process) {
	from, to := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')') // a name may hold either
	if from < 0 || to < from {
		return p
	}
	rest := bytes.Fields(b[to+1:]) // the third field and what follows
	if len(rest) < 20 {
		return p
	}
	p.Name, p.State = string(b[from+1:to]), string(rest[0])
	p.Parent, _ = strconv.Atoi(string(rest[1]))
	began, _ := strconv.ParseInt(string(rest[19]), 10, 64)
	p.Began = Ticks(began)
	return p
}

// All is the numbers of the processes that we see.
func All() (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*") // the pattern is right
	for _, path := range all {
		if pid, err := strconv.Atoi(filepath.Base(path)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Environ is the environment that a process was started with, by name. It is
// empty for one that ended, or that we may not read of.
func Environ(pid int) map[string]string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	env := map[string]string{}
	for variable := range strings.SplitSeq(string(b), "\x00") {
		if name, value, ok := strings.Cut(variable, "="); ok {
			env[name] = value
		}
	}
	return env
}
