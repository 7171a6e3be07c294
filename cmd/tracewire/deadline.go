package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// deadline is a context that ends at a time, or when we are told to stop, as
// context.WithDeadline's and signal.NotifyContext's do. But it makes its timer,
// and listens, only when somebody waits for it: either starts a thread, and most
// operations end without one.
type deadline struct {
	context.Context
	at      time.Time
	once    sync.Once
	done    chan struct{}
	stopped atomic.Bool
}

// withDeadline ends at that time, or with its parent's deadline when that is
// earlier.
func withDeadline(parent context.Context, at time.Time) *deadline {
	if d, ok := parent.Deadline(); ok && d.Before(at) {
		at = d
	}
	return &deadline{Context: parent, at: at, done: make(chan struct{})}
}

// errStopped is what ends an operation that is told to stop.
var errStopped = stopped{errors.New("told to stop by a signal")}

type stopped struct{ error }

// Is makes it a context's end.
func (stopped) Is(target error) bool { return target == context.Canceled }

var stopSignals = []os.Signal{unix.SIGTERM, unix.SIGINT}

// deaf makes signals to stop pass by: what waits for nobody is over in some
// milliseconds, and half of it would have to be taken back.
func deaf() { signal.Ignore(stopSignals...) }

// Deadline implements context.Context.
func (d *deadline) Deadline() (time.Time, bool) { return d.at, true }

// Done implements context.Context.
func (d *deadline) Done() <-chan struct{} {
	d.once.Do(func() {
		heard := make(chan os.Signal, 1)
		signal.Notify(heard, stopSignals...)
		go func() {
			select {
			case <-heard:
				d.stopped.Store(true)
			case <-time.After(time.Until(d.at)):
			}
			close(d.done)
		}()
	})
	return d.done
}

// Err implements context.Context.
func (d *deadline) Err() error {
	switch {
	case d.stopped.Load():
		return errStopped
	case time.Now().Before(d.at):
		return nil
	}
	return context.DeadlineExceeded
}
