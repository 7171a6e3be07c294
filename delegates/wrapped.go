package delegates

import (
	"cmp"
	"context"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Wrapped is a plugin of the configuration's delegates. Its answer replaces the
// result so far.
type Wrapped struct {
	Plugin
	// IPAM is the type of the IPAM plugin that it asks for addresses; empty where
	// it is not Main, or asks none.
	IPAM string
}

// Add implements Delegate. An answer that lost something of the result so far
// is an error.
func (w Wrapped) Add(ctx context.Context, c Call) (*types100.Result, error) {
	r, version, err := w.add(ctx, c)
	switch {
	case err != nil:
		return nil, err
	case r == nil:
		return nil, w.failed("answer is null, not a result")
	case c.Before == nil:
		return r, w.points(r)
	case noInterfaces(version):
		r.Interfaces = slices.Clone(c.Before.Interfaces)
		keepInterfaces(c.Before, r)
		keepNewer(c.Before, r)
	case version != types100.ImplementedSpecVersion:
		keepNewer(c.Before, r)
	}
	return r, w.kept(c.Before, r)
}

// Del implements Delegate. A plugin that is told of no namespace may end before
// it asks its IPAM plugin to free the address, as host-device does: that one is
// asked by us, before.
func (w Wrapped) Del(ctx context.Context, c Call) error {
	if w.IPAM != "" && c.NetNS == "" && c.Made.To(w.Step) {
		leases := Plugin{Type: w.IPAM, Step: w.Step, Conf: w.Conf}
		_, err := leases.with(ctx, "DEL", c)
		if err := leases.excuse(ctx, c, err); err != nil {
			return err
		}
	}
	return w.Plugin.Del(ctx, c)
}

// kept is an error where an answer lost an interface or an address.
func (w Wrapped) kept(before, after *types100.Result) error {
	for _, i := range before.Interfaces {
		if !slices.ContainsFunc(after.Interfaces, same(i)) {
			return w.failed("answer lost interface %s", where(i))
		}
	}
	for _, ip := range before.IPs {
		at := slices.IndexFunc(after.IPs, func(o *types100.IPConfig) bool { return o.Address.String() == ip.Address.String() })
		if at < 0 {
			return w.failed("answer lost address %s", ip.Address.String())
		}
		if of := owner(before, ip); of != nil && (owner(after, after.IPs[at]) == nil || !same(of)(owner(after, after.IPs[at]))) {
			return w.failed("answer lost the interface of address %s, %s", ip.Address.String(), where(of))
		}
	}
	return w.points(after)
}

// points is an error where an address is of an interface that is not there.
func (w Wrapped) points(r *types100.Result) error {
	for _, ip := range r.IPs {
		if ip.Interface != nil && owner(r, ip) == nil {
			return w.failed("answer has address %s of interface %d, but %d interfaces", ip.Address.String(), *ip.Interface, len(r.Interfaces))
		}
	}
	return nil
}

// owner is the interface of an address, nil for none.
func owner(r *types100.Result, ip *types100.IPConfig) *types100.Interface {
	if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(r.Interfaces) {
		return nil
	}
	return r.Interfaces[*ip.Interface]
}

func same(a *types100.Interface) func(*types100.Interface) bool {
	return func(b *types100.Interface) bool { return a.Name == b.Name && a.Sandbox == b.Sandbox }
}

func where(i *types100.Interface) string {
	if i.Sandbox == "" {
		return i.Name + " of the host"
	}
	return i.Name + " in " + i.Sandbox
}

// noInterfaces tells a version whose results have no interfaces (CNI spec
// 0.2.0, "Result").
func noInterfaces(version string) bool { return version == "0.1.0" || version == "0.2.0" }

// keepInterfaces gives addresses the interface that they had before.
func keepInterfaces(before, after *types100.Result) {
	for _, ip := range after.IPs {
		for _, old := range before.IPs {
			if old.Address.String() == ip.Address.String() {
				ip.Interface = old.Interface
			}
		}
	}
}

// keepNewer gives interfaces and routes what they had before and a version
// below 1.1.0 cannot hold: the plugin never saw it.
func keepNewer(before, after *types100.Result) {
	for _, i := range after.Interfaces {
		if at := slices.IndexFunc(before.Interfaces, same(i)); at >= 0 {
			old := before.Interfaces[at]
			i.Mtu, i.SocketPath, i.PciID = cmp.Or(i.Mtu, old.Mtu), cmp.Or(i.SocketPath, old.SocketPath), cmp.Or(i.PciID, old.PciID)
		}
	}
	left := slices.Clone(before.Routes)
	for _, r := range after.Routes {
		at := slices.IndexFunc(left, func(o *types.Route) bool { return o.Dst.String() == r.Dst.String() && o.GW.Equal(r.GW) })
		if at < 0 {
			continue
		}
		old := left[at]
		left = slices.Delete(left, at, at+1) // two may differ in nothing but what the version cannot hold
		r.MTU, r.AdvMSS, r.Priority = cmp.Or(r.MTU, old.MTU), cmp.Or(r.AdvMSS, old.AdvMSS), cmp.Or(r.Priority, old.Priority)
		r.Table, r.Scope = cmp.Or(r.Table, old.Table), cmp.Or(r.Scope, old.Scope)
	}
}
