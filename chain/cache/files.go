package cache

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
)

// File is one of libcni's, as it is on disk.
type File struct {
	Entry
	Path    string
	Changed time.Time // mtime
	Stamp   string    // another file of that name has another
	Broken  error     // why libcni cannot read it either; then Entry has its name alone
}

// List is the network configuration list that the entry was made with, nil where
// it tells of none.
func (f File) List() []byte {
	b, err := base64.StdEncoding.DecodeString(f.Config)
	if err != nil {
		return nil
	}
	return b
}

// Files is what libcni keeps of all networks' attachments in folders, one after
// the other. One that goes meanwhile is left out, a folder that is not there
// holds none. What this process may not read is an error, with its path.
func Files(dirs ...string) iter.Seq2[File, error] {
	return func(yield func(File, error) bool) {
		for _, dir := range dirs {
			if !files(dir, yield) {
				return
			}
		}
	}
}

// files hands on a folder's, some hundred names at a time.
func files(dir string, yield func(File, error) bool) bool {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil {
		return yield(File{Path: dir}, err)
	}
	defer func() { _ = d.Close() }()
	for {
		names, err := d.Readdirnames(512)
		for _, name := range names {
			f, err := ReadFile(filepath.Join(dir, name))
			if !errors.Is(err, fs.ErrNotExist) && !yield(f, err) {
				return false
			}
		}
		if errors.Is(err, io.EOF) {
			return true
		}
		if err != nil {
			return yield(File{Path: dir}, err)
		}
	}
}

// ReadFile reads one file of libcni's.
func ReadFile(path string) (File, error) {
	f := File{Path: path, Entry: Entry{Name: filepath.Base(path)}}
	b, st, err := readRegular(path, maxEntry)
	if errors.Is(err, errNoFile) {
		f.Broken = err
		if err = unix.Lstat(path, &st); err != nil {
			err = &fs.PathError{Op: "stat", Path: path, Err: err}
		}
	}
	if err != nil {
		return f, err
	}
	f.Changed, f.Stamp = time.Unix(st.Mtim.Unix()), stampOf(&st)
	if f.Broken == nil {
		f.Entry, f.Broken = readEntry(f.Name, b)
	}
	return f, nil
}

// stampOf tells a file from another one of its name, and from what it was before
// it was written to.
func stampOf(st *unix.Stat_t) string {
	return fmt.Sprintf("%d:%d:%d", st.Dev, st.Ino, st.Ctim.Nano())
}

// Stamp is that of what is at a path; empty where nothing is.
func Stamp(path string) string {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return ""
	}
	return stampOf(&st)
}

// RemoveFile removes a file of libcni's that is still the one with the stamp. One
// that is gone, or another by now, is success.
func RemoveFile(path, stamp string) error {
	if Stamp(path) != stamp {
		return nil
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Isolated is a thing in quarantine.
type Isolated struct {
	delegates.Attachment // as its record's file was named; of a long name what is left of it
	Path                 string
	Why                  string
	Since                time.Time
}

// Isolated lists what is in quarantine, the oldest first.
func (d Dir) Isolated() (all []Isolated, err error) {
	dir := filepath.Join(filepath.Dir(d.Path), "quarantine")
	entries, err := d.names(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".why") || strings.HasSuffix(e.Name(), ".mended") {
			continue
		}
		all = append(all, d.isolated(filepath.Join(dir, e.Name())))
	}
	return all, err
}

// isolated is what a name in quarantine tells, and its note.
func (d Dir) isolated(path string) Isolated {
	i := Isolated{Path: path}
	at, from, _ := strings.Cut(filepath.Base(path), ",")
	if since, err := strconv.ParseInt(at, 10, 64); err == nil {
		i.Since = time.Unix(0, since)
	}
	network, file, _ := strings.Cut(from, ",")
	id, ifName, _ := strings.Cut(file, ":")
	i.Attachment = delegates.Attachment{Network: network, ContainerID: id, IfName: ifName}
	b, _, _ := readRegular(path+".why", 1<<16)
	_, why, _ := strings.Cut(string(b), ": ")
	i.Why = strings.TrimSpace(why)
	return i
}
