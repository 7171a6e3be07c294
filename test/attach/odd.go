//go:build linux

package attach

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
)

// What happens to a node without its plugins, for tests to plant.

// Give gives a pod's eth0 an address with prefix length.
func (n *Node) Give(pod, address string) error { return n.address(pod, address, netlink.AddrAdd) }

// Take takes an address from a pod's eth0.
func (n *Node) Take(pod, address string) error { return n.address(pod, address, netlink.AddrDel) }

func (n *Node) address(pod, address string, do func(netlink.Link, *netlink.Addr) error) error {
	a, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	return n.eth0(pod, func(l netlink.Link) error { return do(l, a) })
}

func (n *Node) eth0(pod string, do func(netlink.Link) error) error {
	return n.In(pod, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return fmt.Errorf("pod %s: %w", pod, err)
		}
		return do(l)
	})
}

// Unplug removes a pod's eth0.
func (n *Node) Unplug(pod string) error { return n.eth0(pod, netlink.LinkDel) }

// Vanish removes a pod and its eth0, which the kernel would remove some time later.
func (n *Node) Vanish(pod string) error { return errors.Join(n.Unplug(pod), n.RemovePod(pod)) }

// Lead makes a pod's path lead to the namespace of another one.
func (n *Node) Lead(pod, to string) error {
	target, err := os.Readlink(n.PodPath(to))
	if err != nil {
		return err
	}
	return errors.Join(os.Remove(n.PodPath(pod)), os.Symlink(target, n.PodPath(pod)))
}

// Alias gives a pod's host end another alias.
func (n *Node) Alias(pod, alias string) error {
	var index int
	err := n.eth0(pod, func(l netlink.Link) error {
		index = l.Attrs().ParentIndex
		return nil
	})
	if err != nil {
		return err
	}
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return err
	}
	return netlink.LinkSetAlias(l, alias)
}

// Port makes a pair whose one end is a port of a bridge, and the other a pod's
// eth0.
func (n *Node) Port(name, bridge, pod string) error {
	p, err := n.Pod(pod)
	if err != nil {
		return err
	}
	b, err := netlink.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("%s: %w", bridge, err)
	}
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: b.Attrs().Index}, PeerName: "eth0", PeerNamespace: netlink.NsFd(p.Fd())})
}
