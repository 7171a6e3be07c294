//go:build linux

package cases

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// link changes an interface as others on the node might: "link WHERE NAME
// WHAT [VALUE]", where WHERE is a pod or host.
func (c *story) link(_ context.Context, _ *testing.T, args []string) error {
	where, name, what, value := args[0], args[1], args[2], strings.Join(args[3:], " ")
	return c.In(where, func() error { return change(name, what, value) })
}

// change makes an interface of kind bridge or veth, or changes one.
func change(name, what, value string) error {
	switch what {
	case "bridge":
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}})
	case "veth":
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"})
	}
	l, err := netlink.LinkByName(name)
	if what == "gone" {
		if err == nil {
			return errors.New(name + " is there")
		}
		return nil
	}
	if err != nil {
		return err
	}
	switch what {
	case "there":
		return nil
	case "master":
		bridge, err := netlink.LinkByName(value)
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(l, bridge)
	case "del":
		return netlink.LinkDel(l)
	case "mtu":
		n, err := strconv.Atoi(value)
		return errors.Join(err, netlink.LinkSetMTU(l, n))
	case "up":
		return netlink.LinkSetUp(l)
	case "down":
		return netlink.LinkSetDown(l)
	case "mac":
		mac, err := net.ParseMAC(value)
		return errors.Join(err, netlink.LinkSetHardwareAddr(l, mac))
	case "address":
		return address(value, func(a *netlink.Addr) error { return netlink.AddrAdd(l, a) })
	case "address-del":
		return address(value, func(a *netlink.Addr) error { return netlink.AddrDel(l, a) })
	case "route-del":
		_, dst, err := net.ParseCIDR(value)
		return errors.Join(err, netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_NOWHERE}))
	}
	return errors.New("no such change: " + what)
}

func address(text string, do func(*netlink.Addr) error) error {
	a, err := netlink.ParseAddr(text)
	if err != nil {
		return err
	}
	return do(a)
}
