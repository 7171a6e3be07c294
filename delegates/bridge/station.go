package bridge

import (
	"errors"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
)

// Station tells whether the bridge has a station of the MAC that follows from a
// pod's address on a network: who has that one lives, whatever became of its
// reservation. What is no bridge has none.
func (b Bridge) Station(network string, a netip.Addr) (there bool, err error) {
	err = b.look(func(host *veth.Conn, bridge int) error {
		there, err = host.Learned(bridge, veth.PodMAC(network+"/", []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}))
		return err
	})
	if err == nil && !there {
		*b.Vacant = a
	}
	return there, err
}

// Tenants is the addresses of the pods behind the bridge, and whose they are
// where that is told.
func (b Bridge) Tenants() (out []delegates.Lease, err error) {
	err = b.look(func(host *veth.Conn, bridge int) error {
		out, err = host.Tenants(bridge)
		return err
	})
	return out, err
}

// Strangers tells whether the bridge has a veth port that is neither ours nor
// known by its name: a pod of somebody else.
func (b Bridge) Strangers(known func(name string) bool) (there bool, err error) {
	err = b.look(func(host *veth.Conn, bridge int) error {
		all, err := host.Ports(bridge)
		there = slices.ContainsFunc(all, func(l veth.Link) bool { return l.Kind == "veth" && !l.Ours() && !known(l.Name) })
		return err
	})
	return there, err
}

// look looks at the bridge, where one can be.
func (b Bridge) look(at func(host *veth.Conn, bridge int) error) error {
	host, err := veth.Dial()
	if err != nil {
		return err
	}
	defer host.Close()
	bridge, err := host.Index(b.Conf.Bridge)
	if err == nil {
		err = at(host, bridge)
	}
	if veth.Gone(err) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) { // another device; a name too long
		return nil
	}
	return err
}

// vacant tells that Station looked, and found none.
func (w *wiring) vacant() bool {
	return w.Vacant != nil && slices.ContainsFunc(w.Result.IPs, func(ip *types100.IPConfig) bool { return veth.Addr(ip.Address.IP) == *w.Vacant })
}
