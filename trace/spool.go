package trace

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"golang.org/x/sys/unix"
)

// Counters of this boot: files whose size in bytes is a number.
const (
	DroppedPath = "/run/tracewire/dropped" // operations, segments and rotated logs that were lost
	PolledPath  = "/run/tracewire/polled"  // STATUS operations, most of which leave nothing else
)

// SegmentSuffix ends the name of every segment.
const SegmentSuffix = ".jsonl"

// Spool is the folder of segments: OTLP/JSON lines, one segment a minute.
type Spool struct {
	Dir      string
	MaxBytes int64 // budget of the folder; 0 turns the spool off
	Closed   error // why nothing may be written or looked for there; nil where it may
}

// segmentName is the layout of a segment's name.
const segmentName = "20060102T1504Z"

// Segment is the name of the segment of a time, without its suffix. Names sort as times do.
func Segment(t time.Time) string { return t.UTC().Format(segmentName) }

// Ahead tells that a segment, whose file is called name, is of a clock that was
// ahead: nobody writes to it now.
func Ahead(name string, now time.Time) bool {
	at, err := time.Parse(segmentName+SegmentSuffix, name)
	return err == nil && at.After(now.Add(2*time.Minute))
}

// Write appends the recorder's spans to the segment of this minute, in one
// write. It waits for nobody.
func (s Spool) Write(r *Recorder, resource []attribute.KeyValue) error {
	if s.MaxBytes == 0 {
		return nil
	}
	if s.Closed != nil {
		return s.Closed
	}
	name := Segment(r.now())
	// The segment comes first: a Collector knows a file again by its first bytes.
	line := r.OTLP(append([]attribute.KeyValue{keySegment.String(name)}, resource...))
	path := filepath.Join(s.Dir, name+SegmentSuffix)
	for range 3 {
		created, err := appendSegment(path, line)
		if created {
			s.enforce(name+SegmentSuffix, r.now())
		}
		if !errors.Is(err, errUnlinked) {
			return err
		}
	}
	return &fs.PathError{Op: "append", Path: path, Err: errUnlinked}
}

// errUnlinked tells that somebody removed the file while it was open.
var errUnlinked = errors.New("file was removed meanwhile")

// named is errUnlinked for a file that has no name any more.
func named(fd int) error {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Nlink == 0 {
		return errUnlinked
	}
	return nil
}

func appendSegment(path string, line []byte) (created bool, err error) {
	f, err := openAppend(path, 0o700)
	if err != nil {
		return false, err
	}
	fd, created := f.fd, f.created
	defer unix.Close(fd)
	// A reader removes a segment only under the exclusive lock. It holds it for
	// that alone, so a refusal means that the name is about to go.
	if unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) != nil {
		return false, errUnlinked
	}
	if err := writeLine(fd, path, line); err != nil {
		return created, err
	}
	// The name may have gone between opening and locking.
	err = named(fd)
	return created && err == nil, err
}

// opened is a file of lines that was opened.
type opened struct {
	fd      int
	created bool
	unix.Stat_t
}

// openAppend opens a file of lines, and makes it and its folders where they
// are missing. A symbolic link is refused: another user may have planted it.
// A file of the os package would bring the poller with it, for one write.
func openAppend(path string, dirMode os.FileMode) (f opened, err error) {
	const flags = unix.O_RDWR | unix.O_APPEND | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	f.fd, err = unix.Open(path, flags, 0)
	if errors.Is(err, unix.ENOENT) {
		f.created = true
		f.fd, err = unix.Open(path, flags|unix.O_CREAT, 0o640)
	}
	if errors.Is(err, unix.ENOENT) {
		if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
			return f, err
		}
		f.fd, err = unix.Open(path, flags|unix.O_CREAT, 0o640)
	}
	if err == nil && (unix.Fstat(f.fd, &f.Stat_t) != nil || f.Mode&unix.S_IFMT != unix.S_IFREG) {
		_ = unix.Close(f.fd)
		err = unix.ENXIO
	}
	if err != nil {
		return f, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return f, nil
}

// writeLine writes once. A line that a full disk tore is ended before the next
// begins, so that it spoils no other.
func writeLine(fd int, path string, line []byte) error {
	if torn(fd) {
		line = append([]byte{'\n'}, line...)
	}
	n, err := unix.Write(fd, line)
	if err == nil && n < len(line) {
		err = unix.ENOSPC
	}
	if err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// torn tells that a file's last line has no end, and that nobody is writing it
// right now.
func torn(fd int) bool {
	var st unix.Stat_t
	var last [1]byte
	for size := int64(-1); ; size = st.Size {
		if unix.Fstat(fd, &st) != nil || st.Size == 0 {
			return false
		}
		if n, _ := unix.Pread(fd, last[:], st.Size-1); n != 1 || last[0] == '\n' {
			return false
		}
		if st.Size == size {
			return true
		}
	}
}

// enforce removes the oldest segments until the folder is within its budget.
func (s Spool) enforce(current string, now time.Time) {
	entries, _ := os.ReadDir(s.Dir)
	var total int64
	var names []string
	size := map[string]int64{}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.Type().IsRegular() || !strings.HasSuffix(e.Name(), SegmentSuffix) {
			continue
		}
		names, size[e.Name()] = append(names, e.Name()), info.Size()
		total += info.Size()
	}
	slices.Sort(names)
	// What a clock that was ahead has named is nobody's minute: it goes first.
	slices.SortStableFunc(names, func(a, b string) int { return first(Ahead(a, now), Ahead(b, now)) })
	for _, n := range names {
		if total <= s.MaxBytes || n == current {
			return
		}
		if drop(filepath.Join(s.Dir, n)) {
			total -= size[n]
			Count(DroppedPath)
		}
	}
}

// first orders what is true before what is not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// drop removes a segment, unless somebody writes to it or reads it now.
func drop(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil && unix.Unlink(path) == nil
}

// Count adds one to a counter. It never fails: there is nobody left to tell.
func Count(path string) {
	f, err := openAppend(path, 0o755)
	if err != nil {
		return
	}
	_, _ = unix.Write(f.fd, []byte{'.'})
	_ = unix.Close(f.fd)
}
