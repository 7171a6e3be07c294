package ptp

import (
	"context"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/trace"
)

// GC implements delegates.Delegate: what is left of attachments that have no
// record any more.
func (p PTP) GC(ctx context.Context, c delegates.Call, k delegates.Kept) error {
	return trace.All(ctx, nil,
		trace.Row{Name: "veth.delete", Do: func(ctx context.Context) error {
			_, err := veth.GC(ctx, c.Network, "", k, p.Wait)
			return err
		}},
		trace.Row{Name: "masquerade.delete", Do: func(ctx context.Context) error { return p.Masquerade.GC(ctx, c, k, p.Wait) }})
}
