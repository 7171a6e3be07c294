package veth

import (
	"context"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// podUp turns the pod's end on.
func (k *Check) podUp() error { return k.Pod.Conn().SetUp(k.pod.Index) }

// giveBack gives the pod's end an address that it lacks, as ADD did.
func (k *Check) giveBack(a netip.Prefix) error {
	return k.Pod.Do(func() error {
		if a.Addr().Is6() {
			if err := Ensure(enable6(k.Call.IfName)...); err != nil {
				return err
			}
		}
		pod := k.Pod.Conn()
		if err := pod.AddAddresses(k.pod.Index, Addressing{NoPrefixRoute: k.Own != nil}, a); err != nil {
			return err
		}
		return pod.WaitLocal(context.Background(), k.pod.Index, a) // has a bound of its own
	})
}

// putRoute adds a route to the pod's, in place of another to that destination
// where ADD made one alone.
func (k *Check) putRoute(r Route, wanted [][]Route) error {
	beside := slices.ContainsFunc(wanted, func(may []Route) bool { return may[0] != r && may[0].Dst.Masked() == r.Dst.Masked() })
	if beside {
		return k.Pod.Conn().AddRoutes(k.pod.Index, r)
	}
	return k.Pod.Conn().ReplaceRoute(k.pod.Index, r)
}

// SetMaster makes an interface the port of a bridge.
func (c *Conn) SetMaster(index, bridge int) error {
	var m batch
	m.Add("set bridge", unix.RTM_NEWLINK, 0)
	m.IfInfo(index, 0, 0)
	m.U32(unix.IFLA_MASTER, uint32(bridge))
	m.End()
	return c.Do(&m.Batch)
}

// SetPort sets one of the attributes that a bridge's port has
// (linux/if_link.h, IFLA_BRPORT_*).
func (c *Conn) SetPort(index int, attribute uint16, value byte) error {
	var m batch
	m.Add("set port of bridge", unix.RTM_NEWLINK, 0)
	m.IfInfo(index, 0, 0)
	m.ofPort(func() { m.Attr(attribute, []byte{value}) })
	m.End()
	return c.Do(&m.Batch)
}
