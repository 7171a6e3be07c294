package ipam

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

var (
	// ErrExhausted marks a range set without a free address.
	ErrExhausted = errors.New("no addresses available")
	// ErrTaken marks a requested address that another attachment holds.
	ErrTaken = errors.New("requested address is taken")
)

// probes is how many addresses after the cursor are tried before the folder is
// listed. Round robin finds the first one free until the range has gone round.
const probes = 64

// lease reserves one address of set n.
func (s *store) lease(ctx context.Context, set Set, n int) (*types100.IPConfig, error) {
	last := s.cursorOf(n)
	if last.text == "" { // a new store, or one that was wiped
		if err := s.restore(ctx, set); err != nil {
			return nil, err
		}
	}
	a, err := s.pick(ctx, set, last.addr())
	if errors.Is(err, errStations) { // the next ADD goes on from here
		return nil, errors.Join(err, last.set(a))
	}
	if err != nil {
		return nil, err
	}
	if err := last.set(a); err != nil {
		return nil, err
	}
	r := set.Ranges[set.index(a)]
	mask := net.CIDRMask(r.Subnet.Bits(), a.BitLen())
	return &types100.IPConfig{Address: net.IPNet{IP: a.AsSlice(), Mask: mask}, Gateway: r.Gateway.AsSlice()}, nil
}

// pick reserves the address asked for, or the next that is free. Where there is
// none, what is of an earlier boot is given back.
func (s *store) pick(ctx context.Context, set Set, last netip.Addr) (netip.Addr, error) {
	do := func() (netip.Addr, error) { return s.probe(ctx, set, last) }
	if set.Requested.IsValid() {
		do = func() (netip.Addr, error) { return set.Requested, s.grant(set.Requested) }
	}
	a, err := do()
	if !errors.Is(err, ErrExhausted) && !errors.Is(err, ErrTaken) {
		return a, err
	}
	n, untold := s.reclaim(ctx)
	if n > 0 {
		a, err = do()
	}
	if err != nil && untold != nil {
		err = fmt.Errorf("%w (what is of an earlier boot cannot be given back: %w)", err, untold)
	}
	return a, err
}

func (s *store) grant(a netip.Addr) error {
	if holder, ok := s.passed[a]; ok {
		return fmt.Errorf("%w: %s is held by container %s", ErrTaken, a, holder)
	}
	ok, err := s.reserve(a)
	if ok || err != nil {
		return err
	}
	holder, _, err := readReservation(s.path(a))
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: %s is held by container %s", ErrTaken, a, holder)
}

func (s *store) probe(ctx context.Context, set Set, last netip.Addr) (netip.Addr, error) {
	n := 0
	for a := range set.after(last) {
		n++
		if n > probes {
			return s.search(ctx, set, last)
		}
		if ok, err := s.try(ctx, a); ok || err != nil {
			return a, err
		}
	}
	return netip.Addr{}, exhausted(set, n)
}

// search looks a free address up in one listing. It passes over no more
// addresses than there are files, however large the ranges are.
func (s *store) search(ctx context.Context, set Set, last netip.Addr) (netip.Addr, error) {
	taken, err := taken(s.dir)
	if err != nil {
		return netip.Addr{}, err
	}
	for a := range set.after(last) {
		if taken[a] {
			continue
		}
		if ok, err := s.try(ctx, a); ok || err != nil {
			return a, err
		}
	}
	return s.debris(ctx, set, last)
}

// debris is for a set with a file for every address: only now is it worth
// asking for their sizes.
func (s *store) debris(ctx context.Context, set Set, last netip.Addr) (netip.Addr, error) {
	n := 0
	for a := range set.after(last) {
		if ok, err := s.try(ctx, a); ok || err != nil {
			return a, err
		}
		n++
	}
	return netip.Addr{}, exhausted(set, n)
}

func exhausted(set Set, n int) error {
	return fmt.Errorf("%w in range set %s: %d of %d in use", ErrExhausted, set, n, n)
}
