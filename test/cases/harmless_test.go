//go:build linux

package cases

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain/codes"
	"github.com/tracewire/tracewire/test/netns"
)

// harm is none: something that happens to an attachment, and CHECK passes.
type harm struct {
	set    map[string]string
	needs  []string
	happen act
	undo   act // where DEL would leave it, or is in its way
	prev   func(*types100.Result)
}

// later is a result whose interface eth0 a later plugin changed.
func later(change func(*types100.Interface)) func(*types100.Result) {
	return func(r *types100.Result) {
		for _, i := range r.Interfaces {
			if i.Name == "eth0" {
				change(i)
			}
		}
	}
}

var harms = map[string]harm{
	"promiscuous bridge":       {happen: on("host", "tb0", netlink.SetPromiscOn)},
	"sniffer on the bridge":    {happen: sniff},
	"extra address in the pod": {happen: all(linked("pod1", "eth0", "address", "10.99.0.9/24"), linked("pod1", "eth0", "address", "fd99::9/64"))},
	"extra route in the pod":   {happen: route(netlink.RouteAdd, "203.0.113.0/24", "10.77.0.9", nil)},
	"route with metrics in the pod": {
		set:    asked("ipam.routes", routes4),
		happen: all(route(netlink.RouteAdd, "0.0.0.0/0", "10.77.0.9", measured(10, 1400, 1300)), route(netlink.RouteAdd, "192.0.2.0/24", "10.77.0.8", measured(5, 1280, 0))),
	},
	"extra interface in the pod": {happen: all(linked("pod1", "extra", "veth", ""), linked("pod1", "extra", "address", "10.98.0.1/24"), linked("pod1", "extra", "up", "")), undo: linked("pod1", "extra", "del", "")},
	"MAC by a later plugin": {
		happen: linked("pod1", "eth0", "mac", "02:00:00:00:00:07"),
		prev:   later(func(i *types100.Interface) { i.Mac = "02:00:00:00:00:07" }),
	},
	"MTU by a later plugin": {
		happen: linked("pod1", "eth0", "mtu", "1300"),
		prev:   later(func(i *types100.Interface) { i.Mtu = 1300 }),
	},
	"MAC, MTU and routes by a delegated plugin": {
		set: map[string]string{
			"macspoofchk": "true", "isDefaultGateway": "true",
			"delegates": `[{"type": "tuning", "mac": "02:00:00:00:00:07", "mtu": 1300}, {"type": "sbr"}]`,
		},
		happen: all(),
	},
	"MTU alike on both ends": {happen: all(linked("pod1", "eth0", "mtu", "1400"), linked("host", hostEnd, "mtu", "1400"))},
	"routes in another table": {
		set:    map[string]string{"isDefaultGateway": "true", "ipam.ranges": dual, "ipam.routes": `[{"dst": "192.0.2.0/24", "gw": "10.77.0.9", "priority": 50}]`},
		happen: all(inTable("0.0.0.0/0", "10.77.0.1", 0), inTable("::/0", "fd77::1", 0), inTable("192.0.2.0/24", "10.77.0.9", 50)),
	},
	"route by a later plugin": {
		set:    asked("ipam.routes", routes4),
		happen: all(route(netlink.RouteReplace, "0.0.0.0/0", "10.77.0.9", nil), route(netlink.RouteDel, "192.0.2.0/24", "", nil), route(netlink.RouteAdd, "192.0.2.0/24", "10.77.0.9", measured(70, 1400, 1300))),
		prev: func(r *types100.Result) {
			r.Routes[0].GW = net.IPv4(10, 77, 0, 9)
			r.Routes[1].Priority = 70
		},
	},
	"route taken by a later plugin": {
		set:    asked("ipam.routes", routes4),
		happen: route(netlink.RouteDel, "192.0.2.0/24", "", nil),
		prev: func(r *types100.Result) {
			r.Routes = slices.DeleteFunc(r.Routes, func(x *types.Route) bool { return x.Dst.String() == "192.0.2.0/24" })
		},
	},
	"address taken by a later plugin": {
		set:    asked("ipam.ranges", dual),
		happen: linked("pod1", "eth0", "address-del", "fd77::2/64"),
		prev:   func(r *types100.Result) { r.IPs = r.IPs[:1] },
	},
	"ports that come and go": {
		set:    asked("isGateway", "false"),
		happen: all(station("a", "02:00:00:00:00:01"), station("b", "00:00:00:00:00:01"), linked("host", "a", "del", "")), undo: linked("host", "b", "del", ""),
	},
	"smaller MTU of another port": {
		happen: all(station("a", "02:00:00:00:00:01"), linked("host", "a", "mtu", "1300"), linked("host", "tb0", "mtu", "1300")), undo: linked("host", "a", "del", ""),
	},
	"MAC of the bridge":                   {set: asked("isGateway", "false"), happen: linked("host", "tb0", "mac", "02:00:00:00:00:07")},
	"MAC of the host end":                 {happen: linked("host", hostEnd, "mac", "02:00:00:00:00:07")},
	"extra address of the bridge":         {happen: all(linked("host", "tb0", "address", "10.99.0.1/24"), linked("host", "tb0", "address", "fd99::1/64"))},
	"alternative name of the bridge":      {happen: all(altname("tb0", "tb0-was"), renamed("host", "tb0", "br9"), altname("br9", "tb0"))},
	"alias of the host end":               {happen: alias("uplink of c1"), undo: alias("tracewire:net/c1:eth0")},
	"alternative name of the host end":    {happen: altname(hostEnd, "c1-eth0")},
	"transmit queue of the host end":      {happen: on("host", hostEnd, func(l netlink.Link) error { return netlink.LinkSetTxQLen(l, 5000) })},
	"queueing discipline of the host end": {happen: on("host", hostEnd, queued)},
	"allmulticast":                        {happen: all(on("host", hostEnd, netlink.LinkSetAllmulticastOn), on("pod1", "eth0", netlink.LinkSetAllmulticastOn), on("host", "tb0", netlink.LinkSetAllmulticastOn))},
	"hairpin that was not asked for":      {happen: on("host", hostEnd, switched(netlink.LinkSetHairpin, true))},
	"neighbour entries":                   {happen: all(on("pod1", "eth0", neighbour), on("host", "tb0", neighbour))},
	"another network's rules": {
		set: asked("ipMasq", "true"), needs: []string{"nft"},
		happen: all(program("nft add table inet tracewire_0_0"), program("nft add chain inet tracewire_0_0 postrouting { type nat hook postrouting priority 100 ; }"), program("nft add rule inet tracewire_0_0 postrouting accept")),
		undo:   program("nft delete table inet tracewire_0_0"),
	},
	"other tables of rules": {
		set: map[string]string{"ipMasq": "true", "macspoofchk": "true"}, needs: []string{"nft"},
		happen: all(program("nft add table ip kube-proxy"), program("nft add chain ip kube-proxy nat-postrouting { type nat hook postrouting priority 100 ; }"),
			program("nft add rule ip kube-proxy nat-postrouting masquerade"), program("nft insert rule bridge nat PREROUTING counter")),
	},
	"rules that were saved and loaded again": {
		set: map[string]string{"ipMasq": "true", "macspoofchk": "true", "ipam.ranges": `[[{"subnet": "10.77.0.0/20"}], [{"subnet": "fd77::/61"}]]`}, needs: []string{"nft"},
		happen: all(keepNft, backNft),
	},
	"unrelated sysctls":                {happen: all(sysctl("host", "ipv4/conf/all/rp_filter", "1"), sysctl("host", "ipv4/conf/tb0/proxy_arp", "1"), sysctl("pod1", "ipv4/ping_group_range", "0 10"), sysctl("pod1", "ipv4/conf/eth0/arp_notify", "0"))},
	"forwarding off without a gateway": {set: map[string]string{"isGateway": "false", "ipam.ranges": dual}, happen: all(sysctl("host", "ipv4/ip_forward", "0"), sysctl("host", "ipv6/conf/all/forwarding", "0"))},
	"pod's interface that was left down": {set: map[string]string{"disableContainerInterface": "true", "ipam": "{}"}, happen: func(s *scene) error {
		return errors.Join(s.run("CHECK"), linked("pod1", "eth0", "up", "")(s))
	}},
	"forwarding that was not asked for": {set: asked("isGateway", "false"), happen: all(sysctl("host", "ipv4/ip_forward", "1"), sysctl("host", "ipv6/conf/all/forwarding", "1"), sysctl("pod1", "ipv4/ip_forward", "1"))},
	"IPv6 link-local addresses":         {set: asked("ipam.ranges", dual), happen: all(on("pod1", "eth0", noLinkLocal), on("host", "tb0", noLinkLocal), linked("pod1", "eth0", "address", "fe80::9/64"))},
	"temporary IPv6 addresses":          {set: asked("ipam.ranges", dual), happen: all(sysctl("pod1", "ipv6/conf/eth0/use_tempaddr", "2"), on("pod1", "eth0", temporary))},
	"spanning tree on its way":          {needs: []string{"ip"}, happen: all(program("ip link set tb0 type bridge stp_state 1"), linked("host", hostEnd, "down", ""), linked("host", hostEnd, "up", ""))},
}

// TestHarmless: CHECK passes whatever happens to an attachment that is no fault
// of it, and DEL leaves nothing.
func TestHarmless(t *testing.T) {
	for _, d := range codes.Harmless {
		h, is := harms[d.What]
		if !is {
			t.Errorf("%s: no test", d.What)
			continue
		}
		t.Run(d.What, h.play)
	}
	for what := range harms {
		if !slices.ContainsFunc(codes.Harmless, func(d codes.Difference) bool { return d.What == what }) {
			t.Errorf("%s: is not told", what)
		}
	}
}

func (h harm) play(t *testing.T) {
	netns.Need(t, h.needs...)
	s := attached(t, h.set)
	if err := h.happen(s); err != nil {
		t.Fatal(err)
	}
	s.prev = h.prev
	if err := s.run("CHECK"); err != nil {
		t.Error(describe(err))
	}
	if h.undo != nil {
		if err := h.undo(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.run("DEL"); err != nil {
		t.Errorf("DEL: %s", describe(err))
	}
	nothingLeft(t, s.Node)
}

// sniff listens as tcpdump does.
func sniff(s *scene) error {
	return on("host", "tb0", func(l netlink.Link) error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		s.t.Cleanup(func() { _ = unix.Close(fd) })
		return unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &unix.PacketMreq{Ifindex: int32(l.Attrs().Index), Type: unix.PACKET_MR_PROMISC})
	})(s)
}

// inTable moves a route to table 100, as sbr does.
func inTable(dst, gateway string, priority int) act {
	return all(
		route(netlink.RouteAdd, dst, gateway, func(r *netlink.Route) { r.Table, r.Priority = 100, priority }),
		route(netlink.RouteDel, dst, gateway, func(r *netlink.Route) { r.Priority = priority }))
}

// station is another's on the bridge.
func station(name, mac string) act {
	return all(linked("host", name, "veth", ""), linked("host", name, "mac", mac), linked("host", name, "master", "tb0"), linked("host", name, "up", ""))
}

func altname(name, other string) act {
	return on("host", name, func(l netlink.Link) error { return netlink.LinkAddAltName(l, other) })
}

func alias(text string) act {
	return on("host", hostEnd, func(l netlink.Link) error { return netlink.LinkSetAlias(l, text) })
}

func queued(l netlink.Link) error {
	return netlink.QdiscAdd(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       1 << 20, Limit: 1 << 20, Buffer: 1 << 16,
	})
}

func neighbour(l netlink.Link) error {
	return netlink.NeighSet(&netlink.Neigh{
		LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.IPv4(10, 77, 0, 200), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 8},
	})
}

func noLinkLocal(l netlink.Link) error {
	all, err := netlink.AddrList(l, netlink.FAMILY_V6)
	for _, a := range all {
		if a.IP.IsLinkLocalUnicast() {
			err = errors.Join(err, netlink.AddrDel(l, &a))
		}
	}
	return err
}

// temporary is addresses as autoconfiguration makes them.
func temporary(l netlink.Link) error {
	a, err := netlink.ParseAddr("fd77::abcd/64")
	if err != nil {
		return err
	}
	a.Flags, a.ValidLft, a.PreferedLft = unix.IFA_F_MANAGETEMPADDR|unix.IFA_F_NODAD, 3600, 1800
	return netlink.AddrAdd(l, a)
}

// TestCannotLook: where CHECK cannot look it says so, and never that something
// differs (ocicni#74).
func TestCannotLook(t *testing.T) {
	const withoutRights = "exec setpriv --bounding-set -net_admin"
	for _, tt := range []struct {
		name   string
		set    map[string]string
		needs  []string
		happen act
		wrap   string // what runs the plugin
		code   uint
	}{
		{name: "the namespace is gone", happen: func(s *scene) error { return s.RemovePod("pod1") }, code: 4},
		{name: "the store is no folder", happen: all(movedFile("ipam", "was"), written("ipam", "")), code: 5},
		{name: "the reservation cannot be read", needs: []string{"setpriv"}, wrap: "exec setpriv --bounding-set -dac_override,-dac_read_search",
			happen: func(s *scene) error { return os.Chmod(filepath.Join(s.Dir, "ipam", "net", "10.77.0.2"), 0) }, code: 5},
		{name: "no iptables", set: map[string]string{"ipMasq": "true", "ipMasqBackend": `"iptables"`}, needs: []string{"iptables"},
			happen: func(s *scene) error { s.t.Setenv("PATH", s.Dir); return nil }, code: 105},
		{name: "no right to see the masquerade", set: asked("ipMasq", "true"), needs: []string{"setpriv"}, wrap: withoutRights, code: 104},
		{name: "no right to see macspoofchk's rules", set: asked("macspoofchk", "true"), needs: []string{"setpriv"}, wrap: withoutRights, code: 104},
		{name: "no right to see the chain", set: map[string]string{"ipMasq": "true", "ipMasqBackend": `"iptables"`}, needs: []string{"setpriv", "iptables"}, wrap: withoutRights, code: 105},
	} {
		t.Run(tt.name, func(t *testing.T) {
			netns.Need(t, tt.needs...)
			s := attached(t, tt.set)
			if tt.happen != nil {
				if err := tt.happen(s); err != nil {
					t.Fatal(err)
				}
			}
			s.wrap = tt.wrap
			err := s.run("CHECK")
			var answer *types.Error
			if !errors.As(err, &answer) || answer.Code != tt.code || strings.Contains(answer.Details, "findings") {
				t.Errorf("want code %d, got %s", tt.code, describe(err))
			}
		})
	}
}

// TestChecksOfVersions: what results of an older version cannot hold, MTUs and
// metrics, is no finding, and the record's are compared all the same.
func TestChecksOfVersions(t *testing.T) {
	for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			n := node(t)
			plugin := conf(t, n, map[string]string{"ipam.routes": routes4, "mtu": "1400", "macspoofchk": "true", "hairpinMode": "true"})
			if err := n.Load([]byte(`{"cniVersion": "` + version + `", "name": "net", "plugins": [` + plugin + `]}`)); err != nil {
				t.Fatal(err)
			}
			s := &scene{Node: n, t: t, a: pod1(t, n)}
			ctx, cancel := context.WithTimeout(context.Background(), stepTime)
			defer cancel()
			if _, err := n.Add(ctx, s.a); err != nil {
				t.Fatal(describe(err))
			}
			if err := n.Check(ctx, s.a); err != nil {
				t.Error(describe(err))
			}
			if err := route(netlink.RouteReplace, "192.0.2.0/24", "10.77.0.9", measured(50, 1300, 1300))(s); err != nil {
				t.Fatal(err)
			}
			if got := findings(n.Check(ctx, s.a)); len(got) != 1 || got[0].Code != "route" {
				t.Errorf("%+v", got)
			}
			if err := n.Del(ctx, s.a); err != nil {
				t.Error(describe(err))
			}
		})
	}
}
