package veth

import (
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/delegates"
)

// Check compares what ADD made with what is there: what bridge and ptp share.
type Check struct {
	Call     delegates.Call
	Pod      *Namespace
	Host     *Conn
	Findings delegates.Findings
	// Down tells that the pod's end was left down.
	Down bool
	// Own is the pod's routes beside the result's, nil for none.
	Own func(*types100.Result) []Route

	made *types100.Result // what ADD answered
	now  *types100.Result // the runtime's final result: later plugins may have changed things
}

// Look compares pair, addresses and routes. Another error than findings tells
// that it could not look. host is the host end and its name in the result; it
// is not called when there is none.
func (k *Check) Look(bridge string, host func(end Link, made *types100.Result) error) error {
	k.made, k.now = k.Call.Made.Result, k.Call.Before
	if k.made == nil {
		k.made = k.now
	}
	if k.made == nil {
		return fmt.Errorf("%w: neither record nor prevResult tells what to check", ErrNotReady)
	}
	if k.Call.Made.Cookie != 0 && k.Pod.Cookie != 0 && k.Call.Made.Cookie != k.Pod.Cookie {
		k.Find("netns.other", "the namespace of ADD", "another one at "+k.Pod.Path)
		return nil
	}
	if err := k.pair(bridge, host); err != nil {
		return err
	}
	if err := k.addresses(); err != nil {
		return err
	}
	return k.routes()
}

// Result is the findings as an error; nil when there are none.
func (k *Check) Result() error {
	if len(k.Findings) > 0 {
		return k.Findings
	}
	return nil
}

// Find adds one finding.
func (k *Check) Find(code, expected, found string) {
	k.Findings = append(k.Findings, delegates.Finding{Code: code, Expected: expected, Found: found})
}

// pair compares both ends.
func (k *Check) pair(bridge string, host func(Link, *types100.Result) error) error {
	pod, err := k.Pod.Conn().LinkByName(k.Call.IfName)
	if Gone(err) {
		k.Find("pod.missing", "interface "+k.Call.IfName, "none")
		return nil
	}
	if err != nil {
		return err
	}
	if !pod.Up && !k.Down {
		k.Find("pod.down", k.Call.IfName+" up", "down")
	}
	if macs := k.macs(); len(macs) > 0 && !slices.Contains(macs, pod.MAC.String()) {
		k.Find("pod.mac", fmt.Sprint(macs), pod.MAC.String())
	}
	want := hostEnd(k.made, bridge)
	if want == nil {
		return nil
	}
	l, err := k.Host.LinkByName(want.Name)
	if Gone(err) {
		k.Find("host.missing", "interface "+want.Name, "none")
		return nil
	}
	if err != nil {
		return err
	}
	if pod.Peer != l.Index {
		k.Find("host.peer", fmt.Sprintf("%s to be the other end of %s", l.Name, pod.Name), fmt.Sprintf("interface %d", pod.Peer))
	}
	if !l.Up {
		k.Find("host.down", l.Name+" up", "down")
	}
	return host(l, k.made)
}

// macs is what the pod's end may have: what ADD gave it, and what the final
// result says.
func (k *Check) macs() (out []string) {
	for _, r := range []*types100.Result{k.made, k.now} {
		if r == nil {
			continue
		}
		for _, i := range r.Interfaces {
			if i == nil || i.Name != k.Call.IfName || i.Mac == "" {
				continue
			}
			if m, err := net.ParseMAC(i.Mac); err == nil {
				out = append(out, m.String())
			}
		}
	}
	return out
}

// addresses looks for each address of ADD that the final result still has.
func (k *Check) addresses() error {
	index, err := k.Pod.Conn().Index(k.Call.IfName)
	if err != nil {
		return ignoreGone(err) // found already
	}
	have, err := k.Pod.Conn().Addresses(index)
	if err != nil {
		return err
	}
	for _, want := range Prefixes(k.made.IPs) {
		if k.now != nil && !slices.Contains(Prefixes(k.now.IPs), want) {
			continue // a later plugin took it
		}
		if !slices.Contains(have, want) {
			k.Find("address.missing", want.String(), fmt.Sprint(have))
		}
	}
	return nil
}

// routes looks for each route of ADD that the final result still has, in any
// table: later plugins move them.
func (k *Check) routes() error {
	var own []Route
	if k.Own != nil {
		own = k.Own(k.made)
	}
	if len(own)+len(k.made.Routes) == 0 {
		return nil
	}
	index, err := k.Pod.Conn().Index(k.Call.IfName)
	if err != nil {
		return ignoreGone(err)
	}
	have, err := k.Pod.Conn().Routes(0)
	if err != nil {
		return err
	}
	for _, want := range own {
		k.route(index, want, have)
	}
	for i, want := range Routes(k.made) {
		dst := Prefix(k.made.Routes[i].Dst)
		if k.now != nil && !slices.ContainsFunc(k.now.Routes, func(r *types.Route) bool { return r != nil && Prefix(r.Dst) == dst }) {
			continue
		}
		k.route(index, want, have)
	}
	return nil
}

func (k *Check) route(index int, want Route, have []Installed) {
	found := "none"
	for _, r := range have {
		if r.Dst != want.Dst.Masked() {
			continue
		}
		if r.Index == index && r.Gateway == want.Gateway && fits(r.Priority, want.Priority) && fits(r.MTU, want.MTU) && fits(r.AdvMSS, want.AdvMSS) {
			return
		}
		if found = r.String(); r.Index != index {
			found += fmt.Sprintf(" by interface %d", r.Index)
		}
	}
	k.Find("route", want.String(), found)
}

// fits tells whether the kernel's value is what was asked for; 0 asked for nothing.
func fits(got, asked int) bool { return asked == 0 || got == asked }

// hostEnd is the interface of a result that is the host's and not the bridge.
func hostEnd(r *types100.Result, bridge string) *types100.Interface {
	if r == nil {
		return nil
	}
	for _, i := range r.Interfaces {
		if i != nil && i.Sandbox == "" && i.Name != bridge && i.Name != "" {
			return i
		}
	}
	return nil
}
