package cache

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
)

// A network whose attachments share something (a table of rules) has a mark,
// an empty file in <stateDir>/networks, so that a DEL of another network asks
// nothing.

func (d Dir) mark(network string) string {
	return filepath.Join(filepath.Dir(d.Path), "networks", short(network))
}

// Mark marks a network. One that is marked stays so.
func (d Dir) Mark(network string) error {
	fd, err := unix.Open(d.mark(network), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, unix.ENOENT) {
		if err := os.MkdirAll(filepath.Dir(d.mark(network)), 0o700); err != nil {
			return err
		}
		fd, err = unix.Open(d.mark(network), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	}
	if err != nil {
		return &os.PathError{Op: "create", Path: d.mark(network), Err: err}
	}
	return unix.Close(fd)
}

// Marked tells whether a network is.
func (d Dir) Marked(network string) bool {
	return unix.Access(d.mark(network), unix.F_OK) == nil
}

// Unmark takes the mark away, once what it stood for is gone.
func (d Dir) Unmark(network string) error {
	if err := unix.Unlink(d.mark(network)); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove", Path: d.mark(network), Err: err}
	}
	return nil
}

// Only tells whether a network has no record but an attachment's, which may be
// gone. It reads the folder's first names alone.
func (d Dir) Only(a delegates.Attachment) (bool, error) {
	f, err := os.Open(filepath.Join(d.Path, short(a.Network)))
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
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
	err := unix.Rmdir(filepath.Join(d.Path, short(network)))
	return err == nil || errors.Is(err, unix.ENOENT)
}
