package cache

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace/point"
)

// Journal is an attachment's record, open to be written. Its owner holds the
// attachment's lock.
type Journal struct {
	path   string
	fd     int
	sync   string
	start  time.Time // of the operation that writes
	size   int64
	record Record
	ended  []line // of phases that ended, written with the next
	over   bool   // Ended was written
}

const appending = unix.O_RDWR | unix.O_APPEND | unix.O_NONBLOCK

// Begin begins an attachment's journal with its intent. One that is there is
// an error: fs.ErrExist. Where the file system can, the file has its name only
// once it has its first line: a process that is killed in between leaves none.
func (d Dir) Begin(in Intent, start time.Time) (*Journal, error) {
	j := &Journal{path: d.File(in.Attachment), sync: d.Sync, start: start, record: Record{State: None}}
	if !recording {
		j.fd = -1
		j.record.add(entry{Kind: "intent", Intent: in})
		return j, nil
	}
	named := false
	err := inFolder(j.path, func() (err error) { j.fd, named, err = d.create(j.path); return err })
	if err != nil {
		return nil, err
	}
	err = j.write(entry{Kind: "intent", Intent: in})
	if err == nil && !named {
		err = inFolder(j.path, j.name)
	}
	switch {
	case err == nil:
		return j, nil
	case named:
		return nil, errors.Join(err, j.Remove())
	}
	return nil, errors.Join(err, j.Close())
}

// inFolder makes the network's folder where it is missing, and again where the
// network's last DEL removes it meanwhile.
func inFolder(path string, do func() error) error {
	err := do()
	for try := 0; errors.Is(err, unix.ENOENT) && try < 100; try++ {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		point.Pass(point.After, "folder of records")
		err = do()
	}
	if err != nil {
		return &fs.PathError{Op: "create", Path: path, Err: err}
	}
	return nil
}

// create makes the file, without a name where that can be (open(2), O_TMPFILE).
func (d Dir) create(path string) (fd int, named bool, err error) {
	fd, err = d.open(filepath.Dir(path), appending|unix.O_TMPFILE)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EINVAL) {
		fd, err = d.open(path, appending|unix.O_CREAT|unix.O_EXCL)
		return fd, true, err
	}
	return fd, false, err
}

// name gives the file its name.
func (j *Journal) name() error {
	own := "/proc/self/fd/" + strconv.Itoa(j.fd)
	err := unix.Linkat(unix.AT_FDCWD, own, unix.AT_FDCWD, j.path, unix.AT_SYMLINK_FOLLOW)
	point.Pass(point.After, "name of record")
	return err
}

// Open opens the journal that a record was read from, to append to it. A torn
// tail, which a full disk leaves behind, is cut off.
func (d Dir) Open(r Record, a delegates.Attachment, start time.Time) (*Journal, error) {
	path := d.File(a)
	fd, err := d.open(path, appending)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	j := &Journal{path: path, fd: fd, sync: d.Sync, start: start, size: r.good, record: r}
	if r.good < r.Size {
		if err := unix.Ftruncate(fd, r.good); err != nil {
			_ = j.Close()
			return nil, &fs.PathError{Op: "truncate", Path: path, Err: err}
		}
	}
	return j, nil
}

// Record is what the journal tells by now.
func (j *Journal) Record() *Record { return &j.record }

// Reserved implements delegates.Journal.
func (j *Journal) Reserved(r *types100.Result) error { return j.writeResult("reserved", r) }

// Plan implements delegates.Journal.
func (j *Journal) Plan(r *types100.Result) error { return j.writeResult("plan", r) }

// Ran implements delegates.Journal.
func (j *Journal) Ran(step string, how delegates.Ran, durable bool) error {
	if err := j.write(entry{Kind: words[how], Phase: step}); err != nil {
		return err
	}
	if how != delegates.Asked || j.sync == "never" || !durable && j.sync != "always" {
		return nil
	}
	return j.syncAll()
}

// Result writes down what ADD answers.
func (j *Journal) Result(r *types100.Result) error {
	if err := j.writeResult("result", r); err != nil || j.sync != "always" {
		return err
	}
	return j.syncAll()
}

func (j *Journal) writeResult(kind string, r *types100.Result) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("%s: %w", j.path, err)
	}
	return j.write(entry{Kind: kind, Result: b})
}

// Told writes down that spool and log have the operation.
func (j *Journal) Told() error { return j.write(entry{Kind: "told"}) }

// Deleting writes down that an operation begins to take back what the record
// stands for.
func (j *Journal) Deleting(by Operation) error {
	return j.write(entry{Kind: "deleting", Phase: by.Name, Span: by.Span, Intent: Intent{Parent: by.Parent}})
}

// Ended writes down that nothing is left that the record stands for. It goes as
// soon as spool and log have the operation.
func (j *Journal) Ended() error {
	err := j.write(entry{Kind: "ended"})
	j.over = err == nil
	return err
}

// Over tells that nothing is left that the record stands for, also where its
// other lines cannot be read.
func (j *Journal) Over() bool { return j.over || j.record.State == Ended }

// Begin implements trace.Watcher.
func (j *Journal) Begin(phase, span string) error {
	return j.write(entry{Kind: "begin", Phase: phase, Span: span})
}

// End implements trace.Watcher. The line is written with the next one: between
// two phases nothing happens that could be lost.
func (j *Journal) End(phase string) error {
	l, err := j.line(entry{Kind: "end", Phase: phase})
	if err == nil {
		j.ended = append(j.ended, l)
	}
	return err
}

// syncAll makes the journal outlive a power cut, and the names that lead to it.
func (j *Journal) syncAll() error {
	if err := unix.Fdatasync(j.fd); err != nil {
		return &fs.PathError{Op: "sync", Path: j.path, Err: err}
	}
	dir := j.path
	for range 3 { // the network's folder, attachments, the state directory
		dir = filepath.Dir(dir)
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return fmt.Errorf("sync %s: %w", dir, err)
		}
	}
	return nil
}

// Remove removes the record. It goes last, after all that it stands for.
func (j *Journal) Remove() error {
	point.Pass(point.Before, "unlink of record")
	err := unix.Unlink(j.path)
	point.Pass(point.After, "unlink of record")
	_ = j.Close()
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: j.path, Err: err}
	}
	return nil
}

// Close lets go of the file, once.
func (j *Journal) Close() error {
	fd := j.fd
	if j.fd = -1; fd < 0 {
		return nil
	}
	return unix.Close(fd)
}

// line is an entry and its text.
type line struct {
	entry
	text []byte
}

func (j *Journal) line(e entry) (line, error) {
	now := time.Now()
	e.At, e.After = now.UnixNano(), now.Sub(j.start).Nanoseconds()
	text, err := encode(e)
	if err != nil {
		return line{}, fmt.Errorf("%s: %w", j.path, err)
	}
	return line{e, text}, nil
}

// write appends an entry, and those of phases that ended, in one write. A short
// one, on a full disk, is undone. What was not written is not in Record either.
func (j *Journal) write(e entry) error {
	if !recording {
		j.record.add(e)
		return nil
	}
	l, err := j.line(e)
	if err != nil {
		return err
	}
	j.ended = append(j.ended, l)
	lines := j.ended
	j.ended = nil
	var b []byte
	for _, l := range lines {
		b = append(b, l.text...)
	}
	point.Pass(point.Before, e.Kind)
	n, err := writeAll(j.fd, b)
	point.Pass(point.After, e.Kind)
	if err != nil {
		return errors.Join(&fs.PathError{Op: "write", Path: j.path, Err: err}, j.cut(n))
	}
	j.size += int64(n)
	for _, l := range lines {
		j.record.add(l.entry)
	}
	return nil
}

// writeAll writes once. Where that was not all, it writes on, to be told why.
func writeAll(fd int, b []byte) (n int, err error) {
	for n < len(b) {
		m, err := unix.Write(fd, b[n:])
		if err != nil {
			return n, err
		}
		n += m
	}
	return n, nil
}

// cut takes a torn line back.
func (j *Journal) cut(n int) error {
	if n <= 0 {
		return nil
	}
	if err := unix.Ftruncate(j.fd, j.size); err != nil {
		return &fs.PathError{Op: "truncate", Path: j.path, Err: err}
	}
	return nil
}
