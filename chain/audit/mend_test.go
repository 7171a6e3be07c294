package audit

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
)

// rounds is how often a node is mended, at most: a reservation waits for the
// entry that speaks for it.
const rounds = 3

// mended mends the node until there is nothing to do: what can be mended is found
// no more. What is only reported stays, until what it waits for is gone.
func (w *world) mended() {
	w.t.Helper()
	var found []Finding
	for range rounds {
		found = slices.DeleteFunc(w.look(), func(f Finding) bool { return f.Repair == nil })
		for _, f := range found {
			if err := w.mend(*f.Repair); err != nil {
				w.t.Errorf("%v: %s", err, w.full(f))
			}
		}
		if len(found) == 0 {
			return
		}
	}
	for _, f := range found {
		w.t.Errorf("is still found after %d rounds: %s", rounds, w.full(f))
	}
}

// mend makes a repair, a DEL as a runtime makes it.
func (w *world) mend(r Repair) error {
	err := w.node().Mend(w.t.Context(), r)
	if !errors.Is(err, ErrDel) {
		return err
	}
	a := attach.Attachment{ContainerID: r.Attachment.ContainerID, IfName: r.Attachment.IfName, NetNS: r.NetNS}
	conf := strings.Replace(r.Conf, `"name":"net","type":"tracewire"}`, `"name":"net","type":"tracewire","tracewire":{"stateDir":"`+w.Dir+`/state"}}`, 1)
	_, err = w.Run(w.t.Context(), "tracewire", []byte(conf), w.Environment("DEL", a))
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
		{"an address that a pod has by now", func(w *world) { w.put("ipam/net/10.213.0.9", "") }, func(w *world) { w.give("p0", "10.213.0.9/24", netlink.AddrAdd) },
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

// TestPlanner: two looks, a grace apart, of one thing in one boot.
func TestPlanner(t *testing.T) {
	finding := func(id string) Finding { return Finding{ID: id, Repair: &Repair{Action: Del, Path: id}} }
	const grace = time.Minute
	type look struct {
		boot   string
		uptime time.Duration
		found  []Finding
		due    string
	}
	a, again := finding("a"), finding("a")
	again.ID = "other finding, same repair"
	for _, tt := range []struct {
		name  string
		looks []look
	}{
		{"twice", []look{{"1", 0, []Finding{a}, ""}, {"1", grace, []Finding{a}, "a"}}},
		{"too early", []look{{"1", 0, []Finding{a}, ""}, {"1", grace - 1, []Finding{a}, ""}, {"1", grace, []Finding{a}, "a"}}},
		{"gone in between", []look{{"1", 0, []Finding{a}, ""}, {"1", grace, nil, ""}, {"1", 2 * grace, []Finding{a}, ""}}},
		{"another thing", []look{{"1", 0, []Finding{a}, ""}, {"1", grace, []Finding{finding("b")}, ""}}},
		{"another boot", []look{{"1", 0, []Finding{a}, ""}, {"2", grace, []Finding{a}, ""}}},
		{"no boot", []look{{"", 0, []Finding{a}, ""}, {"", grace, []Finding{a}, ""}}},
		{"only reported", []look{{"1", 0, []Finding{{ID: "a"}}, ""}, {"1", grace, []Finding{{ID: "a"}}, ""}}},
		{"one repair of two", []look{{"1", 0, []Finding{a, again}, ""}, {"1", grace, []Finding{a, again}, "a"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var earlier Look
			for i, l := range tt.looks {
				p := Planner{Earlier: earlier, Boot: l.boot, Uptime: l.uptime, Grace: grace}
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

// TestChecked hands on what CHECK found.
func TestChecked(t *testing.T) {
	netns.Enter(t) // of others at work nothing is known here
	var found []Finding
	a := delegates.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"}
	n := Node{Checked: []Checked{{a, delegates.Findings{{Code: "veth.mtu", Expected: "1500", Found: "1400"}, {Code: "route.missing", Expected: "default", Found: "none"}}}}}
	if _, err := n.Audit(t.Context(), Told{Finding: func(f Finding) { found = append(found, f) }}); err != nil {
		t.Fatal(err)
	}
	if len(found) != 2 || found[0].Kind != Drift || found[0].Severity != Error || found[0].ID == found[1].ID || found[0].Evidence[0].Says != "veth.mtu: expected 1500, found 1400" {
		t.Errorf("%+v", found)
	}
}
