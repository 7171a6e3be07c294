package bridge

import (
	"context"
	"slices"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/macspoof"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/trace"
)

// Del implements delegates.Delegate.
func (b Bridge) Del(ctx context.Context, c delegates.Call) error {
	rows := []trace.Row{{Name: "veth.delete", Do: func(ctx context.Context) error {
		return veth.Del(ctx, c, b.Conf.Bridge, b.Wait)
	}}}
	if b.Conf.MACSpoof || !c.Made.Known {
		rows = append(rows, trace.Row{Name: "macspoof.delete", Do: func(ctx context.Context) error {
			err := macspoof.Check{ContainerID: c.ContainerID, IfName: c.IfName}.Remove(ctx, b.Wait)
			if err != nil && !b.Conf.MACSpoof { // only in case that the list lost it since
				trace.Warn(ctx, "cannot look for macspoofchk's rules", trace.KeyError.String(err.Error()))
				return nil
			}
			return err
		}})
	}
	return trace.All(ctx, c.Watcher(), append(rows, b.Masquerade.Delete(c, b.Wait)...)...)
}

// Leave removes the bridge when the configuration asks for it, we made it, and
// no port is left on it, of any network. It is called after the network's last
// attachment is gone.
func (b Bridge) Leave(ctx context.Context) error {
	if !b.Conf.RemoveBridge {
		return nil
	}
	unlock, err := b.Hold(ctx, false)
	if err != nil {
		return err
	}
	defer unlock()
	host, err := veth.Dial()
	if err != nil {
		return err
	}
	defer host.Close()
	l, err := host.LinkByName(b.Conf.Bridge)
	if veth.Gone(err) || err == nil && (l.Kind != "bridge" || l.Alias != bridgeAlias && !b.unfinished(l)) {
		return nil
	}
	if err != nil {
		return err
	}
	ports, err := host.Ports(l.Index)
	gateway := vlanGateway(l.Name, b.Conf)
	if err != nil || slices.ContainsFunc(ports, func(p veth.Link) bool { return gateway == "" || p.Name != portOf(gateway) }) {
		return err
	}
	for _, p := range ports { // the gateway goes with its port
		if _, err := host.Remove(ctx, p.Index, b.Wait); err != nil {
			return err
		}
	}
	_, err = host.Remove(ctx, l.Index, b.Wait)
	return err
}
