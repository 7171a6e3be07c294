package veth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// ErrExists marks an interface name that is taken.
var ErrExists = errors.New("interface exists")

// Wire is one attachment's pair while it is made: what bridge and ptp share.
type Wire struct {
	Call delegates.Call
	Pod  *Namespace
	Host *Conn
	Wait bool // a removal waits for the kernel's last word
	// Result is the plan, in the end what was made.
	Result *types100.Result
	HostAt int // index of the host end in Result.Interfaces; the pod's is the next

	HostIndex, PodIndex int // of the interfaces, known once they are made
}

func (w *Wire) hostEnd() *types100.Interface { return w.Result.Interfaces[w.HostAt] }
func (w *Wire) podEnd() *types100.Interface  { return w.Result.Interfaces[w.HostAt+1] }

// Make makes the pair, its host end a port of the bridge with that index, 0
// for none; then marks the host end as the attachment's.
func (w *Wire) Make(ctx context.Context, mtu, bridge int, port *Port) (err error) {
	if err := w.create(ctx, mtu, bridge); err != nil {
		return err
	}
	name := w.hostEnd().Name
	trace.Set(ctx, trace.KeyInterface.String(name), trace.KeyMAC.String(w.podEnd().Mac))
	if w.HostIndex, err = w.Host.Index(name); err != nil {
		return err
	}
	if err := w.Host.Mark(w.HostIndex, Alias(w.Call.String()), port); err != nil {
		return err
	}
	Soft(ctx, Sysctl{Path: "ipv6/conf/" + name + "/accept_ra", Value: "0"})
	if bridge == 0 { // the host forwards a packet to its new neighbour from this end's link-local address
		Soft(ctx, Sysctl{Path: "ipv6/conf/" + name + "/accept_dad", Value: "0"})
	}
	w.PodIndex, err = w.Pod.Conn().Index(w.Call.IfName)
	return err
}

// Lease asks IPAM now that the interface exists, and plans anew; put puts its
// answer into the plan.
func (w *Wire) Lease(ctx context.Context, put func(answer *types100.Result) error) error {
	answer, err := w.Call.Lease(ctx)
	if err != nil {
		return err
	}
	if err := put(answer); err != nil {
		return err
	}
	return w.Call.Journal.Plan(w.Result)
}

// create tries the names the host end may have.
func (w *Wire) create(ctx context.Context, mtu, bridge int) error {
	for _, name := range HostNames(w.Call.String()) {
		if err := w.replan(name); err != nil {
			return err
		}
		p := w.pair(mtu, bridge)
		err := w.Host.Create(p)
		if err == nil || !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err := w.Pod.Vacant(w.Host, w.Call.IfName); err != nil {
			return delegates.Taken{Err: err}
		}
		if made, err := w.debris(ctx, p); made || err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: both names of the host end are taken: %v", ErrExists, HostNames(w.Call.String()))
}

// replan writes another name of the host end down before it is used.
func (w *Wire) replan(name string) error {
	if w.hostEnd().Name == name {
		return nil
	}
	w.hostEnd().Name = name
	return w.Call.Journal.Plan(w.Result)
}

func (w *Wire) pair(mtu, bridge int) Pair {
	host, pod := w.hostEnd(), w.podEnd()
	return Pair{
		Host: host.Name, Pod: pod.Name, HostMAC: parseMAC(host.Mac), PodMAC: parseMAC(pod.Mac),
		MTU: mtu, Bridge: bridge, Namespace: w.Pod,
	}
}

// parseMAC reads a MAC of a plan.
func parseMAC(text string) net.HardwareAddr {
	m, _ := net.ParseMAC(text)
	return m
}

// debris removes an interface of the host end's name that is this
// attachment's own, its record lost, and makes the pair anew. A stranger's stays.
func (w *Wire) debris(ctx context.Context, p Pair) (made bool, err error) {
	l, err := w.Host.LinkByName(p.Host)
	if Gone(err) || err == nil && l.Alias != Alias(w.Call.String()) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	trace.Warn(ctx, "removed an interface of this attachment that no record had", trace.KeyInterface.String(p.Host))
	if _, err := w.Host.Remove(ctx, l.Index, w.Wait); err != nil {
		return false, err
	}
	return true, w.Host.Create(p)
}

// Up gives the pod's end its addresses, then turns it on: the kernel announces
// them as it comes up. Duplicate address detection that is left on is waited for.
func (w *Wire) Up(ctx context.Context, how Addressing) error {
	how.Up = true
	want := Prefixes(w.Result.IPs)
	texts := make([]string, len(want))
	v6 := false
	for i, p := range want {
		texts[i] = p.String()
		v6 = v6 || p.Addr().Is6()
	}
	trace.Set(ctx, trace.KeyAddresses.StringSlice(texts))
	return w.Pod.Do(func() error {
		Soft(ctx, announce(w.Call.IfName, v6, how.DAD)...)
		if v6 {
			if err := Ensure(enable6(w.Call.IfName)...); err != nil {
				return err
			}
		}
		pod := w.Pod.Conn()
		if err := pod.AddAddresses(w.PodIndex, how, want...); err != nil {
			return err
		}
		if v6 && how.DAD {
			return pod.WaitDAD(ctx, w.PodIndex, want...)
		}
		return pod.WaitLocal(ctx, w.PodIndex, want...)
	})
}

// TurnOn turns the pod's end on, before it has addresses.
func (w *Wire) TurnOn(ctx context.Context, dad bool) error {
	return w.Pod.Do(func() error {
		Soft(ctx, announce(w.Call.IfName, false, dad)...)
		return w.Pod.Conn().AddAddresses(w.PodIndex, Addressing{Up: true})
	})
}

// announce is the settings that must be there before the interface comes up.
func announce(ifname string, v6, dad bool) []Sysctl {
	conf := "ipv6/conf/" + ifname
	s := []Sysctl{{Path: "ipv4/conf/" + ifname + "/arp_notify", Value: "1"}}
	if dad {
		s = append(s, Sysctl{Path: conf + "/enhanced_dad", Value: "1"}, Sysctl{Path: conf + "/accept_dad", Value: "1"})
	} else {
		s = append(s, Sysctl{Path: conf + "/accept_dad", Value: "0"})
	}
	if v6 {
		s = append(s, Sysctl{Path: conf + "/ndisc_notify", Value: "1"}, Sysctl{Path: conf + "/keep_addr_on_down", Value: "1"})
	}
	return s
}

func enable6(ifname string) []Sysctl {
	return []Sysctl{
		{Path: "ipv6/conf/lo/disable_ipv6", Value: "0", Must: true},
		{Path: "ipv6/conf/" + ifname + "/disable_ipv6", Value: "0", Must: true},
	}
}

// Forwarding is the setting that lets packets of an address's family pass
// through the host.
func Forwarding(a netip.Addr) Sysctl {
	if a.Is4() {
		return Sysctl{Path: "ipv4/ip_forward", Value: "1", Must: true}
	}
	return Sysctl{Path: "ipv6/conf/all/forwarding", Value: "1", Must: true}
}

// Soft sets what is good to have: what fails is told in span and log, no more.
func Soft(ctx context.Context, settings ...Sysctl) {
	for _, s := range settings {
		if err := Ensure(s); err != nil {
			trace.Warn(ctx, "sysctl not set", trace.KeySysctl.String(s.Path), trace.KeyError.String(err.Error()))
		}
	}
}

// ErrNotReady marks what was made and did not come up as it should.
var ErrNotReady = errors.New("interface is not as it was made")

// Verify looks once at the pod's end, and tells whether the path still names
// the namespace that was opened. It completes the plan with what the kernel says.
func (w *Wire) Verify() error {
	return w.verify(true, w.Pod.Conn().LinkByIndex)
}

// VerifyDown is Verify for an end that is left down.
func (w *Wire) VerifyDown() error {
	return w.verify(false, w.Pod.Conn().LinkByIndex)
}

// Announce is Verify, and tells the segment who has the addresses now: others
// may know their last holder's MAC. What the kernel said as the end came up was
// lost where the bridge's port did not forward yet.
func (w *Wire) Announce() error {
	return w.verify(true, func(index int) (Link, error) { return w.Pod.Conn().Announce(index, parseMAC(w.podEnd().Mac)) })
}

func (w *Wire) verify(up bool, look func(index int) (Link, error)) error {
	pod, err := look(w.PodIndex)
	if err != nil {
		return fmt.Errorf("verify %s: %w", w.Call.IfName, err)
	}
	if want := w.podEnd().Mac; pod.Up != up || pod.MAC.String() != want {
		return fmt.Errorf("%w: %s is up: %t, expected %t, has MAC %s, expected %s", ErrNotReady, pod.Name, pod.Up, up, pod.MAC, want)
	}
	w.podEnd().Mtu = pod.MTU
	return w.Pod.Still()
}
