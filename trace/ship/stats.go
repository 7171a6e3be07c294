package ship

import "time"

// Stats is what became of what was read, since the agent started.
type Stats struct {
	Sent      uint64 // spans, or log records, that the collector took
	Rejected  uint64 // those that it did not take of a request that it took
	Dropped   uint64 // those of requests that it refused for good
	Unsampled uint64 // those that the policy keeps here
	Broken    uint64 // lines that cannot be read
	Failures  uint64 // requests that have to be sent again

	Oldest    time.Time // of the first that is waiting to be sent; zero for none
	LastError string    // why something last did not get through; stays when all is well again
	Since     time.Time // since when nothing gets through; zero while it does
	Unsaved   string    // why it cannot be kept how far was sent; empty while it can
}

// Lag is the age of the oldest that is waiting to be sent, 0 for none.
func (s Stats) Lag(now time.Time) time.Duration {
	if s.Oldest.IsZero() {
		return 0
	}
	return max(0, now.Sub(s.Oldest))
}

// Plus is the stats of both.
func (s Stats) Plus(o Stats) Stats {
	s.Sent += o.Sent
	s.Rejected += o.Rejected
	s.Dropped += o.Dropped
	s.Unsampled += o.Unsampled
	s.Broken += o.Broken
	s.Failures += o.Failures
	s.Oldest, s.Since = earlier(s.Oldest, o.Oldest), earlier(s.Since, o.Since)
	if s.Unsaved == "" {
		s.Unsaved = o.Unsaved
	}
	if s.LastError == "" {
		s.LastError = o.LastError
	}
	return s
}

// earlier is the earlier one of those that are not zero.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
