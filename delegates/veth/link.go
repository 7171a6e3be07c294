package veth

import (
	"net"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
)

// Link is what the kernel says of one interface.
type Link struct {
	Name      string
	Index     int
	Kind      string // "veth", "bridge", "" for a real device
	MAC       net.HardwareAddr
	MTU       int
	Master    int // index of the bridge it is a port of, 0 for none
	Peer      int // index of a veth's other end, in its own namespace
	PeerNS    int // the host's number for that namespace, -1 where it has none
	Alias     string
	Up        bool // administratively
	Promisc   bool
	Carrier   bool  // a bridge has it while a port forwards
	VLANs     bool  // a bridge that filters VLANs
	OperState uint8 // RFC 2863, linux/if.h: 6 is up
	Port      Port
}

// Port is what the kernel says of a bridge's port; zero for no port.
type Port struct {
	State    uint8 // linux/if_bridge.h: 0 disabled, 3 forwarding
	Hairpin  bool
	Isolated bool
	Learning bool // the bridge learns from its frames where stations are
}

// OperUp is IF_OPER_UP (linux/if.h).
const OperUp = 6

// LinkByName looks an interface up; Gone tells that there is none.
func (c *Conn) LinkByName(name string) (Link, error) {
	return c.link(0, name)
}

// LinkByIndex looks an interface up; Gone tells that there is none.
func (c *Conn) LinkByIndex(index int) (Link, error) {
	return c.link(index, "")
}

func (c *Conn) link(index int, name string) (Link, error) {
	var m batch
	m.lookUp(index, name)
	return c.ask(&m)
}

// Announce looks an interface up, and makes the kernel announce its addresses:
// it does where arp_notify and ndisc_notify are set and a MAC is set, be it the
// same one (NETDEV_CHANGEADDR).
func (c *Conn) Announce(index int, mac net.HardwareAddr) (Link, error) {
	var m batch
	m.lookUp(index, "")
	m.mac(index, mac)
	return c.ask(&m)
}

func (m *batch) lookUp(index int, name string) {
	m.Add("look up", unix.RTM_GETLINK, 0)
	m.IfInfo(index, 0, 0)
	if name != "" {
		m.Str(unix.IFLA_IFNAME, name)
	}
	m.U32(unix.IFLA_EXT_MASK, skipStats)
	m.End()
}

func (c *Conn) ask(m *batch) (Link, error) {
	body, err := c.Ask(&m.Batch)
	if err != nil {
		return Link{}, err
	}
	return readLink(body), nil
}

// readLink reads a struct ifinfomsg and its attributes (linux/if_link.h).
func readLink(body []byte) (l Link) {
	if len(body) < unix.SizeofIfInfomsg {
		return l
	}
	flags := netlink.Order.Uint32(body[8:])
	l.Index = int(int32(netlink.Order.Uint32(body[4:])))
	l.Up, l.Promisc = flags&unix.IFF_UP != 0, flags&unix.IFF_PROMISC != 0
	l.Carrier = flags&unix.IFF_LOWER_UP != 0
	l.PeerNS = -1
	netlink.Walk(body[unix.SizeofIfInfomsg:], func(kind uint16, d []byte) {
		switch kind {
		case unix.IFLA_IFNAME:
			l.Name = netlink.String(d)
		case unix.IFLA_ADDRESS:
			l.MAC = append(net.HardwareAddr{}, d...)
		case unix.IFLA_MTU:
			l.MTU = int(netlink.Uint32(d))
		case unix.IFLA_LINK_NETNSID:
			l.PeerNS = int(int32(netlink.Uint32(d)))
		case unix.IFLA_MASTER:
			l.Master = int(netlink.Uint32(d))
		case unix.IFLA_LINK:
			l.Peer = int(netlink.Uint32(d))
		case unix.IFLA_IFALIAS:
			l.Alias = netlink.String(d)
		case unix.IFLA_OPERSTATE:
			l.OperState = netlink.Byte(d)
		case unix.IFLA_LINKINFO:
			l.readInfo(d)
		}
	})
	return l
}

func (l *Link) readInfo(info []byte) {
	netlink.Walk(info, func(kind uint16, d []byte) {
		switch kind {
		case unix.IFLA_INFO_KIND:
			l.Kind = netlink.String(d)
		case unix.IFLA_INFO_SLAVE_DATA:
			netlink.Walk(d, l.readPort)
		case unix.IFLA_INFO_DATA:
			netlink.Walk(d, l.readData)
		}
	})
}

// readData reads a bridge's own attributes; another kind's have no such number,
// or another meaning, and are not looked at.
func (l *Link) readData(kind uint16, d []byte) {
	if l.Kind == "bridge" && kind == vlanFiltering {
		l.VLANs = netlink.Byte(d) != 0
	}
}

func (l *Link) readPort(kind uint16, d []byte) {
	switch kind {
	case unix.IFLA_BRPORT_STATE:
		l.Port.State = netlink.Byte(d)
	case unix.IFLA_BRPORT_MODE:
		l.Port.Hairpin = netlink.Byte(d) != 0
	case unix.IFLA_BRPORT_ISOLATED:
		l.Port.Isolated = netlink.Byte(d) != 0
	case unix.IFLA_BRPORT_LEARNING:
		l.Port.Learning = netlink.Byte(d) != 0
	}
}
