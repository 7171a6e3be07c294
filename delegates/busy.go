package delegates

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
)

// Running is a plugin's process: ours or another's, on ADD, DEL or GC.
type Running struct {
	Process     string // its folder below /proc
	ContainerID string // CNI_CONTAINERID; empty for GC, which may touch any
}

// Busy lists the plugins that make or remove something just now, by their
// environments: whose traces are half made is no leak. Processes that this one
// cannot see, or may not read of, are not in it.
func Busy() (out []Running) {
	all, _ := filepath.Glob("/proc/[0-9]*") // the pattern is right
	for _, process := range all {
		b, err := os.ReadFile(filepath.Join(process, "environ"))
		if err != nil || !bytes.Contains(b, []byte("CNI_COMMAND=")) {
			continue
		}
		if r, ok := running(process, string(b)); ok {
			out = append(out, r)
		}
	}
	return out
}

// running reads the environment of one process.
func running(process, environ string) (r Running, ok bool) {
	r.Process = process
	for variable := range strings.SplitSeq(environ, "\x00") {
		name, value, _ := strings.Cut(variable, "=")
		switch name {
		case "CNI_COMMAND":
			ok = value == "ADD" || value == "DEL" || value == "GC"
		case "CNI_CONTAINERID":
			r.ContainerID = value
		}
	}
	return r, ok
}

// Over tells that the process has ended, or that another has its number.
func (r Running) Over() bool {
	b, err := os.ReadFile(filepath.Join(r.Process, "environ"))
	if err != nil {
		return true
	}
	now, ok := running(r.Process, string(b))
	return !ok || now != r
}
