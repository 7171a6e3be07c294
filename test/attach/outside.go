//go:build linux

package attach

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Outside makes a namespace beyond the node, at the other end of a pair: here
// and there are the ends' addresses. It has no route to the pods, and so answers
// only those that have the node's address. Kernel and Links leave it out.
func (n *Node) Outside(name string, here, there []string) error {
	p, err := n.Pod(name)
	if err != nil {
		return err
	}
	end := "up-" + name
	n.beyond[name], n.uplinks[end] = true, true
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: end}, PeerName: "up0", PeerNamespace: netlink.NsFd(p.Fd())}
	err = errors.Join(
		n.In("host", func() error { return errors.Join(netlink.LinkAdd(pair), ready(end, here)) }),
		n.In(name, func() error { return ready("up0", there) }))
	if err != nil {
		return err
	}
	return errors.Join(n.In("host", func() error { return settle(end) }), n.In(name, func() error { return settle("up0") }))
}

// settle makes the kernel (6.8 on) see an interface's carrier now, and not up to
// a second later: till then an interface answers nobody by IPv6.
func settle(name string) error {
	_, err := netlink.LinkByName(name)
	return err
}

// ready gives an interface its addresses and turns it on.
func ready(name string, addresses []string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, text := range addresses {
		a, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		if a.IP.To4() == nil {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			return fmt.Errorf("%s: %s: %w", name, text, err)
		}
	}
	return netlink.LinkSetUp(l)
}
