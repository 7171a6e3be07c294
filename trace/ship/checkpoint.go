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

// load reads the checkpoint into v. One that is not there, or that a power cut
// left empty, is an error: all is sent again then, and is the same.
func (c checkpoint) load(v any) error {
	b, err := os.ReadFile(c.path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
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
	if err := os.WriteFile(aside, b, 0o600); err != nil {
		return err
	}
	return os.Rename(aside, c.path)
}
