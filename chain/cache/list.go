package cache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tracewire/tracewire/delegates"
)

// Stored is a record and the file it is in.
type Stored struct {
	Record
	Path string
}

// List is every record, read one after the other. One that ends meanwhile is
// left out; one that cannot be read is Unreadable, its attachment told by its
// file's name. A folder that is not there holds none.
func (d Dir) List() (all []Stored, err error) {
	networks, err := os.ReadDir(d.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, n := range networks {
		dir := filepath.Join(d.Path, n.Name())
		files, err := os.ReadDir(dir)
		if err != nil && n.IsDir() && !errors.Is(err, fs.ErrNotExist) {
			return all, err
		}
		for _, f := range files {
			path := filepath.Join(dir, f.Name())
			if r, ok := stored(path); ok {
				all = append(all, r)
			}
		}
	}
	return all, err
}

func stored(path string) (s Stored, ok bool) {
	b, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, false
	}
	s = Stored{Record: Replay(b), Path: path}
	if s.State == Unreadable {
		id, ifname, _ := strings.Cut(filepath.Base(path), ":")
		s.Attachment = delegates.Attachment{Network: filepath.Base(filepath.Dir(path)), ContainerID: id, IfName: ifname}
	}
	return s, true
}
