package veth

import (
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
)

// VLAN is one VLAN of a bridge's port (bridge(8), "vlan").
type VLAN struct {
	ID       int  // 1 to 4094
	Native   bool // of frames that come in without a tag (PVID)
	Untagged bool // frames go out without a tag
}

// Of linux/if_bridge.h and linux/if_link.h.
const (
	bridgeFlags    = 0 // IFLA_BRIDGE_FLAGS
	bridgeVLANInfo = 2 // IFLA_BRIDGE_VLAN_INFO
	flagMaster     = 1 // BRIDGE_FLAGS_MASTER
	vlanNative     = 1 << 1
	vlanUntagged   = 1 << 2
	vlanFiltering  = 7 // IFLA_BR_VLAN_FILTERING
)

// SetVLANs gives a port the VLANs of add and takes those of drop from it. A
// bridge that does not filter VLANs takes them and minds none.
func (c *Conn) SetVLANs(port int, drop, add []VLAN) error {
	var m batch
	if len(drop) > 0 {
		m.vlans("remove VLANs", unix.RTM_DELLINK, port, drop)
	}
	if len(add) > 0 {
		m.vlans("add VLANs", unix.RTM_SETLINK, port, add)
	}
	if m.Len() == 0 {
		return nil
	}
	return c.Do(&m.Batch)
}

func (m *batch) vlans(what string, kind uint16, port int, vlans []VLAN) {
	m.Add(what, kind, 0)
	m.Raw(unix.AF_BRIDGE, 0, 0, 0)
	m.Raw(netlink.Order.AppendUint32(nil, uint32(port))...)
	m.Raw(make([]byte, 8)...)
	spec := m.Nest(unix.IFLA_AF_SPEC)
	m.Attr(bridgeFlags, netlink.Order.AppendUint16(nil, flagMaster))
	for _, v := range vlans {
		var flags uint16
		if v.Native {
			flags |= vlanNative
		}
		if v.Untagged {
			flags |= vlanUntagged
		}
		info := netlink.Order.AppendUint16(nil, flags)
		m.Attr(bridgeVLANInfo, netlink.Order.AppendUint16(info, uint16(v.ID)))
	}
	spec()
	m.End()
}
