// Package bridge makes a pod's interface as a port of a Linux bridge.
package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/trace"
)

var (
	// ErrConflict marks a bridge that is not as the configuration wants it.
	ErrConflict = errors.New("bridge conflict")
	// ErrNotReady marks what was made and did not come up as it should.
	ErrNotReady = errors.New("interface is not as it was made")
	// ErrExists marks an interface name that is taken in the pod.
	ErrExists = errors.New("interface exists")
)

// portPatience bounds the wait for the bridge's port to forward.
const portPatience = 3 * time.Second

// Bridge is the delegates.Delegate of mode bridge.
type Bridge struct {
	Conf      Conf
	Namespace *veth.Namespace // the pod's; nil on DEL
	Boot      string          // boot id
	Wait      bool            // DEL waits for the kernel's last word
}

// wiring is what the phases of one ADD hand on.
type wiring struct {
	Bridge
	call   delegates.Call
	host   *veth.Conn
	bridge veth.Link
	end    int // index of the host end
	pod    int // index of the pod's end
	result *types100.Result
}

// Add implements delegates.Delegate.
func (b Bridge) Add(ctx context.Context, c delegates.Call) (*types100.Result, error) {
	host, err := veth.Dial()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	w := &wiring{Bridge: b, call: c, host: host}
	if w.result, err = plan(b.Conf, c); err != nil {
		return nil, err
	}
	if err := c.Journal.Plan(w.result); err != nil {
		return nil, err
	}
	if err := trace.Rows(ctx, c.Watcher(), w.phases()...); err != nil {
		return nil, err
	}
	return w.result, w.verify(ctx)
}

// phases is the order of one ADD; a row here is a span. Where IPAM answers
// only once the interface exists, all that needs addresses comes after it.
func (w *wiring) phases() []trace.Row {
	ensure := trace.Row{Name: "bridge.ensure", Do: w.ensureBridge}
	gateway := trace.Row{Name: "gateway.ensure", Do: w.ensureGateway}
	create := trace.Row{Name: "veth.create", Do: w.createVeth}
	address := trace.Row{Name: "address.add", Do: w.addAddresses}
	route := trace.Row{Name: "route.add", Do: w.addRoutes}
	if w.call.Lease == nil {
		return []trace.Row{ensure, gateway, create, address, route}
	}
	return []trace.Row{ensure, create, {Name: "ipam", Do: w.lease}, gateway, address, route}
}

// lease asks IPAM now that the interface exists, and plans anew.
func (w *wiring) lease(ctx context.Context) error {
	answer, err := w.call.Lease(ctx)
	if err != nil {
		return err
	}
	if err := address(w.result, w.Conf, answer); err != nil {
		return err
	}
	return w.call.Journal.Plan(w.result)
}

// verify looks once at what was made before it is answered, and completes the
// result with what the kernel says: MACs and MTUs.
func (w *wiring) verify(ctx context.Context) error {
	pod, err := w.Namespace.Conn().LinkByIndex(w.pod)
	if err != nil {
		return fmt.Errorf("verify %s: %w", w.call.IfName, err)
	}
	bridge, err := w.host.LinkByIndex(w.bridge.Index)
	if err != nil {
		return fmt.Errorf("verify %s: %w", w.Conf.Bridge, err)
	}
	host, err := w.host.WaitPort(ctx, w.end, portPatience) // last: the port needs a moment
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	if want := w.result.Interfaces[atPod].Mac; !pod.Up || pod.MAC.String() != want || host.Master != bridge.Index {
		return fmt.Errorf("%w: %s is up: %t, has MAC %s, expected %s; %s is a port of interface %d, expected %d",
			ErrNotReady, pod.Name, pod.Up, pod.MAC, want, host.Name, host.Master, bridge.Index)
	}
	w.result.Interfaces[atBridge].Name = bridge.Name // the configuration may have named it by an alternative one
	for i, l := range []veth.Link{atBridge: bridge, atHost: host, atPod: pod} {
		w.result.Interfaces[i].Mac, w.result.Interfaces[i].Mtu = l.MAC.String(), l.MTU
	}
	return w.Namespace.Still()
}
