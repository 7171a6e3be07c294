package read

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Place is how far a log was read. A file is known by how it begins: it may be
// renamed, or copied and cut short, and the copy begins as the file did.
type Place struct {
	Head   string `json:"head"`   // its first bytes, maxHead at most
	Offset int64  `json:"offset"` // bytes that were read
}

// maxHead is enough for the time and the ids of a file's first line.
const maxHead = 256

// Tail reads a log that grows and is rotated, by renaming or by copying and
// truncating: each line once, as long as the rotated file can be read.
type Tail struct {
	Path string
	// Place is where to read on. The zero Place is the beginning of the file that
	// was rotated last, Path.1, where there is one.
	Place Place

	f     *os.File
	begun bool      // something was read already
	quiet time.Time // since when the file has lost its name
}

// Close closes the file in hand.
func (t *Tail) Close() { t.become(nil, t.Place) }

// Rewind has Next begin again at a place where it was before.
func (t *Tail) Rewind(to Place) {
	t.become(nil, to)
	t.begun = t.begun && to != Place{}
}

// become goes on with another file, or with none.
func (t *Tail) become(f *os.File, at Place) {
	if t.f != nil {
		_ = t.f.Close()
	}
	t.f, t.Place, t.quiet = f, at, time.Time{}
	t.begun = t.begun || f != nil
}

// Next is the next whole lines, room bytes at most or one line; none where
// nothing was appended. Place is behind them. What is passed over is counted in
// torn: lines longer than MaxLine, and what stands behind the last line feed of
// a file that nobody writes to any more.
func (t *Tail) Next(room int) (chunk []byte, torn int, err error) {
	for {
		if t.f == nil {
			if err := t.find(); t.f == nil {
				return nil, torn, err
			}
		}
		chunk, skipped, err := t.read(room)
		if errors.Is(err, errCut) {
			t.copied()
			continue
		}
		if err != nil || len(chunk) > 0 {
			return chunk, torn, err
		}
		if skipped {
			torn++
			continue
		}
		if !t.left() {
			return nil, torn, nil
		}
		// Whoever had it open has written by now.
		if chunk, _, err = t.read(room); err != nil || len(chunk) > 0 {
			return chunk, torn, err
		}
		unended := false
		if info, err := t.f.Stat(); err == nil {
			unended = info.Size() > t.Place.Offset
		}
		if !t.turn() {
			return nil, torn, nil
		}
		if unended {
			torn++
		}
	}
}

// errCut marks a file that is not the one that was read before: it was cut
// short, and may have grown again.
var errCut = errors.New("file was cut short")

// read reads on in the file, and moves Place.
func (t *Tail) read(room int) (chunk []byte, skipped bool, err error) {
	if t.Place.Head == "" {
		if t.Place.Head, _ = look(t.f); t.Place.Head == "" {
			return nil, false, nil
		}
	}
	chunk, over, err := Chunk(t.f, t.Place.Offset, room)
	if err != nil {
		return nil, false, err
	}
	to := t.Place.Offset + int64(len(chunk)) + over
	// Looked at behind the reading: what was read before a cut is good.
	head, size := look(t.f)
	if size < to || !strings.HasPrefix(head, t.Place.Head) {
		return nil, false, errCut
	}
	t.Place = Place{Head: head, Offset: to}
	return chunk, over > 0, nil
}

// look is how a file begins, and its size in bytes. It reads until it has the same
// twice: a file may be cut short, and grow again, in the midst of a read.
func look(f *os.File) (head string, size int64) {
	b := make([]byte, maxHead)
	for before := "-"; ; before = head {
		n, err := f.ReadAt(b, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return "", 0
		}
		if head = string(b[:n]); head == before {
			break
		}
	}
	info, err := f.Stat()
	if err != nil {
		return "", 0
	}
	return head, info.Size()
}

// copied goes on in the copy that was made of the file before it was cut short,
// else at the file's beginning.
func (t *Tail) copied() {
	at, all := t.Place, t.files()
	t.become(nil, at)
	if i := resumed(all, at); i >= 0 {
		t.take(all, i, at)
		return
	}
	t.take(all, t.named(all, t.Path), Place{})
}

// find finds the file to read on in: the one that begins as Place says. Where
// that is gone all others are newer, and it is the oldest.
func (t *Tail) find() error {
	at, all := t.Place, t.files()
	i := resumed(all, at)
	switch {
	case i >= 0:
	case t.begun:
		i, at = t.named(all, t.Path), Place{}
	case at == Place{}:
		if i = t.named(all, t.Path+rotated); i < 0 {
			i = t.named(all, t.Path)
		}
	default:
		i, at = min(0, len(all)-1), Place{}
	}
	t.take(all, i, at)
	if t.f != nil {
		return nil
	}
	f, err := open(t.Path) // to tell why
	if err == nil {
		_ = f.Close() // it came this moment
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// logFile is a file of the log as it was when it was opened.
type logFile struct {
	*os.File
	head string
	size int64 // bytes
}

// take goes on with one of some files, if i is not negative, and closes the others.
func (t *Tail) take(all []logFile, i int, at Place) {
	for n, f := range all {
		if n == i {
			t.become(f.File, at)
			continue
		}
		f.Close()
	}
}

// named is the place among files of the one that has a name, -1 for none.
func (t *Tail) named(all []logFile, path string) int {
	return slices.IndexFunc(all, func(f logFile) bool { return f.Name() == path })
}

// resumed is the newest file that begins as a place says, and is long enough;
// -1 for none.
func resumed(all []logFile, at Place) int {
	for i, f := range slices.Backward(all) {
		if at.Head != "" && strings.HasPrefix(f.head, at.Head) && f.size >= at.Offset {
			return i
		}
	}
	return -1
}

// files opens the files that the log was rotated to, oldest first, and the log
// last, as they are at one moment; none where they are renamed all the time.
func (t *Tail) files() []logFile {
	for range 10 {
		var all []logFile
		names := t.names()
		for _, name := range names {
			if f, err := open(name); err == nil {
				all = append(all, logFile{File: f})
			}
		}
		slices.SortStableFunc(all, t.order)
		for i := len(all) - 1; i >= 0; i-- { // a file is copied before it is cut short
			all[i].head, all[i].size = look(all[i].File)
		}
		if slices.Equal(names, t.names()) && !slices.ContainsFunc(all, renamed) {
			return all
		}
		t.take(all, -1, Place{})
	}
	return nil
}

// order is which of two files is older: by log.N, else by when they were written
// last. The log itself is the newest.
func (t *Tail) order(a, b logFile) int {
	n, errN := strconv.Atoi(strings.TrimPrefix(a.Name(), t.Path+"."))
	m, errM := strconv.Atoi(strings.TrimPrefix(b.Name(), t.Path+"."))
	infoA, errA := a.Stat()
	infoB, errB := b.Stat()
	switch {
	case a.Name() == t.Path:
		return 1
	case b.Name() == t.Path:
		return -1
	case errN == nil && errM == nil:
		return cmp.Compare(m, n)
	case errA != nil || errB != nil:
		return 0
	}
	return infoA.ModTime().Compare(infoB.ModTime())
}

// renamed tells that a file has another name than it was opened by.
func renamed(f logFile) bool {
	now, err := os.Stat(f.Name())
	own, errOwn := f.Stat()
	return err != nil || errOwn != nil || !os.SameFile(now, own)
}

// compressed ends the names of files that are not read.
var compressed = []string{".gz", ".xz", ".zst", ".bz2"}

// names is the paths of the log and of what it was rotated to.
func (t *Tail) names() (paths []string) {
	entries, _ := os.ReadDir(filepath.Dir(t.Path))
	for _, e := range entries {
		suffix, ours := strings.CutPrefix(e.Name(), filepath.Base(t.Path))
		if ours && e.Type().IsRegular() && (suffix == "" || strings.ContainsAny(suffix[:1], ".-")) &&
			!slices.Contains(compressed, filepath.Ext(suffix)) {
			paths = append(paths, filepath.Join(filepath.Dir(t.Path), e.Name()))
		}
	}
	return paths
}

// grace is how long a file without its name is read on where it cannot be told
// that nobody has it open.
const grace = 2 * time.Second

// left tells that the file in hand is not the log any more, and that nobody will
// write to it.
func (t *Tail) left() bool {
	now, err := os.Stat(t.Path)
	own, errOwn := t.f.Stat()
	if errOwn != nil || err == nil && os.SameFile(now, own) {
		return false
	}
	// The kernel gives a lease to read only while nobody has the file open to write
	// (fcntl(2)). Nobody opens it any more: its name is another file's.
	_, err = unix.FcntlInt(t.f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, _ = unix.FcntlInt(t.f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
		return true
	}
	if errors.Is(err, unix.EAGAIN) {
		return false
	}
	if t.quiet.IsZero() {
		t.quiet = time.Now()
	}
	return time.Since(t.quiet) > grace
}

// turn goes on with the file that came after the one in hand, if there is one that
// has something by now: an empty one could be cut short again without a trace.
func (t *Tail) turn() bool {
	own, err := t.f.Stat()
	all := t.files()
	next := t.named(all, t.Path)
	for i, f := range all {
		if info, errInfo := f.Stat(); err == nil && errInfo == nil && os.SameFile(info, own) {
			next = i + 1
		}
	}
	for ; next >= 0 && next < len(all); next++ {
		if head := all[next].head; head != "" {
			t.take(all, next, Place{Head: head})
			return true
		}
	}
	t.take(all, -1, Place{})
	return false
}
