package ipam

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"

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
	if !last.addr().IsValid() { // a new store, or one that was wiped
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
		do = func() (netip.Addr, error) { return set.Requested, s.grant(ctx, set.Requested) }
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

func (s *store) grant(ctx context.Context, a netip.Addr) error {
	if _, ok := s.passed[a]; !ok {
		if ok, err := s.reserve(ctx, a, broken); ok || err != nil {
			return err
		}
	}
	if holder, ok := s.passed[a]; ok {
		return fmt.Errorf("%w: %s is held by container %s", ErrTaken, a, holder)
	}
	holder, _, what, err := look(s.path(a))
	switch {
	case err != nil:
		return err
	case what == held:
		return fmt.Errorf("%w: %s is held by container %s", ErrTaken, a, holder)
	}
	return fmt.Errorf("%w: %s is no reservation, and stays", ErrTaken, s.path(a))
}

func (s *store) probe(ctx context.Context, set Set, last netip.Addr) (netip.Addr, error) {
	n := 0
	for a := range set.after(last) {
		n++
		if n > probes {
			return s.search(ctx, set, last)
		}
		if ok, err := s.try(ctx, a, empty); ok || err != nil {
			return a, err
		}
	}
	return s.debris(ctx, set, last)
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
		if ok, err := s.try(ctx, a, empty); ok || err != nil {
			return a, err
		}
	}
	return s.debris(ctx, set, last)
}

// debris is for a set with a file for every address: only now is it worth
// reading them.
func (s *store) debris(ctx context.Context, set Set, last netip.Addr) (netip.Addr, error) {
	n, folder := 0, ""
	vacant := func(path string) bool {
		_, _, what, err := look(path)
		if what == directory {
			folder = filepath.Base(path)
		}
		return err == nil && what == debris
	}
	for a := range set.after(last) {
		if ok, err := s.try(ctx, a, vacant); ok || err != nil {
			return a, err
		}
		n++
	}
	return netip.Addr{}, fmt.Errorf("%w in range set %s: %s", ErrExhausted, set, inUse(uint64(n), uint64(n), folder))
}

// inUse is the figures of a range set for people. folder is one of its addresses
// whose file's place a folder is in, empty where there is none.
func inUse(used, total uint64, folder string) string {
	if folder != "" {
		folder = fmt.Sprintf(" (a folder stands in the place of %s)", folder)
	}
	return fmt.Sprintf("%d of %d in use%s", used, total, folder)
}
