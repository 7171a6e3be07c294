package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
)

// Stored is a record and the file it is in.
type Stored struct {
	Record
	Path string
	Err  error // why the file could not be read; nil where it is what is in it that cannot
}

// All is every record, read one after the other. One that ends meanwhile is
// left out; one that cannot be read is Unreadable, its attachment told by its
// file's name. A folder that is not there holds none; one that cannot be read is
// an error, and passed over.
func (d Dir) All() iter.Seq2[Stored, error] {
	return func(yield func(Stored, error) bool) {
		networks, err := d.names(d.Path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !yield(Stored{}, err) {
			return
		}
		for _, n := range networks {
			if n.IsDir() && !d.each(filepath.Join(d.Path, n.Name()), yield) {
				return
			}
		}
	}
}

// List is All until the first error.
func (d Dir) List() (all []Stored, err error) {
	err = d.Each(func(s Stored) { all = append(all, s) })
	return all, err
}

// Each hands on every record, as List has them, and holds one at a time.
func (d Dir) Each(do func(Stored)) error {
	for r, err := range d.All() {
		if err != nil {
			return err
		}
		do(r)
	}
	return nil
}

// each hands on the records of one network's folder, until yield is false.
func (d Dir) each(dir string, yield func(Stored, error) bool) bool {
	files, err := d.names(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if elsewhere(err) {
		err = fmt.Errorf("%w: %w", ErrPlace, err)
	}
	if err != nil {
		return yield(Stored{}, err)
	}
	for _, f := range files {
		if r, ok := d.stored(filepath.Join(dir, f.Name())); ok && !yield(r, nil) {
			return false
		}
	}
	return true
}

// stored is a file's record. One of another attachment than the file's name
// tells is none.
func (d Dir) stored(path string) (s Stored, ok bool) {
	b, err := d.record(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, false
	}
	s = Stored{Record: Replay(b), Path: path}
	if err != nil && !noFile(err) {
		s.Err = err
	}
	if s.State == Unreadable || d.File(s.Attachment) != path {
		s.Record = Record{State: Unreadable, Size: s.Size, Newer: s.Newer}
		id, ifname, _ := strings.Cut(filepath.Base(path), ":")
		s.Attachment = delegates.Attachment{Network: filepath.Base(filepath.Dir(path)), ContainerID: id, IfName: ifname}
	}
	return s, true
}

// noFile tells of an error that what stands in a record's place is no file: its
// folder could be opened, so that a link is the last of its path. A socket cannot
// be opened at all (ENXIO).
func noFile(err error) bool {
	return errors.Is(err, errNoFile) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO)
}

// Stray tells that the file is no attachment's: nobody would look for it there.
func (d Dir) Stray(s Stored) bool { return d.File(s.Attachment) != s.Path }

// Of is the records of one network, as List has them.
func (d Dir) Of(network string) (all []Stored, err error) {
	d.each(filepath.Join(d.Path, short(network)), func(r Stored, bad error) bool {
		if err = bad; bad == nil {
			all = append(all, r)
		}
		return bad == nil
	})
	return all, err
}

// Recorded tells whether an attachment has a record; where IfName is "", any of
// the container's.
func (d Dir) Recorded(a delegates.Attachment) bool {
	if a.IfName != "" {
		fd, err := d.open(d.File(a), unix.O_PATH|unix.O_NOFOLLOW) // a link in its place too
		_ = unix.Close(fd)
		return err == nil
	}
	files, _ := d.names(filepath.Join(d.Path, short(a.Network)))
	return slices.ContainsFunc(files, func(f os.DirEntry) bool { return strings.HasPrefix(f.Name(), a.ContainerID+":") })
}
