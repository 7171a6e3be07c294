package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/trace/point"
)

// refuse prints an error that no operation stands behind, and returns the exit
// code.
func refuse(e *types.Error) int {
	if e == nil {
		return 0
	}
	return printed(explain(e, "", "", ""), false)
}

// printed prints an error, and returns the exit code. Where standard output takes
// none it goes to standard error.
func printed(e failure, mute bool) int {
	if mute || document(unix.Stdout, e) != nil {
		_ = document(unix.Stderr, e)
	}
	return 1
}

// document writes one JSON document.
func document(fd int, doc any) error {
	point.Pass(point.Before, "answer")
	b, err := json.MarshalIndent(doc, "", "    ")
	if err == nil {
		err = writeAll(fd, append(b, '\n'))
	}
	point.Pass(point.After, "answer")
	if err != nil {
		return &fs.PathError{Op: "write", Path: map[int]string{unix.Stdout: "standard output", unix.Stderr: "standard error"}[fd], Err: err}
	}
	return nil
}

// answerTime bounds the wait for a runtime that does not read its answer: spool
// and log have to be written all the same.
const answerTime = 5 * time.Second

// writeAll writes past the os package, whose files end the program with SIGPIPE
// when the runtime is gone: spool and log have to be written all the same.
func writeAll(fd int, b []byte) error {
	const atomic = 4096 // PIPE_BUF: what a pipe that is writable takes without blocking (pipe(7))
	for end := time.Now().Add(answerTime); len(b) > 0; {
		if err := ready(fd, unix.POLLOUT, end); err != nil {
			return err
		}
		n, err := unix.Write(fd, b[:min(len(b), atomic)])
		if err != nil && err != unix.EINTR && err != unix.EAGAIN {
			return err
		}
		b = b[max(0, n):]
	}
	return nil
}

// ready waits until a read or write does not block, or the time has come.
func ready(fd int, events int16, end time.Time) error {
	for {
		left := time.Until(end).Milliseconds()
		if left <= 0 {
			return fmt.Errorf("%w: the runtime's pipe", context.DeadlineExceeded)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, int(left))
		if n > 0 || err != nil && err != unix.EINTR {
			return err
		}
	}
}

var errDeaf = errors.New("it is closed, or a null device that is open to be read too")

// deafness is an error when nobody can read what is written to a standard file.
// For one that was closed Go's start opens /dev/null, to be read and written,
// which a shell's redirection does not.
func deafness(fd int) error {
	var st unix.Stat_t
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if null := unix.Mkdev(1, 3); err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == null && flags&unix.O_ACCMODE == unix.O_RDWR {
		err = errDeaf
	}
	if err != nil {
		return &fs.PathError{Op: "write", Path: "standard output", Err: err}
	}
	return nil
}
