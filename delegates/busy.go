package delegates

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Running is a plugin's process: ours or another's, on ADD, DEL or GC.
type Running struct {
	Process     string // its folder below /proc
	ContainerID string // CNI_CONTAINERID; empty for GC, which may touch any
}

// Busy lists the plugins that make or remove something just now in the calling
// thread's network namespace, by their environments: what is half made is no
// leak. Processes that this one cannot see, or may not read of, are not in it.
func Busy() (out []Running) {
	here, _ := os.Readlink("/proc/thread-self/ns/net")
	all, _ := filepath.Glob("/proc/[0-9]*") // the pattern is right
	for _, process := range all {
		if r, ok := running(process); ok && in(process, here) {
			out = append(out, r)
		}
	}
	return out
}

// running reads the environment of a process.
func running(process string) (r Running, ok bool) {
	b, err := os.ReadFile(filepath.Join(process, "environ"))
	if err != nil || !bytes.Contains(b, []byte("CNI_COMMAND=")) {
		return r, false
	}
	r.Process = process
	for variable := range strings.SplitSeq(string(b), "\x00") {
		name, value, _ := strings.Cut(variable, "=")
		switch name {
		case "CNI_COMMAND":
			ok = slices.Contains([]string{"ADD", "DEL", "GC"}, value)
		case "CNI_CONTAINERID":
			r.ContainerID = value
		}
	}
	return r, ok
}

// in tells whether a thread of the process is in a network namespace: while a
// plugin works in a pod's, others of its threads are not.
func in(process, namespace string) bool {
	tasks, _ := filepath.Glob(filepath.Join(process, "task", "*", "ns", "net")) // the pattern is right
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
