//go:build linux

// Package reference compares tracewire with the reference plugins: a table of
// features, and scenarios that both go through with the same inputs. The
// scenarios assert what tracewire does; what the reference does is told.
package reference

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain"
	"github.com/tracewire/tracewire/test/attach"
)

var (
	compare = flag.String("compare", "", "file to write what both sides did into, as a table")
	update  = flag.Bool("update", false, "write the tables of features anew")
)

// scenario is one story that is played to both sides.
type scenario struct {
	name  string
	ptp   bool
	keys  string // of the plugin's configuration, in JSON
	ipam  string // of its ipam beside type and dataDir; "" is a /24, "none" no ipam
	extra string // keys of the object tracewire, which the reference passes over
	needs []string
	play  func(*world)
	want  []string // that ours has seen
}

const (
	iptables = `"isGateway": true, "ipMasq": true, "ipMasqBackend": "iptables"`
	nftables = `"isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables"`
	gateway  = `"isGateway": true`
	both     = `"ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]`
)

var rules = []string{"nft", "iptables"}

var scenarios = []scenario{
	{
		name: "DEL with an empty CNI_NETNS, masquerade by iptables", keys: iptables, needs: rules,
		play: delWithoutNetNS, want: []string{"DEL ok", "left: nothing"},
	},
	{
		name: "DEL with an empty CNI_NETNS, masquerade by nftables", keys: nftables, needs: rules,
		play: delWithoutNetNS, want: []string{"DEL ok", "left: nothing"},
	},
	{
		name: "DEL with an empty CNI_NETNS, macspoofchk", keys: gateway + `, "macspoofchk": true`, needs: rules,
		play: delWithoutNetNS, want: []string{"DEL ok", "left: nothing"},
	},
	{
		name: "DEL with an empty CNI_NETNS, ptp with masquerade", ptp: true, keys: `"ipMasq": true, "ipMasqBackend": "iptables"`, needs: rules,
		play: delWithoutNetNS, want: []string{"DEL ok", "left: nothing"},
	},
	{
		name: "DEL with an empty CNI_NETNS and an empty result of libcni", keys: iptables, needs: rules,
		play: delWithoutResult, want: []string{"DEL ok", "left: nothing"},
	},
	{
		name: "DEL after the interface was removed, masquerade by iptables", keys: iptables, needs: rules,
		play: delWithoutInterface, want: []string{"DEL ok", "left: nothing"},
	},
	{
		name: "DEL after the interface was removed, masquerade by nftables", keys: nftables, needs: rules,
		play: delWithoutInterface, want: []string{"DEL ok", "left: nothing"},
	},
	{
		name: "DEL after the interface was removed, ptp with masquerade", ptp: true, keys: `"ipMasq": true, "ipMasqBackend": "nftables"`, needs: rules,
		play: delWithoutInterface, want: []string{"DEL ok", "left: nothing"},
	},
	{
		name: "DEL while the IPAM plugin is missing, then again", keys: iptables, extra: `"ipamExec": true`, needs: rules,
		play: delWithoutIPAM, want: []string{"DEL fails (11)", "DEL ok", "left: nothing"},
	},
	{
		name: "DEL after ranges was emptied", keys: gateway,
		play: delWithoutRanges, want: []string{"DEL ok", "left: nothing"},
	},
	{
		name: "DEL where a plain file is in the namespace's place", keys: gateway,
		play: delOfPlainFile, want: []string{"DEL ok", "left: nothing"},
	},
	{
		name: "ADD where a plain file is in the namespace's place", keys: gateway,
		play: addToPlainFile, want: []string{"ADD fails (4)", "left: nothing"},
	},
	{
		name: "ADD with no address left, again, and after a DEL", keys: gateway, ipam: `"subnet": "10.77.0.0/30"`,
		play: exhausted, want: []string{"ADD fails (100)", "left: nothing", "ADD fails (100)", "ADD ok"},
	},
	{
		name: "ADD with no address left, ptp", ptp: true, ipam: `"subnet": "10.77.0.0/30"`,
		play: exhausted, want: []string{"ADD fails (100)", "left: nothing", "ADD fails (100)", "ADD ok"},
	},
	{
		name: "STATUS with no address left, and after a DEL", keys: gateway, ipam: `"subnet": "10.77.0.0/30"`, extra: `"statusGrace": "0s"`,
		play: exhaustedStatus, want: []string{"STATUS ok", "STATUS fails (50)", "STATUS ok"},
	},
	{
		name: "STATUS with no address left, ptp", ptp: true, ipam: `"subnet": "10.77.0.0/30"`, extra: `"statusGrace": "0s"`,
		play: exhaustedStatus, want: []string{"STATUS ok", "STATUS fails (50)", "STATUS ok"},
	},
	{
		name: "STATUS with no address left, twice, with a grace", keys: gateway, ipam: `"subnet": "10.77.0.0/30"`, extra: `"statusGrace": "1ns"`,
		play: exhaustedTwice, want: []string{"STATUS ok", "STATUS fails (50)"},
	},
	{
		name: "STATUS where the IPAM plugin is missing", keys: gateway, extra: `"ipamExec": true`,
		play: statusWithoutIPAM, want: []string{"STATUS fails (50)"},
	},
	{
		name: "ADD where the bridge has another address", keys: gateway,
		play: gatewayConflict, want: []string{"ADD fails (103)", "left: nothing"},
	},
	{
		name: "ADD with empty reservation files in all the range", keys: gateway, ipam: `"subnet": "10.77.0.0/29"`,
		play: emptyReservations, want: []string{"ADD ok"},
	},
	{
		name: "ADD with MAC but no IgnoreUnknown in CNI_ARGS", keys: gateway,
		play: macByArgs, want: []string{"ADD ok", "mac 02:00:00:00:00:05"},
	},
	{
		name: "ADD whose result libcni cannot keep, then DEL", keys: iptables, needs: rules,
		play: cacheFails, want: []string{"ADD fails", "DEL ok", "left: nothing"},
	},
	{
		name: "ADD with mtu and advmss of a route", keys: gateway,
		ipam: `"subnet": "10.77.0.0/24", "routes": [{"dst": "192.0.2.0/24", "gw": "10.77.0.9", "mtu": 1400, "advmss": 1360}]`,
		play: routes, want: []string{"ADD ok", "via 10.77.0.9 mtu 1400 advmss 1360"},
	},
	{
		name: "ADD with two routes to one destination", keys: gateway,
		ipam: `"subnet": "10.77.0.0/24", "routes": [{"dst": "192.0.2.0/24", "gw": "10.77.0.8"}, {"dst": "192.0.2.0/24", "gw": "10.77.0.9"}]`,
		play: routes, want: []string{"ADD ok", "via 10.77.0.8", "via 10.77.0.9"},
	},
	{
		name: "ADD with mtu 1400 to a bridge that was set to 9000", keys: gateway + `, "mtu": 9000`,
		play: mtuConflict, want: []string{"ADD fails (103)", "left: nothing"},
	},
	{
		name: "ADD with vlan to a bridge that does not filter", keys: gateway + `, "vlan": 5`,
		play: vlanWithoutFilter, want: []string{"ADD fails (103)", "left: nothing"},
	},
	{
		name: "ADD by bridge with both families", keys: `"isDefaultGateway": true`, ipam: both,
		play: wired, want: []string{"10.77.0.2/24", "fd77::2/64", "0.0.0.0/0 via 10.77.0.1", "10.77.0.0/24", "::/0 via fd77::1", "fd77::/64"},
	},
	{
		name: "ADD by ptp with both families", ptp: true, ipam: both + `, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]`,
		play: wired, want: []string{
			"10.77.0.2/24", "fd77::2/64", "0.0.0.0/0 via 10.77.0.1", "10.77.0.0/24 via 10.77.0.1", "10.77.0.1/32", "::/0 via fd77::1", "fd77::/64 via fd77::1", "fd77::1/128",
			"host: 10.77.0.1/32", "host: fd77::1/128", "host to 10.77.0.2/32", "host to fd77::2/128",
		},
	},
	{
		name: "ADD by ptp with mtu and dns", ptp: true, keys: `"mtu": 1400, "dns": {"nameservers": ["10.77.0.53"]}`,
		play: mtuAndDNS, want: []string{"ADD ok", "dns 10.77.0.53", "eth0 mtu 1400", "host end mtu 1400"},
	},
	{
		name: "ADD by ptp without IPAM", ptp: true, ipam: "none",
		play: func(w *world) { w.run("ADD", w.pod("c1")) }, want: []string{"ADD ok"},
	},
	{
		name: "CHECK while the host's route to a ptp pod is gone", ptp: true,
		play: fault(func(w *world) error {
			return w.onHostEnd(func(l netlink.Link) error {
				routes, err := netlink.RouteList(l, netlink.FAMILY_V4)
				for _, r := range routes {
					err = errors.Join(err, netlink.RouteDel(&r))
				}
				return err
			})
		}), want: []string{"CHECK fails (110 hostroute.missing)"},
	},
	{
		name: "CHECK while the bridge is promiscuous", keys: gateway,
		play: fault(func(w *world) error {
			return w.onLink("host", "tb0", netlink.SetPromiscOn)
		}), want: []string{"CHECK ok"},
	},
	{
		name: "CHECK after another pod joined a bridge without gateway", keys: `"isGateway": false`,
		play: othersJoin, want: []string{"0 of 8 CHECKs fail"},
	},
	{
		name: "CHECK while the pod's end is down", keys: gateway,
		play: fault(func(w *world) error { return w.onLink("c1", "eth0", netlink.LinkSetDown) }),
		want: []string{"CHECK fails (110 pod.down)"},
	},
	{
		name: "CHECK while the host end is down", keys: gateway,
		play: fault(func(w *world) error { return w.onHostEnd(netlink.LinkSetDown) }),
		want: []string{"CHECK fails (110 host.down)"},
	},
	{
		name: "CHECK while the default route has another gateway", keys: `"isDefaultGateway": true`,
		play: fault(func(w *world) error {
			return w.onLink("c1", "eth0", func(l netlink.Link) error {
				return netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.IPv4(10, 77, 0, 9)})
			})
		}), want: []string{"CHECK fails (110 route)"},
	},
	{
		name: "CHECK while the pod's end has another MTU", keys: gateway,
		play: func(w *world) { // tuning keeps what it found by container id alone: another test's may be c1
			a := w.made("untuned")
			must(w.t, w.onLink("untuned", "eth0", setMTU(1400)))
			w.run("CHECK", a)
		},
		want: []string{"CHECK fails (110 pod.mtu)"},
	},
	{
		name: "CHECK while the host end has another MTU", keys: gateway,
		play: fault(func(w *world) error { return w.onHostEnd(setMTU(1400)) }),
		want: []string{"CHECK fails (110 host.mtu)"},
	},
	{
		name: "CHECK while the host does not forward", keys: gateway,
		play: fault(func(w *world) error { return w.sysctl("ipv4/ip_forward", "0") }),
		want: []string{"CHECK fails (110 forwarding.off)"},
	},
	{
		name: "CHECK while the bridge lacks the gateway's address", keys: gateway,
		play: fault(func(w *world) error {
			return w.onLink("host", "tb0", func(l netlink.Link) error {
				gateway, err := netlink.ParseAddr("10.77.0.1/24")
				return errors.Join(err, netlink.AddrDel(l, gateway))
			})
		}), want: []string{"CHECK fails (110 gateway.missing)"},
	},
	{
		name: "CHECK while the port is isolated", keys: gateway,
		play: fault(func(w *world) error {
			return w.onHostEnd(func(l netlink.Link) error { return netlink.LinkSetIsolated(l, true) })
		}), want: []string{"CHECK fails (110 port.isolation)"},
	},
	{
		name: "CHECK while the port has lost its hairpin mode", keys: gateway + `, "hairpinMode": true`,
		play: fault(func(w *world) error {
			return w.onHostEnd(func(l netlink.Link) error { return netlink.LinkSetHairpin(l, false) })
		}), want: []string{"CHECK fails (110 port.hairpin)"},
	},
	{
		name: "CHECK while the bridge is down", keys: gateway,
		play: fault(func(w *world) error { return w.onLink("host", "tb0", netlink.LinkSetDown) }),
		want: []string{"CHECK fails (110 bridge.down)"},
	},
	{
		name: "CHECK while the masquerade's rules are flushed, nftables", keys: nftables, needs: rules,
		play: fault(func(w *world) error { _, err := w.Nft("flush", "ruleset"); return err }),
		want: []string{"CHECK fails (110 masquerade.missing)"},
	},
	{
		name: "CHECK while the masquerade's rules are flushed, iptables", keys: iptables, needs: rules,
		play: fault(func(w *world) error { _, err := w.Nft("flush", "ruleset"); return err }),
		want: []string{"CHECK fails (110 masquerade.missing)"},
	},
	{
		name: "CHECK while macspoofchk's rules are flushed", keys: gateway + `, "macspoofchk": true`, needs: rules,
		play: fault(func(w *world) error { _, err := w.Nft("flush", "ruleset"); return err }),
		want: []string{"CHECK fails (110 macspoofchk.missing)"},
	},
	{
		name: "CHECK while a sniffer listens on the bridge", keys: gateway,
		play: fault(func(w *world) error { return w.onLink("host", "tb0", w.sniff) }),
		want: []string{"CHECK ok"},
	},
	{
		name: "CHECK while the host does not forward, ptp", ptp: true,
		play: fault(func(w *world) error { return w.sysctl("ipv4/ip_forward", "0") }),
		want: []string{"CHECK fails (110 forwarding.off)"},
	},
	{
		name: "CHECK while another address is reserved", keys: gateway,
		play: fault(func(w *world) error {
			store := filepath.Join(w.Dir, "ipam", "net")
			return os.Rename(filepath.Join(store, "10.77.0.2"), filepath.Join(store, "10.77.0.77"))
		}), want: []string{"CHECK fails (110 ipam.reservation)"},
	},
}

// list is the configuration list for a side: the type alone differs.
func (s scenario) list(on side) string {
	kind, mode := on.bridge, "bridge"
	if s.ptp {
		kind, mode = on.ptp, "ptp"
	}
	ipam := s.ipam
	if ipam == "" {
		ipam = `"ranges": [[{"subnet": "10.77.0.0/24"}]]`
	}
	keys := []string{`"type": "` + kind + `"`, `"bridge": "tb0"`}
	if s.keys != "" {
		keys = append(keys, s.keys)
	}
	own := `"mode": "` + mode + `", "stateDir": "@DIR@/state", "log": {"path": "@DIR@/log"}`
	if s.extra != "" {
		own += ", " + s.extra
	}
	if ipam != "none" {
		keys = append(keys, `"ipam": {"type": "host-local", "dataDir": "@DIR@/ipam", `+ipam+`}`)
	}
	keys = append(keys, `"tracewire": {`+own+`}`)
	return `{"cniVersion": "1.1.0", "name": "net", "plugins": [{` + strings.Join(keys, ", ") + `}]}`
}

// TestScenarios plays every scenario to both sides.
func TestScenarios(t *testing.T) {
	var table []row
	for _, s := range slices.Concat(scenarios, collecting) {
		seen := map[side][]string{}
		t.Run(s.name, func(t *testing.T) {
			for _, on := range []side{theirs, ours} {
				t.Run(on.name, func(t *testing.T) {
					w := newWorld(t, on, s)
					s.play(w)
					seen[on] = w.seen
					t.Log(strings.Join(w.seen, ", "))
					if diff := cmp.Diff(s.want, w.seen); diff != "" && on == ours {
						t.Errorf("-want +got:\n%s", diff)
					}
				})
			}
		})
		if len(seen) == 2 {
			table = append(table, row{s.name, seen[theirs], seen[ours]})
		}
	}
	if *compare != "" && len(table) > 0 {
		must(t, os.WriteFile(*compare, []byte(drawn(table)), 0o644))
	}
}

// row is what was seen of one scenario.
type row struct {
	name         string
	theirs, ours []string
}

// code is an error's code in what was seen.
var code = regexp.MustCompile(`\([^)]*\)`)

// drawn is the table for people, and how many of its rows differ.
func drawn(table []row) string {
	var b strings.Builder
	differ, codes := 0, 0
	columns := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	line := func(cells ...any) { _, _ = fmt.Fprintf(columns, "%s\t%s\t%s\n", cells...) }
	line("scenario", "reference "+version, "tracewire")
	for _, r := range table {
		name := r.name
		for i := range max(len(r.theirs), len(r.ours)) {
			line(name, at(r.theirs, i), at(r.ours, i))
			name = ""
		}
		theirs, ours := strings.Join(r.theirs, "\n"), strings.Join(r.ours, "\n")
		switch {
		case theirs == ours:
		case code.ReplaceAllString(theirs, "") == code.ReplaceAllString(ours, ""):
			codes++
			fallthrough
		default:
			differ++
		}
	}
	_ = columns.Flush()
	fmt.Fprintf(&b, "\n%d of %d scenarios differ, %d of them in the error's code alone\n", differ, len(table), codes)
	return b.String()
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

// version is of the reference plugins, as test/tools/go.mod has it.
const version = "v1.10.0"

// TestVersion holds that, so that the tables say what was run.
func TestVersion(t *testing.T) {
	b, err := os.ReadFile("../tools/go.mod")
	if err != nil || !strings.Contains(string(b), "containernetworking/plugins "+version+" ") {
		t.Errorf("test/tools/go.mod has not version %s, error %v", version, err)
	}
}

func delWithoutNetNS(w *world) {
	before := w.have()
	a := w.made("c1")
	a.NetNS = ""
	w.run("DEL", a)
	w.left(before)
}

func delWithoutResult(w *world) {
	before := w.have()
	a := w.made("c1")
	must(w.t, os.Truncate(filepath.Join(w.Dir, "cache", "results", "net-c1-eth0"), 0))
	a.NetNS = ""
	w.run("DEL", a)
	w.left(before)
}

func delWithoutInterface(w *world) {
	before := w.have()
	a := w.made("c1")
	must(w.t, w.onLink("c1", "eth0", netlink.LinkDel))
	w.run("DEL", a)
	w.left(before)
}

func delWithoutIPAM(w *world) {
	before := w.have()
	a := w.made("c1")
	plugin := filepath.Join(w.Dir, "plugins", "host-local")
	must(w.t, os.Rename(plugin, plugin+".away"))
	w.run("DEL", a)
	must(w.t, os.Rename(plugin+".away", plugin))
	w.run("DEL", a)
	w.left(before)
}

func delWithoutRanges(w *world) {
	before := w.have()
	a := w.made("c1")
	w.load(strings.Replace(w.conf, `[[{"subnet": "10.77.0.0/24"}]]`, `[]`, 1))
	w.run("DEL", a)
	w.left(before)
}

func delOfPlainFile(w *world) {
	before := w.have()
	a := w.made("c1")
	must(w.t, w.RemovePod("c1"), os.WriteFile(a.NetNS, nil, 0o644))
	w.run("DEL", a)
	w.left(before)
}

func addToPlainFile(w *world) {
	before := w.have()
	a := attach.Attachment{ContainerID: "c1", IfName: "eth0", NetNS: w.PodPath("c1")}
	must(w.t, os.WriteFile(a.NetNS, nil, 0o644))
	w.run("ADD", a)
	w.left(before)
}

func exhausted(w *world) {
	first, second := w.made("c1"), w.pod("c2")
	before := w.have()
	w.run("ADD", second)
	w.left(before)
	w.run("ADD", second)
	must(w.t, w.do("DEL", first))
	w.run("ADD", second)
}

func exhaustedStatus(w *world) {
	w.status()
	first := w.made("c1")
	w.status()
	must(w.t, w.do("DEL", first))
	w.status()
}

func exhaustedTwice(w *world) {
	w.made("c1")
	w.status()
	w.status()
}

func statusWithoutIPAM(w *world) {
	must(w.t, os.Remove(filepath.Join(w.Dir, "plugins", "host-local")))
	w.status()
}

// status is a STATUS whose answer belongs to the outcome.
func (w *world) status() {
	w.t.Helper()
	dir := chain.RunDir("net", filepath.Join(w.Dir, "state"), filepath.Join(w.Dir, "ipam"))
	w.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w.run("STATUS", attach.Attachment{})
}

// bridge makes the bridge, as others on the node might.
func (w *world) bridge() {
	w.t.Helper()
	must(w.t, w.In("host", func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "tb0"}})
	}))
}

func vlanWithoutFilter(w *world) {
	w.bridge()
	a, before := w.pod("c1"), w.have()
	w.run("ADD", a)
	w.left(before)
}

func gatewayConflict(w *world) {
	w.bridge()
	must(w.t, w.onLink("host", "tb0", func(l netlink.Link) error {
		other, err := netlink.ParseAddr("10.99.0.1/24")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(l, other)
	}))
	a, before := w.pod("c1"), w.have()
	w.run("ADD", a)
	w.left(before)
}

func emptyReservations(w *world) {
	store := filepath.Join(w.Dir, "ipam", "net")
	must(w.t, os.MkdirAll(store, 0o755))
	for i := range 5 {
		must(w.t, os.WriteFile(filepath.Join(store, fmt.Sprintf("10.77.0.%d", i+2)), nil, 0o600))
	}
	w.run("ADD", w.pod("c1"))
}

func macByArgs(w *world) {
	a := w.pod("c1")
	a.Args = [][2]string{{"MAC", "02:00:00:00:00:05"}}
	if !w.run("ADD", a) {
		return
	}
	must(w.t, w.onLink("c1", "eth0", func(l netlink.Link) error {
		w.see("mac %s", l.Attrs().HardwareAddr)
		return nil
	}))
}

func cacheFails(w *world) {
	a, before, cache := w.pod("c1"), w.have(), filepath.Join(w.Dir, "cache")
	must(w.t, os.WriteFile(cache, nil, 0o644))
	w.run("ADD", a)
	w.run("DEL", a)
	must(w.t, os.Remove(cache))
	w.left(before)
}

func routes(w *world) {
	w.run("ADD", w.pod("c1"))
	all, err := w.Kernel()
	must(w.t, err)
	for line := range strings.Lines(all) {
		if _, route, is := strings.Cut(strings.TrimSpace(line), "route 192.0.2.0/24 "); is {
			w.see("%s", strings.NewReplacer(" dev eth0", "", " proto boot", "").Replace(route))
		}
	}
}

// mtuConflict has a pod of 9000 bytes on the bridge, which was set to it: else
// the kernel gives a bridge the smallest of its ports'.
func mtuConflict(w *world) {
	w.made("c1")
	must(w.t, w.onLink("host", "tb0", func(l netlink.Link) error {
		return errors.Join(netlink.LinkSetMTU(l, 1500), netlink.LinkSetMTU(l, 9000))
	}))
	w.load(strings.Replace(w.conf, "9000", "1400", 1))
	a, before := w.pod("c2"), w.have()
	if !w.run("ADD", a) {
		w.left(before)
		return
	}
	must(w.t, w.onLink("host", "tb0", w.mtu("tb0")), w.onLink("c2", "eth0", w.mtu("eth0")))
}

func (w *world) mtu(name string) func(netlink.Link) error {
	return func(l netlink.Link) error {
		w.see("%s mtu %d", name, l.Attrs().MTU)
		return nil
	}
}

func mtuAndDNS(w *world) {
	if !w.run("ADD", w.pod("c1")) {
		return
	}
	made, err := types100.GetResult(w.result)
	must(w.t, err)
	w.see("dns %s", strings.Join(made.DNS.Nameservers, " "))
	must(w.t, w.onLink("c1", "eth0", w.mtu("eth0")), w.onHostEnd(w.mtu("host end")))
}

// wired sees the pod's addresses and routes, and what the host has for a ptp pod.
func wired(w *world) {
	must(w.t, w.do("ADD", w.pod("c1")))
	must(w.t, w.onLink("c1", "eth0", func(l netlink.Link) error { return w.seeLink(l, "", "") }))
	must(w.t, w.onHostEnd(func(l netlink.Link) error { return w.seeLink(l, "host: ", "host to ") }))
}

// seeLink sees the addresses and routes of an interface, but what the kernel
// makes of itself.
func (w *world) seeLink(l netlink.Link, address, route string) error {
	addresses, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	routes, err := netlink.RouteList(l, netlink.FAMILY_ALL)
	var lines []string
	for _, a := range addresses {
		if !a.IP.IsLinkLocalUnicast() {
			w.see("%s%s", address, a.IPNet)
		}
	}
	for _, r := range routes {
		switch {
		case r.Dst != nil && r.Dst.IP.IsLinkLocalUnicast(), address != "" && r.Dst.String() == "fd77::1/128":
		case r.Gw != nil:
			lines = append(lines, fmt.Sprintf("%s%s via %s", route, r.Dst, r.Gw))
		default:
			lines = append(lines, fmt.Sprintf("%s%s", route, r.Dst))
		}
	}
	slices.Sort(lines)
	w.seen = append(w.seen, lines...)
	return err
}

// othersJoin has a bridge a trial: the MAC of a bridge may follow the lowest of
// its ports.
func othersJoin(w *world) {
	const trials = 8
	failed := 0
	for i := range trials {
		w.load(strings.NewReplacer("tb0", fmt.Sprint("tb", i), `"net"`, fmt.Sprintf(`"net%d"`, i)).Replace(w.conf))
		a := w.made(fmt.Sprint("first", i))
		w.made(fmt.Sprint("second", i))
		if w.do("CHECK", a) != nil {
			failed++
		}
	}
	w.see("%d of %d CHECKs fail", failed, trials)
}

// fault is a CHECK after something happened to an attachment that was well.
func fault(happen func(*world) error) func(*world) {
	return func(w *world) {
		a := w.made("c1")
		must(w.t, w.do("CHECK", a), happen(w))
		w.run("CHECK", a)
	}
}

// setMTU sets an interface's.
func setMTU(n int) func(netlink.Link) error {
	return func(l netlink.Link) error { return netlink.LinkSetMTU(l, n) }
}

// sysctl writes a setting of the host.
func (w *world) sysctl(path, value string) error {
	return w.In("host", func() error { return os.WriteFile("/proc/sys/net/"+path, []byte(value), 0) })
}

// sniff listens on an interface as tcpdump does.
func (w *world) sniff(l netlink.Link) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	w.t.Cleanup(func() { _ = unix.Close(fd) })
	all := unix.PacketMreq{Ifindex: int32(l.Attrs().Index), Type: unix.PACKET_MR_PROMISC}
	return unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &all)
}

// onHostEnd does something to the host's only veth.
func (w *world) onHostEnd(do func(netlink.Link) error) error {
	return w.In("host", func() error {
		all, err := netlink.LinkList()
		for _, l := range all {
			if l.Type() == "veth" {
				return do(l)
			}
		}
		return errors.Join(err, errors.New("no veth"))
	})
}

// onLink does something to an interface of a pod or of the host.
func (w *world) onLink(where, name string, do func(netlink.Link) error) error {
	return w.In(where, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return do(l)
	})
}
