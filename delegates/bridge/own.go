package bridge

import (
	"context"
	"slices"
	"strings"

	"github.com/tracewire/tracewire/delegates/veth"
)

// Made is a bridge that we made, of whichever network.
type Made struct {
	Name  string
	Ends  []string // aliases of ports that are host ends of ours
	Ports []string // names of those that are neither that nor a gateway's
}

// Own lists the bridges that are marked as ours.
func Own() (out []Made, err error) {
	host, err := veth.Dial()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	all, err := host.Interfaces()
	for _, l := range all {
		if l.Kind == "bridge" && l.Alias == bridgeAlias {
			out = append(out, made(l, all))
		}
	}
	return out, err
}

func made(bridge veth.Link, all []veth.Link) Made {
	m := Made{Name: bridge.Name}
	gateways := gatewayPorts(bridge.Name, all)
	for _, l := range all {
		switch {
		case l.Master != bridge.Index || slices.Contains(gateways, l.Name):
		case veth.Owner(l.Alias) != "":
			m.Ends = append(m.Ends, l.Alias)
		default:
			m.Ports = append(m.Ports, l.Name)
		}
	}
	return m
}

// gatewayPorts is the ports of VLANs' gateways on a bridge.
func gatewayPorts(bridge string, all []veth.Link) (out []string) {
	for _, l := range all {
		if strings.HasPrefix(l.Name, bridge+".") {
			out = append(out, portOf(l.Name))
		}
	}
	return out
}

// Remove removes a bridge of ours that has no port, and its VLANs' gateways with
// it. One that has a port, or is not ours by now, stays: gone is false then. Who
// calls it has its lock, so that no ADD is about to use it.
func Remove(ctx context.Context, name string) (gone bool, err error) {
	host, err := veth.Dial()
	if err != nil {
		return false, err
	}
	defer host.Close()
	all, err := host.Interfaces()
	if err != nil {
		return false, err
	}
	at := slices.IndexFunc(all, func(l veth.Link) bool { return l.Name == name })
	if at < 0 {
		return true, nil
	}
	if all[at].Kind != "bridge" || all[at].Alias != bridgeAlias {
		return false, nil
	}
	if m := made(all[at], all); len(m.Ports)+len(m.Ends) > 0 {
		return false, nil
	}
	gateways := gatewayPorts(name, all)
	for _, l := range all {
		if l.Master == all[at].Index && slices.Contains(gateways, l.Name) { // the gateway goes with its port
			if _, err := host.Remove(ctx, l.Index, true); err != nil {
				return false, err
			}
		}
	}
	_, err = host.Remove(ctx, all[at].Index, true)
	return err == nil, err
}

// LockKey is the lock that ADD shares while it uses a bridge.
func LockKey(name string) string { return "bridge " + name }
