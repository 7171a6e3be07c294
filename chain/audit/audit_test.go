package audit

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/masquerade"
)

func TestHealthy(t *testing.T) {
	for name, list := range map[string]string{"ours": ours, "theirs": theirs} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, list, 2)
			w.publish("p2", "iptables")
			w.publish("p3", "nftables")
			w.expect(w.look())
		})
	}
}

// begin begins a record as a process that was killed left it.
func (w *world) begin(in cache.Intent, lines ...func(*cache.Journal) error) {
	w.t.Helper()
	d := cache.Dir{Path: w.Dir + "/state/attachments"}
	j, err := d.Begin(in, time.Now())
	w.must(err)
	for _, l := range lines {
		w.must(l(j))
	}
	w.must(j.Close())
}

func intent(id, boot string) cache.Intent {
	return cache.Intent{Attachment: delegates.Attachment{Network: "net", ContainerID: id, IfName: "eth0"}, Conf: []byte(`{"name":"net","type":"tracewire"}`), Boot: boot, NetNS: "/none"}
}

// plants is what is wrong on a node of ours with the pods p0 (10.213.0.2) and p1,
// and all that is found then. A text after a bar is part of the evidence.
var plants = []struct {
	name  string
	plant func(*world)
	want  []string
}{
	{"a reservation of nobody", func(w *world) { w.put("ipam/net/10.213.0.9", "gone\r\neth0") },
		[]string{"leaked-address 10.213.0.9 del | ipam: reserved for gone eth0 | records: no record of gone | libcni: no entry | runtime: not asked | kernel: no interface has the address"}},
	{"a reservation of nobody, as an old host-local wrote it", func(w *world) { w.put("ipam/net/10.213.0.9", "gone") },
		[]string{"leaked-address 10.213.0.9 del | ipam: reserved for gone in"}},
	{"a reservation of nobody in another's store", func(w *world) {
		w.put("networks/other/10.1.0.9", "gone\r\neth0")
		w.put("networks/other/10.1.0.10", "")
	}, []string{"empty-reservation 10.1.0.10 reported", "leaked-address 10.1.0.9 reported"}},
	{"a reservation of a sandbox", func(w *world) {
		w.put("ipam/net/10.213.0.9", "s1\r\neth0")
		w.sandboxes = []Sandbox{{ID: "s1"}, {ID: "p0", Ready: true}, {ID: "p1", Ready: true}}
	}, []string{"reservation-without-attachment 10.213.0.9 reported | runtime: sandbox s1 is not ready"}},
	{"a reservation and a damaged entry, which claims by its name", func(w *world) {
		w.put("ipam/net/10.213.0.9", "a-b\r\neth0-1")
		w.put("cache/results/net-a-b-eth0-1", "")
		w.put("ipam/net/10.213.0.10", "c-d")
		w.put("cache/results/net-c-d-eth7", "{")
	}, []string{
		"broken-libcni-entry @DIR@/cache/results/net-a-b-eth0-1 remove-libcni-entry",
		"broken-libcni-entry @DIR@/cache/results/net-c-d-eth7 remove-libcni-entry",
		"reservation-without-attachment 10.213.0.10 reported | libcni: it has an entry of c-d",
		"reservation-without-attachment 10.213.0.9 reported | libcni: it has an entry of a-b",
	}},
	{"a pod that lost its address", func(w *world) { w.must(w.Take("p0", "10.213.0.2/24")) },
		[]string{"reservation-without-attachment 10.213.0.2 restore | records: net/p0:eth0 is attached | kernel: no interface has the address"}},
	{"a store that was wiped", func(w *world) { w.remove("ipam") }, []string{
		"attachment-without-reservation 10.213.0.2 reserve | records: net/p0:eth0 is attached with it | ipam: no reservation in",
		"attachment-without-reservation 10.213.0.3 reserve",
	}},
	{"a store and records that were wiped", func(w *world) { w.remove("ipam", "state") }, []string{
		"attachment-without-reservation 10.213.0.2 reserve | libcni: p0 has 10.213.0.2",
		"attachment-without-reservation 10.213.0.3 reserve | libcni: p1 has 10.213.0.3",
		"orphan-veth net/p0:eth0 write-record | records: no record of it | libcni: an entry in",
		"orphan-veth net/p1:eth0 write-record",
	}},
	{"two pods with one address", func(w *world) { w.must(w.Give("p1", "10.213.0.2/24")) },
		[]string{"duplicate-address 10.213.0.2 reported | kernel: the address is on eth0 behind veth"}},
	{"an address that is reserved for another", func(w *world) { w.put("ipam/net/10.213.0.2", "other\r\neth0") }, []string{
		"duplicate-address 10.213.0.2 reported | records: net/p0:eth0 is attached with it | ipam: it is reserved for other eth0",
		"leaked-address 10.213.0.2 reported | records: no record of other",
	}},
	{"two records of one address", func(w *world) {
		for _, id := range []string{"c1", "c2"} {
			in := intent(id, cache.BootID())
			in.NetNS = w.PodPath("p0")
			r := &types100.Result{IPs: []*types100.IPConfig{{Address: net.IPNet{IP: net.IPv4(10, 213, 0, 50), Mask: net.CIDRMask(24, 32)}}}}
			w.begin(in, func(j *cache.Journal) error { return errors.Join(j.Reserved(r), j.Result(r)) })
		}
	}, []string{"duplicate-address 10.213.0.50 reported | records: net/c1:eth0 has it | records: net/c2:eth0 has it"}},
	{"two files of one address", func(w *world) {
		w.put("ipam/net/fd00::9", "p0\r\neth0")
		w.put("ipam/net/fd00:0::9", "p0\r\neth0")
	}, []string{"duplicate-address fd00::9 reported | ipam: two files", "reservation-without-attachment fd00::9 remove-reservation"}},
	{"files that name nobody", func(w *world) {
		w.put("ipam/net/10.213.0.9", "")
		w.put("ipam/net/10.213.0.10", strings.Repeat("\x00", 12))
		w.put("ipam/net/10.213.0.11", "\x01\x02")
	}, []string{
		"empty-reservation 10.213.0.10 remove-reservation", "empty-reservation 10.213.0.11 remove-reservation",
		"empty-reservation 10.213.0.9 remove-reservation | ipam: what stands there names nobody",
	}},
	{"files that name nobody, of addresses that pods have", func(w *world) {
		w.put("ipam/net/10.213.0.2", "")
		w.put("ipam/net/10.213.0.3", "\x00\x00")
	}, []string{"empty-reservation 10.213.0.2 reserve | kernel: the address is on eth0 behind", "empty-reservation 10.213.0.3 reserve"}},
	{"a link in an address's place", func(w *world) { w.must(os.Symlink("/dev/zero", w.Dir+"/ipam/net/10.213.0.9")) },
		[]string{"empty-reservation 10.213.0.9 remove-reservation"}},
	{"files that are none of host-local's", func(w *world) {
		w.put("ipam/net/README", "keep out")
		w.put("ipam/net/10.213.0.9", "kept for the printer")
		w.must(os.Mkdir(w.Dir+"/ipam/net/10.213.0.10", 0o755))
	}, []string{
		"unknown-owner 10.213.0.10 reported", "unknown-owner 10.213.0.9 reported",
		"unknown-owner @DIR@/ipam/net/README reported | ipam: what is there is no reservation",
	}},
	{"records that are lost, and not all processes are seen", func(w *world) { w.forget("p0") },
		[]string{"orphan-veth net/p0:eth0 reported"}},
	{"records that are lost", func(w *world) {
		w.sandboxes = []Sandbox{}
		w.remove("state/attachments/net/p0:eth0", "cache/results/net-p0-eth0", "state/attachments/net/p1:eth0", "cache/results/net-p1-eth0")
	}, []string{"orphan-veth net/p0:eth0 del | kernel: alias \"tracewire:net/p0:eth0\" | records: no record of it", "orphan-veth net/p1:eth0 del"}},
	{"records that are lost, of a pod that the runtime does not know and that processes are in", func(w *world) {
		w.sandboxes = []Sandbox{{ID: "p1", Ready: true}}
		w.forget("p0")
		w.inhabit("p0")
	}, []string{"orphan-veth net/p0:eth0 reported"}},
	{"ports of nobody", func(w *world) {
		w.must(w.Port("one", "tb0", "x"))
		w.must(w.Port("two", "tb0", "y"))
	}, []string{"unknown-owner one reported | kernel: one is a port of tb0 | libcni: no entry", "unknown-owner two reported"}},
	{"a namespace that is gone", func(w *world) { w.must(w.Vanish("p0")) }, []string{
		"stale-libcni-entry net/p0:eth0 end-libcni-entry | libcni: p0 on eth0 | namespaces: no network namespace is at | runtime: not asked",
		"stale-record net/p0:eth0 del | records: attached in | namespaces: no network namespace is at",
	}},
	{"a host end that is gone", func(w *world) {
		w.must(w.Unplug("p0"))
	}, []string{"stale-record net/p0:eth0 del | records: attached in | kernel: it has no host end | libcni: an entry in"}},
	{"operations that did not end", func(w *world) {
		w.begin(intent("c1", cache.BootID()))
		w.begin(intent("c2", cache.BootID()), func(j *cache.Journal) error { return j.Deleting(cache.Operation{Name: "cni.DEL"}) })
	}, []string{"interrupted-operation net/c1:eth0 del | records: interrupted in", "interrupted-operation net/c2:eth0 del | records: deleting in"}},
	{"records of an earlier boot", func(w *world) {
		w.begin(intent("c1", "before"))
		w.begin(intent("c2", "before"), func(j *cache.Journal) error { return j.Result(nil) })
		w.put("ipam/net/10.213.0.9", "c1\r\neth0")
	}, []string{"earlier-boot net/c1:eth0 del | records: interrupted in | kernel: this boot is", "earlier-boot net/c2:eth0 del | records: attached in"}},
	{"records that cannot be read", func(w *world) {
		w.put("state/attachments/net/c1:eth0", "")
		w.put("state/attachments/net/c2:eth0", strings.Repeat("x", 4096))
		w.must(os.Mkdir(w.Dir+"/state/attachments/net/c3:eth0", 0o700))
		w.must(os.Symlink("/etc/passwd", w.Dir+"/state/attachments/net/c4:eth0"))
		w.must(unix.Mknod(w.Dir+"/state/attachments/net/c5:eth0", unix.S_IFSOCK|0o600, 0))
	}, []string{
		"broken-record net/c1:eth0 del | records: 0 bytes cannot be read", "broken-record net/c2:eth0 del | records: 4096 bytes",
		"broken-record net/c3:eth0 del", "broken-record net/c4:eth0 del", "broken-record net/c5:eth0 del",
	}},
	{"records of pods that live", func(w *world) {
		w.put("state/attachments/net/p0:eth0", "")
		w.remove("state/attachments/net/p1:eth0")
		w.must(os.Symlink("/etc/passwd", w.Dir+"/state/attachments/net/p1:eth0"))
	}, []string{"broken-record net/p0:eth0 quarantine-record", "broken-record net/p1:eth0 quarantine-record"}},
	{"a record and an entry that a crash emptied", func(w *world) {
		w.must(w.Vanish("p0"))
		w.put("state/attachments/net/p0:eth0", "")
		w.put("cache/results/net-p0-eth0", "")
	}, []string{
		"broken-libcni-entry @DIR@/cache/results/net-p0-eth0 remove-libcni-entry", "broken-record net/p0:eth0 del",
		"reservation-without-attachment 10.213.0.2 reported | libcni: it has an entry of p0",
	}},
	{"reservations beside those of a record", func(w *world) {
		w.put("ipam/net/10.213.0.9", "p0\r\neth0")
		w.put("ipam/net/10.213.0.10", "p1\r\neth0")
	}, []string{"reservation-without-attachment 10.213.0.10 remove-reservation", "reservation-without-attachment 10.213.0.9 remove-reservation"}},
	{"differences that CHECK finds", func(w *world) {
		w.checks = true
		w.must(w.Take("p0", "10.213.0.2/24"))
		b, err := netlink.LinkByName("tb0")
		w.must(err)
		w.must(netlink.LinkSetDown(b))
	}, []string{
		"drift net/p0:eth0 restore | check: ", "drift net/p0:eth0 restore",
		"drift net/p1:eth0 restore", "reservation-without-attachment 10.213.0.2 restore",
	}},
	{"paths that lead elsewhere", func(w *world) {
		w.must(errors.Join(w.Unplug("p0"), w.Lead("p0", "p1")))
	}, []string{"namespace-changed net/p0:eth0 del | namespaces: leads to the one with the cookie"}},
	{"paths of pods that live", func(w *world) {
		w.must(errors.Join(w.Lead("p0", "p1"), os.Remove(w.PodPath("p1"))))
	}, []string{
		"namespace-changed net/p0:eth0 reported | namespaces: leads to the one with the cookie",
		"stale-libcni-entry net/p1:eth0 reported", "stale-record net/p1:eth0 reported | namespaces: no network namespace is at",
	}},
	{"a host end that lost its alias", func(w *world) { w.must(w.Alias("p0", "another's")) }, nil},
	{"an ADD that did not end, of a pod with processes", func(w *world) {
		w.cut("state/attachments/net/p0:eth0")
		w.put("cache/results/net-p0-eth0", "")
		w.inhabit("p0")
	}, []string{"broken-libcni-entry @DIR@/cache/results/net-p0-eth0 remove-libcni-entry", "interrupted-operation net/p0:eth0 reported | records: interrupted in"}},
	{"an address that a pod lost and another has", func(w *world) {
		w.checks = true
		w.must(errors.Join(w.Take("p0", "10.213.0.2/24"), w.Give("p1", "10.213.0.2/24")))
	}, []string{"drift net/p0:eth0 reported | check: address.missing: expected 10.213.0.2/24"}},
	{"a reservation of what is no container", func(w *world) { w.put("ipam/net/10.213.0.9", "../../etc\r\neth0") },
		[]string{"leaked-address 10.213.0.9 reported"}},
	{"a record that lost its end, of a pod that lives", func(w *world) { w.cut("state/attachments/net/p0:eth0") },
		[]string{"interrupted-operation net/p0:eth0 quarantine-record | records: interrupted in | libcni: an entry in"}},
	{"a record that was written again and lost its end", func(w *world) {
		w.remove("state/attachments/net/p0:eth0")
		w.mended([]string{}, leaving{})
		w.cut("state/attachments/net/p0:eth0")
	}, []string{"interrupted-operation net/p0:eth0 quarantine-record | records: interrupted in | libcni: an entry in"}},
	{"entries that cannot be read", func(w *world) {
		w.put("cache/results/net-c1-eth0", `{"kind":`)
		w.must(os.Mkdir(w.Dir+"/cache/results/what", 0o755))
		w.put("cache/results/net-p0-eth0", "")
	}, []string{
		"broken-libcni-entry @DIR@/cache/results/net-c1-eth0 remove-libcni-entry | libcni: unexpected end of JSON input",
		"broken-libcni-entry @DIR@/cache/results/net-p0-eth0 remove-libcni-entry",
		"broken-libcni-entry @DIR@/cache/results/what reported | libcni: is no regular file",
	}},
	{"entries of another's network", func(w *world) {
		w.put("cache/results/x-c1-eth0", `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"x","netns":"/none"}`)
		w.put("cache/results/cni-loopback-c1-lo", `{"kind":"cniCacheV1","containerId":"c1","ifName":"lo","networkName":"cni-loopback","netns":"/none"}`)
	}, []string{"stale-libcni-entry x/c1:eth0 reported | runtime: not asked"}},
	{"entries whose pods are gone", func(w *world) {
		for _, pod := range []string{"p0", "p1"} {
			w.must(w.Vanish(pod))
			w.remove("state/attachments/net/" + pod + ":eth0")
		}
	}, []string{
		"reservation-without-attachment 10.213.0.2 reported | libcni: it has an entry of p0", "reservation-without-attachment 10.213.0.3 reported",
		"stale-libcni-entry net/p0:eth0 end-libcni-entry", "stale-libcni-entry net/p1:eth0 end-libcni-entry",
		"stale-masquerade tracewire_a08a0fcbdeafd3c1_f09cd64020fc9b65 reported | rules: table",
	}},
	{"the loopback's entries, which runtimes leave behind", func(w *world) {
		w.put("cache/results/cni-loopback-c1-lo", `{"kind":"cniCacheV1","containerId":"c1","ifName":"lo","networkName":"cni-loopback","netns":"/none"}`)
		w.put("cache/results/cni-loopback-c2-lo", `{"kind":"cniCacheV1","containerId":"c2","ifName":"lo","networkName":"cni-loopback","netns":"/none"}`)
		w.sandboxes = []Sandbox{{ID: "c2"}, {ID: "p0"}, {ID: "p1"}}
	}, []string{"stale-libcni-entry cni-loopback/c1:lo remove-libcni-entry | runtime: no sandbox c1"}},
	{"tables of networks that are no more", func(w *world) {
		for _, name := range []string{"old", strings.Repeat("long", 30)} {
			r := masquerade.Rules{Network: name, Bridge: "br", Ranges: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}
			w.must(r.Ensure(w.t.Context(), nil))
		}
	}, []string{
		"stale-masquerade tracewire_cba06b5736faf67e_7566b9696f6f4587 remove-table | rules: table tracewire_cba06b5736faf67e_7566b9696f6f4587 of network old",
		"stale-masquerade tracewire_cc8458d7cacc359f_7566b9696f6f4587 reported",
	}},
	{"chains of containers that are no more", func(w *world) {
		for _, id := range []string{"c1", "c2"} {
			c := masquerade.Chains{Network: "net", ContainerID: id, IfName: "eth0"}
			w.must(c.Ensure(w.t.Context(), []netip.Prefix{netip.MustParsePrefix("10.213.0.9/24")}))
		}
	}, []string{"stale-masquerade net/c1 del | rules: chain CNI-", "stale-masquerade net/c2 del"}},
	{"ports of a pod that is no more, by iptables", func(w *world) {
		w.publish("p2", "iptables")
		w.lose("p2")
	}, []string{"stale-portmap net/p2 del | rules: chain CNI-DN- | rules: tcp 8080 to 10.213.0.4:80, udp 192.0.2.1:8080 to 10.213.0.4:53, tcp 8080 to [fd00:213::2]:80 | " +
		"records: no record of it | libcni: no entry | runtime: not asked | kernel: 10.213.0.4: no interface has the address | kernel: fd00:213::2: no interface"}},
	{"ports of a pod that is no more, by nf_tables", func(w *world) {
		w.publish("p2", "nftables")
		w.lose("p2")
	}, []string{"stale-portmap net/p2 del | rules: rules of p2 in table cni_hostport: tcp 8080 to 10.213.0.4:80, udp 192.0.2.1:8080 to 10.213.0.4:53, tcp 8080 to [fd00:213::2]:80"}},
	{"ports that lead to another's address", func(w *world) {
		w.publish("p2", "nftables")
		w.publish("p3", "iptables")
		w.lose("p2")
		w.lose("p3")
		w.must(w.Give("p1", "10.213.0.4/24"))
		w.put("ipam/net/10.213.0.4", "p1\r\neth0")
		w.must(w.Give("p0", "10.213.0.5/24"))
	}, []string{
		"stale-portmap net/p2 del | ipam: 10.213.0.4 is reserved for p1 | kernel: 10.213.0.4: the address is on eth0 behind veth",
		"stale-portmap net/p3 del | kernel: 10.213.0.5: the address is on eth0 behind veth",
	}},
	{"ports of a pod whose address is where the host does not lead to", func(w *world) {
		w.publish("p2", "iptables")
		w.lose("p2")
		w.apart("x", "10.213.0.4/32")
	}, []string{"stale-portmap net/p2 reported | kernel: 10.213.0.4: the address is on lo in /proc/"}},
	{"ports of which the rules tell less", func(w *world) {
		w.publish("p2", "iptables")
		w.publish("p3", "nftables")
		w.lose("p2")
		w.lose("p3")
		for _, line := range []string{
			"iptables -t nat -F CNI-HOSTPORT-DNAT", "ip6tables -t nat -F CNI-HOSTPORT-DNAT",
			"nft flush chain ip cni_hostport hostports", "nft flush chain ip6 cni_hostport hostports",
		} {
			args := strings.Fields(line)
			w.must(exec.Command(args[0], args[1:]...).Run())
		}
	}, []string{
		"stale-portmap CNI-DN-e0d80618c2c8e57ad503e reported | rules: tcp 8080 to 10.213.0.4:80",
		"stale-portmap net/p3 del | rules: rules of p3 in table cni_hostport: masquerade to 10.213.0.5, masquerade to fd00:213::3",
	}},
	{"ports of pods of which one tells", func(w *world) {
		for i, backend := range []string{"iptables", "nftables", "nftables"} {
			w.publish(fmt.Sprintf("p%d", i+2), backend)
			w.must(w.Vanish(fmt.Sprintf("p%d", i+2)))
		}
		w.sandboxes = []Sandbox{{ID: "p0"}, {ID: "p1"}, {ID: "p4"}}
		w.forget("p2")
		w.forget("p4")
		w.put("cache/results/net-p2-eth7", "")
		w.remove("state/attachments/net/p3:eth0")
	}, []string{
		"broken-libcni-entry @DIR@/cache/results/net-p2-eth7 remove-libcni-entry",
		"reservation-without-attachment 10.213.0.5 reported", "reservation-without-attachment fd00:213::3 reported",
		"stale-libcni-entry net/p3:eth0 end-libcni-entry",
		"stale-portmap net/p2 reported | runtime: no sandbox p2", "stale-portmap net/p3 reported | libcni: an entry in",
	}},
}

// leaves is what stays of plants, by name, once what was found is mended.
var leaves = map[string]leaving{
	"a reservation of nobody in another's store":                                               {stays: []Kind{EmptyReservation, LeakedAddress}},
	"a reservation of a sandbox":                                                               {stays: []Kind{ReservationWithoutAttachment}}, // until the runtime ends it
	"a reservation and a damaged entry, which claims by its name":                              {more: 1},
	"an ADD that did not end, of a pod with processes":                                         {stays: []Kind{InterruptedOperation}},
	"an address that a pod lost and another has":                                               {stays: []Kind{Drift}},
	"a reservation of what is no container":                                                    {stays: []Kind{LeakedAddress}},
	"two pods with one address":                                                                {stays: []Kind{DuplicateAddress}},
	"an address that is reserved for another":                                                  {stays: []Kind{DuplicateAddress, LeakedAddress}}, // one and the same file
	"two records of one address":                                                               {stays: []Kind{DuplicateAddress}},
	"two files of one address":                                                                 {more: 1},
	"files that are none of host-local's":                                                      {stays: []Kind{UnknownOwner}},
	"records that are lost, and not all processes are seen":                                    {stays: []Kind{OrphanVeth}},
	"records that are lost, of a pod that the runtime does not know and that processes are in": {stays: []Kind{OrphanVeth}},
	"paths of pods that live":                                                                  {stays: []Kind{NamespaceChanged, StaleLibcniEntry, StaleRecord}},
	"ports of nobody":                                                                          {stays: []Kind{UnknownOwner}},
	"records of an earlier boot":                                                               {more: 1},                          // whose configuration has no addresses
	"entries that cannot be read":                                                              {stays: []Kind{BrokenLibcniEntry}}, // that may be of another's network
	"entries of another's network":                                                             {stays: []Kind{StaleLibcniEntry}},
	"ports of a pod whose address is where the host does not lead to":                          {stays: []Kind{StalePortmap}},
	"ports of which the rules tell less":                                                       {stays: []Kind{StalePortmap}}, // no rule leads there
	"ports of pods of which one tells":                                                         {more: 1},
	"tables of networks that are no more":                                                      {stays: []Kind{StaleMasquerade}}, // whose name is too long to be told
}

func TestPlants(t *testing.T) {
	for _, tt := range plants {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, ours, 2)
			tt.plant(w)
			w.found(tt.want)
			w.mended(tt.want, leaves[tt.name])
		})
	}
}

// found compares what an audit finds, and what the sources say of it.
func (w *world) found(lines []string) {
	w.t.Helper()
	found := w.look()
	want := make([]string, len(lines))
	for i, line := range lines {
		parts := strings.Split(line, " | ")
		want[i] = parts[0]
		if i < len(found) {
			w.evident(found[i], parts[1:])
		}
	}
	w.expect(found, want...)
	again := w.look()
	if !slices.EqualFunc(found, again, func(a, b Finding) bool { return a.ID == b.ID }) {
		w.t.Errorf("another look finds other IDs: %v and %v", found, again)
	}
}

// others is what is wrong on a node that never had our plugin, with the pods p0
// (10.214.0.2) and p1, and all that is found then.
var others = []struct {
	name  string
	plant func(*world)
	want  []string
}{
	{"reservations of nobody", func(w *world) {
		w.put("networks/ref/10.214.0.9", "gone\r\neth0")
		w.put("networks/ref/10.214.0.10", "gone-too")
	}, []string{"leaked-address 10.214.0.10 reported | ipam: reserved for gone-too", "leaked-address 10.214.0.9 reported"}},
	{"files that name nobody", func(w *world) { w.put("networks/ref/10.214.0.9", "") }, []string{"empty-reservation 10.214.0.9 reported"}},
	{"a pod that went without a DEL", func(w *world) { w.must(w.Vanish("p0")) }, []string{
		"reservation-without-attachment 10.214.0.2 reported | libcni: it has an entry of p0 | kernel: no interface has the address",
		"stale-libcni-entry ref/p0:eth0 reported | runtime: not asked",
		"stale-masquerade ref/p0:eth0 reported | rules: rule ",
	}},
	{"a pod that went without a DEL, as the runtime says", func(w *world) {
		w.must(w.Vanish("p0"))
		w.sandboxes = []Sandbox{{ID: "p1", Ready: true}}
	}, []string{
		"reservation-without-attachment 10.214.0.2 reported",
		"stale-libcni-entry ref/p0:eth0 reported | runtime: no sandbox p0",
		"stale-masquerade ref/p0:eth0 reported",
	}},
	{"entries of pods of which nothing is left", func(w *world) {
		for _, id := range []string{"c1", "c2"} {
			w.put("cache/results/ref-"+id+"-eth0", `{"kind":"cniCacheV1","containerId":"`+id+`","ifName":"eth0","networkName":"ref","netns":"/none"}`)
		}
		w.sandboxes = []Sandbox{{ID: "p0", Ready: true}, {ID: "p1", Ready: true}}
	}, []string{"stale-libcni-entry ref/c1:eth0 remove-libcni-entry", "stale-libcni-entry ref/c2:eth0 remove-libcni-entry"}},
	{"a pod of which rules and a reservation are left", func(w *world) {
		w.must(w.Vanish("p0"))
		w.remove("cache/results/ref-p0-eth0")
	}, []string{
		"leaked-address 10.214.0.2 reported | libcni: no entry",
		"stale-masquerade ref/p0:eth0 reported",
	}},
	{"a pod of which rules are left", func(w *world) {
		w.must(w.Vanish("p0"))
		w.remove("cache/results/ref-p0-eth0", "networks/ref/10.214.0.2")
	}, []string{"stale-masquerade ref/p0:eth0 reported | records: no record of it | libcni: no entry | runtime: not asked"}},
	{"an entry that is lost, and its pod lives", func(w *world) { w.remove("cache/results/ref-p0-eth0") }, nil},
	{"a reservation that is lost", func(w *world) { w.remove("networks/ref/10.214.0.2") },
		[]string{"attachment-without-reservation 10.214.0.2 reported | libcni: p0 has 10.214.0.2"}},
	{"a pod of which nobody tells", func(w *world) { w.remove("networks/ref/10.214.0.2", "cache/results/ref-p0-eth0") },
		[]string{"stale-masquerade ref/p0:eth0 reported", "unknown-owner veth reported"}},
	{"two pods with one address", func(w *world) { w.must(w.Give("p1", "10.214.0.2/24")) },
		[]string{"duplicate-address 10.214.0.2 reported"}},
	{"an entry that cannot be read", func(w *world) { w.put("cache/results/ref-p0-eth0", "") },
		[]string{"broken-libcni-entry @DIR@/cache/results/ref-p0-eth0 reported"}},
	{"ports of a pod that is no more, by iptables", func(w *world) {
		w.publish("p2", "iptables")
		w.lose("p2")
	}, []string{"stale-masquerade ref/p2:eth0 reported", "stale-masquerade ref/p2:eth0 reported",
		"stale-portmap ref/p2 reported | rules: tcp 8080 to 10.214.0.4:80, udp 192.0.2.1:8080 to 10.214.0.4:53, tcp 8080 to [fd00:213::2]:80"}},
	{"ports of a pod that is no more, by nf_tables", func(w *world) {
		w.publish("p2", "nftables")
		w.lose("p2")
	}, []string{"stale-masquerade ref/p2:eth0 reported", "stale-masquerade ref/p2:eth0 reported",
		"stale-portmap ref/p2 reported | rules: rules of p2 in table cni_hostport: tcp 8080 to 10.214.0.4:80"}},
	{"ports that lead to another's address", func(w *world) {
		w.publish("p2", "nftables")
		w.lose("p2")
		w.must(w.Give("p1", "10.214.0.4/24"))
		w.put("networks/ref/10.214.0.4", "p1\r\neth0")
	}, []string{"stale-masquerade ref/p2:eth0 reported", "stale-masquerade ref/p2:eth0 reported",
		"stale-portmap ref/p2 reported | ipam: 10.214.0.4 is reserved for p1"}},
	{"a pod with ports that went without a DEL", func(w *world) {
		w.publish("p2", "iptables")
		w.must(w.Vanish("p2"))
	}, []string{
		"reservation-without-attachment 10.214.0.4 reported", "reservation-without-attachment fd00:213::2 reported",
		"stale-libcni-entry ref/p2:eth0 reported",
		"stale-masquerade ref/p2:eth0 reported", "stale-masquerade ref/p2:eth0 reported", "stale-portmap ref/p2 reported | libcni: an entry in",
	}},
	{"a pod with ports of which nobody tells", func(w *world) {
		w.publish("p2", "iptables")
		w.forget("p2")
	}, []string{"stale-masquerade ref/p2:eth0 reported", "stale-masquerade ref/p2:eth0 reported", "unknown-owner veth reported"}},
}

func TestOthers(t *testing.T) {
	for _, tt := range others {
		for _, conflists := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, conflists %t", tt.name, conflists), func(t *testing.T) {
				w := newWorld(t, theirs, 2)
				w.conflists = conflists
				tt.plant(w)
				w.found(tt.want)
				w.mended(tt.want, leaving{stays: everything})
			})
		}
	}
}

// evident looks for each part in what the sources say.
func (w *world) evident(f Finding, parts []string) {
	w.t.Helper()
	for _, part := range parts {
		source, says, _ := strings.Cut(part, ": ")
		there := false
		for _, e := range f.Evidence {
			there = there || string(e.Source) == source && strings.Contains(e.Says, says)
		}
		if !there {
			w.t.Errorf("no source says %q: %s", part, w.full(f))
		}
	}
}

// TestSharedBridge: what stands on a bridge of several networks is told of one of
// them, the same each time: else it would be another finding.
func TestSharedBridge(t *testing.T) {
	w := newWorld(t, ours, 1)
	w.must(w.Port("one", "tb0", "p9"))
	n, ids := w.node(), map[string]bool{}
	for _, name := range []string{"a", "b", "c", "d"} {
		other := strings.Replace(w.list, `"name": "net"`, `"name": "`+name+`"`, 1)
		entries, err := conflist.Entries(name, []byte(other))
		w.must(err)
		n.Conflists = append(n.Conflists, entries...)
	}
	for range 5 {
		_, err := n.Audit(t.Context(), Told{Finding: func(f Finding) { ids[f.Network+" "+w.line(f)+f.ID] = true }})
		w.must(err)
	}
	if len(ids) != 1 {
		t.Errorf("%v", ids)
	}
}

// TestOtherStateDir: a record that is where its list says, and where was not looked,
// is not written again.
func TestOtherStateDir(t *testing.T) {
	w := newWorld(t, ours, 1)
	n := w.node()
	n.StateDirs = []string{w.Dir + "/other"}
	var found []Finding
	_, err := n.Audit(t.Context(), Told{Finding: func(f Finding) { found = append(found, f) }})
	w.must(err)
	w.expect(found, "orphan-veth net/p0:eth0 reported")
}
