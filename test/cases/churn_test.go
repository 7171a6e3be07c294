//go:build linux

package cases

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/bridge"
	"github.com/tracewire/tracewire/delegates/masquerade"
	"github.com/tracewire/tracewire/delegates/ptp"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/ipam"
	"github.com/tracewire/tracewire/test/attach"
)

// TestChecksWhileOthersComeAndGo: a thousand CHECKs of one attachment, of them
// fifty by the plugin, while ports of others join and leave the bridge and the
// host, and other pods are attached and detached: no false alarm, and none that
// cannot look; no ADD or DEL of theirs fails (plugins#1121, aws#3461, bond-cni#158,
// cilium#48718: lists that the kernel interrupts).
func TestChecksWhileOthersComeAndGo(t *testing.T) {
	for name, set := range map[string]map[string]string{
		"bridge": {"isDefaultGateway": "true", "ipMasq": "true", "macspoofchk": "true", "hairpinMode": "true", "ipam.ranges": dual},
		"ptp":    {"tracewire.mode": `"ptp"`, "ipMasq": "true", "ipam.ranges": dual, "ipam.routes": `[{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]`},
	} {
		t.Run(name, func(t *testing.T) { checks(t, set) })
	}
}

// churnTime bounds the checks of one mode, which take some 2 s.
const churnTime = 14 * time.Second

func checks(t *testing.T, set map[string]string) {
	const checks, byPlugin, turns = 1000, 50, 20
	s := attached(t, set)
	if len(s.made.Interfaces) == 2 { // ptp: a bridge for the others' ports
		if err := linked("host", "tb0", "bridge", "")(s); err != nil {
			t.Fatal(err)
		}
	}
	stop := make(chan struct{})
	var came [2]atomic.Int64
	others := churn(t, s, stop, &came)
	look := s.inProcess(t)
	ctx, cancel := context.WithTimeout(t.Context(), churnTime)
	defer cancel()
	stdin, env := []byte(s.input()), s.Environment("CHECK", s.a)
	done := 0
	for ; ctx.Err() == nil && (done < checks || came[0].Load() < turns || came[1].Load() < turns); done++ {
		if err := look(ctx); err != nil {
			t.Errorf("check %d: %v", done, err)
		}
		if done%(checks/byPlugin) != 0 {
			continue
		}
		if _, err := s.Run(ctx, "tracewire", stdin, env); err != nil {
			t.Errorf("check %d by the plugin: %s", done, describe(err))
		}
	}
	close(stop)
	for range cap(others) {
		if err := <-others; err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d checks, %d ports and %d pods came and went", done, came[0].Load(), came[1].Load())
	if done < checks || came[0].Load() == 0 || came[1].Load() == 0 {
		t.Errorf("only %d checks, %d ports and %d pods in %s", done, came[0].Load(), came[1].Load(), churnTime)
	}
	s.Exec.Calls() // the others'
	if err := s.run("DEL"); err != nil {
		t.Error(describe(err))
	}
	nothingLeft(t, s.Node)
}

// churn lets ports and pods come and go until it is stopped, and counts them.
func churn(t *testing.T, s *scene, stop chan struct{}, came *[2]atomic.Int64) chan error {
	t.Helper()
	pod, err := s.Pod("pod2")
	if err != nil {
		t.Fatal(err)
	}
	other := attach.Attachment{ContainerID: "c2", IfName: "eth0", NetNS: s.PodPath("pod2")}
	stdin := []byte(conf(t, s.Node, s.set))
	host, err := ns.GetCurrentNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(host.Close(), pod.Close()) })
	out := make(chan error, 2)
	for i, turn := range []func(int) error{
		func(n int) error { return joinAndLeave(fmt.Sprint("other", n%7)) },
		func(int) error {
			ctx, cancel := context.WithTimeout(context.Background(), stepTime)
			defer cancel()
			for _, verb := range []string{"ADD", "DEL"} {
				if _, err := s.Run(ctx, "tracewire", stdin, s.Environment(verb, other)); err != nil {
					return fmt.Errorf("%s: %s", verb, describe(err))
				}
			}
			return nil
		},
	} {
		go func() {
			out <- host.Do(func(ns.NetNS) error {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return nil
					default:
					}
					if err := turn(n); err != nil {
						return err
					}
					came[i].Add(1)
				}
			})
		}()
	}
	return out
}

// joinAndLeave is a pair that is a port of the bridge for a moment.
func joinAndLeave(name string) error {
	if err := change(name, "veth", ""); err != nil {
		return err
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return errors.Join(change(name, "master", "tb0"), change(name, "mtu", "1400"), change(name, "up", ""), change(name+"-peer", "up", ""),
		netlink.LinkSetNoMaster(l), netlink.LinkDel(l))
}

// inProcess is what the plugin does of a CHECK, without a start of its own.
func (s *scene) inProcess(t *testing.T) func(context.Context) error {
	t.Helper()
	call := delegates.Call{Attachment: delegates.Attachment{Network: "net", ContainerID: s.a.ContainerID, IfName: s.a.IfName}, NetNS: s.a.NetNS, Before: s.made}
	r, err := cache.Dir{Path: filepath.Join(s.Dir, "state", "attachments")}.Read(call.Attachment)
	if err != nil || r.State != cache.Attached {
		t.Fatalf("record %s, error %v", r.State, err)
	}
	call.Made = r.Made(cache.BootID())
	doc := conflist.Read(r.Conf)
	leases, keys := ipam.Parse(doc, nil), bridge.Parse(doc, nil)
	masq := masquerade.Parse(doc, "net", keys.Bridge, leases.Subnets())
	if err := doc.Err(); err != nil {
		t.Fatal(err)
	}
	pod, err := veth.Open(s.a.NetNS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pod.Close)
	var main delegates.Delegate = bridge.Bridge{Conf: keys, Masquerade: masq, Namespace: pod}
	if conflist.Parse(doc).Tracewire.Mode == "ptp" {
		masq = masquerade.Parse(doc, "net", "", leases.Subnets())
		main = ptp.PTP{Conf: ptp.Parse(doc), Masquerade: masq, Namespace: pod}
	}
	return func(ctx context.Context) error { return errors.Join(main.Check(ctx, call), leases.Check(ctx, call)) }
}
