package ship

import (
	"context"
	"errors"
	"io/fs"
	"time"
)

// poll is how often is looked for new lines.
const poll = time.Second

// flushTime bounds what is still sent once the agent has to stop.
const flushTime = 5 * time.Second

// lingering returns a context that ends flushTime after ctx.
func lingering(ctx context.Context) (context.Context, context.CancelFunc) {
	last, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(flushTime, cancel)
		context.AfterFunc(last, func() { t.Stop() })
	})
	return last, func() { stop(); cancel() }
}

// ticks calls do at once and then at each tick, until ctx ends.
func ticks(ctx context.Context, every time.Duration, do func()) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		do()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// wait opens what may have to be made yet. It returns false when ctx ends before.
func (s *sending) wait(ctx context.Context, open func() error) bool {
	told := ""
	for {
		err := open()
		if err == nil {
			s.complain(nil, &told)
			return true
		}
		if !errors.Is(err, fs.ErrNotExist) {
			s.complain(err, &told)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(poll):
		}
	}
}

// complain tells of an error that stays, once, and that nothing gets through
// while it does.
func (s *sending) complain(err error, told *string) {
	text := ""
	if err != nil && !errors.Is(err, ErrLeft) && !errors.Is(err, context.Canceled) {
		text = err.Error()
	}
	switch {
	case text != "":
		s.stuck(text)
	case err == nil && *told != "":
		s.count(func(st *Stats) { st.Since = time.Time{} })
	}
	if text != *told && text != "" {
		s.Log.Warn().Err(err).Msg("is tried again")
	}
	*told = text
}

// Source is what can be shipped: a Spool or a Log.
type Source interface {
	// Open takes it for this agent. One that was never written to is an
	// fs.ErrNotExist.
	Open() error
	Close()
	// Ship sends the next lines. It returns false when there are none.
	Ship(ctx context.Context) (more bool, err error)
	// Tidy removes what was sent and is not wanted any more.
	Tidy() error
	// Run does all of that until ctx ends.
	Run(ctx context.Context)
	// Left says what was not sent yet.
	Left() string
}

// Drain ships all that is there.
func Drain(ctx context.Context, s Source) error {
	for {
		if more, err := s.Ship(ctx); err != nil || !more {
			return err
		}
	}
}

// run ships what is there and what comes, until ctx ends, and then what is left,
// for flushTime at most. What is not there yet is waited for.
func (s *sending) run(ctx context.Context, from Source, beside func(context.Context)) {
	if !s.wait(ctx, from.Open) {
		return
	}
	defer from.Close()
	last, cancel := lingering(ctx)
	defer cancel()
	s.stop = ctx.Done()
	done := make(chan struct{})
	go func() { defer close(done); beside(ctx) }()
	told := ""
	ticks(ctx, poll, func() { s.complain(errors.Join(Drain(last, from), from.Tidy()), &told) })
	s.complain(Drain(last, from), &told)
	<-done
}

// Run ships the spool until ctx ends. A spool that is not there yet is waited for.
func (s *Spool) Run(ctx context.Context) { s.run(ctx, s, s.follow) }

// Run ships the log until ctx ends. A log that is not there yet is waited for.
func (l *Log) Run(ctx context.Context) {
	l.run(ctx, l, func(context.Context) {})
}

// follow hands lines to Each until ctx ends.
func (s *Spool) follow(ctx context.Context) {
	if s.Each == nil {
		return
	}
	told := ""
	ticks(ctx, poll, func() { s.complain(s.See(), &told) })
}
