package ptp

import (
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
)

// Places in a result's interfaces, the reference's.
const (
	atHost = iota
	atPod
)

// plan is the result that an ADD is about to produce: names and MACs at once,
// addresses and routes as soon as IPAM has answered.
func plan(conf Conf, c delegates.Call) (*types100.Result, error) {
	r := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			atHost: {Name: veth.HostNames(c.String())[0], Mac: veth.HostMAC(c.String()).String()},
			atPod:  {Name: c.IfName, Sandbox: c.NetNS},
		},
	}
	if err := address(r, conf, c.IPAM); err != nil {
		return nil, err
	}
	r.Interfaces[atPod].Mac = veth.PodMAC(c.String(), veth.Prefixes(r.IPs)).String()
	return r, nil
}

// address puts IPAM's answer into a plan.
func address(r *types100.Result, conf Conf, ipam *types100.Result) error {
	if ipam != nil {
		for _, ip := range ipam.IPs {
			own := *ip
			own.Interface = types100.Int(atPod)
			if own.Gateway == nil {
				return fmt.Errorf("%w: address %s has no gateway, which mode ptp needs", delegates.ErrPlugin, ip.Address.String())
			}
			r.IPs = append(r.IPs, &own)
		}
		r.Routes = append(r.Routes, ipam.Routes...)
		r.DNS = ipam.DNS
	}
	if conf.DNS != nil {
		r.DNS = *conf.DNS
	}
	return veth.FitsMTU(conf.MTU, r)
}

// link is one address of the pod and its gateway.
type link struct {
	own, gateway netip.Addr
	subnet       netip.Prefix
}

func links(r *types100.Result) []link {
	out := make([]link, len(r.IPs))
	for i, ip := range r.IPs {
		p := veth.Prefix(ip.Address)
		out[i] = link{own: p.Addr(), gateway: veth.Addr(ip.Gateway), subnet: p.Masked()}
	}
	return out
}

// alone is the prefix of one address.
func alone(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// onHost is the host's route to the pod, of the reference's scope.
func (l link) onHost() veth.Route {
	scope := int(unix.RT_SCOPE_HOST)
	return veth.Route{Dst: alone(l.own), Scope: &scope}
}

// own is the pod's routes that the mode makes: to the gateway alone straight,
// to the subnet through the gateway, so that pods reach each other through the
// host.
func own(r *types100.Result) (out []veth.Route) {
	scope := int(unix.RT_SCOPE_LINK)
	for _, l := range links(r) {
		out = append(out,
			veth.Route{Dst: alone(l.gateway), Source: l.own, Scope: &scope},
			veth.Route{Dst: l.subnet, Gateway: l.gateway, Source: l.own})
	}
	return out
}

func unique(ps []netip.Prefix) (out []netip.Prefix) {
	for _, p := range ps {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}
