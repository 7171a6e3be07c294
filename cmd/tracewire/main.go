// Command tracewire is the CNI plugin: environment and standard input in, one
// JSON document out. It assembles the rooms by hand and does nothing else.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	cni "github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/conflist"
)

// version is set by the linker.
var version = "dev"

func main() { os.Exit(run(time.Now())) }

// run serves one CNI command and returns the exit code.
func run(start time.Time) int {
	about := "CNI plugin tracewire " + version
	verb := os.Getenv("CNI_COMMAND")
	if verb == "" || verb == "VERSION" {
		return refuse(skel.PluginMainFuncsWithError(skel.CNIFuncs{}, cni.All, about))
	}
	stdin, err := readAll(os.Stdin, conflist.DefaultTimeout)
	if err == nil {
		err = feed(stdin)
	}
	o := begin(start, verb, stdin)
	if err != nil {
		return o.finish(toCNI(err))
	}
	failed := skel.PluginMainFuncsWithError(o.funcs, cni.All, about)
	if o.err != nil {
		failed = toCNI(o.err) // skel would drop all text but the innermost
	}
	return o.finish(failed)
}

// readAll reads the network configuration: bounded in length, and in time for
// a runtime that never closes the pipe.
func readAll(f *os.File, patience time.Duration) ([]byte, error) {
	type read struct {
		b   []byte
		err error
	}
	done := make(chan read, 1)
	go func() {
		b, err := io.ReadAll(io.LimitReader(f, conflist.MaxBytes+1))
		done <- read{b, err}
	}()
	select {
	case r := <-done:
		if len(r.b) > conflist.MaxBytes {
			return nil, fmt.Errorf("%w: it is longer than %d bytes", errStdin, conflist.MaxBytes)
		}
		return r.b, r.err
	case <-time.After(patience):
		return nil, fmt.Errorf("standard input was not closed: %w", context.DeadlineExceeded)
	}
}

// feed makes what was read standard input again, for skel.
func feed(b []byte) error {
	fd, err := unix.MemfdCreate("stdin", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "stdin")
	if _, err := f.Write(b); err != nil {
		return err
	}
	os.Stdin = f
	_, err = f.Seek(0, io.SeekStart)
	return err
}
