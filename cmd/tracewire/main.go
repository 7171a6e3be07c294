// Command tracewire is the CNI plugin: environment and standard input in, one
// JSON document out. It assembles the rooms by hand and does nothing else.
package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	cni "github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain/codes"
	"github.com/tracewire/tracewire/conflist"
)

// version is set by the linker.
var version = "dev"

func main() { os.Exit(run(time.Now())) }

// run serves one CNI command and returns the exit code.
func run(start time.Time) int {
	about := "CNI plugin tracewire " + version
	verb := os.Getenv("CNI_COMMAND")
	if !slices.Contains([]string{"ADD", "DEL", "CHECK", "GC", "STATUS"}, verb) {
		return refuse(skel.PluginMainFuncsWithError(skel.CNIFuncs{}, cni.All, about))
	}
	stdin, err := readAll(unix.Stdin, conflist.DefaultTimeout)
	if err == nil {
		err = feed(stdin)
	}
	o := begin(start, verb, stdin)
	deaf()
	hidePipe()
	if err != nil {
		return o.finish(toCNI(err))
	}
	failed := skel.PluginMainFuncsWithError(o.funcs, cni.All, about)
	switch {
	case o.err != nil:
		failed = toCNI(o.err) // skel would drop all text but the innermost
	case verb == "DEL" && failed != nil && failed.Code == codes.OwnNetNS:
		// Said after the DEL: a path that names our own namespace by now, as one by
		// a pid that was used again does, must not keep the runtime asking for ever.
		failed = nil
	case failed != nil:
		failed = named(failed)
	}
	return o.finish(failed)
}

// named adds to skel's errors of the environment the variable that is wrong, and
// what it holds.
func named(e *types.Error) *types.Error {
	if e.Code == types.ErrIncompatibleCNIVersion && !strings.Contains(e.Details, "support") {
		return types.NewError(e.Code, fmt.Sprintf("%s; tracewire serves %s", e.Msg, strings.Join(cni.All.SupportedVersions(), ", ")), e.Details)
	}
	for part, name := range map[string]string{"interface name": "CNI_IFNAME", "containerID": "CNI_CONTAINERID"} {
		if e.Code == codes.Environment && strings.Contains(e.Msg, part) {
			return types.NewError(e.Code, fmt.Sprintf("%s: %s, got %s", name, e.Msg, conflist.Shown(os.Getenv(name))), e.Details)
		}
	}
	return e
}

// readAll reads the network configuration: bounded in length, and in time for
// a runtime that never closes the pipe.
func readAll(fd int, patience time.Duration) ([]byte, error) {
	end := time.Now().Add(patience)
	b := make([]byte, 0, 8192)
	for {
		if err := ready(fd, unix.POLLIN, end); err != nil {
			return nil, err
		}
		n, err := unix.Read(fd, b[len(b):cap(b)])
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return b, &fs.PathError{Op: "read", Path: "standard input", Err: err}
		}
		if n == 0 {
			return b, nil
		}
		if b = b[:len(b)+n]; len(b) > conflist.MaxBytes {
			return nil, fmt.Errorf("%w: it is longer than %d bytes", errStdin, conflist.MaxBytes)
		}
		if len(b) == cap(b) {
			b = slices.Grow(b, len(b))
		}
	}
}

// hidePipe keeps skel from a CNI_NETNS that is a named pipe, which it would wait
// on for ever. The verb refuses it on ADD, and needs none on DEL.
func hidePipe() {
	var st unix.Stat_t
	if unix.Stat(os.Getenv("CNI_NETNS"), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO && os.Getenv("CNI_COMMAND") == "DEL" {
		_ = os.Unsetenv("CNI_NETNS")
	}
}

// feed makes what was read standard input again, for skel.
func feed(b []byte) error {
	fd, err := unix.MemfdCreate("stdin", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("memfd: %w", err)
	}
	if err := writeAll(fd, b); err != nil {
		return fmt.Errorf("memfd: %w", err)
	}
	if _, err := unix.Seek(fd, 0, io.SeekStart); err != nil {
		return fmt.Errorf("memfd: %w", err)
	}
	os.Stdin = os.NewFile(uintptr(fd), "stdin")
	return nil
}
