package bridge

import (
	"context"

	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/trace"
)

// addAddresses gives the pod's end its addresses, then turns it on: the kernel
// announces them as it comes up.
func (w *wiring) addAddresses(ctx context.Context) error {
	want := prefixes(w.result.IPs)
	texts := make([]string, len(want))
	v6 := false
	for i, p := range want {
		texts[i] = p.String()
		v6 = v6 || p.Addr().Is6()
	}
	trace.Set(ctx, trace.KeyAddresses.StringSlice(texts))
	return w.Namespace.Do(func() error {
		w.soft(ctx, announce(w.call.IfName, v6, w.Conf.DAD)...)
		if v6 {
			if err := veth.Ensure(enable6(w.call.IfName)...); err != nil {
				return err
			}
		}
		pod := w.Namespace.Conn()
		if err := pod.AddAddresses(w.pod, true, w.Conf.DAD, want...); err != nil {
			return err
		}
		if v6 && w.Conf.DAD {
			return pod.WaitDAD(ctx, w.pod, want...)
		}
		return nil
	})
}

// announce is the settings that must be there before the interface comes up.
func announce(ifname string, v6, dad bool) []veth.Sysctl {
	conf := "ipv6/conf/" + ifname
	s := []veth.Sysctl{{Path: "ipv4/conf/" + ifname + "/arp_notify", Value: "1"}}
	if dad {
		s = append(s, veth.Sysctl{Path: conf + "/enhanced_dad", Value: "1"}, veth.Sysctl{Path: conf + "/accept_dad", Value: "1"})
	} else {
		s = append(s, veth.Sysctl{Path: conf + "/accept_dad", Value: "0"})
	}
	if v6 {
		s = append(s, veth.Sysctl{Path: conf + "/ndisc_notify", Value: "1"}, veth.Sysctl{Path: conf + "/keep_addr_on_down", Value: "1"})
	}
	return s
}

func enable6(ifname string) []veth.Sysctl {
	return []veth.Sysctl{
		{Path: "ipv6/conf/lo/disable_ipv6", Value: "0", Must: true},
		{Path: "ipv6/conf/" + ifname + "/disable_ipv6", Value: "0", Must: true},
	}
}

func (w *wiring) addRoutes(context.Context) error {
	return w.Namespace.Conn().AddRoutes(w.pod, routes(w.result)...)
}
