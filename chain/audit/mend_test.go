package audit

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/masquerade"
	"github.com/tracewire/tracewire/test/attach"
)

// leaving is what is found once all that was found is mended: of what is only
// reported those kinds, and how many more times has to be looked and mended, as a
// reservation waits for the damaged entry that speaks for it.
type leaving struct {
	stays []Kind
	more  int
}

// everything is all kinds.
var everything = func() (all []Kind) {
	for _, k := range Kinds {
		all = append(all, k.Kind)
	}
	return all
}()

// mended mends all that is found, as often as is said; then what is left is found.
func (w *world) mended(lines []string, left leaving) {
	w.t.Helper()
	for range 1 + left.more {
		for _, f := range w.look() {
			if f.Repair == nil {
				continue
			}
			if err := w.mend(*f.Repair); err != nil {
				w.t.Errorf("%v: %s", err, w.full(f))
			}
		}
	}
	var want []string
	for _, line := range lines {
		line, _, _ = strings.Cut(line, " | ")
		kind, _, _ := strings.Cut(line, " ")
		if slices.Contains(left.stays, Kind(kind)) && strings.HasSuffix(line, " reported") {
			want = append(want, line)
		}
	}
	w.expect(w.look(), want...)
}

// mend makes a repair, a DEL as a runtime makes it.
func (w *world) mend(r Repair) error {
	err := w.node().Mend(w.t.Context(), r)
	if errors.Is(err, ErrLeft) {
		return nil
	}
	if !errors.Is(err, ErrPlugin) {
		return err
	}
	if r.Action == Restore {
		return w.restore(r.Attachment)
	}
	a := attach.Attachment{ContainerID: r.Attachment.ContainerID, IfName: r.Attachment.IfName, NetNS: r.NetNS}
	conf := strings.Replace(r.Conf, `"name":"net","type":"tracewire"}`, `"name":"net","type":"tracewire","tracewire":{"stateDir":"`+w.Dir+`/state"}}`, 1)
	_, err = w.Run(w.t.Context(), r.Plugin(), []byte(conf), w.Environment("DEL", a))
	if r.Action == EndEntry {
		r.Action = RemoveEntry
		if again := w.node().Mend(w.t.Context(), r); !errors.Is(again, ErrLeft) {
			err = errors.Join(err, again)
		}
	}
	return err
}

// restore has the plugin's CHECK put an attachment right.
func (w *world) restore(a delegates.Attachment) error { return w.check(a, "TRACEWIRE_RESTORE=1") }

// check runs the plugin's CHECK of an attachment that has a record.
func (w *world) check(a delegates.Attachment, environment ...string) error {
	w.t.Helper()
	r, err := cache.Dir{Path: w.Dir + "/state/attachments"}.Read(a)
	w.must(err)
	var conf map[string]any
	w.must(json.Unmarshal(r.Conf, &conf))
	conf["prevResult"] = r.Result.Get()
	stdin, err := json.Marshal(conf)
	w.must(err)
	env := w.Environment("CHECK", attach.Attachment{ContainerID: a.ContainerID, IfName: a.IfName, NetNS: r.NetNS})
	_, err = w.Run(w.t.Context(), "tracewire", stdin, append(env, environment...))
	return err
}

// TestMendLeaves: a repair leaves alone what changed since it was planned.
func TestMendLeaves(t *testing.T) {
	for _, tt := range []struct {
		name          string
		plant, change func(*world)
		want          []string // what is found after the repair
	}{
		{"a file that names somebody by now", func(w *world) { w.put("ipam/net/10.213.0.9", "") }, func(w *world) { w.put("ipam/net/10.213.0.9", "late\r\neth0") },
			[]string{"leaked-address 10.213.0.9 del"}},
		{"an address that a pod has by now", func(w *world) { w.put("ipam/net/10.213.0.9", "") }, func(w *world) { w.must(w.Give("p0", "10.213.0.9/24")) },
			[]string{"empty-reservation 10.213.0.9 reported"}},
		{"an address that is another's by now", func(w *world) { w.remove("ipam/net/10.213.0.2") }, func(w *world) { w.put("ipam/net/10.213.0.2", "late\r\neth0") },
			[]string{"duplicate-address 10.213.0.2 reported", "leaked-address 10.213.0.2 reported"}},
		{"an entry that was written by now", func(w *world) { w.put("cache/results/net-c1-eth0", "") }, func(w *world) {
			w.put("cache/results/net-c1-eth0", `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"net"}`)
		}, nil},
		{"a record that was written by now", func(w *world) { w.put("state/attachments/net/c1:eth0", "") }, func(w *world) {
			w.remove("state/attachments/net/c1:eth0")
			w.begin(intent("c1", "before"))
		}, []string{"earlier-boot net/c1:eth0 del"}},
		{"an entry that is anew by now", func(w *world) {
			w.put("cache/results/net-c1-eth0", `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"net","netns":"/none"}`)
		}, func(w *world) {
			w.remove("cache/results/net-c1-eth0")
			w.put("cache/results/net-c1-eth0", `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"net","netns":"/none"}`)
		}, []string{"stale-libcni-entry net/c1:eth0 end-libcni-entry"}},
		{"a reservation beside, of a record that has it by now", func(w *world) { w.put("ipam/net/10.213.0.9", "p0\r\neth0") }, func(w *world) {
			w.remove("state/attachments/net/p0:eth0")
			in := intent("p0", cache.BootID())
			in.NetNS = w.PodPath("p0")
			r := &types100.Result{IPs: []*types100.IPConfig{{Address: net.IPNet{IP: net.IPv4(10, 213, 0, 9), Mask: net.CIDRMask(24, 32)}}}}
			w.begin(in, func(j *cache.Journal) error { return errors.Join(j.Reserved(r), j.Result(r)) })
		}, []string{"reservation-without-attachment 10.213.0.9 restore"}},
		{"a lost record that is back", func(w *world) { w.must(os.Rename(w.Dir+"/state/attachments/net/p0:eth0", w.Dir+"/kept")) },
			func(w *world) { w.must(os.Rename(w.Dir+"/kept", w.Dir+"/state/attachments/net/p0:eth0")) }, nil},
		{"a lost record whose pod is gone", func(w *world) { w.remove("state/attachments/net/p0:eth0") }, func(w *world) { w.must(w.Vanish("p0")) },
			[]string{"reservation-without-attachment 10.213.0.2 reported", "stale-libcni-entry net/p0:eth0 end-libcni-entry"}},
		{"a table of a network that has an attachment by now", func(w *world) {
			r := masquerade.Rules{Network: "old", Bridge: "br", Ranges: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}
			w.must(r.Ensure(w.t.Context(), nil))
		}, func(w *world) {
			in := intent("c1", "before")
			in.Network = "old"
			w.begin(in)
		}, []string{"earlier-boot old/c1:eth0 del"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, ours, 2)
			tt.plant(w)
			found := w.look()
			tt.change(w)
			for _, f := range found {
				w.must(w.mend(*f.Repair))
			}
			w.expect(w.look(), tt.want...)
		})
	}
}

// TestMendLeavesWhoIsBack: no DEL is run for a container that nobody knew when it
// was planned, and that lives by now.
func TestMendLeavesWhoIsBack(t *testing.T) {
	for _, tt := range []struct {
		name         string
		plant, again func(*world)
		planned      string
	}{
		{"leaked address", func(w *world) { w.put("ipam/net/10.213.0.9", "p1\r\neth0") }, func(w *world) { w.add("p1") }, "leaked-address 10.213.0.9 del"},
		{"host end", func(w *world) {
			w.add("p1")
			w.must(os.Rename(w.Dir+"/state/attachments/net/p1:eth0", w.Dir+"/kept"))
			w.remove("cache/results/net-p1-eth0")
		}, func(w *world) { w.must(os.Rename(w.Dir+"/kept", w.Dir+"/state/attachments/net/p1:eth0")) }, "orphan-veth net/p1:eth0 del"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, ours, 1)
			w.sandboxes = []Sandbox{{ID: "p0", Ready: true}}
			tt.plant(w)
			found := slices.DeleteFunc(w.look(), func(f Finding) bool { return f.Repair == nil })
			w.expect(found, tt.planned)
			tt.again(w)
			w.must(w.mend(*found[0].Repair))
			w.must(w.check(delegates.Attachment{Network: "net", ContainerID: "p1", IfName: "eth0"}))
		})
	}
}

// TestMendLeavesPorts: portmap's DEL is not run for a container that came back
// since it was planned.
func TestMendLeavesPorts(t *testing.T) {
	for _, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			w := newWorld(t, ours, 1)
			w.publish("p1", backend)
			w.lose("p1")
			found := w.look()
			w.expect(found, "stale-portmap net/p1 del")
			w.publish("p1", backend)
			w.must(w.mend(*found[0].Repair))
			w.must(w.Check(t.Context(), w.published("p1", 8080)))
			w.expect(w.look())
		})
	}
}

// TestMendPortsUnread: nor where not everything can be read.
func TestMendPortsUnread(t *testing.T) {
	w := newWorld(t, ours, 1)
	w.publish("p1", "nftables")
	w.lose("p1")
	n, found := w.node(), w.look()
	n.StateDirs = append(n.StateDirs, w.Dir+"/other")
	w.put("other/attachments", "")
	if err := n.Mend(t.Context(), *found[0].Repair); !errors.Is(err, errUnread) {
		t.Errorf("%v", err)
	}
}

// TestPlanner: two looks, a grace apart, of one thing in one boot.
func TestPlanner(t *testing.T) {
	finding := func(id string) Finding { return Finding{ID: id, Repair: &Repair{Action: Del, Path: id}} }
	const grace = time.Minute
	type look struct {
		boot   string
		uptime time.Duration
		found  []Finding
		due    string
		scope  Scope
	}
	whole := Scope{Checked: true, Asked: true}
	a, again := finding("a"), finding("a")
	b, drift, lo := finding("b"), finding("drift"), finding("lo")
	a.Network, b.Network, drift.Kind = "net", "other", Drift
	lo.Kind, lo.Attachment = StaleLibcniEntry, &delegates.Attachment{IfName: "lo"}
	again.ID = "other finding, same repair"
	for _, tt := range []struct {
		name  string
		looks []look
	}{
		{"twice", []look{{"1", 0, []Finding{a}, "", whole}, {"1", grace, []Finding{a}, "a", whole}}},
		{"too early", []look{{"1", 0, []Finding{a}, "", whole}, {"1", grace - 1, []Finding{a}, "", whole}, {"1", grace, []Finding{a}, "a", whole}}},
		{"gone in between", []look{{"1", 0, []Finding{a}, "", whole}, {"1", grace, nil, "", whole}, {"1", 2 * grace, []Finding{a}, "", whole}}},
		{"another thing", []look{{"1", 0, []Finding{a}, "", whole}, {"1", grace, []Finding{finding("b")}, "", whole}}},
		{"another boot", []look{{"1", 0, []Finding{a}, "", whole}, {"2", grace, []Finding{a}, "", whole}}},
		{"no boot", []look{{"", 0, []Finding{a}, "", whole}, {"", grace, []Finding{a}, "", whole}}},
		{"only reported", []look{{"1", 0, []Finding{{ID: "a"}}, "", whole}, {"1", grace, []Finding{{ID: "a"}}, "", whole}}},
		{"gone while another network is looked at", []look{{"1", 0, []Finding{a}, "", whole}, {"1", grace, nil, "", Scope{Network: "other"}}, {"1", 2 * grace, []Finding{a}, "a", whole}}},
		{"networks in turns", []look{{"1", 0, []Finding{a}, "", Scope{Network: "net"}}, {"1", 1, []Finding{b}, "", Scope{Network: "other"}},
			{"1", grace, []Finding{a}, "a", Scope{Network: "net"}}, {"1", grace + 1, []Finding{b}, "b", Scope{Network: "other"}}}},
		{"gone in its network", []look{{"1", 0, []Finding{a}, "", whole}, {"1", grace, nil, "", Scope{Network: "net"}}, {"1", 2 * grace, []Finding{a}, "", whole}}},
		{"without CHECK", []look{{"1", 0, []Finding{drift}, "", whole}, {"1", 1, nil, "", Scope{}}, {"1", grace, []Finding{drift}, "drift", whole}}},
		{"without the runtime", []look{{"1", 0, []Finding{lo}, "", whole}, {"1", 1, nil, "", Scope{}}, {"1", grace, []Finding{lo}, "lo", whole}}},
		{"another boot in between", []look{{"1", 0, []Finding{a}, "", whole}, {"2", 0, nil, "", Scope{Network: "other"}}, {"1", grace, []Finding{a}, "", whole}}},
		{"one repair of two", []look{{"1", 0, []Finding{a, again}, "", whole}, {"1", grace, []Finding{a, again}, "a", whole}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var earlier Look
			for i, l := range tt.looks {
				p := Planner{Earlier: earlier, Boot: l.boot, Uptime: l.uptime, Grace: grace, Scope: l.scope}
				due := ""
				for _, f := range l.found {
					if p.Due(f) {
						due += f.ID
					}
				}
				if due != l.due {
					t.Errorf("look %d: due are %q, want %q", i, due, l.due)
				}
				earlier = p.Next()
			}
		})
	}
}
