package bridge

import (
	"context"

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
	if b.Conf.MACSpoof {
		rows = append(rows, trace.Row{Name: "macspoof.delete", Do: func(ctx context.Context) error {
			return macspoof.Check{ContainerID: c.ContainerID, IfName: c.IfName}.Remove(ctx, b.Wait)
		}})
	}
	return trace.All(ctx, c.Watcher(), append(rows, b.Masquerade.Delete(c, b.Wait)...)...)
}
