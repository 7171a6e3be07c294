package ptp

import (
	"context"
	"net/netip"
	"slices"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
)

// Check implements delegates.Delegate. What differs is a delegates.Findings;
// another error tells that it could not look.
func (p PTP) Check(ctx context.Context, c delegates.Call) error {
	host, err := veth.Dial()
	if err != nil {
		return err
	}
	defer host.Close()
	k := &veth.Check{Call: c, Pod: p.Namespace, Host: host, Own: own}
	if err := k.Look(func(end veth.Link) error { return gateway(k, end) }); err != nil {
		return err
	}
	var addresses []netip.Addr
	for _, l := range links(k.Made()) {
		addresses = append(addresses, l.own)
	}
	if err := k.Forwarding(addresses...); err != nil {
		return err
	}
	if err := p.Masquerade.Check(ctx, c, k.Find); err != nil {
		return err
	}
	return k.Result(ctx)
}

// gateway compares the host end's addresses, and the host's routes to the pod.
func gateway(k *veth.Check, end veth.Link) error {
	all := links(k.Made())
	if len(all) == 0 {
		return nil
	}
	routes, err := k.Host.Routes(end.Index)
	if err != nil {
		return err
	}
	var gateways []netip.Prefix
	for _, l := range all {
		gateways = append(gateways, alone(l.gateway))
		if !slices.ContainsFunc(routes, func(r veth.Installed) bool { return r.Dst == alone(l.own) && r.Index == end.Index }) {
			k.Find("hostroute.missing", "host route to "+alone(l.own).String()+" by "+end.Name, "none", func() error { return k.Host.AddRoutes(end.Index, l.onHost()) })
		}
	}
	give := func(p netip.Prefix) error { return k.Host.AddAddresses(end.Index, veth.Addressing{}, p) }
	return k.Gateway(end, give, unique(gateways)...)
}
