package cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxQuarantined is how many things quarantine keeps, each with its note. The
// oldest go first.
const maxQuarantined = 64

// quarantine is <stateDir>/quarantine, open.
type quarantine struct {
	path string
	fd   int
}

// quarantine opens the folder, and makes it where it is missing.
func (d Dir) quarantine() (q quarantine, err error) {
	q.path = filepath.Join(filepath.Dir(d.Path), "quarantine")
	if err := os.Mkdir(q.path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return q, err
	}
	if q.fd, err = d.open(q.path, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return q, &os.PathError{Op: "open", Path: q.path, Err: err}
	}
	return q, nil
}

// name is what a file is called there: when it came, and from where.
func (q quarantine) name(path string) string {
	const room = 200 // with the time and the endings below NAME_MAX
	from := filepath.Base(filepath.Dir(path)) + "," + filepath.Base(path)
	return fmt.Sprintf("%d,%s", time.Now().UnixNano(), strings.ToValidUTF8(from[:min(len(from), room)], ""))
}

// Quarantine moves what stands at a record's path, and cannot be read, out of
// the way: to <stateDir>/quarantine, with a note why. It returns the path it has
// there.
func (d Dir) Quarantine(path, why string) (string, error) {
	return d.isolate(path, why, func(q quarantine, from int, name string) error {
		return unix.Renameat(from, filepath.Base(path), q.fd, name)
	})
}

// Mend keeps a damaged record in quarantine as it is, and puts the lines of it
// that can be read in its place, and that some were lost: a DEL that is killed
// half way finds them again.
func (d Dir) Mend(r *Record) (kept string, err error) {
	path := d.File(r.Attachment)
	b, err := d.record(path)
	if err != nil {
		return "", err
	}
	tell, err := encode(entry{Kind: "mended", At: time.Now().UnixNano()})
	if err != nil {
		return "", err
	}
	b = append(sound(b), tell...)
	kept, err = d.isolate(path, "a line before the last cannot be read", func(q quarantine, from int, name string) error {
		aside := name + ".mended"
		if err := q.write(aside, b); err != nil {
			return err
		}
		if err := unix.Linkat(from, filepath.Base(path), q.fd, name, 0); err != nil {
			return errors.Join(err, unix.Unlinkat(q.fd, aside, 0))
		}
		return unix.Renameat(q.fd, aside, from, filepath.Base(path))
	})
	if err == nil {
		r.Size, r.good = int64(len(b)), int64(len(b))
	}
	return kept, err
}

// isolate does what brings a file into quarantine, writes the note, and sees to it
// that there are not too many. A note that cannot be written, on a full disk, is
// done without.
func (d Dir) isolate(path, why string, do func(q quarantine, from int, name string) error) (string, error) {
	q, err := d.quarantine()
	if err != nil {
		return "", err
	}
	defer unix.Close(q.fd)
	from, err := d.folderOf(path)
	if err != nil {
		return "", err
	}
	defer unix.Close(from)
	name := q.name(path)
	if err := do(q, from, name); err != nil {
		return "", &os.PathError{Op: "quarantine", Path: path, Err: err}
	}
	_ = q.write(name+".why", []byte(path+": "+why+"\n"))
	q.trim()
	return filepath.Join(q.path, name), nil
}

// write writes a new file, whole or not at all.
func (q quarantine) write(name string, b []byte) error {
	fd, err := unix.Openat(q.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err = writeAll(fd, b); err != nil {
		_ = unix.Unlinkat(q.fd, name, 0)
	}
	return err
}

// trim removes the oldest. Names begin with a time of as many digits for the
// next two hundred years, so they sort as times do.
func (q quarantine) trim() {
	here := fmt.Sprintf("/proc/self/fd/%d", q.fd) // no name that leads to it may change meanwhile
	entries, _ := os.ReadDir(here)
	var all []string
	for _, e := range entries {
		if thing := strings.TrimSuffix(strings.TrimSuffix(e.Name(), ".why"), ".mended"); !slices.Contains(all, thing) {
			all = append(all, thing)
		}
	}
	slices.Sort(all)
	for ; len(all) > maxQuarantined; all = all[1:] {
		for _, ending := range []string{"", ".why", ".mended"} {
			_ = os.RemoveAll(filepath.Join(here, all[0]+ending))
		}
	}
}
