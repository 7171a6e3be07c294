package chain

import (
	"context"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// turn is how many records of an earlier boot are taken back before IPAM is
// asked again.
const turn = 8

// reclaim takes back attachments of an earlier boot, of which only records are
// left, until IPAM has an address. It is asked again also where none is left:
// another ADD may have done the same meanwhile.
func (c *Chain) reclaim(ctx context.Context, s Steps, call delegates.Call) (r *types100.Result, err error) {
	dead, err := c.dead(ctx, call.Network)
	if err != nil {
		trace.Warn(ctx, "records of an earlier boot cannot be told", trace.KeyError.String(err.Error()))
	}
	removed := 0
	for {
		n := min(turn, len(dead))
		for _, old := range dead[:n] {
			if c.takeBack(ctx, old, call) {
				removed++
			}
		}
		dead = dead[n:]
		if r, err = s.IPAM.Add(ctx, call); len(dead) == 0 || !s.short(err) || ctx.Err() != nil {
			break
		}
	}
	if removed > 0 {
		trace.Set(ctx, trace.KeyRemoved.Int(removed))
	}
	return r, err
}

// short tells that IPAM failed for want of an address.
func (s Steps) short(err error) bool { return err != nil && s.Short != nil && s.Short(err) }

// dead is the records of an earlier boot whose attachments nobody else knows to
// live. Without a boot id there are none.
func (c *Chain) dead(ctx context.Context, network string) (out []cache.Stored, err error) {
	h, err := c.Holders(ctx, network)
	if err != nil {
		return nil, err
	}
	for _, r := range h.Records {
		if r.Earlier(c.Boot) && !h.Known(r.Attachment) {
			out = append(out, r)
		}
	}
	return out, nil
}

// takeBack is a DEL of an attachment of an earlier boot in the middle of an ADD.
// One that came back meanwhile stays.
func (c *Chain) takeBack(ctx context.Context, old cache.Stored, call delegates.Call) (gone bool) {
	other := *c
	other.journal, other.leave = nil, nil
	call.Attachment, call.NetNS, call.Prev = old.Attachment, old.NetNS, nil
	call.IPAM, call.Before, call.Journal = nil, nil, nil
	spare := func(_ context.Context, r cache.Record) (bool, error) { return !r.Earlier(c.Boot), nil }
	gone, err := other.removeOne(ctx, call, spare)
	if gone {
		tellGone(ctx, trace.ByReclaim, old.Attachment)
	}
	if err != nil {
		trace.Warn(ctx, "an attachment of an earlier boot cannot be taken back", trace.KeyError.String(err.Error()))
	}
	return gone
}
