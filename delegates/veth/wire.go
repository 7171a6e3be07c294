package veth

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Pair is a veth pair to be made.
type Pair struct {
	Host, Pod       string // interface names
	HostMAC, PodMAC net.HardwareAddr
	MTU             int // of both ends in bytes, 0 for the kernel's own
	Bridge          int // index of the bridge the host end is a port of, 0 for none
	Namespace       *Namespace
}

// Create makes the pair in one request: the pod's end straight in its
// namespace, the host end up and a port of the bridge. EEXIST does not tell
// which of the two names is taken.
func (c *Conn) Create(p Pair) error {
	var m Batch
	m.add("create veth pair", unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	m.ifinfo(0, unix.IFF_UP, unix.IFF_UP)
	m.end1(p.Host, p.HostMAC, p.MTU)
	if p.Bridge != 0 {
		m.u32(unix.IFLA_MASTER, uint32(p.Bridge))
	}
	info := m.nest(unix.IFLA_LINKINFO)
	m.str(unix.IFLA_INFO_KIND, "veth")
	data := m.nest(unix.IFLA_INFO_DATA)
	peer := m.nest(infoPeer)
	m.ifinfo(0, 0, 0)
	m.end1(p.Pod, p.PodMAC, p.MTU)
	m.u32(unix.IFLA_NET_NS_FD, uint32(p.Namespace.fd))
	peer()
	data()
	info()
	m.end()
	return c.Do(&m)
}

// end1 describes one end of a pair.
func (m *Batch) end1(name string, mac net.HardwareAddr, mtu int) {
	m.str(unix.IFLA_IFNAME, name)
	m.attr(unix.IFLA_ADDRESS, mac)
	if mtu != 0 {
		m.u32(unix.IFLA_MTU, uint32(mtu))
	}
}

// Mark gives the host end its alias and its flags as a bridge's port. The
// kernel silently ignores both in the request that creates a pair.
func (c *Conn) Mark(index int, alias string, port *Port) error {
	var m Batch
	m.add("set alias and port flags", unix.RTM_NEWLINK, 0)
	m.ifinfo(index, 0, 0)
	m.str(unix.IFLA_IFALIAS, alias)
	if port != nil {
		info := m.nest(unix.IFLA_LINKINFO)
		m.str(infoSlaveKind, "bridge")
		data := m.nest(infoSlaveData)
		m.u8(unix.IFLA_BRPORT_MODE, port.Hairpin)
		m.u8(unix.IFLA_BRPORT_ISOLATED, port.Isolated)
		data()
		info()
	}
	m.end()
	return c.Do(&m)
}

// CreateBridge makes a bridge that is up, its MAC fixed: one that the kernel
// chooses changes as ports come and go.
func (c *Conn) CreateBridge(name string, mac net.HardwareAddr, mtu int) error {
	var m Batch
	m.add("create bridge", unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	m.ifinfo(0, unix.IFF_UP, unix.IFF_UP)
	m.end1(name, mac, mtu)
	info := m.nest(unix.IFLA_LINKINFO)
	m.str(unix.IFLA_INFO_KIND, "bridge")
	info()
	m.end()
	return c.Do(&m)
}

// SetFlags turns on interface flags (IFF_UP, IFF_PROMISC).
func (c *Conn) SetFlags(index int, flags uint32) error {
	var m Batch
	m.flags(index, flags)
	return c.Do(&m)
}

func (m *Batch) flags(index int, flags uint32) {
	m.add("set interface flags", unix.RTM_NEWLINK, 0)
	m.ifinfo(index, flags, flags)
	m.end()
}

// SetMAC fixes an interface's MAC.
func (c *Conn) SetMAC(index int, mac net.HardwareAddr) error {
	var m Batch
	m.add("set MAC", unix.RTM_NEWLINK, 0)
	m.ifinfo(index, 0, 0)
	m.attr(unix.IFLA_ADDRESS, mac)
	m.end()
	return c.Do(&m)
}

// AddAddresses gives an interface addresses and, when up is asked for, turns
// it on after them, so that the kernel announces them (arp_notify,
// ndisc_notify). With dad, IPv6 duplicate address detection is left on.
func (c *Conn) AddAddresses(index int, up, dad bool, addresses ...netip.Prefix) error {
	var m Batch
	for _, a := range addresses {
		m.address("add address "+a.String(), unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, index, a, dad)
	}
	if up {
		m.flags(index, unix.IFF_UP)
	}
	if len(m.names) == 0 {
		return nil
	}
	return c.Do(&m)
}

// DropAddress takes an address away from an interface.
func (c *Conn) DropAddress(index int, a netip.Prefix) error {
	var m Batch
	m.address("remove address "+a.String(), unix.RTM_DELADDR, 0, index, a, true)
	return c.Do(&m)
}

func (m *Batch) address(what string, kind, flags uint16, index int, a netip.Prefix, dad bool) {
	m.add(what, kind, flags)
	m.b = append(m.b, family(a.Addr()), byte(a.Bits()), 0, unix.RT_SCOPE_UNIVERSE)
	m.b = order.AppendUint32(m.b, uint32(index))
	ip := a.Addr().AsSlice()
	m.attr(unix.IFA_LOCAL, ip)
	m.attr(unix.IFA_ADDRESS, ip)
	if a.Addr().Is6() && !dad {
		m.u32(unix.IFA_FLAGS, nodad)
	}
	if a.Addr().Is4() && a.Bits() < 31 {
		m.attr(unix.IFA_BROADCAST, broadcast(a))
	}
	m.end()
}

// broadcast is the last address of an IPv4 prefix.
func broadcast(a netip.Prefix) []byte {
	ip := a.Addr().As4()
	mask := net.CIDRMask(a.Bits(), 32)
	for i := range ip {
		ip[i] |= ^mask[i]
	}
	return ip[:]
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
