package bridge

import (
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
)

// Places in a result's interfaces, the reference's.
const (
	atBridge = iota
	atHost
	atPod
)

// plan is the result that an ADD is about to produce: names and MACs at once,
// addresses and routes as soon as IPAM has answered.
func plan(conf Conf, c delegates.Call) (*types100.Result, error) {
	name := c.String()
	r := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			atBridge: {Name: conf.Bridge},
			atHost:   {Name: veth.HostNames(name)[0], Mac: veth.HostMAC(name).String()},
			atPod:    {Name: c.IfName, Sandbox: c.NetNS},
		},
	}
	if err := address(r, conf, c.IPAM); err != nil {
		return nil, err
	}
	mac := conf.MAC
	if mac == nil {
		mac = veth.PodMAC(name, veth.Prefixes(r.IPs))
	}
	r.Interfaces[atPod].Mac = mac.String()
	return r, nil
}

// address puts IPAM's answer into a plan, completed as the configuration asks.
func address(r *types100.Result, conf Conf, ipam *types100.Result) error {
	if ipam != nil {
		for _, ip := range ipam.IPs {
			own := *ip
			own.Interface = types100.Int(atPod)
			if own.Gateway == nil && conf.Gateway {
				own.Gateway = firstOf(own.Address)
			}
			r.IPs = append(r.IPs, &own)
		}
		r.Routes = append(r.Routes, ipam.Routes...)
		r.DNS = ipam.DNS
	}
	if conf.DNS != nil {
		r.DNS = *conf.DNS
	}
	if conf.DefaultGateway {
		r.Routes = append(r.Routes, defaults(r)...)
	}
	return veth.FitsMTU(conf.MTU, r)
}

// defaults is a default route a family, where IPAM gave none with a gateway.
func defaults(r *types100.Result) (add []*types.Route) {
	have := map[bool]bool{}
	for _, route := range r.Routes {
		if ones, _ := route.Dst.Mask.Size(); ones == 0 && route.GW != nil {
			have[route.Dst.IP.To4() != nil] = true
		}
	}
	for _, ip := range r.IPs {
		v4 := ip.Address.IP.To4() != nil
		if have[v4] {
			continue
		}
		have[v4] = true
		everywhere := net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
		if v4 {
			everywhere = net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
		}
		add = append(add, &types.Route{Dst: everywhere, GW: ip.Gateway})
	}
	return add
}

// gateways is what the bridge itself has: each gateway with its subnet's length.
func gateways(r *types100.Result) []netip.Prefix {
	var out []netip.Prefix
	for _, ip := range r.IPs {
		p := netip.PrefixFrom(veth.Addr(ip.Gateway), veth.Prefix(ip.Address).Bits())
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// firstOf is the first address of a subnet, where the reference has its gateway.
func firstOf(n net.IPNet) net.IP { return veth.Prefix(n).Masked().Addr().Next().AsSlice() }
