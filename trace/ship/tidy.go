package ship

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/trace"
	"github.com/tracewire/tracewire/trace/read"
)

// keep is how long segments stay after they were acknowledged, for those who
// look for a trace on the node.
const keep = time.Hour

// Tidy removes segments that were acknowledged to their end: those of more than
// an hour ago, and the oldest while the spool has three quarters of its budget.
// At the whole of it the plugin would drop them as if they had never been sent.
func (s *Spool) Tidy() error {
	segments, err := s.segments()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	total := int64(0)
	for _, g := range segments {
		total += g.size
	}
	for _, g := range segments {
		old := g.name < trace.Segment(s.Now().Add(-keep))+trace.SegmentSuffix || trace.Ahead(g.name, s.Now())
		much := s.MaxBytes > 0 && total > s.MaxBytes/4*3
		done := g.Sent == g.size && (s.Each == nil || g.Seen == g.size)
		if !s.over(g.name) || !done || !old && !much {
			continue
		}
		if remove(g) {
			total -= g.size
		}
	}
	return err
}

// remove removes a segment, unless somebody writes to it, or it is not what was
// acknowledged any more.
func remove(g segment) bool {
	f, err := read.Open(g.path)
	if err != nil {
		return false
	}
	defer f.Close()
	var st unix.Stat_t
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil &&
		unix.Fstat(int(f.Fd()), &st) == nil && st.Ino == g.Inode && st.Size == g.Sent && st.Nlink > 0 &&
		unix.Unlink(g.path) == nil
}

// Left says what was not sent yet.
func (s *Spool) Left() string {
	all, _ := s.segments()
	total, segments := int64(0), 0
	for _, g := range all {
		if left := g.size - g.Sent; left > 0 {
			total, segments = total+left, segments+1
		}
	}
	return fmt.Sprintf("%s: %d bytes in %d segments are left", s.Dir, total, segments)
}
