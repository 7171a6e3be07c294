package ipam

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// GC implements delegates.Delegate: it releases the addresses of attachments
// that are not kept, and the empty files that an ADD which a crash cut short
// left. A file that is named by no address is not ours.
func (h HostLocal) GC(ctx context.Context, c delegates.Call, k delegates.Kept) error {
	dir, err := folder(h.DataDir, c.Network)
	if err != nil {
		return err
	}
	s, err := openStore(ctx, dir, Reservation{})
	if noStore(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer s.unlock()
	names, err := taken(dir)
	n, errs := 0, []error{err}
	for a := range names {
		released, err := s.collect(a, c.Network, k)
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
	all, err := held(dir)
	for name, r := range all {
		if a, bad := netip.ParseAddr(name); bad == nil {
			out = append(out, delegates.Lease{Address: a, Attachment: delegates.Attachment{Network: network, ContainerID: r.ContainerID, IfName: r.IfName}})
		}
	}
	return out, err
}

// collect releases one address unless its attachment is kept.
func (s *store) collect(a netip.Addr, network string, k delegates.Kept) (bool, error) {
	path := s.path(a)
	r, ok, err := readReservation(path)
	if err != nil {
		return false, err
	}
	if !ok {
		if !empty(path) { // it is gone, or no reservation
			return false, nil
		}
		return true, remove(path)
	}
	if !r.plausible() {
		return false, nil // a file that somebody named like an address
	}
	if k.Has(delegates.Attachment{Network: network, ContainerID: r.ContainerID, IfName: r.IfName}) {
		return false, nil
	}
	s.span.Event("reservation.release", trace.KeyAddresses.StringSlice([]string{filepath.Base(path)}), trace.KeyID.String(r.ContainerID))
	return true, remove(path)
}
