//go:build linux

package cases

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// link changes an interface as others on the node might: "link WHERE NAME
// WHAT [VALUE]", where WHERE is a pod or host.
func (c *story) link(_ context.Context, _ *testing.T, args []string) error {
	where, name, what, value := args[0], args[1], args[2], strings.Join(args[3:], " ")
	switch what {
	case "same-mac":
		return c.In(where, func() error { return c.sameMAC(name) })
	case "port":
		return c.Port(name, args[3], args[4])
	}
	return c.In(where, func() error { return change(name, what, value) })
}

// sameMAC tells whether an interface has the MAC it had when first asked.
func (c *story) sameMAC(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	mac := l.Attrs().HardwareAddr.String()
	if c.macs[name] == "" {
		c.macs[name] = mac
	}
	if mac != c.macs[name] {
		return fmt.Errorf("%s had the MAC %s, and has %s", name, c.macs[name], mac)
	}
	return nil
}

// sysctl sets what is below /proc/sys/net, or looks at it: "sysctl pod1
// ipv6/conf/all/disable_ipv6 1", "sysctl pod1 ipv6/conf/all/disable_ipv6 is 1".
func (c *story) sysctl(_ context.Context, t *testing.T, args []string) error {
	path := "/proc/sys/net/" + args[1]
	return c.In(args[0], func() error {
		if args[2] != "is" {
			return os.WriteFile(path, []byte(args[2]), 0)
		}
		b, err := os.ReadFile(path)
		if got := strings.TrimSpace(string(b)); got != args[3] {
			t.Errorf("%s is %s, want %s", args[1], got, args[3])
		}
		return err
	})
}

// count tells whether the host has that many interfaces of a kind: "count veth 3".
func (c *story) count(_ context.Context, t *testing.T, args []string) error {
	return c.In("host", func() error {
		all, err := netlink.LinkList()
		of := 0
		for _, l := range all {
			if l.Type() == args[0] {
				of++
			}
		}
		if strconv.Itoa(of) != args[1] {
			t.Errorf("%d interfaces are %s, want %s", of, args[0], args[1])
		}
		return err
	})
}

// neighbour tells whether a pod, or the host, has a neighbour entry with a MAC:
// "neighbour host 10.77.0.9".
func (c *story) neighbour(_ context.Context, _ *testing.T, args []string) error {
	return c.In(args[0], func() error {
		all, err := netlink.NeighList(0, netlink.FAMILY_ALL)
		for _, e := range all {
			if e.IP.Equal(net.ParseIP(args[1])) && len(e.HardwareAddr) == 6 {
				return nil
			}
		}
		return errors.Join(err, errors.New(args[1]+" is no neighbour"))
	})
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
	case "hairpin":
		return netlink.LinkSetHairpin(l, value == "on")
	case "addresses":
		return addresses(l, value)
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
	if a.IP.To4() == nil {
		a.Flags = unix.IFA_F_NODAD
	}
	return do(a)
}

// addresses tells whether an interface has just those, link-local ones apart.
func addresses(l netlink.Link, want string) error {
	all, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	var got []string
	for _, a := range all {
		if !a.IP.IsLinkLocalUnicast() {
			got = append(got, a.IPNet.String())
		}
	}
	if has := strings.Join(got, " "); has != want {
		return errors.Join(err, fmt.Errorf("%s has addresses %s, want %s", l.Attrs().Name, has, want))
	}
	return err
}

// netnsDel ends a pod: its namespace and its path are gone, and with them the
// host's ends of its pairs, which the kernel removes in its own time.
func (c *story) netnsDel(_ context.Context, t *testing.T, args []string) error {
	ends, err := c.hostEnds(args[0])
	if err != nil {
		return err
	}
	events, done := make(chan netlink.LinkUpdate), make(chan struct{})
	defer close(done)
	if err := netlink.LinkSubscribe(events, done); err != nil {
		return err
	}
	if err := c.RemovePod(args[0]); err != nil {
		return err
	}
	for end := time.After(stepTime); len(ends) > 0; {
		select {
		case e := <-events:
			if e.Header.Type == unix.RTM_DELLINK && e.Family == unix.AF_UNSPEC { // not that it left its bridge
				delete(ends, e.Attrs().Index)
			}
		case <-end:
			t.Fatalf("the namespace of %s does not go away", args[0])
		}
	}
	return nil
}

// hostEnds is the indexes of the host's ends of a pod's pairs.
func (c *story) hostEnds(pod string) (map[int]bool, error) {
	ends := map[int]bool{}
	err := c.In(pod, func() error {
		all, err := netlink.LinkList()
		for _, l := range all {
			if l.Type() == "veth" {
				ends[l.Attrs().ParentIndex] = true
			}
		}
		return err
	})
	return ends, err
}
