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
	if veth.Gone(err) {
		err = w.Host.CreateBridge(name, veth.BridgeMAC(name, w.Boot), w.Conf.MTU)
		if err == nil || errors.Is(err, unix.EEXIST) {
			w.bridge, err = w.Host.LinkByName(name)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	veth.Soft(ctx, veth.Sysctl{Path: "ipv6/conf/" + w.bridge.Name + "/accept_ra", Value: "0"}) // its routes are ours
	if w.bridge.Kind != "bridge" {
		return fmt.Errorf("%w: %s is not a bridge but %s", ErrConflict, name, kindOf(w.bridge))
	}
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

func kindOf(l veth.Link) string {
	if l.Kind == "" {
		return "a device"
	}
	return "of kind " + l.Kind
}

// ensureGateway gives the bridge the pod's gateway addresses, and turns
// forwarding on.
func (w *wiring) ensureGateway(context.Context) error {
	if !w.Conf.Gateway {
		return nil
	}
	all := gateways(w.Result)
	for _, gw := range all {
		if err := w.ensureAddress(gw, all); err != nil {
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
func (w *wiring) ensureAddress(gw netip.Prefix, all []netip.Prefix) error {
	if has, err := w.Host.HasAddress(w.bridge, gw); err != nil || has {
		return err
	}
	if gw.Addr().Is6() {
		conf := "ipv6/conf/" + w.bridge.Name
		if err := veth.Ensure(veth.Sysctl{Path: conf + "/disable_ipv6", Value: "0", Must: true}); err != nil {
			return err
		}
	}
	if err := w.clear(gw, all); err != nil {
		return err
	}
	if err := w.Host.AddAddresses(w.bridge.Index, veth.Addressing{}, gw); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	// A MAC that follows the ports would make the pods' neighbour entries wrong.
	return w.Host.SetMAC(w.bridge.Index, w.bridge.MAC)
}

// clear takes the addresses from the bridge that a gateway can not stand
// beside: any other IPv4 address, and an IPv6 one whose subnet overlaps.
func (w *wiring) clear(gw netip.Prefix, all []netip.Prefix) error {
	have, err := w.Host.Addresses(w.bridge.Index)
	if err != nil {
		return fmt.Errorf("%s: %w", w.Conf.Bridge, err)
	}
	for _, p := range have {
		same := p.Addr().Is4() == gw.Addr().Is4()
		if !same || slices.Contains(all, p) || gw.Addr().Is6() && !p.Overlaps(gw) {
			continue
		}
		if !w.Conf.ForceAddress {
			return fmt.Errorf("%w: %s has address %s, the gateway would be %s (forceAddress replaces it)", ErrConflict, w.Conf.Bridge, p, gw)
		}
		if err := w.Host.DropAddress(w.bridge.Index, p); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return err
		}
	}
	return nil
}
