package bridge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/trace"
)

// ensureBridge finds the bridge, or makes it. Another ADD may make it at the
// same moment: what counts is what is there in the end.
func (w *wiring) ensureBridge(ctx context.Context) (err error) {
	name := w.Conf.Bridge
	trace.Set(ctx, trace.KeyBridge.String(name))
	w.bridge, err = w.Host.LinkByName(name)
	for try := 0; (veth.Gone(err) || err == nil && w.unfinished(w.bridge)) && try < 10; try++ { // a DEL may remove it again
		if err = w.makeBridge(ctx, name); err == nil {
			w.bridge, err = w.Host.LinkByName(name)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := w.suits(); err != nil {
		return err
	}
	veth.Soft(ctx, veth.Sysctl{Path: "ipv6/conf/" + w.bridge.Name + "/accept_ra", Value: "0"}) // its routes are ours
	var flags uint32
	if !w.bridge.Up {
		flags |= unix.IFF_UP
	}
	if w.Conf.Promisc && !w.bridge.Promisc {
		flags |= unix.IFF_PROMISC
	}
	if flags == 0 {
		return nil
	}
	return w.Host.SetFlags(w.bridge.Index, flags)
}

// bridgeAlias marks a bridge that we made: only such a one is ever removed.
const bridgeAlias = "tracewire bridge"

// makeBridge makes the bridge and gives it what it cannot be made with, while
// no other ADD is about to use it; the mark comes last. It is left to be found,
// with the lock as it was.
func (w *wiring) makeBridge(ctx context.Context, name string) (err error) {
	w.unlock()
	w.unlock = func() {}
	alone, err := w.Hold(ctx, false)
	if err != nil {
		return err
	}
	err = w.makeAlone(ctx, name)
	alone()
	if err != nil {
		return err
	}
	unlock, err := w.Hold(ctx, true)
	if err == nil {
		w.unlock = unlock
	}
	return err
}

func (w *wiring) makeAlone(ctx context.Context, name string) (err error) {
	w.bridge, err = w.Host.LinkByName(name)
	if veth.Gone(err) {
		err = w.Host.CreateBridge(veth.NewBridge{Name: name, MAC: veth.BridgeMAC(name, w.Boot), MTU: w.Conf.MTU, VLANs: w.Conf.VLANs.any()})
		if err == nil || errors.Is(err, unix.EEXIST) {
			w.bridge, err = w.Host.LinkByName(name)
		}
	}
	if err != nil || !w.unfinished(w.bridge) {
		return err
	}
	if !w.Conf.DAD { // it forwards a packet to a new neighbour from its link-local address
		veth.Soft(ctx, veth.Sysctl{Path: "ipv6/conf/" + w.bridge.Name + "/accept_dad", Value: "0"})
	}
	if w.Conf.MTU != 0 {
		if err := w.pinMTU(); err != nil {
			return err
		}
	}
	return w.Host.Mark(w.bridge.Index, bridgeAlias, nil)
}

// unfinished tells that the bridge is one that we are making, or an ADD that
// was killed was.
func (b Bridge) unfinished(l veth.Link) bool {
	return l.Kind == "bridge" && l.Alias == "" && l.MAC.String() == veth.BridgeMAC(l.Name, b.Boot).String()
}

// pinMTU sets the bridge's MTU to another value and back: one that was given as
// it was made, or that it has already, follows the smallest of its ports', one
// that was changed stays (br_change_mtu of the kernel).
func (w *wiring) pinMTU() error {
	other := w.Conf.MTU ^ 1
	return errors.Join(w.Host.SetMTU(w.bridge.Index, other), w.Host.SetMTU(w.bridge.Index, w.Conf.MTU))
}

// suits is an error when what is there is not what the configuration wants. A
// bridge without a port that is up disturbs nobody when its MTU is set.
func (w *wiring) suits() error {
	b := w.bridge
	switch {
	case b.Kind != "bridge":
		return noBridge(w.Conf.Bridge, b)
	case w.Conf.VLANs.any() && !b.VLANs:
		return fmt.Errorf("%w: %s does not filter VLANs (its vlan_filtering is off, or the kernel has none), and vlan or vlanTrunk is set", ErrConflict, w.Conf.Bridge)
	case w.Conf.MTU == 0 || w.Conf.MTU == b.MTU:
		return nil
	case !b.Carrier:
		return w.Host.SetMTU(b.Index, w.Conf.MTU)
	}
	return w.otherMTU(b)
}

func (w *wiring) otherMTU(b veth.Link) error {
	return fmt.Errorf("%w: %s has MTU %d and pods on it, the configuration has mtu %d", ErrConflict, b.Name, b.MTU, w.Conf.MTU)
}

func kindOf(l veth.Link) string {
	if l.Kind == "" {
		return "a device"
	}
	return "of kind " + l.Kind
}

// ensureGateway gives the bridge the pod's gateway addresses, and turns
// forwarding on.
func (w *wiring) ensureGateway(ctx context.Context) error {
	if !w.Conf.Gateway || len(w.Result.IPs) == 0 {
		return nil
	}
	at, err := w.gatewayOf(ctx)
	if err != nil {
		return err
	}
	all := gateways(w.Result)
	for _, gw := range all {
		if err := w.ensureAddress(at, gw, all); err != nil {
			return err
		}
		if err := veth.Ensure(veth.Forwarding(gw.Addr())); err != nil {
			return err
		}
	}
	return nil
}

// ensureAddress adds one gateway address that is not there yet. What stands in
// its way is an error, or goes when forceAddress is set. all is what this
// network itself has.
func (w *wiring) ensureAddress(at veth.Link, gw netip.Prefix, all []netip.Prefix) error {
	if has, err := w.Host.HasAddress(at, gw); err != nil || has {
		return err
	}
	if gw.Addr().Is6() {
		conf := "ipv6/conf/" + at.Name
		if err := veth.Ensure(veth.Sysctl{Path: conf + "/disable_ipv6", Value: "0", Must: true}); err != nil {
			return err
		}
	}
	if err := w.clear(at, gw, all); err != nil {
		return err
	}
	if err := w.Host.AddAddresses(at.Index, veth.Addressing{}, gw); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	w.gateway, w.fresh = at.Index, append(w.fresh, gw)
	// A MAC that follows the ports would make the pods' neighbour entries wrong.
	return w.Host.SetMAC(at.Index, at.MAC)
}

// clear takes the addresses from the bridge that a gateway cannot stand
// beside.
func (w *wiring) clear(at veth.Link, gw netip.Prefix, all []netip.Prefix) error {
	have, err := w.Host.Addresses(at.Index)
	if err != nil {
		return fmt.Errorf("%s: %w", at.Name, err)
	}
	for _, p := range have {
		if slices.Contains(all, p) || !veth.InTheWay(p, gw) {
			continue
		}
		if !w.Conf.ForceAddress {
			return fmt.Errorf("%w: %s has address %s, the gateway would be %s (forceAddress replaces it)", ErrConflict, at.Name, p, gw)
		}
		if err := w.Host.DropAddress(at.Index, p); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return err
		}
	}
	return nil
}
