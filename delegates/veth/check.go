package veth

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/delegates"
)

// Check compares what ADD made with what is there: what bridge and ptp share.
// What later plugins say that they changed is as good as what ADD made.
type Check struct {
	Call     delegates.Call
	Pod      *Namespace
	Host     *Conn
	Findings delegates.Findings
	// Down tells that the pod's end was left down.
	Down bool
	// Refuses tells that ADD refuses to give a gateway its address where another
	// is in the way.
	Refuses bool
	// Own is the pod's routes beside the result's, nil for none.
	Own func(*types100.Result) []Route

	made *types100.Result // what ADD answered
	now  *types100.Result // the runtime's final result: later plugins may have changed things
	pod  Link
	back []func() error // that put the findings right, one each, nil where none does
}

// Look compares pair, addresses and routes. Another error than findings tells
// that it could not look. host is given the host end; it is not called when
// there is none. bridges is the names that the bridge has.
func (k *Check) Look(host func(end Link) error, bridges ...string) error {
	k.made, k.now = k.Call.Made.Result, k.Call.Before
	if k.made == nil {
		k.made = k.now
	}
	if k.made == nil {
		return fmt.Errorf("%w: neither record nor prevResult tells what to check", ErrNotReady)
	}
	if k.Call.Made.Cookie != 0 && k.Pod.Cookie != 0 && k.Call.Made.Cookie != k.Pod.Cookie {
		k.Find("netns.other", "the namespace of ADD", "another one at "+k.Pod.Path, nil)
		return nil
	}
	if there, err := k.podEnd(); err != nil || !there {
		return err
	}
	for _, look := range []func() error{
		func() error { return k.hostEnd(host, bridges) },
		k.addresses,
		k.routes,
	} {
		if err := look(); err != nil {
			return err
		}
	}
	return nil
}

// Made is the result that is compared with; never nil after Look.
func (k *Check) Made() *types100.Result { return k.made }

// Find adds one finding, and what puts it right: nil where only DEL and ADD do, or
// an operator.
func (k *Check) Find(code, expected, found string, back func() error) {
	k.Findings = append(k.Findings, delegates.Finding{Code: code, Expected: expected, Found: found})
	k.back = append(k.back, back)
}

// Result is the findings as an error; nil when there are none. Where the call asks
// for it they are put right before: what cannot be is looked at once more.
func (k *Check) Result(ctx context.Context) error {
	if len(k.Findings) == 0 {
		return nil
	}
	for i, f := range k.Findings {
		if k.Call.Restore && k.back[i] != nil {
			delegates.Restored(ctx, f, k.back[i]())
		}
	}
	return k.Findings
}

// podEnd compares the pod's end, and tells whether there is one.
func (k *Check) podEnd() (there bool, err error) {
	k.pod, err = k.Pod.Conn().LinkByName(k.Call.IfName)
	if Gone(err) {
		k.Find("pod.missing", "interface "+k.Call.IfName, "none", nil)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !k.pod.Up && !k.Down {
		k.Find("pod.down", k.Call.IfName+" up", "down", k.podUp)
	}
	if macs := k.MACs(); len(macs) > 0 && !slices.ContainsFunc(macs, func(m net.HardwareAddr) bool { return m.String() == k.pod.MAC.String() }) {
		k.Find("pod.mac", oneOf(macs), k.pod.MAC.String(), func() error { return k.Pod.Conn().SetMAC(k.pod.Index, macs[len(macs)-1]) })
	}
	return true, nil
}

// hostEnd compares the host end.
func (k *Check) hostEnd(host func(end Link) error, bridges []string) error {
	name := k.HostName(bridges...)
	if name == "" {
		return nil
	}
	l, err := k.Host.LinkByName(name)
	if Gone(err) {
		k.Find("host.missing", "interface "+name, "none", nil)
		return nil
	}
	if err != nil {
		return err
	}
	if k.pod.Peer != l.Index || l.Peer != k.pod.Index { // indexes are a namespace's own: both have to fit
		k.Find("host.peer", fmt.Sprintf("%s to be the other end of %s", l.Name, k.pod.Name), fmt.Sprintf("interface %d", k.pod.Peer), nil)
	}
	if !l.Up {
		k.Find("host.down", l.Name+" up", "down", func() error { return k.Host.SetUp(l.Index) })
	}
	k.mtu(l)
	return host(l)
}

// HostName is the interface of ADD's result that is the host's and no bridge,
// "" for none.
func (k *Check) HostName(bridges ...string) string {
	for _, i := range k.made.Interfaces {
		if i != nil && i.Sandbox == "" && i.Name != "" && !slices.Contains(bridges, i.Name) {
			return i.Name
		}
	}
	return ""
}

// told is what ADD and later plugins say of an interface.
func (k *Check) told(name string) (out []*types100.Interface) {
	for _, r := range []*types100.Result{k.made, k.now} {
		if r == nil {
			continue
		}
		for _, i := range r.Interfaces {
			if i != nil && i.Name == name {
				out = append(out, i)
			}
		}
	}
	return out
}

// MACs is what the pod's end may have.
func (k *Check) MACs() (out []net.HardwareAddr) {
	for _, i := range k.told(k.Call.IfName) {
		if m := parseMAC(i.Mac); m != nil {
			out = append(out, m)
		}
	}
	return out
}

// mtu compares the ends' MTUs where they differ, as packets are lost only then:
// each has to be one that ADD or a later plugin gave.
func (k *Check) mtu(host Link) {
	if k.pod.MTU == host.MTU {
		return
	}
	for _, end := range []struct {
		code, name string
		conn       *Conn
		Link
		other int
	}{{"pod.mtu", k.Call.IfName, k.Pod.Conn(), k.pod, host.MTU}, {"host.mtu", host.Name, k.Host, host, k.pod.MTU}} {
		var may []int
		for _, i := range k.told(end.name) {
			if i.Mtu != 0 {
				may = append(may, i.Mtu)
			}
		}
		if end.code == "pod.mtu" {
			may = append(may, k.tuned()...)
		}
		if len(may) == 0 { // a result of an older version has none
			may = []int{end.other}
		}
		if slices.Contains(may, end.MTU) || end.code == "pod.mtu" && k.tunedBehind() {
			continue
		}
		k.Find(end.code, end.name+" with mtu "+oneOf(may), fmt.Sprint(end.MTU), func() error { return end.conn.SetMTU(end.Index, may[len(may)-1]) })
	}
}

// tuned is the MTUs that delegated plugins were asked for: the reference's tuning
// sets one and does not say so in its result.
func (k *Check) tuned() (out []int) {
	var conf struct {
		Delegates []struct {
			MTU int `json:"mtu"`
		} `json:"delegates"`
	}
	_ = json.Unmarshal(k.Call.Conf, &conf) // it was read at the door
	for _, d := range conf.Delegates {
		if d.MTU != 0 {
			out = append(out, d.MTU)
		}
	}
	return out
}

// tuning is where the reference's tuning keeps what it has to put back (plugins
// v1.10.0, plugins/meta/tuning): a file an interface, with the MTU it found.
const tuning = "/run/cni/tuning"

// tunedBehind tells that a tuning of the list, behind us, set the pod's MTU. Its
// result does not say so, and its configuration is not ours to see.
func (k *Check) tunedBehind() bool {
	var found struct {
		MTU int `json:"mtu"`
	}
	b, err := os.ReadFile(filepath.Join(tuning, k.Call.ContainerID+"_"+k.Call.IfName+".json"))
	return err == nil && json.Unmarshal(b, &found) == nil && found.MTU != 0
}

// oneOf is values that are as good as each other, each once.
func oneOf[T any](values []T) string {
	var texts []string
	for _, v := range values {
		if text := fmt.Sprint(v); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, " or ")
}

// addresses looks for each address of ADD that the final result still has.
func (k *Check) addresses() error {
	have, err := k.Pod.Conn().Addresses(k.pod.Index)
	if err != nil {
		return err
	}
	for _, want := range Prefixes(k.made.IPs) {
		if k.now != nil && !slices.Contains(Prefixes(k.now.IPs), want) {
			continue // a later plugin took it
		}
		if !slices.Contains(have, want) {
			k.Find("address.missing", want.String(), listed(have, want), func() error { return k.giveBack(want) })
		}
	}
	return nil
}

// Gateway looks for addresses on an interface. It lists them all only where one
// is missing: it may have a label, by which it is not found alone. back gives it
// to the interface.
func (k *Check) Gateway(at Link, back func(netip.Prefix) error, want ...netip.Prefix) error {
	for _, p := range want {
		if has, err := k.Host.HasAddress(at, p); err != nil || has {
			if err != nil {
				return err
			}
			continue
		}
		have, err := k.Host.Addresses(at.Index)
		if err != nil {
			return err
		}
		if slices.Contains(have, p) {
			continue
		}
		code, give := "gateway.missing", func() error { return back(p) }
		if k.Refuses && slices.ContainsFunc(have, func(h netip.Prefix) bool { return !slices.Contains(want, h) && InTheWay(h, p) }) {
			code, give = "gateway.conflict", nil
		}
		k.Find(code, p.String()+" on "+at.Name, listed(have, p), give)
	}
	return nil
}

// InTheWay tells whether a gateway cannot stand beside an address: beside any
// other of IPv4, and beside one of IPv6 whose subnet overlaps.
func InTheWay(have, gateway netip.Prefix) bool {
	return have.Addr().Is4() == gateway.Addr().Is4() && (have.Addr().Is4() || have.Overlaps(gateway))
}

// listed is the addresses of one's family, link-local ones apart.
func listed(have []netip.Prefix, of netip.Prefix) string {
	var texts []string
	for _, p := range have {
		if p.Addr().Is4() == of.Addr().Is4() && !p.Addr().IsLinkLocalUnicast() {
			texts = append(texts, p.String())
		}
	}
	if texts == nil {
		return "none"
	}
	return strings.Join(texts, ", ")
}

// Forwarding looks whether the host passes packets of the addresses' families
// on, in the calling thread's namespace.
func (k *Check) Forwarding(addresses ...netip.Addr) error {
	looked := map[Sysctl]bool{}
	for _, a := range addresses {
		s := Forwarding(a)
		if looked[s] {
			continue
		}
		looked[s] = true
		on, err := s.on()
		if err != nil {
			return err
		}
		if !on {
			k.Find("forwarding.off", "net/"+s.Path+" = "+s.Value, "0", func() error { return Ensure(s) })
		}
	}
	return nil
}
