//go:build linux

package cases

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/test/attach"
)

// atOncePatience is how long the first packet to a new pod may take.
const atOncePatience = 200 * time.Millisecond

// reuse is an address that goes from one pod to the next.
type reuse struct {
	name           string
	gateway        bool
	address, other string // with prefix length: the pods', and another pod's that goes on living
	host           string // the bridge's
	static         bool   // IPAM is executed, after the interface was made
}

var reuses = []reuse{
	{name: "v4", gateway: true, address: "10.77.0.9/24", other: "10.77.0.5/24", host: "10.77.0.1/24"},
	{name: "v4 without isGateway", address: "10.77.0.9/24", other: "10.77.0.5/24", host: "10.77.0.1/24"},
	{name: "v6", gateway: true, address: "fd77::9/64", other: "fd77::5/64", host: "fd77::1/64"},
	{name: "v6 without isGateway", address: "fd77::9/64", other: "fd77::5/64", host: "fd77::1/64"},
	{name: "v4, executed IPAM", gateway: true, static: true, address: "10.77.0.9/24", other: "10.77.0.5/24", host: "10.77.0.1/24"},
	{name: "v4, executed IPAM, without isGateway", static: true, address: "10.77.0.9/24", other: "10.77.0.5/24", host: "10.77.0.1/24"},
	{name: "v6, executed IPAM", gateway: true, static: true, address: "fd77::9/64", other: "fd77::5/64", host: "fd77::1/64"},
	{name: "v6, executed IPAM, without isGateway", static: true, address: "fd77::9/64", other: "fd77::5/64", host: "fd77::1/64"},
}

// TestAddressReused: a pod dies and the next gets its address within a second,
// while the host and another pod still have the dead one's neighbour entry. The
// first packet to the new pod is answered at once (plugins#756, plugins#858,
// kubernetes#43910).
func TestAddressReused(t *testing.T) {
	for _, r := range reuses {
		t.Run(r.name, func(t *testing.T) {
			n := node(t)
			for from, err := range r.play(t, n, "tracewire") {
				if err != nil {
					t.Errorf("the first packet from %s: %v", from, err)
				}
			}
			for _, c := range []string{"new", "other"} {
				if err := r.do(n, "tracewire", "DEL", c); err != nil {
					t.Error(describe(err))
				}
			}
			nothingLeft(t, n)
		})
		t.Run(r.name+", the reference", func(t *testing.T) {
			for from, err := range r.play(t, node(t), "bridge") {
				t.Logf("the reference: the first packet from %s: %v", from, err)
			}
		})
	}
}

// play lets a pod die and another take its address, and tells who reaches that
// one at once.
func (r reuse) play(t *testing.T, n *attach.Node, plugin string) map[string]error {
	t.Helper()
	for _, step := range [][2]string{{"ADD", "other"}, {"ADD", "old"}} {
		if err := r.do(n, plugin, step[0], step[1]); err != nil {
			t.Fatal(describe(err))
		}
	}
	if !r.gateway {
		if err := n.In("host", func() error { return onBridge(r.host) }); err != nil {
			t.Fatal(err)
		}
	}
	address, _, _ := strings.Cut(r.address, "/")
	for _, from := range []string{"host", "other"} {
		// The reference's gateway address may still be tentative: from there no ping.
		err := n.PingFor(from, address, time.Second)
		for range 3 {
			if err != nil {
				err = n.PingFor(from, address, time.Second)
			}
		}
		if err != nil {
			t.Fatalf("%s, before: %v", from, err)
		}
		if err := n.In(from, func() error { return knows(address) }); err != nil {
			t.Fatalf("%s, before: %v", from, err)
		}
	}
	died := time.Now()
	if err := errors.Join(r.do(n, plugin, "DEL", "old"), n.RemovePod("old"), r.do(n, plugin, "ADD", "new")); err != nil {
		t.Fatal(describe(err))
	}
	if took := time.Since(died); took > time.Second {
		t.Logf("the machine is slow: the next pod was there after %s", took)
	}
	reached := map[string]error{}
	for _, from := range []string{"host", "other"} {
		reached[from] = n.PingFor(from, address, atOncePatience)
	}
	return reached
}

// do runs a plugin for the container and pod of that name.
func (r reuse) do(n *attach.Node, plugin, verb, name string) error {
	address := r.address
	if name == "other" {
		address = r.other
	}
	if _, err := n.Pod(name); err != nil {
		return err
	}
	ip, subnet, err := net.ParseCIDR(address)
	if err != nil {
		return err
	}
	ipam := fmt.Sprintf(`{"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}]]}`, n.Dir+"/ipam", subnet)
	a := attach.Attachment{ContainerID: name, IfName: "eth0", NetNS: n.PodPath(name), Args: [][2]string{{"IgnoreUnknown", "1"}, {"IP", ip.String()}}}
	if r.static {
		ipam, a.Args = fmt.Sprintf(`{"type": "static", "addresses": [{"address": %q}]}`, address), nil
	}
	stdin := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": %q, "bridge": "tb0", "isGateway": %t, "ipam": %s`, plugin, r.gateway, ipam)
	if plugin == "tracewire" {
		stdin += fmt.Sprintf(`, "tracewire": {"stateDir": %q, "log": {"level": "off"}}`, n.Dir+"/state")
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	_, err = n.Run(ctx, plugin, []byte(stdin+"}"), n.Environment(verb, a))
	return err
}

// onBridge gives the bridge an address that no plugin knows of.
func onBridge(text string) error {
	l, err := netlink.LinkByName("tb0")
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(text)
	if err != nil {
		return err
	}
	if a.IP.To4() == nil {
		a.Flags = unix.IFA_F_NODAD
	}
	return netlink.AddrAdd(l, a)
}

// knows tells whether there is a neighbour entry with a MAC.
func knows(address string) error {
	all, err := netlink.NeighList(0, netlink.FAMILY_ALL)
	for _, e := range all {
		if e.IP.Equal(net.ParseIP(address)) && len(e.HardwareAddr) == 6 {
			return nil
		}
	}
	return errors.Join(err, fmt.Errorf("%s is no neighbour", address))
}

// TestNoWaitForDAD: no address is tentative when ADD has answered, so a server
// can listen on it at once (plugins#680, kubernetes#54651).
func TestNoWaitForDAD(t *testing.T) {
	n := node(t)
	a := pod1(t, n)
	stdin := conf(t, n, map[string]string{"ipam.ranges": `[[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]`})
	if err := raw(t, n, "ADD", stdin, n.Environment("ADD", a)).Err(); err != nil {
		t.Fatal(describe(err))
	}
	for where, address := range map[string]string{"pod1": "fd77::2", "host": "fd77::1"} {
		err := n.In(where, func() error {
			l, err := net.Listen("tcp", net.JoinHostPort(address, "80")) // a tentative address cannot be bound
			if err != nil {
				return err
			}
			return l.Close()
		})
		if err != nil {
			t.Errorf("%s: %v", where, err)
		}
	}
	if err := raw(t, n, "DEL", stdin, n.Environment("DEL", a)).Err(); err != nil {
		t.Error(describe(err))
	}
	nothingLeft(t, n)
}
