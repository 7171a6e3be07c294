package ptp

import (
	"context"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
)

// Check implements delegates.Delegate. What differs is a delegates.Findings;
// another error tells that it could not look.
func (p PTP) Check(ctx context.Context, c delegates.Call) error {
	host, err := veth.Dial()
	if err != nil {
		return err
	}
	defer host.Close()
	k := &veth.Check{Call: c, Pod: p.Namespace, Host: host, Own: own}
	if err := k.Look("", func(end veth.Link, made *types100.Result) error { return gateway(k, end, made) }); err != nil {
		return err
	}
	rules, err := p.Masquerade.Check(ctx, c)
	if err != nil {
		return err
	}
	k.Findings = append(k.Findings, rules...)
	return k.Result()
}

// gateway compares the host end's addresses, and the host's routes to the pod.
func gateway(k *veth.Check, end veth.Link, made *types100.Result) error {
	have, err := k.Host.Addresses(end.Index)
	if err != nil {
		return err
	}
	routes, err := k.Host.Routes(end.Index)
	if err != nil {
		return err
	}
	for _, l := range links(made) {
		if !slices.Contains(have, alone(l.gateway)) {
			k.Find("gateway.missing", alone(l.gateway).String()+" on "+end.Name, "none")
		}
		if !slices.ContainsFunc(routes, func(r veth.Installed) bool { return r.Dst == alone(l.own) && r.Index == end.Index }) {
			k.Find("hostroute.missing", "host route to "+alone(l.own).String()+" by "+end.Name, "none")
		}
	}
	return nil
}
