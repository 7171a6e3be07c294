package ship

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// checkpoint is a file of JSON that outlives the agent: <name>.checkpoint. Beside
// it stands <name>.lock, which one agent holds.
type checkpoint struct {
	path string
	lock int
}

// errBusy marks a place that another agent follows.
var errBusy = errors.New("another agent follows it")

// openCheckpoint takes the lock of what is followed. The checkpoint is in the
// folder beside, or where state is given in that, under a name of its own.
func openCheckpoint(beside, state, name, followed string) (checkpoint, error) {
	dir := beside
	if state != "" {
		h := fnv.New64a()
		_, _ = h.Write([]byte(followed))
		dir, name = state, fmt.Sprintf("%s-%016x", name, h.Sum64())
	}
	c := checkpoint{path: filepath.Join(dir, name+".checkpoint")}
	path := filepath.Join(dir, name+".lock")
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return c, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = unix.Close(fd)
		return c, fmt.Errorf("%s: %w", followed, errBusy)
	}
	c.lock = fd
	return c, nil
}

func (c checkpoint) close() { _ = unix.Close(c.lock) }

// maxCheckpoint bounds what is read of a checkpoint in bytes: a segment takes some
// 100, and an hour has 60.
const maxCheckpoint = 1 << 20

// load reads the checkpoint into v. One that is not there, or that a power cut
// left empty, is an error: all is sent again then, and is the same. What is no
// file is neither followed nor waited for.
func (c checkpoint) load(v any) error {
	f, err := os.OpenFile(c.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxCheckpoint {
		return errors.Join(fmt.Errorf("%s: not a file of JSON of at most %d bytes", c.path, maxCheckpoint), err)
	}
	if err := json.NewDecoder(f).Decode(v); err != nil {
		return fmt.Errorf("%s: %w", c.path, err)
	}
	return nil
}

// save replaces the checkpoint. It is not synced: the spool is not either.
func (c checkpoint) save(v any) error {
	if err := c.replace(v); err != nil {
		return fmt.Errorf("checkpoint cannot be saved: %w", err)
	}
	return nil
}

func (c checkpoint) replace(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	aside := c.path + ".new"
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(aside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // O_EXCL follows nothing that was planted meanwhile
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(aside, c.path)
	}
	if err != nil {
		_ = os.Remove(aside)
	}
	return err
}
