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
	// unlocked tells that nobody can take the lock, nor anything be reserved.
	unlocked bool
	made     []string // reservation files written through this store

	earlier   Earlier
	reclaimed bool                           // what is of an earlier boot was given back
	recorded  func() ([]Lease, error)        // nil where there are no records; asked once
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

// reserve writes the address's reservation, or tells that it is taken. What vacant
// tells to be debris, as a file that is empty under the lock and was made by an ADD
// that a crash cut short (plugins#498), holds nobody, and is taken over.
func (s *store) reserve(ctx context.Context, a netip.Addr, vacant func(path string) bool) (bool, error) {
	f, err := os.OpenFile(s.path(a), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		if !vacant(s.path(a)) {
			return false, nil
		}
		return s.takeOver(ctx, a)
	}
	if err != nil {
		return false, err
	}
	if err := s.fill(f); err != nil {
		return true, errors.Join(err, remove(f.Name()))
	}
	return true, nil
}

// takeOver reserves an address that has debris for a file. It is debris also where
// that fails.
func (s *store) takeOver(ctx context.Context, a netip.Addr) (bool, error) {
	if ok, err := s.ownerless(ctx, a); !ok || err != nil {
		return false, err
	}
	f, err := over(s.path(a))
	if err != nil {
		return false, err
	}
	s.span.Event("reservation.takeover", address(a))
	return true, s.fill(f)
}

func (s *store) fill(f *os.File) error {
	point.Pass(point.Before, "reservation")
	_, err := f.WriteString(s.owner.Text())
	point.Pass(point.After, "reservation")
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
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
func (s *store) release(name string, owners ...Reservation) (gone bool, err error) {
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

// sweep removes the files of addresses that name nobody, where they are not among
// those that do: ADDs that a crash cut short left them, as none runs beside the lock.
func (s *store) sweep(ctx context.Context, all map[string]Reservation) error {
	names, err := taken(s.dir)
	errs := []error{err}
	for a := range names {
		if _, ok := all[a.String()]; !ok && broken(s.path(a)) {
			_, err := s.clear(ctx, a)
			errs = append(errs, err)
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

// readReservation reads a reservation file. What is none is not ok.
func readReservation(path string) (r Reservation, ok bool, err error) {
	r, _, ok, err = examine(path)
	return r, ok, err
}

// examine is readReservation, and the file's stamp.
func examine(path string) (r Reservation, at stamp, ok bool, err error) {
	r, at, what, err := look(path)
	return r, at, what == held, err
}

// reservations reads the whole folder once: the reservations by their files' names. It
// goes on past a file it cannot read.
func reservations(dir string) (map[string]Reservation, error) {
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
	odd  bool   // a link, a pipe or the like stands in its place
}

func cursorPath(dir string, n int) string { return filepath.Join(dir, fmt.Sprint(cursorPrefix, n)) }

// cursorOf reads the cursor of set n. One that cannot be read is none.
func (s *store) cursorOf(n int) cursor {
	path := cursorPath(s.dir, n)
	p, err := readPlace(path)
	return cursor{path, string(p.content), err == nil && p.kind != unix.S_IFREG && p.kind != unix.S_IFDIR}
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
// room is enough for the new one on a disk that is full. What is no file gives way,
// but for a folder.
func (c cursor) set(a netip.Addr) error {
	if c.odd {
		if err := os.Remove(c.path); err != nil {
			return err
		}
	}
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
