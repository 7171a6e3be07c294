package bridge

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/macspoof"
	"github.com/tracewire/tracewire/delegates/veth"
)

// check is one CHECK.
type check struct {
	Bridge
	veth.Check
	bridge veth.Link // zero where it is missing
	alone  bool      // the host end is no bridge's port
}

// Check implements delegates.Delegate. What differs is a delegates.Findings;
// another error tells that it could not look.
func (b Bridge) Check(ctx context.Context, c delegates.Call) error {
	host, err := veth.Dial()
	if err != nil {
		return err
	}
	defer host.Close()
	k := &check{Bridge: b, Check: veth.Check{Call: c, Pod: b.Namespace, Host: host, Down: b.Conf.Down, Refuses: !b.Conf.ForceAddress}}
	if k.bridge, err = host.LinkByName(b.Conf.Bridge); err != nil && !veth.Gone(err) {
		return err
	}
	// The configuration, or the record since, may name it by an alternative one.
	if err := k.Look(k.port, b.Conf.Bridge, k.bridge.Name); err != nil {
		return err
	}
	for _, look := range []func(context.Context) error{k.segment, k.gateway, k.spoofing} {
		if err := look(ctx); err != nil {
			return err
		}
	}
	if err := b.Masquerade.Check(ctx, c, k.Find); err != nil {
		return err
	}
	return k.Result(ctx)
}

// onOff is a switch in words.
func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// port compares the host end as a port of the bridge. All is in the answers
// that were read already.
func (k *check) port(end veth.Link) error {
	k.alone = end.Master == 0
	if k.bridge.Index == 0 {
		return nil
	}
	if end.Master != k.bridge.Index {
		found := "no port"
		if end.Master != 0 {
			found = fmt.Sprintf("a port of interface %d", end.Master)
		}
		k.Find("host.master", end.Name+" a port of "+k.bridge.Name, found, func() error { return k.putPort(end) })
		return nil
	}
	stopped := end.Stopped()
	for _, f := range []struct {
		code            string
		wrong           bool
		expected, found string
		attribute       uint16
		value           byte
	}{
		{"port.state", stopped != "" && k.bridge.Up, "forwarding", stopped, unix.IFLA_BRPORT_STATE, veth.StateForwarding}, // a bridge that is down disables them all
		{"port.hairpin", k.Conf.Hairpin && !end.Port.Hairpin, "hairpin on", "off", unix.IFLA_BRPORT_MODE, 1},
		{"port.isolation", k.Conf.Isolated != end.Port.Isolated, "isolation " + onOff(k.Conf.Isolated), onOff(end.Port.Isolated), unix.IFLA_BRPORT_ISOLATED, bit(k.Conf.Isolated)},
		{"port.learning", !end.Port.Learning, "learning on", "off", unix.IFLA_BRPORT_LEARNING, 1},
	} {
		if f.wrong {
			k.Find(f.code, end.Name+": "+f.expected, f.found, func() error { return k.Host.SetPort(end.Index, f.attribute, f.value) })
		}
	}
	if err := k.vlans(end); err != nil {
		return err
	}
	return k.mtu(end)
}

// vlans compares the port's VLANs, where the configuration names some: those
// that ADD gave it, and VLAN 1 that it took away.
func (k *check) vlans(end veth.Link) error {
	drop, add := k.Conf.VLANs.ofPort()
	if len(add) == 0 || !k.bridge.VLANs { // that is the bridge's own finding
		return nil
	}
	have, err := k.Host.VLANs(end.Index)
	if err != nil {
		return err
	}
	lost := slices.ContainsFunc(add, func(v veth.VLAN) bool { return !slices.Contains(have, v) })
	kept := slices.ContainsFunc(have, func(v veth.VLAN) bool {
		is := func(w veth.VLAN) bool { return w.ID == v.ID }
		return slices.ContainsFunc(drop, is) && !slices.ContainsFunc(add, is)
	})
	if lost || kept {
		k.Find("port.vlan", end.Name+": VLANs "+vlanTexts(add), vlanTexts(have), func() error { return k.Host.SetVLANs(end.Index, drop, add) })
	}
	return nil
}

// vlanTexts is VLANs as bridge(8) shows them.
func vlanTexts(vlans []veth.VLAN) string {
	if len(vlans) == 0 {
		return "none"
	}
	texts := make([]string, len(vlans))
	for i, v := range vlans {
		texts[i] = fmt.Sprint(v.ID)
		if v.Native {
			texts[i] += " PVID"
		}
		if v.Untagged {
			texts[i] += " untagged"
		}
	}
	return strings.Join(texts, ", ")
}

// looks is how often a bridge's MTU and its ports' are looked at: between the two
// looks the port that it followed may leave.
const looks = 5

// mtu finds a bridge whose MTU is smaller than the pod's. One that the
// configuration does not name may follow the smallest of the bridge's ports,
// whoever's that is: only then they are listed.
func (k *check) mtu(end veth.Link) error {
	b := k.bridge
	for range looks {
		if b.MTU >= end.MTU {
			return nil
		}
		if k.Conf.MTU != 0 {
			break
		}
		ports, err := k.Host.Ports(b.Index)
		if err != nil || slices.ContainsFunc(ports, func(p veth.Link) bool { return p.MTU <= b.MTU }) {
			return err
		}
		if b, err = k.Host.LinkByIndex(b.Index); err != nil {
			return err
		}
	}
	k.Find("bridge.mtu", fmt.Sprintf("%s with mtu %d", b.Name, end.MTU), fmt.Sprint(b.MTU), func() error { return k.Host.SetMTU(b.Index, end.MTU) })
	return nil
}

// segment compares the bridge itself. One that was renamed goes on under its new
// name: it is not put beside another.
func (k *check) segment(ctx context.Context) error {
	switch b := k.bridge; {
	case b.Index == 0 && k.alone:
		k.Find("bridge.missing", "bridge "+k.Conf.Bridge, "none", func() error { return k.ensureBridge(ctx) })
	case b.Index == 0:
		k.Find("bridge.missing", "bridge "+k.Conf.Bridge, "none", nil)
	case b.Kind != "bridge":
		k.Find("bridge.missing", "bridge "+k.Conf.Bridge, kindOf(b), nil)
	case !b.Up:
		k.Find("bridge.down", b.Name+" up", "down", func() error { return k.Host.SetUp(b.Index) })
	case k.Conf.VLANs.any() && !b.VLANs:
		k.Find("bridge.vlan", b.Name+": VLAN filtering on", "off", nil)
	}
	return nil
}

// gateway looks for the gateway's addresses, and whether the host passes the
// pod's packets on.
func (k *check) gateway(ctx context.Context) error {
	want := slices.DeleteFunc(gateways(k.Made()), func(p netip.Prefix) bool { return !p.IsValid() })
	if !k.Conf.Gateway || len(want) == 0 {
		return nil
	}
	var addresses []netip.Addr
	for _, p := range want {
		addresses = append(addresses, p.Addr())
	}
	if err := k.Forwarding(addresses...); err != nil || k.bridge.Index == 0 {
		return err
	}
	give := func(netip.Prefix) error { return k.ensureGateway(ctx) }
	name := vlanGateway(k.bridge.Name, k.Conf)
	if name == "" {
		return k.Gateway(k.bridge, give, want...)
	}
	at, err := k.Host.LinkByName(name)
	switch {
	case veth.Gone(err):
		k.Find("gateway.missing", name+" up with "+want[0].String(), "none", func() error { return give(want[0]) })
		return nil
	case err == nil && !at.Up:
		k.Find("gateway.missing", name+" up with "+want[0].String(), "down", func() error { return give(want[0]) })
		return nil
	case err != nil:
		return err
	}
	return k.Gateway(at, give, want...)
}

// spoofing looks for macspoofchk's rules, which are made for the MAC that ADD
// gave before any delegated plugin.
func (k *check) spoofing(ctx context.Context) error {
	if !k.Conf.MACSpoof {
		return nil
	}
	name := k.Call.String()
	macs := append(k.MACs(), k.Conf.MAC, veth.PodMAC(name, nil), veth.PodMAC(name, veth.Prefixes(k.Made().IPs)))
	lacking, err := macspoof.Check{ContainerID: k.Call.ContainerID, IfName: k.Call.IfName}.Lacking(macs)
	if err == nil && lacking != "" {
		k.Find("macspoofchk.missing", "rules that drop frames of another MAC than the pod's", lacking, func() error { return k.ensureMACSpoof(ctx, macs[0]) })
	}
	return err
}

// putPort makes the host end the bridge's port again, as ADD did.
func (k *check) putPort(end veth.Link) error {
	if err := k.Host.SetMaster(end.Index, k.bridge.Index); err != nil {
		return err
	}
	if err := k.Host.Mark(end.Index, veth.Alias(k.Call.String()), k.Conf.port()); err != nil {
		return err
	}
	drop, add := k.Conf.VLANs.ofPort()
	return k.Host.SetVLANs(end.Index, drop, add)
}

// wiring is what ADD had, for what it would do once more.
func (k *check) wiring() *wiring {
	return &wiring{Bridge: k.Bridge, Wire: veth.Wire{Call: k.Call, Host: k.Host, Result: k.Made()}, bridge: k.bridge}
}

func (k *check) ensureBridge(ctx context.Context) (err error) {
	w := k.wiring()
	if w.unlock, err = k.Hold(ctx, true); err != nil {
		return err
	}
	defer func() { w.unlock() }()
	return w.ensureBridge(ctx)
}

func (k *check) ensureGateway(ctx context.Context) error { return k.wiring().ensureGateway(ctx) }

func (k *check) ensureMACSpoof(ctx context.Context, mac net.HardwareAddr) error {
	host := k.HostName(k.Conf.Bridge, k.bridge.Name)
	return macspoof.Check{ContainerID: k.Call.ContainerID, IfName: k.Call.IfName, Interface: host, MAC: mac}.Ensure(ctx)
}

func bit(on bool) byte {
	if on {
		return 1
	}
	return 0
}
