// Package lock waits a bounded time for a kernel lock and names its holder.
// A lock file's presence or content means nothing: only the kernel's lock does.
package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Patience bounds every wait for a lock, also where ctx would go on.
const Patience = 10 * time.Second

// Held is the error of a wait that ended without the lock.
type Held struct {
	What string // what is locked: a path, an attachment
	PID  int    // of the holder, 0 when it could not be told
	Why  error  // who waited was told to stop; nil where the time was over
}

// held is the error of a wait that ctx or its own bound ended.
func held(ctx context.Context, what string, pid int) *Held {
	h := &Held{What: what, PID: pid}
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		h.Why = err
	}
	return h
}

// Unwrap is the cause, where there is one.
func (h *Held) Unwrap() error { return h.Why }

// Error names the holder, and its program where it can be read. That we were told
// to stop stands before it.
func (h *Held) Error() string {
	text := h.What + " is locked by another process"
	if h.PID != 0 {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", h.PID))
		text = fmt.Sprintf("%s is locked by process %d (%s)", h.What, h.PID, strings.TrimSpace(string(comm)))
	}
	if h.Why != nil {
		return fmt.Sprintf("%v while %s", h.Why, text)
	}
	return text
}

// Ranges locks keys by POSIX byte-range locks on one file that is never
// removed (fcntl(2), F_SETLKW). The kernel drops them with the process, and no
// child inherits them. Closing any descriptor of the file drops all of them,
// so one process opens it once.
type Ranges struct {
	fd   int
	path string
	mu   sync.Mutex
	busy map[int64]chan struct{} // closed when the key's holder in this process is done
}

// OpenRanges opens the lock file, and makes it where it is missing.
func OpenRanges(path string) (*Ranges, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return &Ranges{fd: fd, path: path, busy: map[int64]chan struct{}{}}, nil
}

// Close drops every lock taken through r.
func (r *Ranges) Close() error { return unix.Close(r.fd) }

// Lock takes the key's lock, alone, or returns a *Held when ctx ends first.
func (r *Ranges) Lock(ctx context.Context, key string) (unlock func(), err error) {
	return r.take(ctx, key, unix.F_WRLCK)
}

// Share takes the key's lock beside other processes that share it.
func (r *Ranges) Share(ctx context.Context, key string) (unlock func(), err error) {
	return r.take(ctx, key, unix.F_RDLCK)
}

func (r *Ranges) take(ctx context.Context, key string, kind int16) (unlock func(), err error) {
	off := offset(key)
	done, err := r.enter(ctx, key, kind, off)
	if err != nil {
		return nil, err
	}
	leave := func() {
		_ = r.try(unix.F_UNLCK, off)
		r.mu.Lock()
		delete(r.busy, off)
		r.mu.Unlock()
		close(done)
	}
	err = r.try(kind, off)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return r.queue(ctx, key, kind, leave)
	}
	if err != nil {
		leave()
		return nil, &os.PathError{Op: "lock", Path: r.path, Err: err}
	}
	return leave, nil
}

// queue waits in the kernel's queue.
func (r *Ranges) queue(ctx context.Context, key string, kind int16, leave func()) (unlock func(), err error) {
	off := offset(key)
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	got := make(chan error, 1)
	go func() { got <- r.wait(kind, off); close(got) }()
	select {
	case err := <-got:
		if err != nil {
			leave()
			return nil, &os.PathError{Op: "lock", Path: r.path, Err: err}
		}
		return leave, nil
	case <-ctx.Done():
		// The kernel cannot be told to stop waiting: a lock granted late is given back.
		go late(got, leave)
		return nil, held(ctx, key, r.holder(kind, off))
	}
}

// enter waits for the key's turn within this process: for the kernel, all of
// a process's threads are one holder. Whose turn does not come has another process
// to blame where that has the lock: an earlier wait of ours may still stand before.
func (r *Ranges) enter(ctx context.Context, key string, kind int16, off int64) (chan struct{}, error) {
	for {
		r.mu.Lock()
		before := r.busy[off]
		if before == nil {
			done := make(chan struct{})
			r.busy[off] = done
			r.mu.Unlock()
			return done, nil
		}
		r.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return nil, held(ctx, key, cmp.Or(r.holder(kind, off), os.Getpid()))
		}
	}
}

func (r *Ranges) flock(kind int16, off int64) *unix.Flock_t {
	return &unix.Flock_t{Type: kind, Whence: 0, Start: off, Len: 1}
}

func (r *Ranges) try(kind int16, off int64) error {
	return unix.FcntlFlock(uintptr(r.fd), unix.F_SETLK, r.flock(kind, off))
}

func (r *Ranges) wait(kind int16, off int64) error {
	for {
		err := unix.FcntlFlock(uintptr(r.fd), unix.F_SETLKW, r.flock(kind, off))
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (r *Ranges) holder(kind int16, off int64) int {
	l := r.flock(kind, off)
	if unix.FcntlFlock(uintptr(r.fd), unix.F_GETLK, l) != nil || l.Type == unix.F_UNLCK {
		return 0
	}
	return int(l.Pid)
}

// offset is the byte that stands for a key. Two keys that share one wait for
// each other for nothing; no more.
func offset(key string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	return int64(h.Sum64() >> 2)
}
