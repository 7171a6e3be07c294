// Package ipam leases addresses to attachments. It keeps them as the reference
// plugin host-local does, file by file, so both can share one directory.
package ipam

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/delegates"
)

// HostLocal leases addresses of fixed ranges, one file an address in
// DataDir/<network>. DEL needs no ranges.
type HostLocal struct {
	DataDir    string
	Sets       []Set
	Routes     []*types.Route
	ResolvConf string // a file; empty when there is none
	Patience   Patience
	Earlier    Earlier
	// Recorded is the addresses that the network's records of this boot hold: a store
	// without a cursor asks once. Nil where there are no records.
	Recorded func() ([]Lease, error)
	// Station tells whether the bridge has a station of the MAC that follows from an
	// address: who lost its reservation may live. Nil where there is no bridge.
	Station func(netip.Addr) (bool, error)

	perCall bool // some of Sets are this call's own
}

var _ delegates.Delegate = HostLocal{}

// Add reserves an address of each range set, all under one lock, or none. That
// the attachment has none yet is for its record to know: the folder is not
// searched for it.
func (h HostLocal) Add(ctx context.Context, c delegates.Call) (*types100.Result, error) {
	dir, err := folder(h.DataDir, c.Network)
	if err != nil {
		return nil, err
	}
	res := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	if res.DNS, err = resolv(h.ResolvConf); err != nil {
		return nil, err
	}
	for _, r := range h.Routes {
		res.Routes = append(res.Routes, r.Copy())
	}
	s, err := makeStore(ctx, dir, of(c.Attachment))
	if err != nil {
		return nil, delegates.NothingMade{Err: err}
	}
	defer s.unlock()
	s.network, s.earlier, s.recorded = c.Network, h.Earlier, h.once()
	_ = s.earlier.ensure(ctx, s) // who needs the list tells why there is none
	if err := h.fill(ctx, s, res); err != nil {
		if left := s.undo(); left != nil {
			err = errors.Join(err, left)
		}
		return nil, err
	}
	return res, nil
}

// once is Recorded, asked once at most.
func (h HostLocal) once() func() ([]Lease, error) {
	if h.Recorded == nil {
		return nil
	}
	return sync.OnceValues(h.Recorded)
}

// fill adds an address of each range set.
func (h HostLocal) fill(ctx context.Context, s *store, res *types100.Result) error {
	if len(h.Sets) == 0 {
		return ErrNoRanges
	}
	for n, set := range h.Sets {
		if s.station = nil; n == telling(h.Sets) {
			s.station = h.Station
		}
		ip, err := s.lease(ctx, set, n)
		if err != nil {
			return err
		}
		res.IPs = append(res.IPs, ip)
	}
	return nil
}
