package veth

import (
	"net"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"
)

const (
	maxMTU    = 65535 - 15 // what the kernel makes of a route's larger one (ip_metrics_convert, net/ipv4/metrics.c)
	maxAdvMSS = 65535 - 40
)

// Routes is what the pod gets of a result: a route without a gateway goes
// through the first gateway of its family, unless its scope says that it needs
// none.
func Routes(r *types100.Result) []Route {
	first := map[bool]netip.Addr{}
	for _, ip := range r.IPs {
		if gw := Addr(ip.Gateway); gw.IsValid() && !first[gw.Is4()].IsValid() {
			first[gw.Is4()] = gw
		}
	}
	out := make([]Route, len(r.Routes))
	for i, x := range r.Routes {
		dst := Prefix(x.Dst)
		out[i] = Route{Dst: dst, Gateway: Addr(x.GW), MTU: min(x.MTU, maxMTU), AdvMSS: min(x.AdvMSS, maxAdvMSS), Priority: x.Priority, Scope: x.Scope}
		if near := x.Scope != nil && *x.Scope >= unix.RT_SCOPE_LINK; !out[i].Gateway.IsValid() && !near {
			out[i].Gateway = first[dst.Addr().Is4()]
		}
		if x.Table != nil {
			out[i].Table = *x.Table
		}
	}
	return out
}

// Prefixes is the addresses of a result, with prefix length.
func Prefixes(ips []*types100.IPConfig) []netip.Prefix {
	out := make([]netip.Prefix, len(ips))
	for i, ip := range ips {
		out[i] = Prefix(ip.Address)
	}
	return out
}

// Prefix is an address with prefix length.
func Prefix(n net.IPNet) netip.Prefix {
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(Addr(n.IP), ones)
}

// Addr is an address, invalid for nil.
func Addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
