//go:build linux

package cases

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
)

// wrapping is a list of ours with delegates, and what they do.
type wrapping struct {
	name  string
	needs []string // programs
	// set has new JSON values for keys of plain, by dotted path, as in input.
	set map[string]string
	// first is an entry before ours in the list.
	first string
	caps  map[string]any // capability args of the runtime; its DEL has none
	// ifName is the interface's name where it is not eth0.
	ifName string
	// ready makes what the delegates need on the node, once.
	ready func(*testing.T, *life)
	// lend makes what they take from the node, before each ADD.
	lend func(*testing.T, *life)
	// seen looks at what ADD did.
	seen func(*testing.T, *attach.Node, *types100.Result)
	// after looks at what is to be seen after each DEL only.
	after func(*testing.T, *life)
	// gone is what goes with the pod's namespace, though it was the node's.
	gone []string
	// debris is files that a plugin itself leaves when the namespace is gone before its DEL.
	debris []string
	// stays is rules of the node's that the plugins leave for the next pod.
	stays []string
}

const (
	hostLocal = `{"type": "host-local", "dataDir": "@DIR@/ipam", "ranges": [[{"subnet": "10.77.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}`
	static    = `{"type": "static", "addresses": [{"address": "10.77.0.9/24"}]}`
	dhcp      = `{"type": "dhcp", "daemonSocketPath": "@DIR@/dhcp.sock"}`
	// fails is a delegate whose ADD fails, by the real plugin.
	fails = `{"type": "tuning", "dataDir": "@DIR@/tuning", "sysctl": {"net.ipv4.conf.nonesuch.forwarding": "1"}}`
)

// alone is the keys of a list in mode delegate, of one plugin and more behind it.
func alone(delegates ...string) map[string]string {
	return map[string]string{"bridge": "", "isGateway": "", "ipam": "", "tracewire.mode": `"delegate"`, "delegates": array(delegates)}
}

// with is the keys of a list in mode bridge with delegates.
func with(delegates ...string) map[string]string {
	return map[string]string{"delegates": array(delegates), "ipam": hostLocal, "capabilities": `{"bandwidth": true, "portMappings": true, "mac": true}`}
}

func also(set map[string]string, key, value string) map[string]string {
	set[key] = value
	return set
}

func array(items []string) string { return "[" + strings.Join(items, ",") + "]" }

var (
	publish = map[string]any{"portMappings": []any{map[string]any{"hostPort": 18080, "containerPort": 80, "protocol": "tcp"}}}
	limits  = map[string]any{"bandwidth": map[string]any{"ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 16000000, "egressBurst": 800000}}
)

const (
	tuned  = `{"type": "tuning", "dataDir": "@DIR@/tuning", "mac": "02:00:00:00:00:07", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.log_martians": "1"}}`
	shaped = `{"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 16000000, "egressBurst": 800000}`
)

var wrappings = []wrapping{
	{name: "macvlan", set: alone(`{"type": "macvlan", "master": "up-out", "ipam": ` + hostLocal + `}`), ready: outside, seen: every(kind("macvlan"), reaches("10.77.0.1"))},
	{name: "macvlan static", set: alone(`{"type": "macvlan", "master": "up-out", "ipam": ` + static + `}`), ready: outside, seen: reaches("10.77.0.1")},
	{name: "macvlan dhcp", needs: []string{"dnsmasq"}, set: alone(`{"type": "macvlan", "master": "up-out", "ipam": ` + dhcp + `}`), ready: serveDHCP, seen: reaches("10.77.0.1"), after: released},
	{name: "macvlan and tuning", set: alone(`{"type": "macvlan", "master": "up-out", "ipam": `+hostLocal+`}`, `{"type": "tuning", "dataDir": "@DIR@/tuning", "mtu": 1300}`), ready: outside, seen: every(mtu(1300), reaches("10.77.0.1")), debris: []string{"tuning/c1_eth0.json"}},
	{name: "ptp", set: alone(`{"type": "ptp", "ipam": ` + hostLocal + `}`), seen: every(kind("veth"), reaches("10.77.0.1"))},
	{name: "bridge", set: alone(`{"type": "bridge", "bridge": "rb0", "isGateway": true, "ipam": ` + hostLocal + `}`), seen: reaches("10.77.0.1")},
	{name: "host-device", set: alone(`{"type": "host-device", "device": "hd0", "ipam": ` + static + `}`), lend: device, seen: kind("veth"), gone: []string{"host/hd0", "host/hd0-peer"}},
	{name: "host-device and host-local", set: alone(`{"type": "host-device", "device": "hd0", "ipam": ` + hostLocal + `}`), lend: device, seen: kind("veth"), gone: []string{"host/hd0", "host/hd0-peer"}},
	{name: "loopback", set: alone(`{"type": "loopback"}`), ifName: "lo", seen: reaches("127.0.0.1")},
	{name: "behind ptp", first: `{"type": "ptp", "ipam": ` + hostLocal + `}`, set: alone(tuned, shaped), seen: every(tunedPod, shapedPod), debris: []string{"tuning/c1_eth0.json"}},

	{name: "bandwidth", set: with(shaped), seen: shapedPod},
	{name: "bandwidth by capability", set: with(`{"type": "bandwidth", "capabilities": {"bandwidth": true}}`), caps: limits, seen: shapedPod},
	{name: "bandwidth that we do not declare", set: also(with(`{"type": "bandwidth", "capabilities": {"bandwidth": true}}`), "capabilities", `{"mac": true}`), caps: limits, seen: unshaped},
	{name: "bandwidth that it does not declare", set: with(`{"type": "bandwidth"}`), caps: limits, seen: unshaped},
	{name: "tuning", set: with(tuned), seen: every(tunedPod, reaches("10.77.0.1")), debris: []string{"tuning/c1_eth0.json"}},
	{name: "tuning twice", set: with(`{"type": "tuning", "dataDir": "@DIR@/tuning", "mac": "02:00:00:00:00:07"}`, `{"type": "tuning", "dataDir": "@DIR@/tuning", "mtu": 1300}`), seen: every(mtu(1300), mac("02:00:00:00:00:07")), debris: []string{"tuning/c1_eth0.json"}},
	{name: "firewall", needs: []string{"iptables", "nft"}, set: with(`{"type": "firewall", "backend": "iptables"}`), seen: rule("CNI-FORWARD", "10.77.0."), stays: []string{"CNI-FORWARD", "CNI-ADMIN"}},
	{name: "portmap iptables", needs: []string{"iptables", "nft"}, set: with(`{"type": "portmap", "backend": "iptables", "snat": true, "capabilities": {"portMappings": true}}`), caps: publish, seen: published, stays: []string{"CNI-HOSTPORT-"}},
	{name: "portmap nftables", needs: []string{"nft"}, set: with(`{"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}}`), caps: publish, seen: published},
	{name: "sbr", set: with(`{"type": "sbr"}`), seen: ruled},
	{name: "tuning, bandwidth and portmap", needs: []string{"nft"}, set: with(tuned, shaped, `{"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}}`), caps: publish, seen: every(tunedPod, shapedPod, published), debris: []string{"tuning/c1_eth0.json"}},
	{name: "ipam dhcp", needs: []string{"dnsmasq"}, set: also(also(with(tuned), "ipam", dhcp), "isGateway", ""), ready: serveBridge, seen: reaches("10.77.0.1"), after: released, debris: []string{"tuning/c1_eth0.json"}},
	{name: "ipam executed", set: also(with(tuned), "tracewire.ipamExec", "true"), seen: reaches("10.77.0.1"), debris: []string{"tuning/c1_eth0.json"}},
	{name: "ipam static", set: also(with(tuned), "ipam", static), seen: tunedPod, debris: []string{"tuning/c1_eth0.json"}},
}

// lives is the ways that an attachment with delegates comes to its end.
var lives = []struct {
	name string
	live func(*life, *testing.T)
}{
	{"as usual", (*life).usual},
	{"a later step fails", (*life).fails},
	{"DEL without CNI_NETNS", (*life).blind},
	{"the namespace is gone", (*life).orphaned},
	{"DEL without libcni's result", (*life).forgotten},
	{"the record is lost", (*life).unrecorded},
	{"added twice", (*life).twice},
}

// life is a wrapping on a node.
type life struct {
	*attach.Node
	wrapping
	version    string // of the list, where it is not 1.1.0
	attachment attach.Attachment
	rules      string         // that the plugins keep, after the first life
	ran        map[string]int // times that our plugin was run, by verb
	dnsmasq    <-chan string
}

// TestWrapped: what real plugins do below us is there after ADD, and gone after
// every kind of end.
func TestWrapped(t *testing.T) {
	for _, w := range wrappings {
		t.Run(w.name, func(t *testing.T) {
			netns.Need(t, w.needs...)
			l := &life{Node: node(t), wrapping: w, ran: map[string]int{}}
			if w.ready != nil {
				w.ready(t, l)
			}
			for _, way := range lives {
				l.begin(t)
				before := l.left(t)
				way.live(l, t)
				l.end(t, way.name, before)
			}
			told(t, l.Node, l.ran)
		})
	}
}

// TestVersionsOfDelegates: each has the version of the list, results of old ones
// included, whose DEL and CHECK have less to go on.
func TestVersionsOfDelegates(t *testing.T) {
	netns.Need(t, "nft")
	chained := with(tuned, shaped, `{"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}}`)
	main := alone(`{"type": "ptp", "ipam": ` + hostLocal + `}`)
	for _, tt := range []struct {
		version string
		set     map[string]string
		caps    map[string]any
		seen    look
	}{
		{"0.1.0", main, nil, reaches("10.77.0.1")}, {"0.2.0", main, nil, reaches("10.77.0.1")}, {"0.3.1", main, nil, reaches("10.77.0.1")},
		{"0.3.1", chained, publish, every(tunedPod, shapedPod, published)}, {"0.4.0", chained, publish, every(tunedPod, shapedPod, published)},
		{"1.0.0", chained, publish, every(tunedPod, shapedPod, published)},
	} {
		t.Run(tt.version+" "+tt.set["tracewire.mode"], func(t *testing.T) {
			l := &life{Node: node(t), wrapping: wrapping{needs: []string{"nft"}, set: tt.set, caps: tt.caps, seen: tt.seen}, version: tt.version, ran: map[string]int{}}
			for name, live := range map[string]func(*testing.T){"no result": l.forgotten, "as usual": func(t *testing.T) {
				l.added(t)
				ctx, cancel := context.WithTimeout(t.Context(), stepTime)
				defer cancel()
				if err := l.Check(ctx, l.attachment); err != nil && tt.version >= "0.4.0" { // older ones have none
					t.Errorf("CHECK: %s", describe(err))
				}
				l.deleted(t)
				l.deleted(t)
			}} {
				l.begin(t)
				before := l.left(t)
				live(t)
				l.end(t, name, before)
			}
			told(t, l.Node, l.ran)
		})
	}
}

// begin makes the pod of a life.
func (l *life) begin(t *testing.T) {
	t.Helper()
	l.attachment = pod1(t, l.Node)
	if l.ifName != "" {
		l.attachment.IfName = l.ifName
	}
	l.attachment.Capabilities = l.caps
	l.load(t, l.set)
	if l.lend != nil {
		l.lend(t, l)
	}
}

// load makes a list of ours, behind first.
func (l *life) load(t *testing.T, set map[string]string) {
	t.Helper()
	entries, version := conf(t, l.Node, set), "1.1.0"
	if l.version != "" {
		version = l.version
	}
	if l.first != "" {
		entries = l.first + "," + entries
	}
	if err := l.Load([]byte(`{"cniVersion": "` + version + `", "name": "net", "plugins": [` + entries + `]}`)); err != nil {
		t.Fatal(err)
	}
}

// end compares what is left with what was there before.
func (l *life) end(t *testing.T, name string, before []string) {
	t.Helper()
	for _, c := range l.Exec.Calls() {
		if c.Plugin != "tracewire" {
			continue
		}
		l.ran[c.Verb]++
		if err := c.Sound(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if name == "the namespace is gone" {
		before = slices.DeleteFunc(before, func(s string) bool { return slices.Contains(l.gone, s) })
		before = append(before, l.debris...)
	}
	if diff := l.differs(t, before); diff != "" {
		t.Errorf("%s: left behind: -before +after\n%s", name, diff)
	}
	for _, f := range l.debris {
		_ = os.Remove(filepath.Join(l.Dir, f))
	}
	rules := l.kept(t)
	if l.rules == "" {
		l.rules = rules
	}
	if diff := cmp.Diff(l.rules, rules); diff != "" {
		t.Errorf("%s: rules: -first life +this life\n%s", name, diff)
	}
	if l.after != nil {
		l.after(t, l)
	}
	_ = l.RemovePod("pod1")
}

// differs compares what is left with what is to be left. What the kernel takes
// away with a namespace goes in its own time, and each removal is an event.
func (l *life) differs(t *testing.T, want []string) (diff string) {
	t.Helper()
	events, done := make(chan netlink.LinkUpdate, 1000), make(chan struct{})
	defer close(done)
	if err := netlink.LinkSubscribe(events, done); err != nil {
		t.Fatal(err)
	}
	late := time.After(patience)
	for {
		if diff = cmp.Diff(want, l.left(t), cmpopts.EquateEmpty()); diff == "" || exists(l.PodPath("pod1")) {
			return diff
		}
		select {
		case <-events:
		case <-late:
			return diff
		}
	}
}

// patience bounds the wait for the kernel.
const patience = 5 * time.Second

// left is the files, interfaces, queueing disciplines and policy rules that
// there are, telemetry and locks apart.
func (l *life) left(t *testing.T) []string {
	t.Helper()
	out, err := l.Left()
	if err != nil {
		t.Fatal(err)
	}
	out = slices.DeleteFunc(out, func(s string) bool { return strings.ContainsAny(s, " {") }) // rules: see kept
	for _, f := range files(t, l.Dir) {
		if strings.HasPrefix(f, "tuning") {
			out = append(out, f)
		}
	}
	return append(out, l.shaping(t)...)
}

// shaping is the queueing disciplines and policy rules of node and pod.
func (l *life) shaping(t *testing.T) (out []string) {
	t.Helper()
	for _, where := range []string{"host", "pod1"} {
		if where != "host" && !exists(l.PodPath(where)) {
			continue
		}
		err := l.In(where, func() error {
			rules, err := netlink.RuleList(netlink.FAMILY_V4)
			for _, r := range rules {
				if r.Src != nil {
					out = append(out, where+" rule from "+r.Src.String())
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range qdiscs(t, l.Node, where) {
			out = append(out, where+" "+q)
		}
	}
	return out
}

// qdiscs is the queueing disciplines that somebody asked for, as "veth0 tbf".
func qdiscs(t *testing.T, n *attach.Node, where string) (out []string) {
	t.Helper()
	err := n.In(where, func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			of, errOf := netlink.QdiscList(l)
			if errOf != nil {
				return errOf
			}
			for _, q := range of {
				if q.Type() == "tbf" || q.Type() == "ingress" {
					out = append(out, l.Attrs().Name+" "+q.Type())
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// ofPod is what a rule of the attachment has.
var ofPod = regexp.MustCompile(`\b(10\.77\.0\.\d+|c1)\b`)

// kept is the rules that plugins keep on the node, where nft(8) is there. None
// may be of the attachment.
func (l *life) kept(t *testing.T) string {
	t.Helper()
	if !slices.Contains(l.needs, "nft") {
		return ""
	}
	rules, err := l.Rules()
	if err != nil {
		t.Fatal(err)
	}
	if ofPod.MatchString(rules) {
		t.Errorf("rules of the attachment are left:\n%s", rules)
	}
	left, err := l.RulesLeft()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range left {
		if !slices.ContainsFunc(l.stays, func(s string) bool { return strings.Contains(line, s) }) {
			t.Errorf("rule left: %s", line)
		}
	}
	return rules
}

// usual is ADD, CHECK, DEL, and DEL again.
func (l *life) usual(t *testing.T) {
	l.added(t)
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	if err := l.Check(ctx, l.attachment); err != nil {
		t.Errorf("CHECK: %s", describe(err))
	}
	l.deleted(t)
	l.deleted(t)
	l.traced(t)
}

// fails is an ADD whose last delegate fails, and the runtime's DEL after it.
func (l *life) fails(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	before := l.left(t)
	set := map[string]string{}
	for key, value := range l.set {
		set[key] = value
	}
	set["delegates"] = strings.TrimSuffix(set["delegates"], "]") + "," + fails + "]"
	l.load(t, set)
	_, err := l.Add(ctx, l.attachment)
	if err := expected(err, "105 tuning", l.Normal); err != nil {
		t.Errorf("ADD: %v", err)
	}
	if l.first == "" { // else what stands before us is the runtime's to remove
		if diff := cmp.Diff(before, l.left(t)); diff != "" {
			t.Errorf("a failed ADD left or took something: -before +after\n%s", diff)
		}
	}
	l.attachment.Capabilities = nil
	l.deleted(t)
}

// blind is a DEL that has no CNI_NETNS, while the namespace is there.
func (l *life) blind(t *testing.T) {
	if l.first != "" {
		return // what stands before us needs CNI_NETNS
	}
	l.added(t)
	l.attachment.NetNS = ""
	l.deleted(t)
}

// orphaned is a DEL after the pod's namespace went.
func (l *life) orphaned(t *testing.T) {
	l.added(t)
	if err := l.RemovePod("pod1"); err != nil {
		t.Fatal(err)
	}
	l.attachment.NetNS = ""
	l.deleted(t)
	l.deleted(t)
}

// forgotten is a DEL without prevResult, and without capability args.
func (l *life) forgotten(t *testing.T) {
	l.added(t)
	if err := os.RemoveAll(filepath.Join(l.Dir, "cache", "results")); err != nil {
		t.Fatal(err)
	}
	l.attachment.Capabilities = nil
	l.deleted(t)
}

// unrecorded is a DEL that has libcni's result, and no record.
func (l *life) unrecorded(t *testing.T) {
	l.added(t)
	if err := os.RemoveAll(filepath.Join(l.Dir, "state", "attachments")); err != nil {
		t.Fatal(err)
	}
	l.deleted(t)
	l.deleted(t)
}

// twice is an ADD of what is there, which changes nothing.
func (l *life) twice(t *testing.T) {
	if l.first != "" {
		return // what stands before us fails before
	}
	l.added(t)
	before := l.left(t)
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	_, err := l.Add(ctx, l.attachment)
	if problem := expected(err, "102 attachment exists", l.Normal); problem != nil {
		t.Errorf("second ADD: %v", problem)
	}
	if diff := cmp.Diff(before, l.left(t)); diff != "" {
		t.Errorf("second ADD: -before +after\n%s", diff)
	}
	if err := l.Check(ctx, l.attachment); err != nil {
		t.Errorf("CHECK: %s", describe(err))
	}
	l.deleted(t)
}

func (l *life) added(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	r, err := l.Add(ctx, l.attachment)
	if err != nil {
		t.Fatalf("ADD: %s", describe(err))
	}
	now, err := types100.NewResultFromResult(r)
	if err != nil {
		t.Fatal(err)
	}
	l.seen(t, l.Node, now)
}

func (l *life) deleted(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	if err := l.Del(ctx, l.attachment); err != nil {
		t.Errorf("DEL: %s", describe(err))
	}
}

// traced looks for each delegate's span with its run, of ADD, CHECK and DEL.
func (l *life) traced(t *testing.T) {
	t.Helper()
	spans, err := l.Spans()
	if err != nil {
		t.Fatal(err)
	}
	var entries []struct{ Type string }
	if err := json.Unmarshal([]byte(l.set["delegates"]), &entries); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"ADD", "CHECK", "DEL"} {
		tree := regexp.MustCompile(`(?m)^cni\.` + verb + `.*\n(  .*\n)*`).FindString(spans)
		for _, e := range entries {
			if !regexp.MustCompile(`\n  delegate ` + e.Type + `.*\n(    \*.*\n)*    exec\b`).MatchString(tree) {
				t.Errorf("%s has no span of %s:\n%s", verb, e.Type, tree)
			}
		}
	}
}

type look = func(*testing.T, *attach.Node, *types100.Result)

func every(looks ...look) look {
	return func(t *testing.T, n *attach.Node, r *types100.Result) {
		t.Helper()
		for _, see := range looks {
			see(t, n, r)
		}
	}
}

func kind(want string) look {
	return func(t *testing.T, n *attach.Node, _ *types100.Result) {
		t.Helper()
		if got := eth0(t, n).Type(); got != want {
			t.Errorf("eth0 is a %s, want %s", got, want)
		}
	}
}

func reaches(address string) look {
	return func(t *testing.T, n *attach.Node, _ *types100.Result) {
		t.Helper()
		if err := n.Ping("pod1", address); err != nil {
			t.Error(err)
		}
	}
}

// eth0 is the pod's.
func eth0(t *testing.T, n *attach.Node) (l netlink.Link) {
	t.Helper()
	err := n.In("pod1", func() (err error) { l, err = netlink.LinkByName("eth0"); return err })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// tunedPod has what tuning was asked for, and the result tells of it.
func tunedPod(t *testing.T, n *attach.Node, r *types100.Result) {
	t.Helper()
	const address = "02:00:00:00:00:07"
	every(mtu(1400), mac(address))(t, n, r)
	if i := slices.IndexFunc(r.Interfaces, func(i *types100.Interface) bool { return i.Sandbox != "" && i.Mac == address }); i < 0 {
		t.Errorf("the result has no interface with MAC %s", address)
	}
	err := n.In("pod1", func() error {
		b, err := os.ReadFile("/proc/sys/net/ipv4/conf/eth0/log_martians")
		if err == nil && strings.TrimSpace(string(b)) != "1" {
			t.Errorf("log_martians is %q", b)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func mtu(want int) look {
	return func(t *testing.T, n *attach.Node, _ *types100.Result) {
		t.Helper()
		if got := eth0(t, n).Attrs().MTU; got != want {
			t.Errorf("eth0 has MTU %d, want %d", got, want)
		}
	}
}

func mac(want string) look {
	return func(t *testing.T, n *attach.Node, _ *types100.Result) {
		t.Helper()
		if got := eth0(t, n).Attrs().HardwareAddr.String(); got != want {
			t.Errorf("eth0 has MAC %s, want %s", got, want)
		}
	}
}

// shapedPod has a queue on the host end towards the pod, and an ifb of the
// other direction, which is in the result.
func shapedPod(t *testing.T, n *attach.Node, r *types100.Result) {
	t.Helper()
	all := qdiscs(t, n, "host")
	count := map[string]int{}
	for _, q := range all {
		_, kind, _ := strings.Cut(q, " ")
		count[kind]++
	}
	if count["tbf"] != 2 || count["ingress"] != 1 {
		t.Errorf("queueing disciplines %q", all)
	}
	if last := r.Interfaces[len(r.Interfaces)-1]; !strings.HasPrefix(last.Name, "bwp") {
		t.Errorf("the result's last interface is %s, want the ifb", last.Name)
	}
}

func unshaped(t *testing.T, n *attach.Node, _ *types100.Result) {
	t.Helper()
	if all := qdiscs(t, n, "host"); len(all) > 0 {
		t.Errorf("queueing disciplines %q", all)
	}
}

// rule looks for a rule or chain of nf_tables, and for another.
func rule(words ...string) look {
	return func(t *testing.T, n *attach.Node, _ *types100.Result) {
		t.Helper()
		rules, err := n.Rules()
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range words {
			if !strings.Contains(rules, w) {
				t.Errorf("no %s in the rules\n%s", w, rules)
			}
		}
	}
}

// published is a port of the node's that reaches the pod.
func published(t *testing.T, n *attach.Node, _ *types100.Result) {
	t.Helper()
	if answer, err := n.TCP("host", "10.77.0.1:18080", "pod1", ":80"); err != nil || !strings.HasPrefix(answer, "pod1 heard") {
		t.Errorf("port 18080: %q, %v", answer, err)
	}
}

// ruled is a pod whose routes stand in a table of their own.
func ruled(t *testing.T, n *attach.Node, _ *types100.Result) {
	t.Helper()
	text, err := n.Kernel()
	if err != nil || !strings.Contains(text, "0.0.0.0/0 via 10.77.0.1 dev eth0 table 100") {
		t.Errorf("%s%v", text, err)
	}
}

// outside is a neighbour with the subnet's gateway address, at the other end of
// up-out.
func outside(t *testing.T, l *life) {
	t.Helper()
	if err := l.Outside("out", nil, []string{"10.77.0.1/24"}); err != nil {
		t.Fatal(err)
	}
}

// device is an interface of the node's that a pod may have.
func device(t *testing.T, l *life) {
	t.Helper()
	err := l.In("host", func() error {
		if _, err := netlink.LinkByName("hd0"); err == nil {
			return nil
		}
		return change("hd0", "veth", "")
	})
	if err != nil {
		t.Fatal(err)
	}
}

// serveBridge is serveDHCP behind the bridge of the list.
func serveBridge(t *testing.T, l *life) {
	t.Helper()
	serveDHCP(t, l)
	err := l.In("host", func() error {
		return errors.Join(change("tb0", "bridge", ""), change("tb0", "up", ""), change("up-out", "master", "tb0"))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// released waits for what the server says of a lease that was given back.
func released(t *testing.T, l *life) {
	t.Helper()
	awaits(t, l.dnsmasq, "DHCPRELEASE(up0) 10.77.0.")
}
