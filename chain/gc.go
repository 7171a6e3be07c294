package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// gcPatience bounds the wait for each attachment's lock: the others' turn must
// not depend on one that hangs.
const gcPatience = 2 * time.Second

// turn is one's part of the time that is left, where n have yet to come: what hangs
// leaves the others theirs. It is a quarter at least, so that many who come after
// do not cut short one that is slow. What is left of one when its turn is over has
// as long again.
func (c *Chain) turn(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok || n <= 1 || ctx.Err() != nil {
		return ctx, func() {}
	}
	left := time.Until(end)
	part := max(left/time.Duration(n), left/4)
	before := c.late
	c.late, c.grace = time.Time{}, min(part, undoTime)
	turn, cancel := context.WithTimeout(ctx, part)
	return turn, func() { cancel(); c.late, c.grace = before, 0 }
}

// GC removes what stands for attachments of a network that are not among valid:
// their records, as a DEL does, then what is left without one. It goes on past
// errors and tells all of them. A living attachment that another runtime made is
// spared. runtime is the executable of the one that asks.
func (c *Chain) GC(ctx context.Context, call delegates.Call, valid []delegates.Attachment, runtime string) error {
	steps, err := c.Build(call.Conf, call.Args)
	if err != nil {
		trace.Warn(ctx, "configuration has errors: what can be read of it is used", trace.KeyError.String(err.Error()))
	}
	c.distrust(ctx)
	c.peopled = len(valid) > 0
	kept, err := c.collect(ctx, call, valid, runtime)
	errs := []error{err}
	kept.Leases, err = steps.stale(call.Network, kept)
	errs = append(errs, err)
	all := steps.backward()
	for i, step := range all {
		if steps.holds(step) && errors.Join(errs...) != nil {
			continue // an address is free only once nobody answers on it
		}
		turn, over := c.turn(ctx, len(all)-i)
		errs = append(errs, c.one(turn, trace.Row{Name: step.Name, Do: func(ctx context.Context) error { return step.GC(ctx, call, kept) }}))
		over()
	}
	errs = append(errs, c.last(ctx, steps, call.Attachment))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", ErrLeft, err)
	}
	return nil
}

// lessor is an IPAM step that can tell what it has given.
type lessor interface {
	Leases(network string) ([]delegates.Lease, error)
}

// stale is the addresses of attachments that are not kept, where IPAM can tell.
func (s Steps) stale(network string, k delegates.Kept) ([]delegates.Lease, error) {
	l, ok := s.IPAM.(lessor)
	if !ok {
		return nil, nil
	}
	all, err := l.Leases(network)
	return slices.DeleteFunc(all, func(l delegates.Lease) bool { return k.Has(l.Attachment) }), err
}

// holds tells that a step is IPAM, and can tell what it has given.
func (s Steps) holds(step Step) bool {
	_, ok := step.Delegate.(lessor)
	return ok
}

// told is how many attachments of one GC have spans of their own. A runtime that
// lost thousands must not make a line that no reader takes.
const told = 256

// collect removes the records of attachments that are not valid, with all that
// they stand for. Kept is what has to stay all the same.
func (c *Chain) collect(ctx context.Context, call delegates.Call, valid []delegates.Attachment, runtime string) (kept delegates.Kept, err error) {
	kept = delegates.Kept{All: slices.Clone(valid), Recorded: c.Records.Recorded}
	var all []cache.Stored
	errs := []error{row(ctx, "cache.list", func(ctx context.Context) (err error) {
		all, err = c.Records.Of(call.Network)
		return c.without(ctx, err)
	})}
	removed := 0
	stale, err := c.notValid(ctx, all, valid)
	errs = append(errs, err)
	recorded := false
	spare := func(ctx context.Context, r cache.Record) (bool, error) {
		recorded = r.State != cache.None
		return c.anothers(ctx, r, runtime)
	}
	for i, r := range stale {
		if ctx.Err() != nil {
			errs = append(errs, fmt.Errorf("%d of %d records were not looked at: %w", len(stale)-i, len(all), ctx.Err()))
			for _, r := range stale[i:] {
				kept.All = append(kept.All, r.Attachment)
			}
			break
		}
		one := call
		one.Attachment, one.NetNS, one.Prev = r.Attachment, r.NetNS, nil
		turn, over := c.turn(ctx, len(stale)-i)
		if removed >= told {
			turn = trace.Quiet(turn)
		}
		gone, err := c.removeOne(turn, one, spare)
		over()
		if gone {
			removed++
			if recorded { // else a DEL was here before
				tellGone(ctx, trace.ByGC, r.Attachment)
			}
		} else {
			kept.All = append(kept.All, r.Attachment)
		}
		errs = append(errs, err)
	}
	trace.Set(ctx, trace.KeyRemoved.Int(removed), trace.KeySpared.Int(len(kept.All)-len(valid)))
	return kept, errors.Join(errs...)
}

// tellGone tells the log of an attachment that ended without a DEL.
func tellGone(ctx context.Context, by string, a delegates.Attachment) {
	trace.TellGone(ctx, by, trace.KeyName.String(a.Network), trace.KeyID.String(a.ContainerID), trace.KeyIfName.String(a.IfName))
}

// notValid is the records of attachments that are not valid, those last whose lock
// somebody has now: who waits for it keeps nobody from their turn. A record that is
// no attachment's goes to quarantine.
func (c *Chain) notValid(ctx context.Context, all []cache.Stored, valid []delegates.Attachment) ([]cache.Stored, error) {
	var stale, locked []cache.Stored
	var errs []error
	for _, r := range all {
		switch {
		case r.State == cache.Unreadable && c.Records.Stray(r):
			errs = append(errs, c.quarantine(ctx, r.Path, errStray))
		case slices.Contains(valid, r.Attachment) || r.State == cache.Unreadable && slices.ContainsFunc(valid, c.fileOf(r)):
		case c.locked(r.Attachment):
			locked = append(locked, r)
		default:
			stale = append(stale, r)
		}
	}
	return append(stale, locked...), errors.Join(errs...)
}

// locked tells, without waiting, that somebody has an attachment's lock.
func (c *Chain) locked(a delegates.Attachment) bool {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	unlock, err := c.Lock(now, a)
	if err == nil {
		unlock()
	}
	return err != nil
}

// without passes over that there is no place for records, and so none.
func (c *Chain) without(ctx context.Context, err error) error {
	if !errors.Is(err, cache.ErrPlace) {
		return err
	}
	trace.Warn(ctx, "the next ADD will fail", trace.KeyError.String(err.Error()))
	return nil
}

var errStray = errors.New("it is no attachment's")

// fileOf tells that a record's file is an attachment's: where it cannot be read
// its name is all that tells.
func (c *Chain) fileOf(r cache.Stored) func(delegates.Attachment) bool {
	return func(a delegates.Attachment) bool { return c.Records.File(a) == r.Path }
}

// removeOne is a DEL of one attachment, in a span of its own, unless spare has it
// stay: then gone is false, too.
func (c *Chain) removeOne(ctx context.Context, call delegates.Call, spare func(context.Context, cache.Record) (bool, error)) (gone bool, err error) {
	err = c.one(ctx, trace.Row{Name: "attachment.remove", Do: func(ctx context.Context) error {
		trace.Set(ctx, trace.KeyID.String(call.ContainerID), trace.KeyIfName.String(call.IfName))
		wait, cancel := context.WithTimeout(ctx, gcPatience)
		defer cancel()
		unlock, err := c.Lock(wait, call.Attachment)
		if err != nil {
			return err
		}
		defer unlock()
		r := c.replay(ctx, call.Attachment)
		trace.Link(ctx, trace.ParseContext(r.Span))
		if stays, err := spare(ctx, r); stays || err != nil {
			return err
		}
		gone = true
		return c.removeNow(ctx, r, call)
	}})
	if err != nil {
		return false, fmt.Errorf("%s: %w", call.Attachment, err)
	}
	return gone, nil
}

// anothers tells whether a living attachment is another runtime's, which knows
// it where ours does not.
func (c *Chain) anothers(ctx context.Context, r cache.Record, runtime string) (bool, error) {
	if r.State != cache.Attached || r.Boot != c.Boot || r.Runtime == "" || runtime == "" || r.Runtime == runtime {
		return false, nil
	}
	alive, err := c.Alive(ctx, r)
	if alive {
		trace.Warn(ctx, "attachment lives and is another runtime's: it is spared", trace.KeyRuntime.String(r.Runtime))
	}
	return alive, err
}
