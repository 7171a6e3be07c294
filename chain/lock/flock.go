package lock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Flock takes the file's flock(2), alone, or returns a *Held when ctx ends
// first. It makes the file where it is missing and never removes it: a lock on
// a removed file would exclude nobody who comes later. The lock goes with its
// descriptor, so it also keeps apart two callers in one process.
func Flock(ctx context.Context, path string) (unlock func(), err error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, unix.EROFS) { // one that is there can be taken all the same
		if there, errThere := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); errThere == nil {
			fd, err = there, nil
		}
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	drop := func() { _ = unix.Close(fd) }
	err = flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return flockWait(ctx, fd, path)
	}
	if err != nil {
		drop()
		return nil, &os.PathError{Op: "flock", Path: path, Err: err}
	}
	return drop, nil
}

// flockWait waits in the kernel's queue, so that nobody is overtaken for ever.
func flockWait(ctx context.Context, fd int, path string) (unlock func(), err error) {
	drop := func() { _ = unix.Close(fd) }
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	got := make(chan error, 1)
	go func() { got <- flock(fd, unix.LOCK_EX); close(got) }()
	select {
	case err := <-got:
		if err != nil {
			drop()
			return nil, &os.PathError{Op: "flock", Path: path, Err: err}
		}
		return drop, nil
	case <-ctx.Done():
		h := held(ctx, path, flockHolder(fd))
		// The kernel cannot be told to stop waiting: a lock granted late is given back.
		go late(got, drop)
		return nil, h
	}
}

// late drops the lock once the wait for it is over, however it ended.
func late(got <-chan error, drop func()) {
	for range got {
		drop()
	}
}

func flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// flockHolder is the process that holds the file's flock, 0 when it cannot be
// told: one of another pid namespace is not shown to us.
func flockHolder(fd int) int {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0
	}
	table, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	return holderIn(string(table), file)
}

// holderIn looks a file up in the text of /proc/locks (proc_locks(5)):
//
//	1: FLOCK  ADVISORY  WRITE 4711 fd:01:393217 0 EOF
//	1: -> FLOCK  ADVISORY  WRITE 4712 fd:01:393217 0 EOF
//
// A line with an arrow is of one who waits.
func holderIn(table, file string) int {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || !slices.Contains(f[5:], file) {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 {
			return pid
		}
	}
	return 0
}
