package delegates

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/proc"
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
func endWith(ctx context.Context, pid int, since proc.Ticks) (ended func()) {
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
func end(pid int, since proc.Ticks) {
	_ = unix.Kill(-pid, unix.SIGKILL)
	_ = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) // it is somebody else's to reap
	for killed := true; killed; {
		killed = false
		for _, left := range children() {
			at := proc.Of(left).Began
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
