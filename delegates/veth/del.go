package veth

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// Del removes every host end that is proven to be the attachment's; the pod's
// end goes with it. It works from the host: the pod's namespace may be gone, or
// another's by now. bridge is the bridge of ADD, "" for none.
func Del(ctx context.Context, c delegates.Call, bridge string, wait bool) error {
	host, err := Dial()
	if err != nil {
		return err
	}
	defer host.Close()
	var errs []error
	for _, name := range candidates(c, bridge) {
		l, err := host.LinkByName(name)
		if Gone(err) {
			continue
		}
		if err == nil && ours(l, c) {
			err = removeEnd(ctx, host, l, wait)
		}
		errs = append(errs, err)
	}
	if !c.Made.Known && c.Before == nil {
		errs = append(errs, strange(ctx, host, c, bridge, wait))
	}
	return errors.Join(errs...)
}

// strange removes what the reference plugins made, of which neither record nor
// prevResult tells: the interface of that name in CNI_NETNS. It has to be one
// end of a pair that is not ours, the other one a port of the bridge, or of none
// in mode ptp. A namespace that cannot be opened has none.
func strange(ctx context.Context, host *Conn, c delegates.Call, bridge string, wait bool) error {
	pod, err := Open(c.NetNS)
	if err != nil {
		return nil //nolint:nilerr // it is gone, or is none
	}
	defer pod.Close()
	l, err := pod.Conn().LinkByName(c.IfName)
	if pod.Own || err != nil || l.Kind != "veth" || l.Peer == 0 {
		return nil //nolint:nilerr // nothing that could be proven
	}
	end, err := host.LinkByIndex(l.Peer)
	if err != nil || end.Kind != "veth" || end.Peer != l.Index || end.Alias != "" || bytes.HasPrefix(end.MAC, hostMACs) {
		return nil //nolint:nilerr // another's
	}
	if id, err := host.namespaceID(pod); err != nil || id != end.PeerNS { // indexes are a namespace's own
		return nil //nolint:nilerr // another's
	}
	master := 0
	if bridge != "" {
		b, err := host.LinkByName(bridge)
		if err != nil {
			return nil //nolint:nilerr // another's
		}
		master = b.Index
	}
	if end.Master != master {
		return nil
	}
	return removeEnd(ctx, host, end, wait)
}

// removeEnd removes a pair by its host end, and tells the span of it.
func removeEnd(ctx context.Context, host *Conn, end Link, wait bool) error {
	reaped, err := host.Remove(ctx, end.Index, wait)
	trace.Set(ctx, trace.KeyInterface.String(end.Name), trace.KeyReaped.Bool(reaped))
	return err
}

// candidates is the names that the host end may have: the one the record has,
// else prevResult's and the derived ones.
func candidates(c delegates.Call, bridge string) []string {
	// The bridge, and a VLAN's gateway on it, are all pods'.
	shared := func(name string) bool { return bridge != "" && (name == bridge || strings.HasPrefix(name, bridge+".")) }
	if c.Made.Known {
		if out := slices.DeleteFunc(onHost(c.Made.Result), shared); len(out) > 0 {
			return out
		}
	}
	n := HostNames(c.String())
	out := n[:]
	for _, name := range slices.DeleteFunc(onHost(c.Before), shared) {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// onHost is the names of a result's interfaces that are the host's, the bridge
// too: what is proven to be ours decides.
func onHost(r *types100.Result) (names []string) {
	if r == nil {
		return nil
	}
	for _, i := range r.Interfaces {
		if i != nil && i.Sandbox == "" && ValidName(i.Name) {
			names = append(names, i.Name)
		}
	}
	return names
}

// ours tells whether an interface is proven to be the attachment's: by its
// alias, or, where the alias was not set yet, by name and MAC in a record of
// this boot or in the result that the runtime kept.
func ours(l Link, c delegates.Call) bool {
	if l.Alias == Alias(c.String()) {
		return true
	}
	if l.Kind != "veth" || l.Alias != "" {
		return false
	}
	from := c.Before
	if c.Made.Known {
		from = nil
		if c.Made.ThisBoot {
			from = c.Made.Result
		}
	}
	if from == nil {
		return false
	}
	for _, i := range from.Interfaces {
		if i != nil && i.Sandbox == "" && i.Name == l.Name && i.Mac == l.MAC.String() {
			return true
		}
	}
	return false
}
