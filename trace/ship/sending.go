package ship

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/rs/zerolog"
)

// maxPause bounds the time between two requests in seconds, unless the collector
// asks for a longer one; that is bounded by maxAfter.
const (
	maxPause = 15 * time.Second
	maxAfter = time.Hour
)

// ErrLeft marks that something is left that could not be sent.
var ErrLeft = errors.New("collector does not take it")

// sending sends one thing after the other, and counts. Its zero value waits for
// a collector for as long as ctx lets it.
type sending struct {
	Log   zerolog.Logger
	Pause func(ctx context.Context, d time.Duration) error // nil: waits
	// Once gives up at the first request that has to be sent again.
	Once bool

	stop <-chan struct{} // when it is closed, Once counts from then on

	pending Stats // what became of what Ship has in hand
	mu      sync.Mutex
	stats   Stats
}

// count changes the stats.
func (s *sending) count(do func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(&s.stats)
}

// saved counts whether it can be kept how far was sent. Where it cannot, the
// sending goes on all the same: another start sends more than once, and the same.
func (s *sending) saved(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if was := s.Stats().Unsaved; text != "" && text != was {
		s.Log.Warn().Err(err).Msg("another start will send again what was sent")
	}
	s.count(func(st *Stats) { st.Unsaved = text })
}

// Stats is what became of what was read by now.
func (s *sending) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// try sends until there is an answer that is not to send again. The error is
// ctx's, or ErrLeft.
func (s *sending) try(ctx context.Context, send func(context.Context) Answer) (Answer, error) {
	b := backoff.NewExponentialBackOff() // jittered
	b.MaxInterval = maxPause
	for {
		a := send(ctx)
		if a.Verdict != Retry {
			s.count(func(st *Stats) { st.Since = time.Time{} })
			return a, nil
		}
		s.failed(a)
		if err := s.pause(ctx, max(b.NextBackOff(), min(a.After, maxAfter))); err != nil {
			return a, fmt.Errorf("%w: %s", err, a.Text)
		}
	}
}

// failed counts a request that has to be sent again, and tells of the first.
func (s *sending) failed(a Answer) {
	s.count(func(st *Stats) { st.Failures++ })
	if s.stuck(a.Text) {
		s.Log.Warn().Str("error", a.Text).Msg("collector takes nothing: nothing is lost while the budget lasts")
	}
}

// stuck writes down why nothing gets through. It tells whether something did
// before.
func (s *sending) stuck(why string) (first bool) {
	s.count(func(st *Stats) {
		first = st.Since.IsZero()
		st.LastError = why
		if first {
			st.Since = time.Now()
		}
	})
	return first
}

func (s *sending) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-s.stop:
		return ErrLeft
	default:
	}
	if s.Once {
		return ErrLeft
	}
	if s.Pause != nil {
		return s.Pause(ctx, d)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stop:
		return ErrLeft
	case <-t.C:
		return nil
	}
}

// settled counts what became of what Ship had in hand. What is sent again,
// because a part of it could not be sent, counts once.
func (s *sending) settled() {
	s.count(func(st *Stats) { *st = st.Plus(s.pending) })
	s.pending = Stats{}
}

// settle notes what became of n spans or records that were answered for good.
func (s *sending) settle(a Answer, n int) {
	if a.Verdict == Accepted {
		lost := uint64(max(0, min(a.Rejected, int64(n))))
		s.pending.Sent += uint64(n) - lost
		s.pending.Rejected += lost
		if lost > 0 || a.Text != "" {
			s.Log.Warn().Uint64("rejected", lost).Str("error", a.Text).Msg("collector took a part")
		}
		return
	}
	s.pending.Dropped += uint64(n)
	s.count(func(st *Stats) { st.LastError = a.Text })
	s.Log.Error().Int("dropped", n).Str("error", a.Text).Msg("collector refuses for good")
}
