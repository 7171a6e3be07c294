package ipam

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain/lock"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/trace"
	"github.com/tracewire/tracewire/trace/point"
)

// Names in a network's folder that are no reservations.
const (
	lockName     = "lock"
	cursorPrefix = "last_reserved_ip."
)

// maxContent bounds what is read of a reservation file, in bytes: an id comes by
// one environment variable, which the kernel bounds by 128 KiB (execve(2)).
const maxContent = 1 << 18

// folder is where a network's reservations are. The name was checked where it
// came in; here it becomes a path, so it is looked at again.
func folder(dataDir, network string) (string, error) {
	if network == "" || network == "." || network == ".." || strings.ContainsAny(network, "/\x00") {
		return "", conflist.Invalid("name", network, "must be one path element")
	}
	return filepath.Join(dataDir, network), nil
}

// store is a network's folder, under its flock. While it is held nobody, the
// reference included, makes or removes a reservation.
type store struct {
	dir     string
	network string
	owner   Reservation
	span    trace.Span // of the operation
	unlock  func()
	made    []string // reservation files written through this store

	earlier   Earlier
	reclaimed bool // what is of an earlier boot was given back
	recorded  func() ([]Lease, error)
	station   func(netip.Addr) (bool, error) // nil for a set that the MAC does not follow from
	met       int                            // stations that were found
	passed    map[netip.Addr]string          // addresses without a file that are somebody's all the same
}

// openStore takes the folder's lock. The error is fs.ErrNotExist when there is
// no folder.
func openStore(ctx context.Context, dir string, owner Reservation) (*store, error) {
	began := time.Now()
	unlock, err := lock.Flock(ctx, filepath.Join(dir, lockName))
	span := trace.SpanOf(ctx)
	span.Set(trace.KeyLockWait.Float64(trace.Milliseconds(time.Since(began))))
	if err != nil {
		return nil, err
	}
	return &store{dir: dir, owner: owner, span: span, unlock: unlock}, nil
}

// makeStore makes the folder where it is missing.
func makeStore(ctx context.Context, dir string, owner Reservation) (*store, error) {
	s, err := openStore(ctx, dir, owner)
	if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	point.Pass(point.After, "folder of reservations")
	return openStore(ctx, dir, owner)
}

func (s *store) path(a netip.Addr) string { return filepath.Join(s.dir, a.String()) }

// reserve writes the address's reservation, or tells that it is taken. A file
// that is empty under the lock was made by an ADD that a crash cut short
// (plugins#498): it holds nobody, and is taken over.
func (s *store) reserve(a netip.Addr) (bool, error) {
	f, err := os.OpenFile(s.path(a), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return s.takeOver(a)
	}
	if err != nil {
		return false, err
	}
	return true, s.fill(f)
}

func (s *store) takeOver(a netip.Addr) (bool, error) {
	if !empty(s.path(a)) {
		return false, nil
	}
	f, err := os.OpenFile(s.path(a), os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, err
	}
	s.span.Event("reservation.takeover", trace.KeyAddresses.StringSlice([]string{a.String()}))
	return true, s.fill(f)
}

// empty tells that a reservation file holds nobody.
func empty(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.Mode().IsRegular() && st.Size() == 0
}

// fill leaves a whole reservation or none.
func (s *store) fill(f *os.File) error {
	point.Pass(point.Before, "reservation")
	_, err := f.WriteString(s.owner.Text())
	point.Pass(point.After, "reservation")
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return errors.Join(err, remove(f.Name()))
	}
	s.made = append(s.made, f.Name())
	return nil
}

// undo removes what was reserved through this store. The folder has been locked
// since, so the files are still ours.
func (s *store) undo() error {
	var errs []error
	for _, path := range slices.Backward(s.made) {
		errs = append(errs, remove(path))
	}
	s.made = nil
	return errors.Join(errs...)
}

// release removes the reservation if it is one of the owners'. Comparing and
// removing are one under the lock: the address cannot go to another between.
func (s *store) release(name string, owners ...Reservation) (bool, error) {
	path := filepath.Join(s.dir, name)
	r, ok, err := readReservation(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (!ok || !slices.Contains(owners, r)) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, remove(path)
}

// sweep removes the files of addresses that name nobody: ADDs that a crash cut
// short left them, as none runs beside the lock.
func (s *store) sweep() error {
	names, err := taken(s.dir)
	errs := []error{err}
	for a := range names {
		if empty(s.path(a)) {
			errs = append(errs, remove(s.path(a)))
		}
	}
	return errors.Join(errs...)
}

// remove is happy with a file that is already gone.
func remove(path string) error {
	point.Pass(point.Before, "unlink of reservation")
	err := os.Remove(path)
	point.Pass(point.After, "unlink of reservation")
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// readReservation reads a reservation file. What is no regular file, or holds
// no reservation, is not ok.
func readReservation(path string) (r Reservation, ok bool, err error) {
	r, _, ok, err = examine(path)
	return r, ok, err
}

// examine is readReservation, and the file's stamp.
func examine(path string) (r Reservation, at stamp, ok bool, err error) {
	b, at, err := readStamped(path)
	if err == nil {
		r, ok = ParseReservation(string(b))
	}
	return r, at, ok, err
}

// readRegular reads a file. What is no regular file has nothing in it.
func readRegular(path string) ([]byte, error) {
	b, _, err := readStamped(path)
	return b, err
}

// readStamped is readRegular, and the file's stamp, without the os package's
// poller: the first ADD of a boot reads all of a folder.
func readStamped(path string) (b []byte, at stamp, err error) {
	// O_NONBLOCK: a FIFO of that name must not stop us.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return nil, at, nil
	}
	if err != nil {
		return nil, at, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, at, err
	}
	b = make([]byte, min(st.Size, maxContent))
	n, err := unix.Read(fd, b)
	if err != nil {
		return nil, at, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return b[:n], stampIn(&st), nil
}

// held reads the whole folder once: the reservations by their files' names. It
// goes on past a file it cannot read.
func held(dir string) (map[string]Reservation, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	errs := []error{err}
	all := map[string]Reservation{}
	for _, e := range entries {
		if !e.Type().IsRegular() || e.Name() == lockName || strings.HasPrefix(e.Name(), cursorPrefix) {
			continue
		}
		r, ok, err := readReservation(filepath.Join(dir, e.Name()))
		if ok {
			all[e.Name()] = r
		} else if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return all, errors.Join(errs...)
}

// taken lists a folder's names once, and opens none of them.
func taken(dir string) (map[netip.Addr]bool, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	names, err := d.Readdirnames(-1)
	all := make(map[netip.Addr]bool, len(names))
	for _, name := range names {
		// Another spelling of an address is another file: it keeps nobody out.
		if a, err := netip.ParseAddr(name); err == nil && a.String() == name {
			all[a] = true
		}
	}
	return all, err
}

// cursor is the address a range set gave last, as it is written.
type cursor struct {
	path string
	text string // empty when there is none
}

// cursorOf reads the cursor of set n. One that cannot be read is none.
func (s *store) cursorOf(n int) cursor {
	path := filepath.Join(s.dir, fmt.Sprint(cursorPrefix, n))
	b, _ := readRegular(path)
	return cursor{path, string(b)}
}

// addr is the zero Addr when there is none: then the first range's start is next.
func (c cursor) addr() netip.Addr {
	a, err := netip.ParseAddr(c.text)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}
	}
	return a.Unmap()
}

// set writes over what is there instead of emptying it first: the old content's
// room is enough for the new one on a disk that is full.
func (c cursor) set(a netip.Addr) error {
	f, err := os.OpenFile(c.path, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	text := a.String()
	point.Pass(point.Before, "cursor")
	_, err = f.WriteString(text)
	point.Pass(point.After, "cursor")
	if err == nil && len(text) < len(c.text) {
		err = f.Truncate(int64(len(text)))
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}
