package ipam

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// Lease is an address and who holds it, by a record of this boot.
type Lease struct {
	delegates.Attachment
	Address netip.Addr
	Settled bool // its ADD is over, and no DEL has begun
}

// stations bounds how many addresses one Add passes over because the bridge has
// a station of their MACs.
const stations = 64

var errStations = fmt.Errorf("%w: the bridge has stations of the MACs of %d free ones in a row", ErrExhausted, stations)

// restore reserves again what attachments of this boot hold, in a store that
// was wiped while they lived. Where an attachment is being made or removed just
// now, its address is passed over: nobody would release the file.
func (s *store) restore(ctx context.Context, set Set) error {
	if s.recorded == nil {
		return nil
	}
	leases, err := s.recorded()
	if err != nil {
		return err
	}
	for _, l := range leases {
		if set.index(l.Address) >= 0 && of(l.Attachment) != s.owner {
			if err := s.restoreOne(ctx, l, broken); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *store) restoreOne(ctx context.Context, l Lease, vacant func(path string) bool) error {
	holder := of(l.Attachment)
	if !l.Settled {
		s.pass(l.Address, holder.String())
		return nil
	}
	again := &store{dir: s.dir, owner: holder, span: s.span}
	ok, err := again.reserve(ctx, l.Address, vacant)
	if ok && err == nil {
		trace.Warn(ctx, "a live attachment had no reservation: it has one again", trace.KeyAddresses.StringSlice([]string{l.Address.String()}), trace.KeyID.String(l.ContainerID))
	}
	return err
}

// pass keeps an address from being leased by this Add.
func (s *store) pass(a netip.Addr, holder string) {
	if s.passed == nil {
		s.passed = map[netip.Addr]string{}
	}
	s.passed[a] = holder
}

// try reserves an address, unless it is taken, or somebody's without a
// reservation.
func (s *store) try(ctx context.Context, a netip.Addr, vacant func(path string) bool) (bool, error) {
	if _, ok := s.passed[a]; ok {
		return false, nil
	}
	ok, err := s.reserve(ctx, a, vacant)
	if !ok || err != nil || s.station == nil {
		return ok, err
	}
	there, err := s.station(a)
	if err != nil {
		trace.Warn(ctx, "stations of the bridge cannot be looked up", trace.KeyError.String(err.Error()))
	}
	if !there {
		return true, nil
	}
	trace.Warn(ctx, "the bridge has a station of the address's MAC: the address is passed over", trace.KeyAddresses.StringSlice([]string{a.String()}))
	s.pass(a, "a station of the bridge")
	s.met++
	if err := s.drop(a); err != nil || s.met < stations {
		return false, err
	}
	return false, errStations
}

// drop takes back a reservation that this Add made.
func (s *store) drop(a netip.Addr) error {
	path := s.path(a)
	s.made = slices.DeleteFunc(s.made, func(made string) bool { return made == path })
	return os.Remove(path)
}

// telling is the set whose address the pod's MAC follows from: the first of
// IPv4, else the first.
func telling(sets []Set) int {
	return max(0, slices.IndexFunc(sets, func(s Set) bool { return s.Ranges[0].Start.Is4() }))
}
