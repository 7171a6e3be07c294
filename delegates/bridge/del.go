package bridge

import (
	"context"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/trace"
)

// Del implements delegates.Delegate.
func (b Bridge) Del(ctx context.Context, c delegates.Call) error {
	return trace.Rows(ctx, c.Watcher(), trace.Row{Name: "veth.delete", Do: func(ctx context.Context) error {
		return veth.Del(ctx, c, b.Conf.Bridge, b.Wait)
	}})
}
