package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
)

// check is one comparison of what ADD made with what is there.
type check struct {
	Bridge
	call     delegates.Call
	made     *types100.Result // what ADD answered
	now      *types100.Result // the runtime's final result: later plugins may have changed things
	findings delegates.Findings
}

// Check implements delegates.Delegate. What differs is a delegates.Findings;
// another error tells that it could not look.
func (b Bridge) Check(_ context.Context, c delegates.Call) error {
	k := &check{Bridge: b, call: c, made: c.Made.Result, now: c.Before}
	if k.made == nil {
		k.made = k.now
	}
	if k.made == nil {
		return errors.New("neither record nor prevResult tells what to check")
	}
	if k.call.Made.Cookie != 0 && b.Namespace.Cookie != 0 && k.call.Made.Cookie != b.Namespace.Cookie {
		k.find("netns.other", "the namespace of ADD", "another one at "+b.Namespace.Path)
		return k.findings
	}
	host, err := veth.Dial()
	if err != nil {
		return err
	}
	defer host.Close()
	for _, look := range []func(*veth.Conn) error{k.pair, k.addresses, k.routes} {
		if err := look(host); err != nil {
			return err
		}
	}
	if len(k.findings) > 0 {
		return k.findings
	}
	return nil
}

func (k *check) find(code, expected, found string) {
	k.findings = append(k.findings, delegates.Finding{Code: code, Expected: expected, Found: found})
}

// pair compares both ends.
func (k *check) pair(conn *veth.Conn) error {
	pod, err := k.Namespace.Conn().LinkByName(k.call.IfName)
	if veth.Gone(err) {
		k.find("pod.missing", "interface "+k.call.IfName, "none")
		return nil
	}
	if err != nil {
		return err
	}
	if !pod.Up {
		k.find("pod.down", k.call.IfName+" up", "down")
	}
	if macs := k.macs(); len(macs) > 0 && !slices.Contains(macs, pod.MAC.String()) {
		k.find("pod.mac", fmt.Sprint(macs), pod.MAC.String())
	}
	want := hostEnd(k.made, k.Conf.Bridge)
	if want == nil {
		return nil
	}
	host, err := conn.LinkByName(want.Name)
	if veth.Gone(err) {
		k.find("host.missing", "interface "+want.Name, "none")
		return nil
	}
	if err != nil {
		return err
	}
	return k.host(conn, host, pod)
}

// host compares the host end with the pod's and with its bridge.
func (k *check) host(conn *veth.Conn, host, pod veth.Link) error {
	if pod.Peer != host.Index {
		k.find("host.peer", fmt.Sprintf("%s to be the other end of %s", host.Name, pod.Name), fmt.Sprintf("interface %d", pod.Peer))
	}
	if !host.Up {
		k.find("host.down", host.Name+" up", "down")
	}
	bridge, err := conn.LinkByName(k.Conf.Bridge)
	if veth.Gone(err) {
		k.find("bridge.missing", "bridge "+k.Conf.Bridge, "none")
		return nil
	}
	if err == nil && host.Master != bridge.Index {
		k.find("host.master", fmt.Sprintf("%s a port of %s", host.Name, k.Conf.Bridge), fmt.Sprintf("a port of interface %d", host.Master))
	}
	return err
}

// macs is what the pod's end may have: what ADD gave it, and what the final
// result says.
func (k *check) macs() (out []string) {
	for _, r := range []*types100.Result{k.made, k.now} {
		if r == nil {
			continue
		}
		for _, i := range r.Interfaces {
			if i == nil || i.Name != k.call.IfName || i.Mac == "" {
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
func (k *check) addresses(*veth.Conn) error {
	index, err := k.Namespace.Conn().Index(k.call.IfName)
	if err != nil {
		return ignoreGone(err) // found already
	}
	have, err := k.Namespace.Conn().Addresses(index)
	if err != nil {
		return err
	}
	for _, want := range prefixes(k.made.IPs) {
		if k.now != nil && !slices.Contains(prefixes(k.now.IPs), want) {
			continue // a later plugin took it
		}
		if !slices.Contains(have, want) {
			k.find("address.missing", want.String(), fmt.Sprint(have))
		}
	}
	return nil
}

// routes looks for each route of ADD that the final result still has, in any
// table: later plugins move them.
func (k *check) routes(*veth.Conn) error {
	if len(k.made.Routes) == 0 {
		return nil
	}
	index, err := k.Namespace.Conn().Index(k.call.IfName)
	if err != nil {
		return ignoreGone(err)
	}
	have, err := k.Namespace.Conn().Routes()
	if err != nil {
		return err
	}
	for i, want := range routes(k.made) {
		dst := prefix(k.made.Routes[i].Dst)
		if k.now != nil && !slices.ContainsFunc(k.now.Routes, func(r *types.Route) bool { return r != nil && prefix(r.Dst) == dst }) {
			continue
		}
		k.route(index, want, have)
	}
	return nil
}

func (k *check) route(index int, want veth.Route, have []veth.Installed) {
	found := "none"
	for _, r := range have {
		if r.Dst != want.Dst.Masked() {
			continue
		}
		if r.Index == index && r.Gateway == want.Gateway && fits(r.Priority, want.Priority) && fits(r.MTU, want.MTU) && fits(r.AdvMSS, want.AdvMSS) {
			return
		}
		found = fmt.Sprintf("via %s, interface %d, metric %d, mtu %d, advmss %d, table %d", r.Gateway, r.Index, r.Priority, r.MTU, r.AdvMSS, r.Table)
	}
	k.find("route", fmt.Sprintf("%s via %s, metric %d, mtu %d, advmss %d", want.Dst, want.Gateway, want.Priority, want.MTU, want.AdvMSS), found)
}

// fits tells whether the kernel's value is what was asked for; 0 asked for nothing.
func fits(got, asked int) bool { return asked == 0 || got == asked }

func ignoreGone(err error) error {
	if veth.Gone(err) {
		return nil
	}
	return err
}

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
