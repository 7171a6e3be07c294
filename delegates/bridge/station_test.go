package bridge

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tracewire/tracewire/test/netns"
)

// TestStationsAndStrangers: of a bridge, of what is none, and where there is none.
func TestStationsAndStrangers(t *testing.T) {
	netns.Enter(t)
	b := Bridge{Conf: Conf{Bridge: "b0"}, Vacant: new(netip.Addr)}
	a := netip.MustParseAddr("10.1.0.2")
	known := func(name string) bool { return name == "known0" }
	look := func(what string, station, strangers bool) {
		t.Helper()
		s, err := b.Station("net", a)
		if s != station || err != nil {
			t.Errorf("%s: station %t, %v", what, s, err)
		}
		if (*b.Vacant == a) == station {
			t.Errorf("%s: vacant %s", what, b.Vacant)
		}
		*b.Vacant = netip.Addr{}
		if s, err := b.Strangers(known); s != strangers || err != nil {
			t.Errorf("%s: strangers %t, %v", what, s, err)
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	named := func(name, mac string) netlink.LinkAttrs {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = name, mustMAC(t, mac)
		return attrs
	}
	look("no bridge", false, false)
	do(netlink.LinkAdd(&netlink.Veth{LinkAttrs: named("b0", "02:00:00:00:00:01"), PeerName: "p0"}))
	look("another kind", false, false)
	do(netlink.LinkDel(&netlink.Veth{LinkAttrs: named("b0", "02:00:00:00:00:01")}))
	br := &netlink.Bridge{LinkAttrs: named("b0", "02:00:00:00:00:02")}
	do(netlink.LinkAdd(br))
	look("a bridge without ports", false, false)
	port := func(name, mac string) {
		t.Helper()
		v := &netlink.Veth{LinkAttrs: named(name, mac), PeerName: "p" + name}
		do(netlink.LinkAdd(v))
		do(netlink.LinkSetMaster(v, br))
	}
	port("known0", "02:00:00:00:00:03")
	port("veth0", "0a:57:00:00:00:01") // ours, whose alias is not set yet
	look("ports that are known", false, false)
	port("other0", "02:00:00:00:00:04")
	look("one that is not", false, true)
	port("veth1", "0a:58:0a:01:00:02")
	look("a station", true, true)
	b.Conf.Bridge = "a-name-of-more-than-15"
	look("a long name", false, false)
}
