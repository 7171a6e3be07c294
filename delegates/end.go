package delegates

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// endTime bounds the wait for killed processes to be gone. The kernel takes some
// milliseconds, and longer only where one is stuck in it.
const endTime = 500 * time.Millisecond

// adopt makes whoever loses its parent by the death of a child of ours our child,
// whatever process group or session it went to (prctl(2),
// PR_SET_CHILD_SUBREAPER).
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// endWith ends a program, and all that was started since that time, when ctx
// ends. ended stops that, or waits a bounded time until it is done.
func endWith(ctx context.Context, pid int, since ticks) (ended func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { end(pid, since); close(done) })
	return func() {
		if stop() {
			return
		}
		select {
		case <-done:
		case <-time.After(endTime):
		}
	}
}

// end kills a program with its process group, and then whoever becomes our child
// by that, until nobody does. What an earlier program left behind goes on.
func end(pid int, since ticks) {
	_ = unix.Kill(-pid, unix.SIGKILL)
	_ = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) // it is somebody else's to reap
	for killed := true; killed; {
		killed = false
		for _, left := range children() {
			at := begun(left)
			// Within one tick the numbers tell who was first.
			if left == pid || at < since || at == since && left < pid || unix.Kill(left, unix.SIGKILL) != nil {
				continue
			}
			_, err := unix.Wait4(left, nil, 0, nil)
			killed = killed || err == nil
		}
	}
}

// children is the processes that we are the parent of, also those that ended and
// were not waited for. It is empty where the kernel does not tell
// (CONFIG_PROC_CHILDREN).
func children() (pids []int) {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for field := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// ticks is a time since the boot in hundredths of a second, as proc(5) has it.
type ticks int64

// now is the present. It steps with no clock.
func now() ticks {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return ticks(t.Nano() / int64(10*time.Millisecond))
}

// begun is when a process began, 0 where that cannot be told (proc_pid_stat(5),
// field 22; the second is a name in brackets, which may hold any byte).
func begun(pid int) ticks {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0
	}
	n, _ := strconv.ParseInt(string(fields[19]), 10, 64)
	return ticks(n)
}
