package main

import (
	"context"
	"sync"
	"time"
)

// deadline is a context that ends at a time, as context.WithDeadline's does,
// but makes its timer only when somebody waits for it: a timer starts a thread,
// and most operations end without one.
type deadline struct {
	context.Context
	at   time.Time
	once sync.Once
	done chan struct{}
}

// withDeadline ends at that time, or with its parent's deadline when that is
// earlier.
func withDeadline(parent context.Context, at time.Time) *deadline {
	if d, ok := parent.Deadline(); ok && d.Before(at) {
		at = d
	}
	return &deadline{Context: parent, at: at, done: make(chan struct{})}
}

// Deadline implements context.Context.
func (d *deadline) Deadline() (time.Time, bool) { return d.at, true }

// Done implements context.Context.
func (d *deadline) Done() <-chan struct{} {
	d.once.Do(func() { time.AfterFunc(time.Until(d.at), func() { close(d.done) }) })
	return d.done
}

// Err implements context.Context.
func (d *deadline) Err() error {
	if time.Now().Before(d.at) {
		return nil
	}
	return context.DeadlineExceeded
}
