// Package bridge makes a pod's interface as a port of a Linux bridge.
package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/macspoof"
	"github.com/tracewire/tracewire/delegates/masquerade"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/trace"
)

// ErrConflict marks a bridge that is not as the configuration wants it.
var ErrConflict = errors.New("bridge conflict")

// portPatience bounds the wait for the bridge's port to forward.
const portPatience = 3 * time.Second

// bridgePatience bounds the wait for the bridge itself, which is up as soon as
// the kernel's worker has heard of its first port: packets of the host's own
// are lost before.
const bridgePatience = time.Second

// Bridge is the delegates.Delegate of mode bridge.
type Bridge struct {
	Conf       Conf
	Masquerade masquerade.Policy
	Namespace  *veth.Namespace // the pod's; nil on DEL
	Boot       string          // boot id
	Wait       bool            // DEL waits for the kernel's last word
	// Hold takes the bridge's lock, which all networks on it share: while an ADD
	// holds it, shared, no DEL, which holds it alone, removes the bridge.
	Hold func(ctx context.Context, shared bool) (unlock func(), err error)
	// Vacant is the address that Station found no station for last; it belongs to the
	// operation. Nil where nobody asks.
	Vacant *netip.Addr
}

// wiring is what the phases of one ADD hand on.
type wiring struct {
	Bridge
	veth.Wire
	bridge veth.Link
	unlock func() // the bridge's lock, held until it has the pod's port

	gateway int            // index of the interface that has the gateway's addresses
	fresh   []netip.Prefix // those that this ADD added
}

// Add implements delegates.Delegate.
func (b Bridge) Add(ctx context.Context, c delegates.Call) (*types100.Result, error) {
	host, err := veth.Dial()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	w := &wiring{Bridge: b, Wire: veth.Wire{Call: c, Pod: b.Namespace, Host: host, Wait: b.Wait, HostAt: atHost}}
	if w.Result, err = plan(b.Conf, c); err != nil {
		return nil, err
	}
	if err := c.Journal.Plan(w.Result); err != nil {
		return nil, err
	}
	if w.unlock, err = b.Hold(ctx, true); err != nil {
		return nil, err
	}
	defer func() { w.unlock() }()
	if err := trace.Rows(ctx, c.Watcher(), w.phases()...); err != nil {
		return nil, err
	}
	return w.Result, w.verify(ctx)
}

// phases is the order of one ADD; a row here is a span. Where IPAM answers
// only once the interface exists, all that needs addresses comes after it.
func (w *wiring) phases() []trace.Row {
	ensure := trace.Row{Name: "bridge.ensure", Do: w.ensureBridge}
	gateway := trace.Row{Name: "gateway.ensure", Do: w.ensureGateway}
	create := trace.Row{Name: "veth.create", Do: w.createVeth}
	address := trace.Row{Name: "address.add", Do: w.addAddresses}
	route := trace.Row{Name: "route.add", Do: w.addRoutes}
	rows := []trace.Row{ensure, gateway, create, address, route}
	if w.Call.Lease != nil {
		rows = []trace.Row{ensure, create, {Name: "ipam", Do: w.lease}, gateway, address, route}
	}
	if w.Conf.MACSpoof {
		rows = append(rows, trace.Row{Name: "macspoof.ensure", Do: w.ensureMACSpoof})
	}
	return append(rows, w.Masquerade.Row(w.Call, w.Result)...)
}

// ensureMACSpoof drops frames of the pod that come from another MAC.
func (w *wiring) ensureMACSpoof(ctx context.Context) error {
	host, pod := w.Result.Interfaces[atHost], w.Result.Interfaces[atPod]
	mac, err := net.ParseMAC(pod.Mac)
	if err != nil {
		return err
	}
	return macspoof.Check{ContainerID: w.Call.ContainerID, IfName: w.Call.IfName, Interface: host.Name, MAC: mac}.Ensure(ctx)
}

// createVeth makes the pair as a port of the bridge.
func (w *wiring) createVeth(ctx context.Context) error {
	if err := w.ownMAC(); err != nil {
		return err
	}
	if err := w.Make(ctx, w.Conf.MTU, w.bridge.Index, w.Conf.port()); err != nil {
		return err
	}
	w.unlock()
	w.unlock = func() {}
	drop, add := w.Conf.VLANs.ofPort()
	return w.Host.SetVLANs(w.HostIndex, drop, add)
}

// ownMAC plans another MAC for the pod where the bridge has a station of the one
// that follows from the address, which the runtime asked for, or nobody looked.
func (w *wiring) ownMAC() error {
	pod := w.Result.Interfaces[atPod]
	own := veth.PodMAC(w.Call.String(), nil)
	if w.Conf.MAC != nil || pod.Mac == own.String() || w.vacant() {
		return nil
	}
	planned, err := net.ParseMAC(pod.Mac)
	if err != nil {
		return err
	}
	if used, err := w.Host.Learned(w.bridge.Index, planned); err != nil || !used {
		return err
	}
	pod.Mac = own.String()
	return w.Call.Journal.Plan(w.Result)
}

// known tells that a neighbour entry which outlived the pod's predecessor is
// right: the MAC follows from the only address.
func (w *wiring) known() bool {
	own := veth.Prefixes(w.Result.IPs)
	return len(own) == 1 && w.Result.Interfaces[atPod].Mac == veth.PodMAC(w.Call.String(), own).String()
}

// lease asks for addresses through the interface, which dhcp does once: a packet
// that comes before the port forwards is lost, and the next goes 10 s later.
func (w *wiring) lease(ctx context.Context) error {
	if err := w.TurnOn(ctx, w.Conf.DAD); err != nil {
		return err
	}
	if _, err := w.Host.WaitPort(ctx, w.HostIndex, portPatience); err != nil {
		return err
	}
	return w.Lease(ctx, func(answer *types100.Result) error { return address(w.Result, w.Conf, answer) })
}

func (w *wiring) addAddresses(ctx context.Context) error {
	if w.Conf.Down {
		return nil
	}
	return w.Up(ctx, veth.Addressing{DAD: w.Conf.DAD})
}

func (w *wiring) addRoutes(context.Context) error {
	return w.Pod.Conn().AddRoutes(w.PodIndex, veth.Routes(w.Result)...)
}

// verify looks once at what was made before it is answered, and completes the
// result with what the kernel says: MACs and MTUs. The pod's end comes last: it
// announces its addresses once the port forwards.
func (w *wiring) verify(ctx context.Context) error {
	settle := func() (veth.Link, error) { return w.Host.WaitPort(ctx, w.HostIndex, portPatience) }
	verify := w.Verify
	if !w.known() {
		verify = w.Announce
	}
	if w.Conf.Down {
		settle = func() (veth.Link, error) { return w.Host.LinkByIndex(w.HostIndex) }
		verify = w.VerifyDown
	}
	host, err := settle()
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	bridge, err := w.Host.WaitUp(ctx, w.bridge.Index, bridgePatience, w.Conf.Down || !host.Forwards())
	if err != nil {
		return fmt.Errorf("verify %s: %w", w.Conf.Bridge, err)
	}
	if err := w.Host.WaitLocal(ctx, w.gateway, w.fresh...); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	if w.Conf.MTU != 0 && bridge.MTU != w.Conf.MTU { // two first ADDs at once
		return w.otherMTU(bridge)
	}
	if host.Master != bridge.Index {
		return fmt.Errorf("%w: %s is a port of interface %d, expected %d", veth.ErrNotReady, host.Name, host.Master, bridge.Index)
	}
	w.Result.Interfaces[atBridge].Name = bridge.Name // the configuration may have named it by an alternative one
	for i, l := range []veth.Link{atBridge: bridge, atHost: host} {
		w.Result.Interfaces[i].Mac, w.Result.Interfaces[i].Mtu = l.MAC.String(), l.MTU
	}
	return verify()
}
