package ship

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/trace"
	"github.com/tracewire/tracewire/trace/read"
)

// mark is how far a segment was read. A segment that was removed and made again
// has another inode, or the same with a later birth.
type mark struct {
	Inode uint64 `json:"inode"`
	Born  int64  `json:"born,omitempty"` // nanoseconds since 1970; 0 where the file system does not tell
	Seen  int64  `json:"seen"`           // bytes that the follower was handed
	Sent  int64  `json:"sent"`           // bytes that were acknowledged, or given up and counted
}

// segment is a segment as it is now.
type segment struct {
	name string
	path string
	size int64
	mark
}

// segments is the segments, oldest first, with the marks they have. Marks of
// those that are gone are forgotten. They are listed under the lock: by an older
// list a segment that came since would be gone, and its mark with it.
func (s *Spool) segments() (out []segment, err error) {
	s.marks.Lock()
	defer s.marks.Unlock()
	paths, err := read.Segments(s.Dir)
	if err != nil {
		return nil, err
	}
	there := map[string]mark{}
	for _, path := range paths {
		var st unix.Statx_t
		if unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st) != nil {
			continue
		}
		g := segment{name: filepath.Base(path), path: path, size: int64(st.Size)}
		is := mark{Inode: st.Ino, Born: st.Btime.Sec*1e9 + int64(st.Btime.Nsec)}
		if g.mark = s.marks.of[g.name]; g.Inode != is.Inode || g.Born != is.Born || max(g.Seen, g.Sent) > g.size {
			g.mark = is
		}
		there[g.name] = g.mark
		out = append(out, g)
	}
	s.marks.of = there
	return out, nil
}

// advance moves marks on, and makes that last.
func (s *Spool) advance(to map[string]mark, which func(*mark) *int64) {
	s.marks.Lock()
	defer s.marks.Unlock()
	for name, m := range to {
		now := s.marks.of[name]
		if now.Inode != m.Inode || now.Born != m.Born {
			continue // it is another one by now
		}
		*which(&now) = *which(&m)
		s.marks.of[name] = now
	}
	s.saved(s.place.save(s.marks.of))
}

func seen(m *mark) *int64 { return &m.Seen }
func sent(m *mark) *int64 { return &m.Sent }

// over tells that nobody writes to a segment any more: its minute is over, or has
// the name of a clock that was ahead.
func (s *Spool) over(name string) bool {
	return name < trace.Segment(s.Now())+trace.SegmentSuffix || trace.Ahead(name, s.Now())
}

// batch is lines that were read, and the marks behind them.
type batch struct {
	lines [][]byte
	torn  int
	marks map[string]mark
}

func (b batch) empty() bool { return len(b.marks) == 0 }

// next reads the next lines of the spool: maxBatch bytes, or the one line more that
// begins before them.
func (s *Spool) next(which func(*mark) *int64) (b batch, err error) {
	segments, err := s.segments()
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil // not made yet, or removed with its node's state
	}
	b.marks = map[string]mark{}
	room := int64(maxBatch)
	for _, g := range segments {
		if at := *which(&g.mark); err != nil || room <= 0 || at >= g.size {
			continue
		}
		var n int64
		n, err = s.read(g, which, int(room), &b)
		room -= n
	}
	return b, err
}

// read adds the next lines of a segment to a batch: n bytes.
func (s *Spool) read(g segment, which func(*mark) *int64, room int, b *batch) (n int64, err error) {
	f, err := read.Open(g.path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	at := which(&g.mark)
	chunk, skipped, err := read.Chunk(f, *at, room)
	if err != nil {
		return 0, err
	}
	if len(chunk) == 0 && skipped == 0 {
		if chunk, err = s.tail(f, g, *at); err != nil || len(chunk) == 0 {
			return 0, err
		}
	}
	if skipped > 0 {
		b.torn++
	}
	for line := range bytes.Lines(chunk) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			b.lines = append(b.lines, line)
		}
	}
	n = int64(len(chunk)) + skipped
	*at += n
	b.marks[g.name] = g.mark
	return n, nil
}

// tail is what stands behind the last line feed of a segment, once nobody can be
// writing it: its writer was killed, or the disk was full.
func (s *Spool) tail(f *os.File, g segment, at int64) ([]byte, error) {
	if !s.over(g.name) || !quiet(f, g.size) {
		return nil, nil
	}
	b := make([]byte, min(g.size-at, read.MaxLine))
	n, err := f.ReadAt(b, at)
	if n < len(b) {
		return nil, err
	}
	return b, nil
}

// quiet tells that a segment has a size, and that nobody was writing to it just
// now. Who comes later ends what is torn before it writes. The lock is let go at
// once: a writer that is refused it takes the segment for removed.
func quiet(f *os.File, size int64) bool {
	fd := int(f.Fd())
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	_ = unix.Flock(fd, unix.LOCK_UN)
	return err == nil && st.Size == size
}
