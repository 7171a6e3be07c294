package main

import (
	"context"
	"errors"
	"net/netip"

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
	h.Recorded = o.recorded
	h.Earlier = ipam.Earlier{Dir: o.runDir(), Boot: o.boot, Look: func(ctx context.Context) (ipam.Holders, error) {
		return o.holders(ctx, o.net.Name)
	}}
	return h
}

// onBridge is leases of pods on a bridge.
func (o *operation) onBridge(h ipam.HostLocal, br bridge.Bridge) ipam.HostLocal {
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
