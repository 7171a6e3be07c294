package main

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/tracewire/tracewire/chain"
	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/bridge"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/ipam"
)

// leases completes what the configuration says of addresses by what the node
// tells: who lives, and who was of an earlier boot.
func (o *operation) leases(h ipam.HostLocal) ipam.HostLocal {
	h.Recorded = func() ([]ipam.Lease, error) { return o.living(veth.RoutedTenants) }
	h.Earlier = ipam.Earlier{Dir: o.runDir(), Boot: o.boot, Look: func(ctx context.Context) (ipam.Holders, error) {
		return o.holders(ctx, o.net.Name)
	}}
	return h
}

// onBridge is leases of pods on a bridge.
func (o *operation) onBridge(h ipam.HostLocal, br bridge.Bridge) ipam.HostLocal {
	h.Recorded = func() ([]ipam.Lease, error) { return o.living(br.Tenants) }
	h.Station = func(a netip.Addr) (bool, error) { return br.Station(o.net.Name, a) }
	h.Earlier.Look = func(ctx context.Context) (ipam.Holders, error) {
		holders, err := o.holders(ctx, o.net.Name)
		if err != nil {
			return nil, err
		}
		holders.Foreign, err = br.Strangers(holders.Named)
		return holders, err
	}
	return h
}

// short tells that host-local had no address to give.
func short(err error) bool { return errors.Is(err, ipam.ErrExhausted) || errors.Is(err, ipam.ErrTaken) }

// runDir is where this network, with these folders, keeps what does not outlive
// the boot.
func (o *operation) runDir() string {
	store := ""
	if o.net.IPAM == "host-local" {
		store = o.doc.At("ipam").At("dataDir").Text()
	}
	return chain.RunDir(o.net.Name, o.net.Tracewire.StateDir, store)
}

// holders finds out who holds addresses of a network: by records, by libcni, and
// by the interfaces and routes that are there.
func (o *operation) holders(_ context.Context, network string) (cache.Holders, error) {
	records, errRecords := o.records().Of(network)
	entries, errEntries := cache.Entries(network, cache.LibcniDirs()...)
	marked, errMarked := veth.Marked()
	routed, errRouted := veth.Routed()
	return cache.Holders{
		Dir: o.records(), Boot: o.boot, Records: records, Entries: entries, Routed: routed, Marked: marked, Gone: veth.Missing,
	}, errors.Join(errRecords, errEntries, errMarked, errRouted)
}

// living is the addresses of whom a store that was wiped knows nothing: records
// of this boot, what libcni keeps of pods whose namespace is there, and what the
// network's pods have. Where nobody tells whose it is, it is only passed over;
// another network's is another's, whose ranges may overlap.
func (o *operation) living(tenants func() ([]delegates.Lease, error)) ([]ipam.Lease, error) {
	out, errRecords := o.recorded()
	entries, errEntries := cache.Entries(o.net.Name, cache.LibcniDirs()...)
	for _, e := range entries {
		there := slices.ContainsFunc(e.NetNS, func(path string) bool { return !veth.Missing(path) })
		for _, a := range e.Addresses {
			if there && e.Network != "" {
				out = append(out, ipam.Lease{Attachment: e.Attachment, Address: a, Settled: true})
			}
		}
	}
	there, errTenants := tenants()
	for _, l := range there {
		switch l.Network {
		case o.net.Name:
			out = append(out, ipam.Lease{Attachment: l.Attachment, Address: l.Address, Settled: true})
		case "":
			a := delegates.Attachment{Network: o.net.Name, ContainerID: "an interface on this node"}
			out = append(out, ipam.Lease{Attachment: a, Address: l.Address})
		}
	}
	return out, errors.Join(errRecords, errEntries, errTenants)
}

// recorded is the addresses that records of this boot hold.
func (o *operation) recorded() (out []ipam.Lease, err error) {
	all, err := o.records().Of(o.net.Name)
	for _, r := range all {
		if r.Earlier(o.boot) || r.State == cache.Ended {
			continue
		}
		for _, a := range delegates.Addresses(r.Reserved.Get()) {
			out = append(out, ipam.Lease{Attachment: r.Attachment, Address: a, Settled: r.State == cache.Attached})
		}
	}
	return out, err
}
