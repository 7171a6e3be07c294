package delegates

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tracewire/tracewire/proc"
)

// Running is a plugin's process: ours or another's, on ADD, DEL or GC.
type Running struct {
	Process     int
	ContainerID string     // CNI_CONTAINERID; empty for GC, which may touch any
	Began       proc.Ticks // of GC; 0 for another, and for one that ended while it was looked at
}

// Age is how long a GC has been there.
func (r Running) Age() time.Duration {
	if r.Began == 0 {
		return 0
	}
	return time.Duration(proc.Now()-r.Began) * proc.Tick
}

// Busy lists the plugins that make or remove something just now in the calling
// thread's network namespace, by their environments: what is half made is no
// leak. Processes that this one cannot see, or may not read of, are not in it.
func Busy() (out []Running) {
	here, _ := os.Readlink("/proc/thread-self/ns/net")
	for _, pid := range proc.All() {
		if r, ok := running(pid); ok && in(pid, here) {
			out = append(out, r)
		}
	}
	return out
}

// running reads the environment of a process.
func running(pid int) (r Running, ok bool) {
	env := proc.Environ(pid)
	ok = slices.Contains([]string{"ADD", "DEL", "GC"}, env["CNI_COMMAND"])
	r = Running{Process: pid, ContainerID: env["CNI_CONTAINERID"]}
	if ok && r.ContainerID == "" { // of others nothing more is read, as plugins begin and end meanwhile
		r.Began = proc.Of(pid).Began
	}
	return r, ok
}

// in tells whether a thread of the process is in a network namespace: while a
// plugin works in a pod's, others of its threads are not.
func in(pid int, namespace string) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/ns/net", pid)) // the pattern is right
	return slices.ContainsFunc(tasks, func(task string) bool {
		at, err := os.Readlink(task)
		return err == nil && at == namespace
	})
}

// Over tells that the process has ended, or that another has its number.
func (r Running) Over() bool {
	now, ok := running(r.Process)
	return !ok || now != r
}
