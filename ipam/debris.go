package ipam

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/trace"
)

// standing is what stands in the place of an address's file.
type standing int

const (
	nothing   standing = iota
	held               // a reservation
	debris             // what a crash or a broken disk left: a file that is blank, or has bytes that no text has; a link, a pipe
	note               // text that is no reservation: somebody keeps the address so
	directory          // what is in it is not ours to remove
)

// look tells what stands at a path, and never follows or waits. The reservation is
// the zero one where there is none; the error is fs.ErrNotExist for nothing.
func look(path string) (r Reservation, at stamp, what standing, err error) {
	f, err := readPlace(path)
	switch {
	case err != nil:
		return r, at, nothing, err
	case f.kind == unix.S_IFDIR:
		return r, f.at, directory, nil
	case f.kind != unix.S_IFREG:
		return r, f.at, debris, nil
	}
	if r, ok := ParseReservation(string(f.content)); ok && f.whole {
		return r, f.at, held, nil
	}
	if f.whole && text(f.content) {
		return r, f.at, note, nil
	}
	return r, f.at, debris, nil
}

// text tells that a person may have written it.
func text(b []byte) bool {
	odd := func(c rune) bool { return unicode.IsControl(c) && !unicode.IsSpace(c) }
	return utf8.Valid(b) && strings.TrimSpace(string(b)) != "" && !strings.ContainsFunc(string(b), odd)
}

// broken tells that debris stands at a path.
func broken(path string) bool {
	_, _, what, err := look(path)
	return err == nil && what == debris
}

// empty is broken at the cost of one lstat, for a file without content alone.
func empty(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size == 0
}

// tenant is who lives at an address by what others than its file tell: not the one
// that this is done for, and not the one that the file names, if any.
func (s *store) tenant(a netip.Addr, named Reservation) (l Lease, ok bool, err error) {
	if s.recorded == nil {
		return l, false, nil
	}
	leases, err := s.recorded()
	i := slices.IndexFunc(leases, func(l Lease) bool {
		return l.Address == a && !named.is(of(l.Attachment)) && !s.owner.is(of(l.Attachment))
	})
	if i < 0 || err != nil {
		return l, false, err
	}
	return leases[i], true, nil
}

// ownerless tells that debris stands for nobody. Where somebody lives at the
// address their file was damaged: they have their reservation again. Debris that
// nobody can judge stays.
func (s *store) ownerless(ctx context.Context, a netip.Addr) (bool, error) {
	l, lives, err := s.tenant(a, Reservation{})
	if err == nil && s.unlocked {
		err = errUnlocked
	}
	switch {
	case err != nil:
		trace.Warn(ctx, "a file that names nobody stays", address(a), trace.KeyError.String(err.Error()))
		return false, nil
	case lives:
		return false, s.restoreOne(ctx, l, broken)
	}
	return true, nil
}

var errUnlocked = errors.New("its folder cannot be locked")

// another tells that somebody else than a reservation's holder lives at its address:
// the file was damaged so that it names another one. It is theirs again. Where nobody
// can tell, the file counts.
func (s *store) another(ctx context.Context, a netip.Addr, holder Reservation) (bool, error) {
	l, lives, err := s.tenant(a, holder)
	if !lives || err != nil {
		return false, nil
	}
	return true, s.restoreOne(ctx, l, func(string) bool { return true })
}

// clear removes debris that stands for nobody. What it leads to is not touched.
func (s *store) clear(ctx context.Context, a netip.Addr) (gone bool, err error) {
	if ok, err := s.ownerless(ctx, a); !ok || err != nil {
		return false, err
	}
	s.span.Event("reservation.debris", address(a))
	return true, remove(s.path(a))
}

// stays warns of what is in an address's place and is not removed.
func stays(ctx context.Context, a netip.Addr, what standing) {
	trace.Warn(ctx, map[standing]string{
		note:      "a file names nobody, and keeps its address from being leased",
		directory: "a folder stands in the place of an address's file, which is not leased",
	}[what], address(a))
}

func address(a netip.Addr) trace.KeyValue {
	return trace.KeyAddresses.StringSlice([]string{a.String()})
}

// over opens what stands at a path to write all of it anew: a file as it is, so
// that a disk that is full has room for it, anything else by another one.
func over(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err == nil {
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
			return f, nil
		}
		_ = f.Close()
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// place is what readPlace finds.
type place struct {
	kind    uint32 // as S_IFMT has it
	at      stamp
	content []byte // of a regular file, at most maxContent
	whole   bool   // that is all of it
}

// readPlace reads what stands at a path, without the os package's poller: the first
// ADD of a boot reads all of a folder.
func readPlace(path string) (p place, err error) {
	// O_NONBLOCK: a FIFO of that name must not stop us.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ELOOP):
		return place{kind: unix.S_IFLNK}, nil
	case errors.Is(err, unix.ENXIO):
		return place{kind: unix.S_IFSOCK}, nil
	case err != nil:
		return p, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return p, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if p = (place{kind: st.Mode & unix.S_IFMT, at: stampIn(&st)}); p.kind != unix.S_IFREG {
		return p, nil
	}
	b := make([]byte, min(st.Size, maxContent))
	n, err := unix.Read(fd, b)
	if err != nil {
		return p, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	p.content, p.whole = b[:n], st.Size <= maxContent
	return p, nil
}

// usable is an error where Add could not lock the folder, or not write where it
// goes on: what it would say itself.
func (h HostLocal) usable(dir string) error {
	path := filepath.Join(dir, lockName)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case err == nil:
		_ = unix.Close(fd)
	case !noStore(err):
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	for n := range h.Sets {
		var st unix.Stat_t
		path := cursorPath(dir, n)
		if unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return &fs.PathError{Op: "open", Path: path, Err: unix.EISDIR}
		}
	}
	return nil
}
