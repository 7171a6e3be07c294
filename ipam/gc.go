package ipam

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"path/filepath"

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
	for a := range names {
		released, err := s.collect(ctx, a, c.Network, k)
		if released {
			n++
		}
		errs = append(errs, err)
	}
	s.span.Set(trace.KeyReservation.Int(n))
	return errors.Join(errs...)
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

// collect releases one address unless its attachment is kept.
func (s *store) collect(ctx context.Context, a netip.Addr, network string, k delegates.Kept) (bool, error) {
	path := s.path(a)
	r, _, what, err := look(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case what == debris:
		return s.clear(ctx, a)
	case what != held:
		stays(ctx, a, what)
		return false, nil
	}
	if k.Has(delegates.Attachment{Network: network, ContainerID: r.ContainerID, IfName: r.IfName}) {
		return false, nil
	}
	if theirs, err := s.another(ctx, a, r); theirs || err != nil {
		return false, err
	}
	s.span.Event("reservation.release", trace.KeyAddresses.StringSlice([]string{filepath.Base(path)}), trace.KeyID.String(r.ContainerID))
	return true, remove(path)
}
