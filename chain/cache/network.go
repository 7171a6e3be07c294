package cache

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace/point"
)

// A network whose attachments share something (a table of rules) has a mark,
// an empty file in <stateDir>/networks, so that a DEL of another network asks
// nothing.

func (d Dir) mark(network string) string {
	return filepath.Join(filepath.Dir(d.Path), "networks", short(network))
}

// Mark marks a network. One that is marked stays so.
func (d Dir) Mark(network string) error {
	const marking = unix.O_CREAT | unix.O_WRONLY | unix.O_NONBLOCK
	fd, err := d.open(d.mark(network), marking)
	if errors.Is(err, unix.ENOENT) {
		if err := os.MkdirAll(filepath.Dir(d.mark(network)), 0o700); err != nil {
			return err
		}
		fd, err = d.open(d.mark(network), marking)
	}
	if err != nil {
		return &os.PathError{Op: "create", Path: d.mark(network), Err: err}
	}
	point.Pass(point.After, "mark of network")
	return unix.Close(fd)
}

// Marked tells whether a network is.
func (d Dir) Marked(network string) bool {
	return unix.Access(d.mark(network), unix.F_OK) == nil
}

// Unmark takes the mark away, once what it stood for is gone.
func (d Dir) Unmark(network string) error {
	err := d.remove(d.mark(network), 0)
	if errors.Is(err, unix.ENOENT) || elsewhere(err) {
		return nil
	}
	return err
}

// Only tells whether a network has no record but an attachment's, which may be
// gone. It reads the folder's first names alone.
func (d Dir) Only(a delegates.Attachment) (bool, error) {
	dir := filepath.Join(d.Path, short(a.Network))
	fd, err := d.open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, os.ErrNotExist) || elsewhere(err) {
		return true, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), dir)
	defer func() { _ = f.Close() }()
	names, err := f.Readdirnames(2)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return len(names) == 1 && names[0] == filepath.Base(d.File(a)), err
}

// Empty tells whether a network has no record, and removes its folder then: a
// record that is begun at the same moment is there before or after that.
func (d Dir) Empty(network string) bool {
	err := d.remove(filepath.Join(d.Path, short(network)), unix.AT_REMOVEDIR)
	point.Pass(point.After, "folder of network")
	return err == nil || errors.Is(err, unix.ENOENT)
}

// remove removes a file, or with AT_REMOVEDIR a folder, below the state directory.
func (d Dir) remove(path string, flags int) error {
	dir, err := d.folderOf(path)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Unlinkat(dir, filepath.Base(path), flags); err != nil {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}
