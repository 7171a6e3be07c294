package bridge

import (
	"context"
	"errors"
	"slices"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/macspoof"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/trace"
)

// GC implements delegates.Delegate: what is left of attachments that have no
// record any more. macspoofchk's rules name no network, so they are found by
// the interfaces that went, and by what is reserved.
func (b Bridge) GC(ctx context.Context, c delegates.Call, k delegates.Kept) error {
	var gone []delegates.Attachment
	return trace.All(ctx, nil,
		trace.Row{Name: "veth.delete", Do: func(ctx context.Context) (err error) {
			gone, err = veth.GC(ctx, c.Network, b.Conf.Bridge, k, b.Wait)
			return err
		}},
		trace.Row{Name: "macspoof.delete", Do: func(ctx context.Context) error {
			var errs []error
			for _, l := range k.Leases {
				if !slices.Contains(gone, l.Attachment) {
					gone = append(gone, l.Attachment)
				}
			}
			for _, a := range gone {
				errs = append(errs, macspoof.Check{ContainerID: a.ContainerID, IfName: a.IfName}.Remove(ctx, b.Wait))
			}
			return errors.Join(errs...)
		}},
		trace.Row{Name: "masquerade.delete", Do: func(ctx context.Context) error { return b.Masquerade.GC(ctx, c, k, b.Wait) }})
}
