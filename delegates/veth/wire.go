package veth

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
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
	var m batch
	m.Add("create veth pair", unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	m.IfInfo(0, unix.IFF_UP, unix.IFF_UP)
	m.oneEnd(p.Host, p.HostMAC, p.MTU)
	if p.Bridge != 0 {
		m.U32(unix.IFLA_MASTER, uint32(p.Bridge))
	}
	info := m.Nest(unix.IFLA_LINKINFO)
	m.Str(unix.IFLA_INFO_KIND, "veth")
	data := m.Nest(unix.IFLA_INFO_DATA)
	peer := m.Nest(infoPeer)
	m.IfInfo(0, 0, 0)
	m.oneEnd(p.Pod, p.PodMAC, p.MTU)
	m.U32(unix.IFLA_NET_NS_FD, uint32(p.Namespace.fd))
	peer()
	data()
	info()
	m.End()
	return c.Do(&m.Batch)
}

// oneEnd describes one end of a pair, or a bridge.
func (m *batch) oneEnd(name string, mac net.HardwareAddr, mtu int) {
	m.Str(unix.IFLA_IFNAME, name)
	m.Attr(unix.IFLA_ADDRESS, mac)
	if mtu != 0 {
		m.U32(unix.IFLA_MTU, uint32(mtu))
	}
}

// Mark gives the host end its alias and its flags as a bridge's port. The
// kernel silently ignores both in the request that creates a pair.
func (c *Conn) Mark(index int, alias string, port *Port) error {
	var m batch
	m.Add("set alias and port flags", unix.RTM_NEWLINK, 0)
	m.IfInfo(index, 0, 0)
	m.Str(unix.IFLA_IFALIAS, alias)
	if port != nil {
		m.ofPort(func() {
			m.Bool(unix.IFLA_BRPORT_MODE, port.Hairpin)
			m.Bool(unix.IFLA_BRPORT_ISOLATED, port.Isolated)
		})
	}
	m.End()
	return c.Do(&m.Batch)
}

// ofPort adds what attributes of a bridge's port are in.
func (m *batch) ofPort(attributes func()) {
	info := m.Nest(unix.IFLA_LINKINFO)
	m.Str(infoSlaveKind, "bridge")
	data := m.Nest(infoSlaveData)
	attributes()
	data()
	info()
}

// NewBridge is a bridge to be made.
type NewBridge struct {
	Name  string
	MAC   net.HardwareAddr // fixed: one that the kernel chooses changes as ports come and go
	MTU   int              // bytes, 0 for the kernel's own
	VLANs bool             // it filters VLANs
}

// CreateBridge makes a bridge that is up.
func (c *Conn) CreateBridge(b NewBridge) error {
	what := "create bridge"
	if b.VLANs {
		what = "create bridge with VLAN filtering"
	}
	var m batch
	m.Add(what, unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	m.IfInfo(0, unix.IFF_UP, unix.IFF_UP)
	m.oneEnd(b.Name, b.MAC, b.MTU)
	info := m.Nest(unix.IFLA_LINKINFO)
	m.Str(unix.IFLA_INFO_KIND, "bridge")
	if b.VLANs {
		data := m.Nest(unix.IFLA_INFO_DATA)
		m.Bool(vlanFiltering, true)
		data()
	}
	info()
	m.End()
	return c.Do(&m.Batch)
}

// SetFlags turns on interface flags (IFF_UP, IFF_PROMISC).
func (c *Conn) SetFlags(index int, flags uint32) error {
	var m batch
	m.flags(index, flags)
	return c.Do(&m.Batch)
}

func (m *batch) flags(index int, flags uint32) {
	m.Add("set interface flags", unix.RTM_NEWLINK, 0)
	m.IfInfo(index, flags, flags)
	m.End()
}

// SetUp turns an interface on.
func (c *Conn) SetUp(index int) error { return c.SetFlags(index, unix.IFF_UP) }

// SetMTU sets an interface's MTU in bytes.
func (c *Conn) SetMTU(index, mtu int) error {
	var m batch
	m.Add("set MTU", unix.RTM_NEWLINK, 0)
	m.IfInfo(index, 0, 0)
	m.U32(unix.IFLA_MTU, uint32(mtu))
	m.End()
	return c.Do(&m.Batch)
}

// SetMAC fixes an interface's MAC.
func (c *Conn) SetMAC(index int, mac net.HardwareAddr) error {
	var m batch
	m.mac(index, mac)
	return c.Do(&m.Batch)
}

func (m *batch) mac(index int, mac net.HardwareAddr) {
	m.Add("set MAC", unix.RTM_NEWLINK, 0)
	m.IfInfo(index, 0, 0)
	m.Attr(unix.IFLA_ADDRESS, mac)
	m.End()
}

// Addressing is how addresses are added.
type Addressing struct {
	Up            bool // turns the interface on after them, so that the kernel announces them
	DAD           bool // leaves IPv6 duplicate address detection on
	NoPrefixRoute bool // no route to the subnet by the kernel
}

// AddAddresses gives an interface addresses.
func (c *Conn) AddAddresses(index int, how Addressing, addresses ...netip.Prefix) error {
	var m batch
	for _, a := range addresses {
		m.address("add address "+a.String(), unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, index, a, how.flags(a))
	}
	if how.Up {
		m.flags(index, unix.IFF_UP)
	}
	if m.Len() == 0 {
		return nil
	}
	return c.Do(&m.Batch)
}

// DropAddress takes an address away from an interface.
func (c *Conn) DropAddress(index int, a netip.Prefix) error {
	var m batch
	m.address("remove address "+a.String(), unix.RTM_DELADDR, 0, index, a, 0)
	return c.Do(&m.Batch)
}

// flags is IFA_F_* of linux/if_addr.h.
func (h Addressing) flags(a netip.Prefix) (f uint32) {
	if a.Addr().Is6() && !h.DAD {
		f |= unix.IFA_F_NODAD
	}
	if h.NoPrefixRoute {
		f |= unix.IFA_F_NOPREFIXROUTE
	}
	return f
}

func (m *batch) address(what string, kind, flags uint16, index int, a netip.Prefix, how uint32) {
	m.Add(what, kind, flags)
	m.Raw(family(a.Addr()), byte(a.Bits()), 0, unix.RT_SCOPE_UNIVERSE)
	m.Raw(netlink.Order.AppendUint32(nil, uint32(index))...)
	ip := a.Addr().AsSlice()
	m.Attr(unix.IFA_LOCAL, ip)
	m.Attr(unix.IFA_ADDRESS, ip)
	if how != 0 {
		m.U32(unix.IFA_FLAGS, how)
	}
	if a.Addr().Is4() && a.Bits() < 31 {
		m.Attr(unix.IFA_BROADCAST, broadcast(a))
	}
	m.End()
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
