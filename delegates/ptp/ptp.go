// Package ptp makes a pod's interface as one end of a pair whose other end is
// the pod's gateway: no bridge, a host route a pod.
package ptp

import (
	"context"
	"fmt"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/masquerade"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/trace"
)

// PTP is the delegates.Delegate of mode ptp.
type PTP struct {
	Conf       Conf
	Masquerade masquerade.Policy
	Namespace  *veth.Namespace // the pod's; nil on DEL
	Wait       bool            // DEL waits for the kernel's last word
}

// wiring is what the phases of one ADD hand on.
type wiring struct {
	PTP
	veth.Wire
}

// Add implements delegates.Delegate.
func (p PTP) Add(ctx context.Context, c delegates.Call) (*types100.Result, error) {
	host, err := veth.Dial()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	w := &wiring{PTP: p, Wire: veth.Wire{Call: c, Pod: p.Namespace, Host: host, Wait: p.Wait, HostAt: atHost}}
	if w.Result, err = plan(p.Conf, c); err != nil {
		return nil, err
	}
	if err := c.Journal.Plan(w.Result); err != nil {
		return nil, err
	}
	if err := trace.Rows(ctx, c.Watcher(), w.phases()...); err != nil {
		return nil, err
	}
	return w.Result, w.verify()
}

// phases is the order of one ADD; a row here is a span.
func (w *wiring) phases() []trace.Row {
	rows := []trace.Row{{Name: "veth.create", Do: w.createVeth}}
	if w.Call.Lease != nil {
		rows = append(rows, trace.Row{Name: "ipam", Do: w.lease})
	}
	rows = append(rows,
		trace.Row{Name: "gateway.ensure", Do: w.ensureGateway},
		trace.Row{Name: "address.add", Do: w.addAddresses},
		trace.Row{Name: "route.add", Do: w.addRoutes})
	return append(rows, w.Masquerade.Row(w.Call, w.Result)...)
}

func (w *wiring) createVeth(ctx context.Context) error { return w.Make(ctx, w.Conf.MTU, 0, nil) }

func (w *wiring) lease(ctx context.Context) error {
	return w.Lease(ctx, func(answer *types100.Result) error { return address(w.Result, w.Conf, answer) })
}

// ensureGateway makes the host end the pod's gateway, and gives the host a
// route to each of the pod's addresses.
func (w *wiring) ensureGateway(context.Context) error {
	var gateways []netip.Prefix
	var routes []veth.Route
	for _, l := range links(w.Result) {
		if err := veth.Ensure(veth.Forwarding(l.own)); err != nil {
			return err
		}
		gateways = append(gateways, alone(l.gateway))
		routes = append(routes, l.onHost())
	}
	if err := w.Host.AddAddresses(w.HostIndex, veth.Addressing{}, unique(gateways)...); err != nil {
		return err
	}
	return w.Host.AddRoutes(w.HostIndex, routes...)
}

func (w *wiring) addAddresses(ctx context.Context) error {
	return w.Up(ctx, veth.Addressing{NoPrefixRoute: true})
}

func (w *wiring) addRoutes(context.Context) error {
	return w.Pod.Conn().AddRoutes(w.PodIndex, append(own(w.Result), veth.Routes(w.Result)...)...)
}

// verify looks once at what was made before it is answered, and completes the
// result with what the kernel says.
func (w *wiring) verify() error {
	if err := w.Verify(); err != nil {
		return err
	}
	host, err := w.Host.LinkByIndex(w.HostIndex)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	w.Result.Interfaces[atHost].Mac, w.Result.Interfaces[atHost].Mtu = host.MAC.String(), host.MTU
	return nil
}

// Del implements delegates.Delegate. The host end's address and routes go with it.
func (p PTP) Del(ctx context.Context, c delegates.Call) error {
	rows := []trace.Row{{Name: "veth.delete", Do: func(ctx context.Context) error { return veth.Del(ctx, c, "", p.Wait) }}}
	return trace.All(ctx, c.Watcher(), append(rows, p.Masquerade.Delete(c, p.Wait)...)...)
}
