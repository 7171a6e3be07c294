package audit

import (
	"encoding/base64"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/tracewire/tracewire/chain/cache"
)

var (
	attachments = flag.Int("attachments", 500, "attachments of a large node")
	stale       = flag.Int("stale", 3000, "stale files of libcni's")
)

// address is the i-th pod's.
func address(i int) net.IP { return net.IPv4(10, 213, byte(i>>8), byte(i)) }

// entry writes libcni's file of a pod.
func (w *world) entry(id, netns string, a net.IP) {
	w.put("cache/results/net-"+id+"-eth0", fmt.Sprintf(
		`{"kind":"cniCacheV1","containerId":%q,"config":%q,"ifName":"eth0","networkName":"net","netns":%q,"result":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":%[3]q}],"ips":[{"address":"%[4]s/16","interface":0}]}}`,
		id, base64.StdEncoding.EncodeToString([]byte(w.list)), netns, a))
}

// many makes a node with many attachments, all of which live in one namespace:
// records, entries, reservations and addresses.
func (w *world) many(n int) {
	w.t.Helper()
	w.list = strings.Replace(w.list, "/24", "/16", 1)
	pod, err := w.Pod("pod")
	w.must(err)
	conf := fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","type":"tracewire","bridge":"tb0","ipam":{"type":"host-local","dataDir":"%s/ipam","ranges":[[{"subnet":"10.213.0.0/16"}]]}}`, w.Dir)
	for i := range n {
		id, a := fmt.Sprintf("%064x", i), address(i+2)
		in := intent(id, cache.BootID())
		in.Conf, in.NetNS = conf, w.PodPath("pod")
		r := &types100.Result{CNIVersion: "1.1.0", IPs: []*types100.IPConfig{{Address: net.IPNet{IP: a, Mask: net.CIDRMask(16, 32)}}}}
		w.begin(in,
			func(j *cache.Journal) error { return j.Reserved(r) }, func(j *cache.Journal) error { return j.Plan(r) },
			func(j *cache.Journal) error { return j.Result(r) }, (*cache.Journal).Told)
		w.entry(id, in.NetNS, a)
		w.put("ipam/net/"+a.String(), id+"\r\neth0")
	}
	w.must(pod.Do(func(_ ns.NetNS) error {
		lo, err := netlink.LinkByName("lo")
		for i := range n {
			w.must(netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: address(i + 2), Mask: net.CIDRMask(32, 32)}}))
		}
		return err
	}))
}

// peak is the most memory that this process ever had, as the kernel tells it.
func peak() (text string) {
	b, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "VmHWM:") {
			text = strings.Join(strings.Fields(line)[1:], " ")
		}
	}
	return text
}

// audited is one audit of a large node, and what it took.
func (w *world) audited() (kinds map[Kind]int, c Counts) {
	kinds = map[Kind]int{}
	began := time.Now()
	c, err := w.node().Audit(w.t.Context(), Told{Finding: func(f Finding) { kinds[f.Kind]++ }, Unread: func(u Unread) { w.t.Error(u) }})
	w.must(err)
	w.t.Logf("%d records, %d entries, %d reservations in %v; the process has had %s at most", c.Records, c.Entries, c.Reservations, time.Since(began).Round(time.Millisecond), peak())
	return kinds, c
}

// TestMany: as many attachments as a node can have are well, and each that is not
// is found.
func TestMany(t *testing.T) {
	w := newWorld(t, ours, 0)
	w.many(*attachments)
	if kinds, c := w.audited(); len(kinds) > 0 || c.Records != *attachments || c.Entries != *attachments || c.Reservations != *attachments {
		t.Errorf("%v of %+v", kinds, c)
	}
	w.must(w.RemovePod("pod"))
	if kinds, _ := w.audited(); kinds[StaleRecord] != *attachments || kinds[StaleLibcniEntry] != *attachments || len(kinds) != 2 {
		t.Errorf("%v when the namespace is gone", kinds)
	}
}

// TestManyStale: files that a runtime never removed are found one by one, and not
// kept.
func TestManyStale(t *testing.T) {
	w := newWorld(t, ours, 0)
	for i := range *stale {
		w.entry(fmt.Sprintf("%064x", i), "/none", address(i))
	}
	if kinds, c := w.audited(); kinds[StaleLibcniEntry] != *stale || len(kinds) != 1 || c.Entries != *stale {
		t.Errorf("%v of %+v", kinds, c)
	}
}
