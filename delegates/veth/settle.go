package veth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
	"github.com/tracewire/tracewire/trace"
)

// The states of a bridge's port (linux/if_bridge.h, BR_STATE_*). 1 and 2 are what
// spanning tree goes through on the way to StateForwarding.
const (
	disabled        = 0
	listening       = 1
	StateForwarding = 3
	blocking        = 4
)

// ErrPort marks a bridge port that did not begin to forward.
var ErrPort = errors.New("bridge port does not forward")

// WaitPort waits until a host end is up and its port forwards, which the
// kernel does some 50 us after the pod's end is up. The Link is the last seen.
// A port on which spanning tree works is waited for no longer.
func (c *Conn) WaitPort(ctx context.Context, index int, patience time.Duration) (Link, error) {
	l, err := c.wait(ctx, unix.AF_BRIDGE, index, patience, Link.settled)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %s, state %d, operational state %d: %w", ErrPort, l.Name, l.Port.State, l.OperState, err)
	}
	return l, err
}

// WaitUp waits until the kernel's worker has turned an interface on that has
// its carrier (linkwatch), or could not say that it is off (netif_oper_up). One
// that stays down is told in the span, no more.
func (c *Conn) WaitUp(ctx context.Context, index int, patience time.Duration, anyhow bool) (Link, error) {
	l, err := c.wait(ctx, unix.AF_UNSPEC, index, patience, func(l Link) bool { return anyhow || l.OperState == OperUp || l.OperState == operUnknown })
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		trace.Warn(ctx, "interface is not up", trace.KeyInterface.String(l.Name))
		err = nil
	}
	return l, err
}

// wait looks at an interface until it is as it should be, at each event of the
// family about it. The Link is the last seen.
func (c *Conn) wait(ctx context.Context, family byte, index int, patience time.Duration, good func(Link) bool) (Link, error) {
	l, err := c.LinkByIndex(index)
	if err != nil || good(l) {
		return l, err
	}
	end := time.Now().Add(patience)
	heard, err := netlink.Listen(unix.RTMGRP_LINK, unix.RTM_NEWLINK, family, index)
	if err != nil {
		return l, err
	}
	defer heard.Close()
	err = until(ctx, end, heard, func() (bool, error) {
		l, err = c.LinkByIndex(index)
		return good(l), err
	})
	return l, err
}

// until looks until it is done, first at once, then at each message heard. A
// zero end leaves the bound to the context.
func until(ctx context.Context, end time.Time, heard *netlink.Conn, done func() (bool, error)) error {
	for {
		if ok, err := done(); err != nil || ok {
			return err
		}
		if _, err := netlink.Readable(ctx, end, heard); err != nil {
			return err
		}
		if err := heard.Receive(func(unix.NlMsghdr, []byte) {}); err != nil {
			return err
		}
	}
}

// operUnknown is IF_OPER_UNKNOWN (linux/if.h).
const operUnknown = 0

// Forwards tells that a bridge's port forwards.
func (l Link) Forwards() bool { return l.Port.State == StateForwarding }

// Stopped is why a bridge's port that has its carrier neither forwards nor is on
// its way there; "" for one that does, and for one without carrier.
func (l Link) Stopped() string {
	if l.OperState != OperUp {
		return ""
	}
	return map[uint8]string{disabled: "disabled", blocking: "blocking"}[l.Port.State]
}

func (l Link) settled() bool {
	return l.OperState == OperUp && l.Port.State >= listening && l.Port.State <= StateForwarding
}

// ErrDuplicate marks an IPv6 address that another host on the segment has.
var ErrDuplicate = errors.New("duplicate address detection failed")

// WaitDAD waits until none of the IPv6 addresses is tentative any more. It is
// called in the pod's namespace.
func (c *Conn) WaitDAD(ctx context.Context, index int, addresses ...netip.Prefix) error {
	heard, err := netlink.Listen(rtmgrpIPv6Addr, unix.RTM_NEWADDR, unix.AF_INET6, index)
	if err != nil {
		return err
	}
	defer heard.Close()
	for _, a := range addresses {
		if !a.Addr().Is6() {
			continue
		}
		err := until(ctx, time.Time{}, heard, func() (bool, error) { return c.unique(index, a.Addr()) })
		if err != nil {
			return fmt.Errorf("address %s: %w", a, err)
		}
	}
	return nil
}

// unique tells whether detection is over for an IPv6 address; ErrDuplicate when
// it found another one.
func (c *Conn) unique(index int, a netip.Addr) (bool, error) {
	_, flags, err := c.address6(index, a)
	if err == nil && flags&unix.IFA_F_DADFAILED != 0 {
		err = ErrDuplicate
	}
	return flags&unix.IFA_F_TENTATIVE == 0, err
}

// localPatience bounds the wait for an IPv6 address to be at work.
const localPatience = time.Second

// WaitLocal waits until the kernel's worker has put IPv6 addresses to work, on
// an interface that is up: it joins their solicited-node groups, then makes
// their local routes, also without duplicate address detection
// (addrconf_dad_work); what comes before is dropped. One that is late is told in
// the span, no more. It is called in the interface's namespace.
func (c *Conn) WaitLocal(ctx context.Context, index int, addresses ...netip.Prefix) error {
	for _, a := range addresses {
		if !a.Addr().Is6() {
			continue
		}
		err := c.waitLocal(ctx, index, a.Addr())
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			trace.Warn(ctx, "address is not at work yet", trace.KeyAddresses.StringSlice([]string{a.String()}))
			err = nil
		}
		if err != nil {
			return fmt.Errorf("address %s: %w", a, err)
		}
	}
	return nil
}

func (c *Conn) waitLocal(ctx context.Context, index int, a netip.Addr) error {
	if ok, err := c.isLocal(a); err != nil || ok {
		return err
	}
	end := time.Now().Add(localPatience)
	heard, err := netlink.Listen(rtmgrpIPv6Addr, unix.RTM_NEWADDR, unix.AF_INET6, index)
	if err != nil {
		return err
	}
	defer heard.Close()
	return until(ctx, end, heard, func() (bool, error) { return c.isLocal(a) })
}

// isLocal tells whether packets to an IPv6 address go no further.
func (c *Conn) isLocal(a netip.Addr) (bool, error) {
	var m batch
	m.Add("look up route to "+a.String(), unix.RTM_GETROUTE, 0)
	m.Raw(append([]byte{unix.AF_INET6, 128}, make([]byte, unix.SizeofRtMsg-2)...)...)
	m.Attr(unix.RTA_DST, a.AsSlice())
	m.End()
	body, err := c.Ask(&m.Batch)
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return false, nil
	}
	return len(body) >= unix.SizeofRtMsg && body[7] == unix.RTN_LOCAL, err
}

// rtmgrpIPv6Addr is RTMGRP_IPV6_IFADDR (linux/rtnetlink.h).
const rtmgrpIPv6Addr = 0x100

// HasAddress tells whether an interface has an address with that prefix
// length. It looks at that one address and lists none.
func (c *Conn) HasAddress(l Link, p netip.Prefix) (bool, error) {
	if p.Addr().Is4() {
		return hasAddress4(l.Name, p)
	}
	bits, _, err := c.address6(l.Index, p.Addr())
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return false, nil
	}
	return err == nil && bits == p.Bits(), err
}

// hasAddress4 asks for the interface's address that equals the one given
// (netdevice(7); the kernel compares it in devinet_ioctl), and for its mask,
// in the calling thread's namespace.
func hasAddress4(name string, p netip.Prefix) (bool, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	for _, q := range []struct {
		request uint
		want    netip.Addr
	}{{unix.SIOCGIFADDR, p.Addr()}, {unix.SIOCGIFNETMASK, maskOf(p.Bits())}} {
		r, err := unix.NewIfreq(name)
		if err != nil || r.SetInet4Addr(p.Addr().AsSlice()) != nil {
			return false, err
		}
		if err := unix.IoctlIfreq(fd, q.request, r); errors.Is(err, unix.EADDRNOTAVAIL) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("look up address %s of %s: %w", p, name, err)
		}
		if got, err := r.Inet4Addr(); err != nil || netip.AddrFrom4([4]byte(got)) != q.want {
			return false, nil
		}
	}
	return true, nil
}

func maskOf(bits int) netip.Addr {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), bits).Masked().Addr()
}

// address6 looks one IPv6 address up, with its flags (IFA_F_*).
func (c *Conn) address6(index int, a netip.Addr) (bits int, flags uint32, err error) {
	var m batch
	m.Add("look up address "+a.String(), unix.RTM_GETADDR, 0)
	m.Raw(unix.AF_INET6, 0, 0, 0)
	m.Raw(netlink.Order.AppendUint32(nil, uint32(index))...)
	m.Attr(unix.IFA_ADDRESS, a.AsSlice())
	m.End()
	body, err := c.Ask(&m.Batch)
	if err != nil {
		return 0, 0, err
	}
	if len(body) < unix.SizeofIfAddrmsg {
		return 0, 0, unix.EADDRNOTAVAIL
	}
	bits, flags = int(body[1]), uint32(body[2])
	netlink.Walk(body[unix.SizeofIfAddrmsg:], func(kind uint16, d []byte) {
		if kind == unix.IFA_FLAGS {
			flags = netlink.Uint32(d)
		}
	})
	return bits, flags, nil
}
