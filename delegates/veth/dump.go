package veth

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// dumpTurns bounds how often a list is asked for again when the kernel says
// that it changed meanwhile (NLM_F_DUMP_INTR).
const dumpTurns = 5

var errInterrupted = errors.New("changed while it was read")

// dump asks for a list and hands each entry's body to each, whole lists only:
// an interrupted one is begun anew with restart.
func (c *Conn) dump(m *Batch, restart func(), each func(body []byte)) (err error) {
	order.PutUint16(m.b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	for range dumpTurns {
		restart()
		if err = c.dumpOnce(m, each); !errors.Is(err, errInterrupted) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", m.names[0], err)
	}
	return nil
}

func (c *Conn) dumpOnce(m *Batch, each func(body []byte)) (err error) {
	if err := unix.Sendto(c.fd, m.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("rtnetlink send: %w", err)
	}
	for done := false; !done; {
		rerr := c.receive(func(h unix.NlMsghdr, body []byte) {
			if h.Flags&unix.NLM_F_DUMP_INTR != 0 {
				err = errInterrupted
			}
			switch h.Type {
			case unix.NLMSG_DONE:
				done = true
			case unix.NLMSG_ERROR:
				done, err = true, answer(h, body)
			default:
				each(body)
			}
		})
		if rerr != nil {
			return rerr
		}
	}
	return err
}

// Addresses lists the addresses of an interface.
func (c *Conn) Addresses(index int) (out []netip.Prefix, err error) {
	var m Batch
	m.add("list addresses", unix.RTM_GETADDR, 0)
	m.b = append(m.b, unix.AF_UNSPEC, 0, 0, 0)
	m.b = order.AppendUint32(m.b, 0)
	m.end()
	err = c.dump(&m, func() { out = nil }, func(body []byte) {
		if len(body) < unix.SizeofIfAddrmsg || int(order.Uint32(body[4:])) != index {
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
	walk(body[unix.SizeofIfAddrmsg:], func(kind uint16, d []byte) {
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
	Index int // of the interface it goes through, 0 for several next hops
}

// Routes lists the unicast routes of all tables.
func (c *Conn) Routes() (out []Installed, err error) {
	var m Batch
	m.add("list routes", unix.RTM_GETROUTE, 0)
	m.b = append(m.b, make([]byte, unix.SizeofRtMsg)...)
	m.end()
	err = c.dump(&m, func() { out = nil }, func(body []byte) {
		if len(body) >= unix.SizeofRtMsg && body[7] == unix.RTN_UNICAST {
			out = append(out, readRoute(body))
		}
	})
	return out, err
}

// readRoute reads a struct rtmsg and its attributes (rtnetlink(7)).
func readRoute(body []byte) (r Installed) {
	scope := int(body[6])
	r.Table, r.Scope = int(body[4]), &scope
	dst := netip.IPv4Unspecified()
	if body[0] == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	}
	walk(body[unix.SizeofRtMsg:], func(kind uint16, d []byte) {
		switch kind {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(d)
		case unix.RTA_GATEWAY:
			r.Gateway, _ = netip.AddrFromSlice(d)
		case unix.RTA_VIA:
			r.Gateway, _ = netip.AddrFromSlice(d[2:])
		case unix.RTA_OIF:
			r.Index = int(order.Uint32(d))
		case unix.RTA_PRIORITY:
			r.Priority = int(order.Uint32(d))
		case unix.RTA_TABLE:
			r.Table = int(order.Uint32(d))
		case unix.RTA_METRICS:
			walk(d, r.metric)
		}
	})
	r.Dst = netip.PrefixFrom(dst, int(body[1]))
	return r
}

func (r *Installed) metric(kind uint16, d []byte) {
	switch kind {
	case unix.RTAX_MTU:
		r.MTU = int(order.Uint32(d))
	case unix.RTAX_ADVMSS:
		r.AdvMSS = int(order.Uint32(d))
	}
}
