package ipam

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// Del releases the addresses that the attachment's record lists. Without such
// a record the whole folder is read once, after the addresses of prevResult:
// nothing else tells what an ADD that was killed has reserved.
func (h HostLocal) Del(ctx context.Context, c delegates.Call) error {
	dir, err := folder(h.DataDir, c.Network)
	if err != nil {
		return err
	}
	s, err := h.toRelease(ctx, dir, of(c.Attachment))
	if s == nil || err != nil {
		return err
	}
	defer s.unlock()
	if listed := delegates.Addresses(c.Made.Reserved, c.Made.Result); len(listed) > 0 {
		return s.releaseRecorded(ctx, listed)
	}
	n, errPrev := s.releaseListed(previous(c.Prev))
	return errors.Join(errPrev, s.releaseAll(ctx, n))
}

// toRelease is the store of who only releases; nil where there is none.
func (h HostLocal) toRelease(ctx context.Context, dir string, owner Reservation) (*store, error) {
	s, err := openStore(ctx, dir, owner)
	switch {
	case noStore(err):
		return nil, nil
	case noLock(err): // nobody can take it, so nobody has it
		trace.Warn(ctx, "addresses are not locked", trace.KeyError.String(err.Error()))
		s, err = &store{dir: dir, owner: owner, span: trace.SpanOf(ctx), unlock: func() {}, unlocked: true}, nil
	}
	if s != nil {
		s.recorded = h.once()
	}
	return s, err
}

// noStore tells that there is no folder, or can be none of that name.
func noStore(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENAMETOOLONG)
}

// noLock tells that the lock is not there, and cannot be made.
func noLock(err error) bool {
	return slices.ContainsFunc([]error{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EISDIR}, func(no error) bool { return errors.Is(err, no) })
}

// releaseRecorded releases the addresses that the owner's record lists, and what
// their damaged files are by now.
func (s *store) releaseRecorded(ctx context.Context, listed []netip.Addr) error {
	n := 0
	var errs []error
	for _, a := range listed {
		gone, err := s.releaseOne(ctx, a)
		if gone {
			n++
		}
		errs = append(errs, err)
	}
	s.span.Set(trace.KeyReservation.Int(n))
	return errors.Join(errs...)
}

// releaseOne is one of releaseRecorded. A file that begins as the owner's does and
// breaks off was damaged, too.
func (s *store) releaseOne(ctx context.Context, a netip.Addr) (gone bool, err error) {
	r, _, what, err := look(s.path(a))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case what == directory:
		stays(ctx, a, what)
		return false, nil
	case r == s.owner || r == s.owner.bare():
		return true, remove(s.path(a))
	case what == held && !strings.HasPrefix(s.owner.Text(), r.Text()):
		return false, nil
	}
	return s.clear(ctx, a)
}

// releaseListed tells how many of the addresses were the owner's.
func (s *store) releaseListed(listed []netip.Addr) (int, error) {
	n := 0
	var errs []error
	for _, a := range listed {
		ok, err := s.release(a.String(), s.owner, s.owner.bare())
		if ok {
			n++
		}
		errs = append(errs, err)
	}
	return n, errors.Join(errs...)
}

// releaseAll releases what is the owner's in the whole folder. A file of an old
// host-local names the container alone, which may have another interface on
// this network: it counts only when nothing else was found, n files before included.
// An ADD that was killed may have left a file that names nobody yet.
func (s *store) releaseAll(ctx context.Context, n int) error {
	all, err := reservations(s.dir)
	errs := []error{err}
	for _, owner := range []Reservation{s.owner, s.owner.bare()} {
		if n > 0 && owner != s.owner {
			break
		}
		for name, r := range all {
			if r != owner {
				continue
			}
			ok, err := s.release(name, owner)
			if ok {
				n++
			}
			errs = append(errs, err)
		}
	}
	s.span.Set(trace.KeyReservation.Int(n))
	return errors.Join(append(errs, s.sweep(ctx, all))...)
}

// previous lists the addresses of a prevResult of any version. What cannot be
// read in it is passed over: DEL goes on.
func previous(prev json.RawMessage) []netip.Addr {
	var t struct {
		IPs []json.RawMessage `json:"ips"`
		IP4 json.RawMessage   `json:"ip4"` // before 0.3.0
		IP6 json.RawMessage   `json:"ip6"`
	}
	_ = json.Unmarshal(prev, &t)
	var all []netip.Addr
	for _, raw := range append(t.IPs, t.IP4, t.IP6) {
		var ip struct {
			Address string `json:"address"`
			IP      string `json:"ip"`
		}
		_ = json.Unmarshal(raw, &ip)
		if a, ok := parseAddr(ip.Address + ip.IP); ok {
			all = append(all, a)
		}
	}
	return all
}
