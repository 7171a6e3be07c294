package main

import (
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
)

// stored is a record and where it lies.
type stored struct{ cache.Stored }

// records is every record of the state directories.
func records(states []string) (all []stored, err error) {
	for _, state := range states {
		found, err := cache.In(state).List()
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			all = append(all, stored{r})
		}
	}
	return all, nil
}

// told is the most that the record knows of what was made: what ADD answered,
// else its plan, else what was reserved; never nil.
func (r stored) told() *types100.Result {
	for _, t := range []cache.Result{r.Result, r.Plan, r.Reserved} {
		if got := t.Get(); got != nil {
			return got
		}
	}
	return &types100.Result{}
}

// args is the CNI_ARGS of ADD; what cannot be read of them is left out.
func (r stored) args() conflist.Args {
	a, _ := conflist.ParseArgs(r.Args)
	return a
}

// wraps tells that another plugin made the interfaces, which have no alias then.
func (r stored) wraps() bool {
	return conflist.Parse(conflist.Read(r.Conf)).Tracewire.Mode == "delegate"
}

func (r stored) subject() subject {
	a := r.args()
	s := subject{Attachment: r.Attachment, namespace: a["K8S_POD_NAMESPACE"], pod: a["K8S_POD_NAME"]}
	for _, p := range addresses(r.told()) {
		s.addresses = append(s.addresses, p.Addr())
	}
	return s
}

// addresses is a result's, with prefix length.
func addresses(r *types100.Result) (out []netip.Prefix) {
	for _, ip := range r.IPs {
		if ip == nil {
			continue
		}
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		bits, _ := ip.Address.Mask.Size()
		if ok {
			out = append(out, netip.PrefixFrom(a.Unmap(), bits))
		}
	}
	return out
}

// routes is a result's. One without a next hop has the gateway of the first
// address of its family, unless it is of scope link, as plugins understand it.
func routes(r *types100.Result) (out []veth.Route) {
	for _, x := range r.Routes {
		if x == nil {
			continue
		}
		dst, _ := netip.AddrFromSlice(x.Dst.IP)
		bits, _ := x.Dst.Mask.Size()
		gateway, _ := netip.AddrFromSlice(x.GW)
		if near := x.Scope != nil && *x.Scope >= unix.RT_SCOPE_LINK; !gateway.IsValid() && !near {
			gateway = gatewayOf(r, dst.Unmap().Is4())
		}
		out = append(out, veth.Route{Dst: netip.PrefixFrom(dst.Unmap(), bits), Gateway: gateway.Unmap()})
	}
	return out
}

// gatewayOf is the gateway of a result's first address of a family.
func gatewayOf(r *types100.Result, is4 bool) netip.Addr {
	for _, ip := range r.IPs {
		if ip == nil {
			continue
		}
		if gw, _ := netip.AddrFromSlice(ip.Gateway); gw.IsValid() && gw.Unmap().Is4() == is4 {
			return gw.Unmap()
		}
	}
	return netip.Addr{}
}

// ends is the interfaces that a result tells of; each is never nil.
type ends struct{ bridge, host, pod *types100.Interface }

// endsOf finds the interfaces of an attachment in a result: the pod's end has a
// sandbox, and before it stand bridge and host end (spec 1.1.0, "ADD Success": in
// the order the plugins list them). What stands behind it is of other plugins.
func endsOf(a delegates.Attachment, r *types100.Result) ends {
	e := ends{&types100.Interface{}, &types100.Interface{}, &types100.Interface{}}
	for _, i := range r.Interfaces {
		switch {
		case i == nil:
		case i.Sandbox == "":
			e.bridge, e.host = e.host, i
		case i.Name == a.IfName:
			e.pod = i
			return e
		}
	}
	return e
}
