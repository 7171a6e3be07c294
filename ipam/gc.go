package ipam

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// GC implements delegates.Delegate: it releases the addresses of attachments
// that are not kept, and what a crash or a broken disk left in the place of an
// address's file. A file that is named by no address is not ours.
func (h HostLocal) GC(ctx context.Context, c delegates.Call, k delegates.Kept) error {
	dir, err := folder(h.DataDir, c.Network)
	if err != nil {
		return err
	}
	s, err := h.toRelease(ctx, dir, Reservation{})
	if s == nil || err != nil {
		return err
	}
	defer s.unlock()
	names, err := taken(dir)
	n, errs := 0, []error{err}
	gone := ended{}
	for a := range names {
		of, released, err := s.collect(ctx, a, c.Network, k)
		if released {
			n++
			gone.add(of, a)
		}
		errs = append(errs, err)
	}
	gone.tell(ctx, trace.ByGC, c.Network)
	s.span.Set(trace.KeyReservation.Int(n))
	return errors.Join(errs...)
}

// ended is the addresses that were taken from attachments.
type ended map[Reservation][]string

// add takes in one, unless it was nobody's.
func (e ended) add(r Reservation, a netip.Addr) {
	if r.ContainerID != "" {
		e[r] = append(e[r], netip.PrefixFrom(a, a.BitLen()).String())
	}
}

// tell tells the log, a line an attachment.
func (e ended) tell(ctx context.Context, by, network string) {
	for r, addresses := range e {
		slices.Sort(addresses)
		trace.TellGone(ctx, by, append(trace.Given(trace.KeyName.String(network), trace.KeyID.String(r.ContainerID), trace.KeyIfName.String(r.IfName)),
			trace.KeyAddresses.StringSlice(addresses))...)
	}
}

// Leases is the addresses that are reserved on a network, whosoever's they are.
// No folder holds none.
func (h HostLocal) Leases(network string) (out []delegates.Lease, err error) {
	dir, err := folder(h.DataDir, network)
	if err != nil {
		return nil, err
	}
	all, err := reservations(dir)
	for name, r := range all {
		if a, bad := netip.ParseAddr(name); bad == nil {
			out = append(out, delegates.Lease{Address: a, Attachment: delegates.Attachment{Network: network, ContainerID: r.ContainerID, IfName: r.IfName}})
		}
	}
	return out, err
}

// collect releases one address unless its attachment is kept, and tells whose it
// was; what a crash left is nobody's.
func (s *store) collect(ctx context.Context, a netip.Addr, network string, k delegates.Kept) (r Reservation, gone bool, err error) {
	path := s.path(a)
	r, _, what, err := look(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r, false, nil
	case err != nil:
		return r, false, err
	case what == debris:
		gone, err = s.clear(ctx, a)
		return Reservation{}, gone, err
	case what != held:
		stays(ctx, a, what)
		return r, false, nil
	}
	if k.Has(delegates.Attachment{Network: network, ContainerID: r.ContainerID, IfName: r.IfName}) {
		return r, false, nil
	}
	if theirs, err := s.another(ctx, a, r); theirs || err != nil {
		return r, false, err
	}
	s.span.Event("reservation.release", trace.KeyAddresses.StringSlice([]string{filepath.Base(path)}), trace.KeyID.String(r.ContainerID))
	err = remove(path)
	return r, err == nil, err
}
