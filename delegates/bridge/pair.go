package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/trace"
)

// createVeth makes the pair, and then marks its host end as ours.
func (w *wiring) createVeth(ctx context.Context) error {
	if err := w.create(ctx); err != nil {
		return err
	}
	name := w.result.Interfaces[atHost].Name
	trace.Set(ctx, trace.KeyInterface.String(name), trace.KeyMAC.String(w.result.Interfaces[atPod].Mac))
	var err error
	if w.end, err = w.host.Index(name); err != nil {
		return err
	}
	port := veth.Port{Hairpin: w.Conf.Hairpin, Isolated: w.Conf.Isolated}
	if err := w.host.Mark(w.end, veth.Alias(w.call.String()), &port); err != nil {
		return err
	}
	w.soft(ctx, veth.Sysctl{Path: "ipv6/conf/" + name + "/accept_ra", Value: "0"})
	w.pod, err = w.Namespace.Conn().Index(w.call.IfName)
	return err
}

// create tries the names the host end may have.
func (w *wiring) create(ctx context.Context) error {
	for _, name := range veth.HostNames(w.call.String()) {
		if err := w.replan(name); err != nil {
			return err
		}
		err := w.host.Create(w.pair())
		if err == nil || !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err := w.taken(); err != nil {
			return err
		}
		if made, err := w.debris(ctx, name); made || err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: both names of the host end are taken: %v", ErrExists, veth.HostNames(w.call.String()))
}

// replan writes another name of the host end down before it is used.
func (w *wiring) replan(name string) error {
	host := w.result.Interfaces[atHost]
	if host.Name == name {
		return nil
	}
	host.Name = name
	return w.call.Journal.Plan(w.result)
}

func (w *wiring) pair() veth.Pair {
	host, pod := w.result.Interfaces[atHost], w.result.Interfaces[atPod]
	return veth.Pair{
		Host: host.Name, Pod: pod.Name, HostMAC: mac(host.Mac), PodMAC: mac(pod.Mac),
		MTU: w.Conf.MTU, Bridge: w.bridge.Index, Namespace: w.Namespace,
	}
}

// taken is an error when the pod has an interface of that name, and says whose it is.
func (w *wiring) taken() error {
	l, err := w.Namespace.Conn().LinkByName(w.call.IfName)
	if veth.Gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	owner := "somebody else's"
	if l.Kind == "veth" && l.Peer != 0 {
		if peer, err := w.host.LinkByIndex(l.Peer); err == nil && peer.Peer == l.Index && veth.Owner(peer.Alias) != "" {
			owner = "owned by " + veth.Owner(peer.Alias)
		}
	}
	return fmt.Errorf("%w: %s in %s, %s", ErrExists, w.call.IfName, w.Namespace.Path, owner)
}

// debris removes an interface of the host end's name that is this
// attachment's own, its record lost, and makes the pair anew. A stranger's stays.
func (w *wiring) debris(ctx context.Context, name string) (made bool, err error) {
	l, err := w.host.LinkByName(name)
	if veth.Gone(err) || err == nil && l.Alias != veth.Alias(w.call.String()) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	trace.Warn(ctx, "removed an interface of this attachment that no record had", trace.KeyInterface.String(name))
	if _, err := w.host.Remove(ctx, l.Index, w.Wait); err != nil {
		return false, err
	}
	return true, w.host.Create(w.pair())
}

// mac reads a MAC that this package wrote.
func mac(text string) net.HardwareAddr {
	m, _ := net.ParseMAC(text)
	return m
}
