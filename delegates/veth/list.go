package veth

import (
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
)

// Ports lists the ports of a bridge.
func (c *Conn) Ports(bridge int) (out []Link, err error) {
	var m batch
	m.Add("list ports", unix.RTM_GETLINK, 0)
	m.IfInfo(0, 0, 0)
	m.U32(unix.IFLA_MASTER, uint32(bridge))
	m.U32(unix.IFLA_EXT_MASK, skipStats)
	m.End()
	err = c.Dump(&m.Batch, func() { out = nil }, func(body []byte) {
		if l := readLink(body); l.Master == bridge {
			out = append(out, l)
		}
	})
	return out, err
}

// Learned tells whether a bridge's forwarding table has a MAC (bridge(8),
// "fdb"): another station on it uses that one, or did within five minutes.
func (c *Conn) Learned(bridge int, mac net.HardwareAddr) (bool, error) {
	var m batch
	m.Add("look up "+mac.String(), unix.RTM_GETNEIGH, 0)
	m.Raw(append([]byte{unix.AF_BRIDGE}, make([]byte, sizeofNdMsg-1)...)...)
	m.Attr(unix.NDA_LLADDR, mac)
	m.U32(unix.NDA_MASTER, uint32(bridge))
	m.End()
	_, err := c.Ask(&m.Batch)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// targetAddr and targetLink are IFA_TARGET_NETNSID (linux/if_addr.h) and
// IFLA_TARGET_NETNSID (linux/if_link.h): the namespace that a request is about.
const (
	targetAddr = 10
	targetLink = 46
)

// linkIn looks an interface of another namespace up.
func (c *Conn) linkIn(namespace, index int) (Link, error) {
	var m batch
	m.Add("look up", unix.RTM_GETLINK, 0)
	m.IfInfo(index, 0, 0)
	m.U32(unix.IFLA_EXT_MASK, skipStats)
	m.U32(targetLink, uint32(namespace))
	m.End()
	return c.ask(&m)
}

// sizeofNdMsg is the size of struct ndmsg (linux/neighbour.h).
const sizeofNdMsg = 12

// Addresses lists the addresses of an interface.
func (c *Conn) Addresses(index int) ([]netip.Prefix, error) { return c.addresses(own, index) }

// own stands for the connection's own namespace where another may be asked for,
// by the number that it has here.
const own = -1

func (c *Conn) addresses(namespace, index int) (out []netip.Prefix, err error) {
	var m batch
	m.Add("list addresses", unix.RTM_GETADDR, 0)
	m.Raw(unix.AF_UNSPEC, 0, 0, 0)
	m.Raw(netlink.Order.AppendUint32(nil, uint32(index))...)
	if namespace != own {
		m.U32(targetAddr, uint32(namespace))
	}
	m.End()
	err = c.Dump(&m.Batch, func() { out = nil }, func(body []byte) {
		if len(body) < unix.SizeofIfAddrmsg || int(netlink.Order.Uint32(body[4:])) != index {
			return
		}
		if p := readAddress(body); p.IsValid() {
			out = append(out, p)
		}
	})
	return out, err
}

// readAddress reads a struct ifaddrmsg and its attributes. IFA_LOCAL is the
// interface's own where both are there: IFA_ADDRESS is then the peer's.
func readAddress(body []byte) netip.Prefix {
	var own, other netip.Addr
	netlink.Walk(body[unix.SizeofIfAddrmsg:], func(kind uint16, d []byte) {
		switch kind {
		case unix.IFA_LOCAL:
			own, _ = netip.AddrFromSlice(d)
		case unix.IFA_ADDRESS:
			other, _ = netip.AddrFromSlice(d)
		}
	})
	if !own.IsValid() {
		own = other
	}
	return netip.PrefixFrom(own, int(body[1]))
}

// Installed is a route as the kernel has it.
type Installed struct {
	Route
	Index int // of the interface it goes through
}

// Routes lists the unicast routes of all tables, one a next hop: those through
// one interface, or all for index 0.
func (c *Conn) Routes(index int) (out []Installed, err error) {
	var m batch
	m.Add("list routes", unix.RTM_GETROUTE, 0)
	m.Raw(make([]byte, unix.SizeofRtMsg)...)
	if index != 0 {
		m.U32(unix.RTA_OIF, uint32(index))
	}
	m.End()
	err = c.Dump(&m.Batch, func() { out = nil }, func(body []byte) {
		if len(body) >= unix.SizeofRtMsg && body[7] == unix.RTN_UNICAST {
			out = append(out, readRoute(body)...)
		}
	})
	return out, err
}

// Routed lists the addresses that the host has a route of their own to, through
// an interface: pods without a bridge are reached so.
func Routed() (out []netip.Addr, err error) {
	host, err := Dial()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	all, err := host.Routes(0)
	for _, r := range all {
		if r.Dst.IsSingleIP() && !r.Gateway.IsValid() {
			out = append(out, r.Dst.Addr())
		}
	}
	return out, err
}

// readRoute reads a struct rtmsg and its attributes (rtnetlink(7)).
func readRoute(body []byte) []Installed {
	var r Installed
	scope := int(body[6])
	r.Table, r.Scope = int(body[4]), &scope
	dst := netip.IPv4Unspecified()
	if body[0] == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	}
	var hops []byte
	netlink.Walk(body[unix.SizeofRtMsg:], func(kind uint16, d []byte) {
		switch kind {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(d)
		case unix.RTA_OIF:
			r.Index = int(netlink.Uint32(d))
		case unix.RTA_PRIORITY:
			r.Priority = int(netlink.Uint32(d))
		case unix.RTA_TABLE:
			r.Table = int(netlink.Uint32(d))
		case unix.RTA_PREFSRC:
			r.Source, _ = netip.AddrFromSlice(d)
		case unix.RTA_METRICS:
			netlink.Walk(d, r.metric)
		case unix.RTA_MULTIPATH:
			hops = d
		default:
			r.hop(kind, d)
		}
	})
	r.Dst = netip.PrefixFrom(dst, int(body[1]))
	if hops == nil {
		return []Installed{r}
	}
	return r.each(hops)
}

// hop reads where a route goes.
func (r *Installed) hop(kind uint16, d []byte) {
	switch kind {
	case unix.RTA_GATEWAY:
		r.Gateway, _ = netip.AddrFromSlice(d)
	case unix.RTA_VIA:
		r.Gateway, _ = netip.AddrFromSlice(d[min(2, len(d)):])
	}
}

// each is a route a struct rtnexthop: the kernel keeps IPv6 routes that differ
// in that alone as one.
func (r Installed) each(hops []byte) (out []Installed) {
	for len(hops) >= unix.SizeofRtNexthop {
		n := int(netlink.Order.Uint16(hops))
		if n < unix.SizeofRtNexthop || n > len(hops) {
			break
		}
		one := r
		one.Index = int(netlink.Order.Uint32(hops[4:]))
		netlink.Walk(hops[unix.SizeofRtNexthop:n], one.hop)
		out = append(out, one)
		hops = hops[min(len(hops), (n+3)&^3):]
	}
	return out
}

func (r *Installed) metric(kind uint16, d []byte) {
	switch kind {
	case unix.RTAX_MTU:
		r.MTU = int(netlink.Uint32(d))
	case unix.RTAX_ADVMSS:
		r.AdvMSS = int(netlink.Uint32(d))
	}
}
