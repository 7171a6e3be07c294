package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates/veth"
)

// maxVLAN is the last id of a VLAN (IEEE 802.1Q).
const maxVLAN = 4094

// VLANs is what a port carries.
type VLANs struct {
	ID          int   // of frames without a tag, 0 for none
	Trunk       []int // of frames with a tag, in order
	KeepDefault bool  // VLAN 1, which the kernel gives each port, stays
}

func (v VLANs) any() bool { return v.ID != 0 || len(v.Trunk) > 0 }

// readVLANs reads vlan, vlanTrunk and preserveDefaultVlan.
func readVLANs(doc *conflist.Value) (v VLANs) {
	doc.At("vlan").Number(&v.ID, maxVLAN)
	doc.At("preserveDefaultVlan").Into(&v.KeepDefault)
	if trunk := doc.At("vlanTrunk"); trunk.Given() {
		for _, item := range trunk.Each() {
			v.Trunk = append(v.Trunk, trunkItem(item)...)
		}
	}
	slices.Sort(v.Trunk)
	v.Trunk = slices.Compact(v.Trunk)
	return v
}

// trunkItem reads one id, or a range of them from minID to maxID.
func trunkItem(item *conflist.Value) (ids []int) {
	read := func(key string) (n int) {
		v := item.At(key)
		v.Number(&n, maxVLAN)
		if v.Given() && n == 0 {
			v.Fail(fmt.Sprintf("must be 1 to %d", maxVLAN))
		}
		return n
	}
	id, first, last := read("id"), read("minID"), read("maxID")
	if id != 0 {
		ids = append(ids, id)
	}
	if (first == 0) != (last == 0) {
		item.Fail("must have both minID and maxID")
		return ids
	}
	if first > last {
		item.At("minID").Fail(fmt.Sprintf("must not be greater than maxID %d", last))
		return ids
	}
	for n := first; n != 0 && n <= last; n++ {
		ids = append(ids, n)
	}
	return ids
}

// ofPort is what the port of a pod gets and loses: without an id of its own a
// trunk's frames without a tag are of VLAN 1.
func (v VLANs) ofPort() (drop, add []veth.VLAN) {
	if !v.any() {
		return nil, nil
	}
	if !v.KeepDefault {
		drop = []veth.VLAN{{ID: 1}}
	}
	native := v.ID
	if native == 0 {
		native = 1
	}
	add = []veth.VLAN{{ID: native, Native: true, Untagged: true}}
	for _, id := range v.Trunk {
		if id != native {
			add = append(add, veth.VLAN{ID: id})
		}
	}
	return drop, add
}

// gatewayOf is the interface that has the gateway's addresses: the bridge, or
// where the pods are on a VLAN the host's end of a pair on it, named
// <bridge>.<vlan>, as the reference has it. It is the network's and stays.
func (w *wiring) gatewayOf(ctx context.Context) (veth.Link, error) {
	if w.Conf.VLANs.ID == 0 {
		return w.bridge, nil
	}
	name := vlanGateway(w.bridge.Name, w.Conf)
	l, err := w.Host.LinkByName(name)
	if veth.Gone(err) {
		if err = w.makeGateway(name); err == nil || errors.Is(err, unix.EEXIST) {
			l, err = w.Host.LinkByName(name)
		}
	}
	if err == nil && !l.Up { // it is turned on last
		err = w.finishGateway(ctx, l)
	}
	if err != nil {
		return l, fmt.Errorf("%s: %w", name, err)
	}
	w.Result.Interfaces = append(w.Result.Interfaces, &types100.Interface{Name: l.Name, Mac: l.MAC.String(), Mtu: l.MTU})
	return l, nil
}

// vlanGateway is the name of a VLAN's gateway on a bridge, "" for none.
func vlanGateway(bridge string, c Conf) string {
	if !c.Gateway || c.VLANs.ID == 0 {
		return ""
	}
	return fmt.Sprintf("%s.%d", bridge, c.VLANs.ID)
}

// portOf is the port of a gateway's pair.
func portOf(gateway string) string { return veth.HostNames(gateway)[0] }

func (w *wiring) makeGateway(name string) error {
	own, err := veth.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer own.Close()
	return w.Host.Create(veth.Pair{
		Host: portOf(name), Pod: name, HostMAC: veth.HostMAC(name), PodMAC: veth.BridgeMAC(name, w.Boot),
		MTU: w.bridge.MTU, Bridge: w.bridge.Index, Namespace: own,
	})
}

func (w *wiring) finishGateway(ctx context.Context, gateway veth.Link) error {
	port := portOf(gateway.Name)
	index, err := w.Host.Index(port)
	if err != nil {
		return err
	}
	drop, add := VLANs{ID: w.Conf.VLANs.ID, KeepDefault: w.Conf.VLANs.KeepDefault}.ofPort()
	if err := w.Host.SetVLANs(index, drop, add); err != nil {
		return err
	}
	veth.Soft(ctx, veth.Sysctl{Path: "ipv6/conf/" + port + "/accept_ra", Value: "0"})
	return w.Host.SetUp(gateway.Index)
}
