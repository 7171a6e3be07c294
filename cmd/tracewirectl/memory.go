package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain/audit"
	"github.com/tracewire/tracewire/chain/lock"
)

// The files of a state directory that audit --fix keeps.
const (
	memoryFile  = "audit.json"
	memoryAside = "audit.json.new" // to be renamed
	memoryLock  = "audit.lock"
)

// memory is what audit --fix knows of the look before. Who has it open is alone
// with it: what another saw is not lost, and nothing is repaired by two.
type memory struct {
	dir    string
	unlock func() // nil where the folder is not there
}

// openMemory waits for another's repairs, but not for long. Where there is no
// folder there is nothing to remember: make makes it.
func openMemory(ctx context.Context, dir string) (*memory, error) {
	m := &memory{dir: dir}
	unlock, err := lock.Flock(ctx, filepath.Join(dir, memoryLock))
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, err
	}
	m.unlock = unlock
	return m, nil
}

func (m *memory) close() {
	if m.unlock != nil {
		m.unlock()
	}
}

// make makes the folder where it is missing, and tells which.
func (m *memory) make(ctx context.Context) (made string, err error) {
	if m.unlock != nil {
		return "", nil
	}
	if err := os.MkdirAll(m.dir, 0o700); err != nil { // as the plugin makes it
		return "", err
	}
	now, err := openMemory(ctx, m.dir)
	if err != nil {
		return "", err
	}
	*m = *now
	return m.dir, nil
}

// maxMemory bounds what is read of it in bytes: a finding takes some 100.
const maxMemory = 64 << 20

// recall is the look before. One that cannot be read, is of another version, or is
// no file saw nothing.
func (m *memory) recall() (l audit.Look) {
	f, err := os.OpenFile(filepath.Join(m.dir, memoryFile), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return audit.Look{}
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxMemory+1))
	if err != nil || len(b) > maxMemory || json.Unmarshal(b, &l) != nil || l.Version != audit.Version {
		return audit.Look{}
	}
	return l
}

// remember keeps a look for the next time. Without a folder there is none to keep.
func (m *memory) remember(l audit.Look) error {
	if m.unlock == nil {
		return nil
	}
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	aside := filepath.Join(m.dir, memoryAside)
	for _, path := range []string{aside, filepath.Join(m.dir, memoryFile)} {
		if info, err := os.Lstat(path); err != nil || info.Mode().IsRegular() {
			continue
		}
		if err := os.RemoveAll(path); err != nil { // whatever stands there: a folder, a link
			return err
		}
	}
	if err = os.WriteFile(aside, append(b, '\n'), 0o600); err == nil {
		err = os.Rename(aside, filepath.Join(m.dir, memoryFile))
	}
	if err != nil {
		_ = os.Remove(aside)
	}
	return err
}
