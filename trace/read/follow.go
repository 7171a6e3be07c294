package read

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"
)

// Follow hands on the operations that a log and its path.1 tell of by now, none
// too, and then the new ones each time some were appended, until ctx ends. The
// log may be rotated, by renaming or by truncating, and may come to be later.
func Follow(ctx context.Context, path string, every time.Duration, each func([]Entry)) error {
	files, err := rotation(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	t := tail{path: path}
	defer func() { t.become(nil) }()
	for _, f := range files {
		t.become(f)
		t.drain()
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	t.catchUp()
	for each(t.take()); t.wait(ctx, tick.C); {
		each(t.take())
	}
	return nil
}

// tail reads a log as it grows.
type tail struct {
	path  string
	f     *os.File // nil while there is none
	at    int64    // read so far
	rest  []byte   // a line whose end is not written yet
	found []Entry
}

// wait looks at the log at each tick until operations were appended; false
// when ctx ends before.
func (t *tail) wait(ctx context.Context, tick <-chan time.Time) bool {
	for len(t.found) == 0 {
		select {
		case <-ctx.Done():
			return false
		case <-tick:
			t.catchUp()
		}
	}
	return true
}

// catchUp reads all that is there by now.
func (t *tail) catchUp() {
	for t.drain(); t.turned(); {
		t.drain()
	}
}

// take is what was found since the last take.
func (t *tail) take() []Entry {
	found := t.found
	t.found = nil
	return found
}

// become goes on with another file, or with none.
func (t *tail) become(f *os.File) {
	if t.f != nil {
		_ = t.f.Close()
	}
	t.f, t.at, t.rest = f, 0, nil
}

// drain reads to the end of the file. Whole lines are counted as read, also
// those that make no sense.
func (t *tail) drain() {
	if t.f == nil {
		return
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := t.f.ReadAt(buf, t.at)
		t.at += int64(n)
		t.rest = append(t.rest, buf[:n]...)
		if end := bytes.LastIndexByte(t.rest, '\n') + 1; end > 0 {
			_, _ = entries(bytes.NewReader(t.rest[:end]), func(e Entry) bool { t.found = append(t.found, e); return true })
			t.rest = append([]byte(nil), t.rest[end:]...)
		}
		if len(t.rest) > maxLine {
			t.rest = nil
		}
		if err != nil || n == 0 && !errors.Is(err, io.EOF) {
			return
		}
	}
}

// turned tells that there is more to drain: the path names another file by
// now, or the file was cut short.
func (t *tail) turned() bool {
	info, err := os.Stat(t.path)
	if err != nil {
		return false // renamed, and no operation since
	}
	if t.f != nil {
		if own, err := t.f.Stat(); err == nil && os.SameFile(info, own) {
			if info.Size() >= t.at {
				return false
			}
			t.at, t.rest = 0, nil
			return true
		}
	}
	f, err := open(t.path)
	if err != nil {
		return false
	}
	t.become(f)
	return true
}
