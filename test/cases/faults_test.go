//go:build linux

package cases

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain"
	"github.com/tracewire/tracewire/chain/codes"
	"github.com/tracewire/tracewire/test/netns"
)

// fault is planted into an attachment that is well, and mended.
type fault struct {
	name        string // beside the reason, where it has several
	set         map[string]string
	needs       []string
	plant, mend act
	// expected and found of the finding. HOST is the host end, interface N any index.
	expected, found string
	skip            string
	stays           bool // CHECK puts others of the reason right, and not this one
}

const (
	dual    = `[[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]`
	routes4 = `[{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.77.0.9", "priority": 50, "mtu": 1400, "advmss": 1300}, {"dst": "198.51.100.0/24", "scope": 253}]`
	noVLANs = "this kernel has no bridge VLAN filtering (CONFIG_BRIDGE_VLAN_FILTERING)"
)

// asked is a configuration of one key.
func asked(key, value string) map[string]string { return map[string]string{key: value} }

var ptpMode = map[string]string{"tracewire.mode": `"ptp"`, "ipam.ranges": dual}

var (
	keepNft, backNft           = reload("nft list ruleset", "nft -f")
	keepIptables, backIptables = reload("iptables-save", "iptables-restore")
	keepIP6, backIP6           = reload("ip6tables-save", "ip6tables-restore")
)

// faults is what CHECK finds, by reason.
var faults = map[string][]fault{
	"netns.other": {{
		plant: func(s *scene) error {
			_, err := s.Pod("pod2")
			s.a.NetNS = s.PodPath("pod2")
			return err
		},
		mend:     func(s *scene) error { s.a.NetNS = s.PodPath("pod1"); return nil },
		expected: "the namespace of ADD", found: "another one at @DIR@/netns/pod2",
	}},
	"pod.missing": {{
		plant: renamed("pod1", "eth0", "away"), mend: renamed("pod1", "away", "eth0"),
		expected: "interface eth0", found: "none",
	}},
	"pod.down": {{
		plant: linked("pod1", "eth0", "down", ""), mend: linked("pod1", "eth0", "up", ""),
		expected: "eth0 up", found: "down",
	}},
	"pod.mac": {{
		plant: linked("pod1", "eth0", "mac", "02:00:00:00:00:09"), mend: linked("pod1", "eth0", "mac", "0a:58:0a:4d:00:02"),
		expected: "0a:58:0a:4d:00:02", found: "02:00:00:00:00:09",
	}},
	"pod.mtu": {
		{
			plant: linked("pod1", "eth0", "mtu", "1400"), mend: linked("pod1", "eth0", "mtu", "1500"),
			expected: "eth0 with mtu 1500", found: "1400",
		},
		{
			name: "configured", set: asked("mtu", "1400"),
			plant: linked("pod1", "eth0", "mtu", "1399"), mend: linked("pod1", "eth0", "mtu", "1400"),
			expected: "eth0 with mtu 1400", found: "1399",
		},
		{
			name: "ptp", set: ptpMode,
			plant: linked("pod1", "eth0", "mtu", "1400"), mend: linked("pod1", "eth0", "mtu", "1500"),
			expected: "eth0 with mtu 1500", found: "1400",
		},
	},
	"host.missing": {{
		plant: renamed("host", hostEnd, "away"), mend: renamed("host", "away", hostEnd),
		expected: "interface HOST", found: "none",
	}},
	"host.peer": {{
		plant: all(linked("pod1", "eth0", "address-del", "10.77.0.2/24"), renamed("pod1", "eth0", "away"), linked("pod1", "eth0", "veth", ""),
			linked("pod1", "eth0", "mac", "0a:58:0a:4d:00:02"), linked("pod1", "eth0", "up", ""), linked("pod1", "eth0", "address", "10.77.0.2/24")),
		mend:     all(linked("pod1", "eth0", "del", ""), renamed("pod1", "away", "eth0"), linked("pod1", "eth0", "address", "10.77.0.2/24")),
		expected: "HOST to be the other end of eth0", found: "interface N",
	}},
	"host.down": {{
		plant: linked("host", hostEnd, "down", ""), mend: linked("host", hostEnd, "up", ""),
		expected: "HOST up", found: "down",
	}},
	"host.mtu": {{
		plant: linked("host", hostEnd, "mtu", "1400"), mend: linked("host", hostEnd, "mtu", "1500"),
		expected: "HOST with mtu 1500", found: "1400",
	}},
	"host.master": {
		{
			plant: on("host", hostEnd, netlink.LinkSetNoMaster), mend: linked("host", hostEnd, "master", "tb0"),
			expected: "HOST a port of tb0", found: "no port",
		},
		{
			name:  "another bridge",
			plant: all(linked("host", "tb1", "bridge", ""), linked("host", hostEnd, "master", "tb1")), mend: linked("host", hostEnd, "master", "tb0"),
			expected: "HOST a port of tb0", found: "a port of interface N",
		},
	},
	"port.state": {{
		plant: portState(0), mend: portState(3),
		expected: "HOST: forwarding", found: "disabled",
	}},
	"port.hairpin": {{
		set: asked("hairpinMode", "true"), plant: on("host", hostEnd, switched(netlink.LinkSetHairpin, false)), mend: on("host", hostEnd, switched(netlink.LinkSetHairpin, true)),
		expected: "HOST: hairpin on", found: "off",
	}},
	"port.isolation": {
		{
			plant: on("host", hostEnd, switched(netlink.LinkSetIsolated, true)), mend: on("host", hostEnd, switched(netlink.LinkSetIsolated, false)),
			expected: "HOST: isolation off", found: "on",
		},
		{
			name: "lost", set: asked("portIsolation", "true"),
			plant: on("host", hostEnd, switched(netlink.LinkSetIsolated, false)), mend: on("host", hostEnd, switched(netlink.LinkSetIsolated, true)),
			expected: "HOST: isolation on", found: "off",
		},
	},
	"port.learning": {{
		plant: on("host", hostEnd, switched(netlink.LinkSetLearning, false)), mend: on("host", hostEnd, switched(netlink.LinkSetLearning, true)),
		expected: "HOST: learning on", found: "off",
	}},
	"port.vlan": {{skip: noVLANs}},
	"bridge.missing": {
		{
			name: "renamed", stays: true, plant: renamed("host", "tb0", "away"), mend: renamed("host", "away", "tb0"),
			expected: "bridge tb0", found: "none",
		},
		{
			name:     "deleted",
			plant:    linked("host", "tb0", "del", ""),
			mend:     all(linked("host", "tb0", "bridge", ""), linked("host", "tb0", "up", ""), linked("host", "tb0", "address", "10.77.0.1/24"), linked("host", hostEnd, "master", "tb0")),
			expected: "bridge tb0", found: "none",
		},
		{
			name: "deleted, IPv6", set: map[string]string{"ipam.ranges": dual, "isDefaultGateway": "true"},
			plant:    linked("host", "tb0", "del", ""),
			mend:     all(linked("host", "tb0", "bridge", ""), linked("host", "tb0", "up", ""), linked("host", "tb0", "address", "10.77.0.1/24"), linked("host", "tb0", "address", "fd77::1/64"), linked("host", hostEnd, "master", "tb0")),
			expected: "bridge tb0", found: "none",
		},
	},
	"bridge.down": {{
		plant: linked("host", "tb0", "down", ""), mend: linked("host", "tb0", "up", ""),
		expected: "tb0 up", found: "down",
	}},
	"bridge.mtu": {
		{
			plant: linked("host", "tb0", "mtu", "1400"), mend: linked("host", "tb0", "mtu", "1500"),
			expected: "tb0 with mtu 1500", found: "1400",
		},
		{
			name: "another's port", set: asked("mtu", "1400"),
			plant:    all(linked("host", "other", "veth", ""), linked("host", "other", "mtu", "1300"), linked("host", "other", "master", "tb0"), linked("host", "tb0", "mtu", "1300")),
			mend:     all(linked("host", "other", "del", ""), linked("host", "tb0", "mtu", "1400")),
			expected: "tb0 with mtu 1400", found: "1300",
		},
	},
	"bridge.vlan": {{skip: noVLANs}},
	"gateway.missing": {
		{
			plant: linked("host", "tb0", "address-del", "10.77.0.1/24"), mend: linked("host", "tb0", "address", "10.77.0.1/24"),
			expected: "10.77.0.1/24 on tb0", found: "none",
		},
		{
			name: "another, which ADD replaces", set: asked("forceAddress", "true"),
			plant:    all(linked("host", "tb0", "address-del", "10.77.0.1/24"), linked("host", "tb0", "address", "10.77.0.1/16")),
			mend:     all(linked("host", "tb0", "address-del", "10.77.0.1/16"), linked("host", "tb0", "address", "10.77.0.1/24")),
			expected: "10.77.0.1/24 on tb0", found: "10.77.0.1/16",
		},
		{
			name: "IPv6, another beside it", set: asked("ipam.ranges", dual), plant: all(linked("host", "tb0", "address-del", "fd77::1/64"), linked("host", "tb0", "address", "fd79::1/64")),
			mend:     linked("host", "tb0", "address", "fd77::1/64"),
			expected: "fd77::1/64 on tb0", found: "fd79::1/64",
		},
		{
			name: "IPv6", set: asked("ipam.ranges", dual), plant: linked("host", "tb0", "address-del", "fd77::1/64"), mend: linked("host", "tb0", "address", "fd77::1/64"),
			expected: "fd77::1/64 on tb0", found: "none",
		},
		{
			name: "ptp", set: ptpMode, plant: linked("host", hostEnd, "address-del", "fd77::1/128"), mend: linked("host", hostEnd, "address", "fd77::1/128"),
			expected: "fd77::1/128 on HOST", found: "none",
		},
	},
	"gateway.conflict": {
		{
			plant:    all(linked("host", "tb0", "address-del", "10.77.0.1/24"), linked("host", "tb0", "address", "10.77.0.1/16"), linked("host", "tb0", "address", "10.78.0.1/24")),
			mend:     all(linked("host", "tb0", "address-del", "10.77.0.1/16"), linked("host", "tb0", "address", "10.77.0.1/24")),
			expected: "10.77.0.1/24 on tb0", found: "10.77.0.1/16, 10.78.0.1/24",
		},
		{
			name: "IPv6", set: asked("ipam.ranges", dual), plant: all(linked("host", "tb0", "address-del", "fd77::1/64"), linked("host", "tb0", "address", "fd77::2/48")),
			mend:     all(linked("host", "tb0", "address-del", "fd77::2/48"), linked("host", "tb0", "address", "fd77::1/64")),
			expected: "fd77::1/64 on tb0", found: "fd77::2/48",
		},
	},
	"hostroute.missing": {{
		set: ptpMode, plant: on("host", hostEnd, hostRoute(netlink.RouteDel)), mend: on("host", hostEnd, hostRoute(netlink.RouteAdd)),
		expected: "host route to 10.77.0.2/32 by HOST", found: "none",
	}},
	"forwarding.off": {
		{
			plant: sysctl("host", "ipv4/ip_forward", "0"), mend: sysctl("host", "ipv4/ip_forward", "1"),
			expected: "net/ipv4/ip_forward = 1", found: "0",
		},
		{
			name: "IPv6", set: asked("ipam.ranges", dual),
			plant: sysctl("host", "ipv6/conf/all/forwarding", "0"), mend: sysctl("host", "ipv6/conf/all/forwarding", "1"),
			expected: "net/ipv6/conf/all/forwarding = 1", found: "0",
		},
		{
			name: "ptp", set: ptpMode, plant: sysctl("host", "ipv4/ip_forward", "0"), mend: sysctl("host", "ipv4/ip_forward", "1"),
			expected: "net/ipv4/ip_forward = 1", found: "0",
		},
	},
	"address.missing": {
		{
			plant: linked("pod1", "eth0", "address-del", "10.77.0.2/24"), mend: linked("pod1", "eth0", "address", "10.77.0.2/24"),
			expected: "10.77.0.2/24", found: "none",
		},
		{
			name: "another length", plant: all(linked("pod1", "eth0", "address-del", "10.77.0.2/24"), linked("pod1", "eth0", "address", "10.77.0.2/16")),
			mend:     all(linked("pod1", "eth0", "address-del", "10.77.0.2/16"), linked("pod1", "eth0", "address", "10.77.0.2/24")),
			expected: "10.77.0.2/24", found: "10.77.0.2/16",
		},
		{
			name: "IPv6", set: asked("ipam.ranges", dual), plant: linked("pod1", "eth0", "address-del", "fd77::2/64"), mend: linked("pod1", "eth0", "address", "fd77::2/64"),
			expected: "fd77::2/64", found: "none",
		},
	},
	"route": {
		{
			name: "default by another gateway", set: asked("ipam.routes", routes4),
			plant: route(netlink.RouteReplace, "0.0.0.0/0", "10.77.0.9", nil), mend: route(netlink.RouteReplace, "0.0.0.0/0", "10.77.0.1", nil),
			expected: "0.0.0.0/0 via 10.77.0.1", found: "0.0.0.0/0 via 10.77.0.9",
		},
		{
			name: "default by isDefaultGateway", set: asked("isDefaultGateway", "true"),
			plant: route(netlink.RouteReplace, "0.0.0.0/0", "10.77.0.9", nil), mend: route(netlink.RouteReplace, "0.0.0.0/0", "10.77.0.1", nil),
			expected: "0.0.0.0/0 via 10.77.0.1", found: "0.0.0.0/0 via 10.77.0.9",
		},
		{
			name: "default of IPv6", set: map[string]string{"isDefaultGateway": "true", "ipam.ranges": dual},
			plant: route(netlink.RouteReplace, "::/0", "fd77::9", nil), mend: route(netlink.RouteReplace, "::/0", "fd77::1", nil),
			expected: "::/0 via fd77::1", found: "::/0 via fd77::9 metric 1024",
		},
		{
			name: "gone", set: asked("isDefaultGateway", "true"),
			plant: route(netlink.RouteDel, "0.0.0.0/0", "10.77.0.1", nil), mend: route(netlink.RouteReplace, "0.0.0.0/0", "10.77.0.1", nil),
			expected: "0.0.0.0/0 via 10.77.0.1", found: "none",
		},
		{
			name: "another metric", set: asked("ipam.routes", routes4),
			plant:    all(route(netlink.RouteDel, "192.0.2.0/24", "", nil), route(netlink.RouteAdd, "192.0.2.0/24", "10.77.0.9", measured(60, 1400, 1300))),
			mend:     all(route(netlink.RouteDel, "192.0.2.0/24", "", nil), route(netlink.RouteAdd, "192.0.2.0/24", "10.77.0.9", measured(50, 1400, 1300))),
			expected: "192.0.2.0/24 via 10.77.0.9 metric 50 mtu 1400 advmss 1300", found: "192.0.2.0/24 via 10.77.0.9 metric 60 mtu 1400 advmss 1300",
		},
		{
			name: "another mtu", set: asked("ipam.routes", routes4),
			plant:    route(netlink.RouteReplace, "192.0.2.0/24", "10.77.0.9", measured(50, 1300, 1300)),
			mend:     route(netlink.RouteReplace, "192.0.2.0/24", "10.77.0.9", measured(50, 1400, 1300)),
			expected: "192.0.2.0/24 via 10.77.0.9 metric 50 mtu 1400 advmss 1300", found: "192.0.2.0/24 via 10.77.0.9 metric 50 mtu 1300 advmss 1300",
		},
		{
			name: "another scope", set: asked("ipam.routes", routes4),
			plant:    all(route(netlink.RouteDel, "198.51.100.0/24", "", scoped(unix.RT_SCOPE_LINK)), route(netlink.RouteAdd, "198.51.100.0/24", "", scoped(unix.RT_SCOPE_HOST))),
			mend:     all(route(netlink.RouteDel, "198.51.100.0/24", "", scoped(unix.RT_SCOPE_HOST)), route(netlink.RouteAdd, "198.51.100.0/24", "", scoped(unix.RT_SCOPE_LINK))),
			expected: "198.51.100.0/24 scope link", found: "198.51.100.0/24 scope host",
		},
		{
			name: "ptp's own", set: ptpMode,
			plant:    route(netlink.RouteDel, "10.77.0.0/24", "10.77.0.1", nil),
			mend:     route(netlink.RouteAdd, "10.77.0.0/24", "10.77.0.1", nil),
			expected: "10.77.0.0/24 via 10.77.0.1 src 10.77.0.2", found: "none",
		},
	},
	"masquerade.missing": {
		{
			name: "flushed", set: asked("ipMasq", "true"), needs: []string{"nft"},
			plant: all(keepNft, program("nft flush ruleset")), mend: backNft,
			expected: "masquerade for 10.77.0.0/24", found: "none",
		},
		{
			name: "one of two flushed", set: map[string]string{"ipMasq": "true", "ipam.ranges": dual}, needs: []string{"nft"},
			plant: all(keepNft, rewritten("fd77::/64", "fd78::/64", backNft)), mend: all(rewritten("fd78::/64", "fd77::/64", backNft)),
			expected: "masquerade for fd77::/64", found: "none",
		},
		{
			name: "changed, its comment kept", set: asked("ipMasq", "true"), needs: []string{"nft"},
			plant: all(keepNft, rewritten(" masquerade comment", " accept comment", backNft)), mend: rewritten(" accept comment", " masquerade comment", backNft),
			expected: "masquerade for 10.77.0.0/24", found: "none",
		},
		{
			name: "ptp", set: map[string]string{"tracewire.mode": `"ptp"`, "ipMasq": "true"}, needs: []string{"nft"},
			plant: all(keepNft, program("nft flush ruleset")), mend: backNft,
			expected: "masquerade for 10.77.0.0/24", found: "none",
		},
		{
			name: "iptables, no rule leads to the chain", set: map[string]string{"ipMasq": "true", "ipMasqBackend": `"iptables"`}, needs: []string{"iptables"},
			plant: all(keepIptables, program("iptables -t nat -F POSTROUTING")), mend: backIptables,
			expected: "masquerade for 10.77.0.2/24", found: "none",
		},
		{
			name: "iptables, the chain is empty", set: map[string]string{"ipMasq": "true", "ipMasqBackend": `"iptables"`}, needs: []string{"iptables"},
			plant: all(keepIptables, program("iptables -t nat -F "+chainOfC1)), mend: backIptables,
			expected: "masquerade for 10.77.0.2/24", found: "none",
		},
		{
			name: "iptables, IPv6", set: map[string]string{"ipMasq": "true", "ipMasqBackend": `"iptables"`, "ipam.ranges": dual}, needs: []string{"iptables"},
			plant: all(keepIP6, program("ip6tables -t nat -F "+chainOfC1)), mend: backIP6,
			expected: "masquerade for fd77::2/64", found: "none",
		},
	},
	"macspoofchk.missing": {
		{
			name: "flushed", set: asked("macspoofchk", "true"), needs: []string{"nft"},
			plant: all(keepNft, program("nft flush ruleset")), mend: backNft,
			expected: "rules that drop frames of another MAC than the pod's", found: "no chain cni-br-iface-c1-eth0",
		},
		{
			name: "no rule leads to them", set: asked("macspoofchk", "true"), needs: []string{"nft"},
			plant: all(keepNft, program("nft flush chain bridge nat PREROUTING")), mend: backNft,
			expected: "rules that drop frames of another MAC than the pod's", found: "no rule that leads to chain cni-br-iface-c1-eth0",
		},
		{
			name: "the MAC of another", set: asked("macspoofchk", "true"), needs: []string{"nft"},
			plant: all(keepNft, rewritten("0a:58:0a:4d:00:02", "02:00:00:00:00:09", backNft)), mend: rewritten("02:00:00:00:00:09", "0a:58:0a:4d:00:02", backNft),
			expected: "rules that drop frames of another MAC than the pod's", found: "2 rules in chain cni-br-iface-c1-eth0-mac, which are not those",
		},
	},
	"delegate.check": {{
		set:   asked("delegates", `[{"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.log_martians": "1"}}]`),
		plant: sysctl("pod1", "ipv4/conf/eth0/log_martians", "0"), mend: sysctl("pod1", "ipv4/conf/eth0/log_martians", "1"),
		expected: "tuning to find nothing", found: "Error: Tuning configured value of /proc/sys/net/ipv4/conf/eth0/log_martians is 1, current value is 0",
	}},
	"ipam.reservation": {
		{
			name: "moved", plant: movedFile("ipam/net/10.77.0.2", "ipam/net/10.77.0.77"), mend: movedFile("ipam/net/10.77.0.77", "ipam/net/10.77.0.2"),
			expected: "10.77.0.2 held by c1 eth0", found: "no reservation",
		},
		{
			name: "another's", stays: true, plant: written("ipam/net/10.77.0.2", "c2\r\neth0"), mend: written("ipam/net/10.77.0.2", "c1\r\neth0"),
			expected: "10.77.0.2 held by c1 eth0", found: "held by c2 eth0",
		},
		{
			name: "emptied", plant: written("ipam/net/10.77.0.2", ""), mend: written("ipam/net/10.77.0.2", "c1\r\neth0"),
			expected: "10.77.0.2 held by c1 eth0", found: "a file without a holder",
		},
		{
			name: "one of two", set: asked("ipam.ranges", dual), plant: movedFile("ipam/net/fd77::2", "ipam/net/fd77::77"), mend: movedFile("ipam/net/fd77::77", "ipam/net/fd77::2"),
			expected: "fd77::2 held by c1 eth0", found: "no reservation",
		},
	},
}

// chainOfC1 is the reference's name of c1's chain on the network net.
const chainOfC1 = "CNI-623e1c388032b20529218ecc"

func switched(set func(netlink.Link, bool) error, value bool) func(netlink.Link) error {
	return func(l netlink.Link) error { return set(l, value) }
}

// hostRoute is the host's to the pod.
func hostRoute(do func(*netlink.Route) error) func(netlink.Link) error {
	return func(l netlink.Link) error {
		_, dst, err := net.ParseCIDR("10.77.0.2/32")
		return errors.Join(err, do(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_HOST}))
	}
}

func measured(priority, mtu, advmss int) func(*netlink.Route) {
	return func(r *netlink.Route) { r.Priority, r.MTU, r.AdvMSS = priority, mtu, advmss }
}

func scoped(scope netlink.Scope) func(*netlink.Route) {
	return func(r *netlink.Route) { r.Scope = scope }
}

// rewritten loads the rules that were kept, with a change.
func rewritten(from, to string, back act) act {
	return all(func(s *scene) error {
		b, err := os.ReadFile(filepath.Join(s.Dir, "rules"))
		if err == nil && !strings.Contains(string(b), from) {
			err = errors.New("no " + from + " in " + string(b))
		}
		return errors.Join(err, written("rules", strings.ReplaceAll(string(b), from, to))(s))
	}, back)
}

// TestFaults plants every fault that CHECK has a reason for into an attachment
// that is well: it is found, just that one, and once it is mended CHECK passes.
func TestFaults(t *testing.T) {
	for _, r := range codes.Reasons {
		if len(faults[r.Name]) == 0 {
			t.Errorf("no fault of %s is planted", r.Name)
		}
		for _, f := range faults[r.Name] {
			t.Run(strings.TrimSuffix(r.Name+"/"+f.name, "/"), func(t *testing.T) { f.play(t, r) })
		}
	}
	for reason := range faults {
		if !slices.ContainsFunc(codes.Reasons, func(r codes.Reason) bool { return r.Name == reason }) {
			t.Errorf("%s is no reason of CHECK", reason)
		}
	}
}

// TestMends: what is said to be mended by DEL and a new ADD is, of the rest some
// is not. Of another namespace it would be, but DEL takes the interface out of
// the first one, which may be the pod's; of another plugin's finding nobody knows.
func TestMends(t *testing.T) {
	for _, r := range codes.Reasons {
		left := r.Mends || r.Name == "netns.other" || r.Name == "delegate.check"
		for _, f := range faults[r.Name] {
			t.Run(strings.TrimSuffix(r.Name+"/"+f.name, "/"), func(t *testing.T) {
				if f.skip != "" {
					left = true
					t.Skip(f.skip)
				}
				netns.Need(t, f.needs...)
				err := f.anew(t)
				if left = left || err != nil; err != nil && r.Mends {
					t.Error(describe(err))
				}
			})
		}
		if !left {
			t.Errorf("%s: DEL and ADD mend it", r.Name)
		}
	}
}

// TestRestores: what is said to be put right by a CHECK that is asked to is, and
// CHECK finds nothing then; all else stays as it was found.
func TestRestores(t *testing.T) {
	for _, r := range codes.Reasons {
		for _, f := range faults[r.Name] {
			t.Run(strings.TrimSuffix(r.Name+"/"+f.name, "/"), func(t *testing.T) { f.restore(t, r) })
		}
	}
}

func (f fault) restore(t *testing.T, r codes.Reason) {
	if f.skip != "" {
		t.Skip(f.skip)
	}
	netns.Need(t, f.needs...)
	s := attached(t, f.set)
	if err := f.plant(s); err != nil {
		t.Fatalf("plant: %v", err)
	}
	s.env = []string{chain.EnvRestore + "=1"}
	err := s.run("CHECK")
	if right := r.Restores && !f.stays; right && err != nil {
		t.Errorf("not put right: %s", describe(err))
	} else if !right && len(findings(err)) == 0 {
		t.Errorf("put right, or not found: %v", err)
	}
	s.env = nil
	if again := s.run("CHECK"); fmt.Sprint(findings(again)) != fmt.Sprint(findings(err)) {
		t.Errorf("CHECK found %s, another one %s", describe(err), describe(again))
	}
}

// TestRestoresNothing: without a record of this boot nobody knows what is right, and
// nothing is changed.
func TestRestoresNothing(t *testing.T) {
	s := attached(t, nil)
	if err := errors.Join(os.RemoveAll(s.Dir+"/state/attachments"), linked("host", hostEnd, "down", "")(s)); err != nil {
		t.Fatal(err)
	}
	s.env = []string{chain.EnvRestore + "=1"}
	if err := s.run("CHECK"); !strings.HasPrefix(describe(err), "code 4: TRACEWIRE_RESTORE: no record of this boot") {
		t.Error(describe(err))
	}
	s.env = nil
	if got := findings(s.run("CHECK")); len(got) != 1 || got[0].Code != "host.down" {
		t.Errorf("found %v", got)
	}
}

// anew plants the fault, and makes the attachment anew.
func (f fault) anew(t *testing.T) error {
	s := attached(t, f.set)
	if err := f.plant(s); err != nil {
		t.Fatalf("plant: %v", err)
	}
	if err := s.run("DEL"); err != nil {
		t.Fatalf("DEL: %s", describe(err))
	}
	if err := s.add(); err != nil {
		return err
	}
	return s.run("CHECK")
}

var index = regexp.MustCompile(`interface \d+`)

func (f fault) play(t *testing.T, r codes.Reason) {
	if f.skip != "" {
		t.Skip(f.skip)
	}
	netns.Need(t, f.needs...)
	s := attached(t, f.set)
	if err := s.run("CHECK"); err != nil {
		t.Fatalf("before: %s", describe(err))
	}
	if err := f.plant(s); err != nil {
		t.Fatalf("plant: %v", err)
	}
	err := s.run("CHECK")
	if err == nil {
		t.Fatal("not found")
	}
	got := findings(err)
	for i := range got {
		got[i].Expected, got[i].Found = s.words(got[i].Expected), s.words(got[i].Found)
	}
	if diff := cmp.Diff([]finding{{r.Name, f.expected, f.found}}, got); diff != "" {
		t.Errorf("-want +got:\n%s%s", diff, describe(err))
	}
	if action := map[bool]string{true: "reconcile", false: "inspect"}[r.Mends]; !strings.Contains(describe(err), `"action":"`+action+`"`) {
		t.Errorf("want action %s: %s", action, describe(err))
	}
	if err := f.mend(s); err != nil {
		t.Fatalf("mend: %v", err)
	}
	if err := s.run("CHECK"); err != nil {
		t.Errorf("after: %s", describe(err))
	}
	if err := s.run("DEL"); err != nil {
		t.Errorf("DEL: %s", describe(err))
	}
	nothingLeft(t, s.Node)
}

// words is a text without what differs from run to run.
func (s *scene) words(text string) string {
	return index.ReplaceAllString(s.Normal(strings.ReplaceAll(text, s.host, hostEnd)), "interface N")
}
