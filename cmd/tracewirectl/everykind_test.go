//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/tracewire/tracewire/chain/audit"
	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/masquerade"
	"github.com/tracewire/tracewire/test/netns"
	"github.com/tracewire/tracewire/test/sandboxes"
)

// record writes a record of a container that never was.
func (w *world) record(id, boot string, lines ...func(*cache.Journal) error) error {
	in := cache.Intent{Attachment: delegates.Attachment{Network: "podnet", ContainerID: id, IfName: "eth0"}, Boot: boot, NetNS: "/none",
		Conf: fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"podnet","type":"tracewire","tracewire":{"stateDir":"%s/state"}}`, w.Dir)}
	j, err := cache.Dir{Path: w.Dir + "/state/attachments"}.Begin(in, time.Now())
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range lines {
		errs = append(errs, l(j))
	}
	return errors.Join(append(errs, j.Close())...)
}

// forget removes a pod's record, and what libcni keeps of it.
func (w *world) forget(pod string) error {
	return errors.Join(os.Remove(w.Dir+"/state/attachments/podnet/"+pod+":eth0"), os.Remove(w.Dir+"/cache/results/podnet-"+pod+"-eth0"))
}

// hostOf is a pod's host end, by its alias.
func (w *world) hostOf(pod string) netlink.Link {
	w.t.Helper()
	all, err := netlink.LinkList()
	w.must(err)
	for _, l := range all {
		if l.Attrs().Alias == "tracewire:podnet/"+pod+":eth0" {
			return l
		}
	}
	w.t.Fatalf("no host end of %s", pod)
	return nil
}

// addressOf is what a record says that a pod has.
func (w *world) addressOf(pod string) netip.Prefix {
	w.t.Helper()
	r, err := cache.Dir{Path: w.Dir + "/state/attachments"}.Read(delegates.Attachment{Network: "podnet", ContainerID: pod, IfName: "eth0"})
	w.must(err)
	return addresses(r.Result.Get())[0]
}

func attached(j *cache.Journal) error { return j.Result(&types100.Result{}) }

// damage is something that goes wrong, twice: with pods of its own, and what it is
// found as.
type damage struct {
	kind  audit.Kind
	pods  string // how those that are attached before are called, with a number behind
	alive bool   // their pods are the runtime's
	do    func(w *world, pod string, i int) error
}

var damages = []damage{
	{audit.LeakedAddress, "", false, func(w *world, _ string, i int) error {
		w.leak(fmt.Sprintf("10.215.0.%d", 101+i), fmt.Sprintf("gone%d", i))
		return nil
	}},
	{audit.ReservationWithoutAttachment, "lost", true, func(w *world, pod string, _ int) error { return w.Take(pod, w.addressOf(pod).String()) }},
	{audit.ReservationWithoutAttachment, "more", true, func(w *world, pod string, i int) error {
		w.leak(fmt.Sprintf("10.215.0.%d", 111+i), pod)
		return nil
	}},
	{audit.AttachmentWithoutReservation, "freed", true, func(w *world, pod string, _ int) error {
		return os.Remove(w.Dir + "/ipam/podnet/" + w.addressOf(pod).Addr().String())
	}},
	{audit.DuplicateAddress, "twin", true, func(w *world, pod string, i int) error {
		return w.Give(pod, w.addressOf(fmt.Sprintf("twin%d", 1-i)).String())
	}},
	{audit.EmptyReservation, "", false, func(w *world, _ string, i int) error {
		w.leak(fmt.Sprintf("10.215.0.%d", 121+i), "")
		return nil
	}},
	{audit.OrphanVeth, "orphan", false, func(w *world, pod string, _ int) error { return w.forget(pod) }},
	{audit.OrphanVeth, "unrecorded", true, func(w *world, pod string, _ int) error {
		return os.Remove(w.Dir + "/state/attachments/podnet/" + pod + ":eth0")
	}},
	{audit.UnknownOwner, "", false, func(w *world, _ string, i int) error {
		w.put(fmt.Sprintf("ipam/podnet/note%d", i), "keep out")
		return w.Port(fmt.Sprintf("another%d", i), "tb0", fmt.Sprintf("stranger%d", i))
	}},
	{audit.StaleRecord, "stale", false, func(w *world, pod string, _ int) error { return w.Vanish(pod) }},
	{audit.InterruptedOperation, "", false, func(w *world, _ string, i int) error { return w.record(fmt.Sprintf("killed%d", i), cache.BootID()) }},
	{audit.EarlierBoot, "", false, func(w *world, _ string, i int) error {
		return w.record(fmt.Sprintf("before%d", i), "an-earlier-boot", attached)
	}},
	{audit.BrokenRecord, "torn", true, func(w *world, pod string, _ int) error {
		return os.Truncate(w.Dir+"/state/attachments/podnet/"+pod+":eth0", 0)
	}},
	{audit.BrokenRecord, "crashed", false, func(w *world, pod string, _ int) error {
		return errors.Join(w.Vanish(pod), os.Truncate(w.Dir+"/state/attachments/podnet/"+pod+":eth0", 0), os.Remove(w.Dir+"/cache/results/podnet-"+pod+"-eth0"))
	}},
	{audit.NamespaceChanged, "led", false, func(w *world, pod string, _ int) error { return w.Lead(pod, "live0") }},
	{audit.BrokenLibcniEntry, "cut", true, func(w *world, pod string, _ int) error {
		return os.Truncate(w.Dir+"/cache/results/podnet-"+pod+"-eth0", 0)
	}},
	{audit.StaleLibcniEntry, "left", false, func(w *world, pod string, _ int) error {
		return errors.Join(w.Vanish(pod), os.Remove(w.Dir+"/state/attachments/podnet/"+pod+":eth0"))
	}},
	{audit.StaleLibcniEntry, "", false, func(w *world, _ string, i int) error {
		w.put(fmt.Sprintf("cache/results/cni-loopback-looped%d-lo", i), fmt.Sprintf(`{"kind":"cniCacheV1","containerId":"looped%d","ifName":"lo","networkName":"cni-loopback","netns":"/none"}`, i))
		return nil
	}},
	{audit.StaleMasquerade, "", false, func(w *world, _ string, i int) error {
		r := masquerade.Rules{Network: fmt.Sprintf("old%d", i), Bridge: "br", Ranges: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}
		return r.Ensure(w.t.Context(), nil)
	}},
	{audit.StaleMasquerade, "", false, func(w *world, _ string, i int) error {
		c := masquerade.Chains{Network: "podnet", ContainerID: fmt.Sprintf("chained%d", i), IfName: "eth0"}
		return c.Ensure(w.t.Context(), []netip.Prefix{netip.MustParsePrefix("10.215.0.99/24")})
	}},
	{audit.StalePortmap, "", false, func(w *world, _ string, i int) error {
		pod := fmt.Sprintf("mapped%d", i)
		w.publish(pod, []string{"iptables", "nftables"}[i])
		return w.lose(pod)
	}},
	{audit.Drift, "down", true, func(w *world, pod string, _ int) error { return netlink.LinkSetDown(w.hostOf(pod)) }},
	{audit.Drift, "unplugged", true, func(w *world, pod string, _ int) error { return netlink.LinkSetNoMaster(w.hostOf(pod)) }},
}

// plant makes everything go wrong, and tells which pods the runtime has.
func plant(w *world) (alive []string) {
	w.t.Helper()
	for _, d := range damages {
		for i := range 2 {
			if d.pods == "" {
				continue
			}
			pod := fmt.Sprintf("%s%d", d.pods, i)
			w.add(pod)
			if d.alive {
				alive = append(alive, pod)
			}
		}
	}
	for _, d := range damages {
		for i := range 2 {
			if err := d.do(w, fmt.Sprintf("%s%d", d.pods, i), i); err != nil {
				w.t.Fatalf("%s of %s%d: %v", d.kind, d.pods, i, err)
			}
		}
	}
	return alive
}

// connection is what one pod of ours sends another, over and over.
type connection struct {
	from, to net.Conn
	sent     int
}

// connect opens a TCP connection between two pods.
func (w *world) connect(from, to string) *connection {
	w.t.Helper()
	var l net.Listener
	c := &connection{}
	address := netip.AddrPortFrom(w.addressOf(to).Addr(), 7).String()
	w.must(w.In(to, func() (err error) { l, err = (&net.ListenConfig{}).Listen(w.t.Context(), "tcp", address); return err }))
	w.must(w.In(from, func() (err error) {
		ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
		defer cancel()
		c.from, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
		return err
	}))
	var err error
	c.to, err = l.Accept()
	w.must(err)
	w.t.Cleanup(func() { _ = errors.Join(c.from.Close(), c.to.Close(), l.Close()) })
	return c
}

// say sends some words, which have to arrive.
func (c *connection) say() error {
	c.sent++
	words := fmt.Sprintf("word %d\n", c.sent)
	end := time.Now().Add(10 * time.Second)
	got := make([]byte, len(words))
	err := errors.Join(c.from.SetDeadline(end), c.to.SetDeadline(end))
	if err == nil {
		_, err = io.WriteString(c.from, words)
	}
	if err == nil {
		_, err = io.ReadFull(c.to, got)
	}
	if err == nil && string(got) != words {
		err = fmt.Errorf("%q came, %q was sent", got, words)
	}
	return err
}

// found is an audit's findings.
func (w *world) found(args ...string) (all []audit.Finding) {
	w.t.Helper()
	_, out, complaint := w.plug(append([]string{"audit", "-o", "json"}, args...)...)
	var r struct{ Findings []audit.Finding }
	if err := json.Unmarshal([]byte(out), &r); err != nil || complaint != "" {
		w.t.Fatalf("%v: %s%s", err, out, complaint)
	}
	return r.Findings
}

// state is all that a pod of ours is known by: its record, what libcni keeps, its
// reservation, and both its interfaces as they are.
func (w *world) state(pod string) string {
	w.t.Helper()
	var b strings.Builder
	for _, path := range []string{"state/attachments/podnet/" + pod + ":eth0", "cache/results/podnet-" + pod + "-eth0", "ipam/podnet/" + w.addressOf(pod).Addr().String()} {
		content, err := os.ReadFile(w.Dir + "/" + path)
		w.must(err)
		fmt.Fprintf(&b, "%s %s\n", cache.Stamp(w.Dir+"/"+path), content)
	}
	b.WriteString(shape(w.hostOf(pod)))
	w.must(w.In(pod, func() error {
		l, err := netlink.LinkByName("eth0")
		w.must(err)
		all, err := netlink.AddrList(l, netlink.FAMILY_V4)
		fmt.Fprint(&b, shape(l), all)
		return err
	}))
	return b.String()
}

// shape is what counts of an interface.
func shape(l netlink.Link) string {
	a := l.Attrs()
	return fmt.Sprintln(a.Index, a.Name, a.HardwareAddr, a.MTU, a.Flags, a.MasterIndex, a.ParentIndex, a.Alias, a.OperState)
}

// fits holds that a screen is no wider than the terminal.
func (w *world) fits(screen string) {
	w.t.Helper()
	for line := range strings.Lines(screen) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 100 {
			w.t.Errorf("%d columns: %s", n, line)
		}
	}
	w.t.Log(screen)
}

// TestEveryKind plants two of each kind on a node with pods that live: each is
// found, with what the sources say; two repairs later nothing is left but what the
// node cannot decide. The pods that live keep all that they have, and a connection.
func TestEveryKind(t *testing.T) {
	netns.Need(t, "iptables", "ip6tables", "nft")
	w := newWorld(t, ported("iptables"), 0)
	w.publish("live0", "nftables")
	w.publish("live1", "iptables")
	between := w.connect("live0", "live1")
	w.must(between.say())
	live := append(plant(w), "live0", "live1")
	before := map[string]string{"live0": w.state("live0"), "live1": w.state("live1")}
	cri := sandboxes.Serve(w.t, live...)

	first := w.found("--cri", cri)
	for _, k := range audit.Kinds {
		of := slices.DeleteFunc(slices.Clone(first), func(f audit.Finding) bool { return f.Kind != k.Kind })
		if len(of) < 2 {
			t.Errorf("%d findings of kind %s, want two or more", len(of), k.Kind)
		}
		for _, f := range of {
			if len(f.Evidence) < 1 || f.Evidence[0].Says == "" || (f.Fix == "") == (f.Why == "") {
				t.Errorf("%s %s: evidence %v, fix %q, why %q", f.Kind, f.About(), f.Evidence, f.Fix, f.Why)
			}
		}
	}
	_, screen, _ := w.plug("audit", "--cri", cri)
	w.fits(screen)
	for i := range 2 {
		if i > 0 {
			w.must(backdate(w.Dir+"/state", time.Minute))
		}
		code, out, complaint := w.plug("audit", "--cri", cri, "--fix", "--yes")
		if code != 1 || complaint != "" {
			t.Errorf("exit code %d of --fix, want 1, as some are only reported\n%s%s", code, out, complaint)
		}
		w.fits(out)
		w.must(between.say())
	}
	for _, f := range w.found("--cri", cri) {
		if f.Kind != audit.UnknownOwner && f.Kind != audit.DuplicateAddress {
			t.Errorf("is left: %+v", f)
		}
	}
	for pod, was := range before {
		if diff := cmp.Diff(was, w.state(pod)); diff != "" {
			t.Errorf("%s (-before +after)\n%s", pod, diff)
		}
	}
	code, out, complaint := w.plug("check")
	w.expect(0, code, out, complaint, fmt.Sprintf("%d attachments checked, no findings", len(live)))
	w.must(between.say())
}
