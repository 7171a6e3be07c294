package cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// open opens a path below the state directory. A symbolic link on the way is
// refused (ELOOP): it may lead anywhere. The state directory itself may be
// behind one, which costs two calls more.
func (d Dir) open(path string, flags uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	if flags&unix.O_CREAT != 0 || flags&unix.O_TMPFILE == unix.O_TMPFILE {
		how.Mode = 0o600
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
	if !errors.Is(err, unix.ELOOP) {
		return fd, err
	}
	state, err := unix.Open(filepath.Dir(d.Path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(state)
	below, err := filepath.Rel(filepath.Dir(d.Path), path)
	if err != nil {
		return -1, err
	}
	return unix.Openat2(state, below, &how)
}

// folderOf opens the folder that a path is in, to rename and remove there.
func (d Dir) folderOf(path string) (int, error) {
	dir := filepath.Dir(path)
	fd, err := d.open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return fd, nil
}

// names is what a folder below the state directory has, sorted.
func (d Dir) names(dir string) ([]os.DirEntry, error) {
	fd, err := d.open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), dir)
	defer func() { _ = f.Close() }()
	all, err := f.ReadDir(-1)
	slices.SortFunc(all, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return all, err
}

// ErrPlace marks that a network's records have no place: a symbolic link, or
// another kind of file, stands where their folder, or one above it, belongs.
var ErrPlace = errors.New("records have no place")

// Place is an ErrPlace where a network has none. A folder that is missing is
// made when it is needed.
func (d Dir) Place(network string) error {
	fd, err := d.folderOf(filepath.Join(d.Path, short(network), "any"))
	switch {
	case err == nil:
		return unix.Close(fd)
	case elsewhere(err):
		return fmt.Errorf("%w: %w", ErrPlace, err)
	}
	return nil // whoever makes a record there is told
}

// Usable is an error where the next record could not be made: an ErrPlace, or what
// stands in the place of the lock. It makes nothing.
func (d Dir) Usable(network string) error {
	lock := filepath.Join(filepath.Dir(d.Path), "lock")
	fd, err := d.open(lock, unix.O_RDWR|unix.O_NONBLOCK)
	switch {
	case err == nil:
		_ = unix.Close(fd)
	case !errors.Is(err, unix.ENOENT):
		return &os.PathError{Op: "open", Path: lock, Err: err}
	}
	return d.Place(network)
}

// elsewhere tells of an error that a path's folders are none: a symbolic link,
// or another kind of file. There is no record then, whatever is behind it.
func elsewhere(err error) bool { return errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) }
