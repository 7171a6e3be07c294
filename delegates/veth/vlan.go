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

// VLANs lists those of a port.
func (c *Conn) VLANs(port int) (out []VLAN, err error) {
	var m batch
	m.Add("list VLANs", unix.RTM_GETVLAN, 0)
	m.Raw(unix.AF_BRIDGE, 0, 0, 0)
	m.Raw(netlink.Order.AppendUint32(nil, uint32(port))...)
	m.End()
	err = c.Dump(&m.Batch, func() { out = nil }, func(body []byte) { out = append(out, readVLANs(port, body)...) })
	return out, err
}

// readVLANs reads a struct br_vlan_msg of a port and its entries: one VLAN, or a
// range of them that ends with another.
func readVLANs(port int, body []byte) (out []VLAN) {
	if len(body) < sizeofVLANMsg || int(netlink.Order.Uint32(body[4:])) != port {
		return nil
	}
	netlink.Walk(body[sizeofVLANMsg:], func(kind uint16, entry []byte) {
		if kind != vlanEntry {
			return
		}
		var flags, first, last uint16
		netlink.Walk(entry, func(kind uint16, d []byte) {
			switch {
			case kind == vlanEntryInfo && len(d) >= 4:
				flags, first = netlink.Order.Uint16(d), netlink.Order.Uint16(d[2:])
			case kind == vlanEntryRange && len(d) >= 2:
				last = netlink.Order.Uint16(d)
			}
		})
		for id := int(first); id <= max(int(first), int(last)); id++ {
			out = append(out, VLAN{ID: id, Native: flags&vlanNative != 0, Untagged: flags&vlanUntagged != 0})
		}
	})
	return out
}

// Of linux/if_bridge.h.
const (
	sizeofVLANMsg  = 8
	vlanEntry      = 1 // BRIDGE_VLANDB_ENTRY
	vlanEntryInfo  = 1 // BRIDGE_VLANDB_ENTRY_INFO
	vlanEntryRange = 2 // BRIDGE_VLANDB_ENTRY_RANGE
)

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
