package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// Del removes an attachment. What is gone already is success. The record goes
// with Close.
func (c *Chain) Del(ctx context.Context, call delegates.Call) error {
	c.distrust(ctx)
	r, err := c.read(ctx, call.Attachment, nil)
	if err != nil {
		return err
	}
	trace.Link(ctx, trace.ParseContext(r.Span))
	if err := c.remove(ctx, r, call); err != nil {
		return fmt.Errorf("%w: %w", ErrLeft, err)
	}
	return nil
}

// distrust warns of a state directory that an ADD would refuse. What is there is
// taken back all the same.
func (c *Chain) distrust(ctx context.Context) {
	if err := c.Records.Trusted(); err != nil {
		trace.Warn(ctx, "the next ADD will fail", trace.KeyError.String(err.Error()))
	}
}

// remove takes back what a record stands for, with the configuration that its
// ADD used. What cannot be written down keeps nothing from being freed.
func (c *Chain) remove(ctx context.Context, r cache.Record, call delegates.Call) error {
	opened := c.open(ctx, r, call.Attachment)
	c.endLeft(ctx, r)
	if len(r.Conf) > 0 {
		call.Conf, call.Args = r.Conf, r.Args
	}
	call.Made = r.Made(c.Boot)
	if r.State == cache.Interrupted && len(call.Prev) > 0 {
		call.Made.Known = false // the runtime had an answer: the record lost its end
	}
	if !call.Made.Known {
		call.Before = delegates.Salvage(call.Prev)
		if call.Before == nil && call.Made.ThisBoot {
			call.Before = call.Made.Result
		}
	}
	steps, err := c.Build(call.Conf, call.Args)
	if err != nil {
		trace.Warn(ctx, "configuration has errors: what can be read of it is used", trace.KeyError.String(err.Error()))
	}
	call.NetNS, call.Absent = c.sandbox(steps, r, call)
	return errors.Join(opened, c.down(ctx, steps, call))
}

// removeNow is remove in the middle of an operation that goes on: the record
// goes at once.
func (c *Chain) removeNow(ctx context.Context, r cache.Record, call delegates.Call) error {
	defer c.let()
	if err := c.remove(ctx, r, call); err != nil || c.journal == nil {
		return err
	}
	return c.forget(ctx)
}

// let lets go of the record of one attachment, before the next one's turn.
func (c *Chain) let() {
	if c.journal != nil && c.journal.Record().State == cache.Deleting {
		_ = c.journal.Told() // the operation goes on, and will tell of itself
	}
	if c.journal != nil {
		_ = c.journal.Close() // usually it is removed by now
	}
	c.journal = nil
}

// sandbox is what executed plugins are told of the pod's namespace.
func (c *Chain) sandbox(s Steps, r cache.Record, call delegates.Call) (netns string, absent bool) {
	if !s.executes() {
		return call.NetNS, false
	}
	return c.Sandbox(r, call.Attachment, call.NetNS)
}

// open opens the record to be written, tells of an operation that was killed in
// the midst of it, and writes down who takes it back now.
func (c *Chain) open(ctx context.Context, r cache.Record, a delegates.Attachment) (err error) {
	if r.State == cache.None {
		return nil
	}
	if c.journal, err = c.Records.Open(r, a, c.Start); err != nil {
		return err
	}
	c.Tell(ctx, r)
	if err := c.journal.Deleting(c.Operation); err != nil {
		trace.Warn(ctx, "record cannot be written", trace.KeyError.String(err.Error()))
	}
	return nil
}

// endLeft ends what the plugins of a killed operation left running, which may go
// on making things that nobody would take back. That it was told of by now, as the
// agent does, ends nothing.
func (c *Chain) endLeft(ctx context.Context, r cache.Record) {
	killed := r.State == cache.Interrupted || r.State == cache.Deleting
	if !killed || len(r.Steps) == 0 || r.Boot != c.Boot {
		return
	}
	if ended := delegates.EndLeft(r.Span, r.Deleting); len(ended) > 0 {
		trace.Warn(ctx, "an earlier operation was killed: what its plugins left running is ended", trace.KeyProcesses.StringSlice(ended))
	}
}

// undo takes back a failed ADD, the step that failed too.
func (c *Chain) undo(ctx context.Context, s Steps, call delegates.Call) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	err := trace.Run(ctx, "undo", func(ctx context.Context) error {
		call.Made = c.journal.Record().Made(c.Boot)
		if call.Made.Result != nil {
			call.Prev = nil // the runtime's is of the plugins before us
		}
		call.NetNS, call.Absent = c.sandbox(s, *c.journal.Record(), call)
		if c.barren {
			s.IPAM = nil
		}
		if c.taken {
			s.Main = nil
		}
		return c.down(ctx, s, call)
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUndone, err)
	}
	return nil
}

// down runs the steps backward, past failures, and writes down that nothing is
// left that the record stands for. The interface goes before its address,
// so that no address is free while the old pod answers on it.
func (c *Chain) down(ctx context.Context, s Steps, call delegates.Call) error {
	call.Journal, call.Lease = nil, nil
	if c.journal != nil {
		call.Journal = lenient{c.journal, func(err error) {
			trace.Warn(ctx, "record cannot be written", trace.KeyError.String(err.Error()))
		}}
	}
	var errs []error
	for _, step := range s.backward() {
		errs = append(errs, c.one(ctx, trace.Row{Name: step.Name, Do: func(ctx context.Context) error { return step.Del(ctx, call) }}))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if c.journal != nil {
		if err := row(ctx, "cache.delete", func(context.Context) error { return c.end(ctx) }); err != nil {
			return err
		}
	}
	return c.last(ctx, s, call.Attachment)
}

// end writes down that nothing is left. On a disk that is full the record has to
// go without.
func (c *Chain) end(ctx context.Context) error {
	if err := c.journal.Ended(); err != nil {
		trace.Warn(ctx, "record cannot be written", trace.KeyError.String(err.Error()))
		return c.journal.Remove()
	}
	return nil
}

// forget removes the record, and what the network's attachments shared where
// another DEL at the same time left that to us.
func (c *Chain) forget(ctx context.Context) error {
	a := c.journal.Record().Attachment
	if err := c.journal.Remove(); err != nil {
		return err
	}
	if c.leave == nil || !c.Records.Empty(a.Network) {
		return nil
	}
	return c.leave(ctx)
}

// backward is the steps in the order of their DEL.
func (s Steps) backward() (out []Step) {
	for _, d := range slices.Backward(s.Delegates) {
		out = append(out, d)
	}
	own := []Step{{s.Name, s.Main}, {"ipam", s.IPAM}}
	if s.Early {
		slices.Reverse(own)
	}
	return append(out, slices.DeleteFunc(own, func(s Step) bool { return s.Delegate == nil })...)
}

// last removes what the network's attachments shared, where no other one is left.
func (c *Chain) last(ctx context.Context, s Steps, a delegates.Attachment) error {
	if s.Last == nil || c.peopled || !s.Shares && !c.Records.Marked(a.Network) {
		return nil
	}
	c.leave = func(ctx context.Context) error {
		unlock, err := c.Network(ctx, a.Network, false)
		if err != nil {
			return err
		}
		defer unlock()
		if only, err := c.Records.Only(a); err != nil || !only {
			return err
		}
		if err := row(ctx, "network.remove", s.Last); err != nil {
			return err
		}
		c.leave = nil
		return c.Records.Unmark(a.Network)
	}
	if only, err := c.Records.Only(a); err != nil || !only { // whoever goes last will see to it
		return err
	}
	return c.leave(ctx)
}

// one runs one step. It has its turn also when another used up the time or
// panicked.
func (c *Chain) one(ctx context.Context, step trace.Row) error {
	if ctx.Err() != nil {
		if c.late.IsZero() {
			c.late = time.Now().Add(cmp.Or(c.grace, undoTime)) // for all that come after, together
		}
		half := time.Until(c.late) / 2 // the other is theirs who come after this one
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), half)
		defer cancel()
		ctx = late
	}
	return Guard(ctx, func() error { return trace.Rows(ctx, nil, step) })
}

// lenient is the journal of a DEL: phases that cannot be written down on a
// full disk keep nothing from being freed.
type lenient struct {
	*cache.Journal
	warn func(error)
}

func (l lenient) Begin(phase, span string) error { return l.told(l.Journal.Begin(phase, span)) }
func (l lenient) End(phase string) error         { return l.told(l.Journal.End(phase)) }

func (l lenient) Ran(step string, how delegates.Ran, durable bool) error {
	return l.told(l.Journal.Ran(step, how, durable))
}

func (l lenient) told(err error) error {
	if err != nil {
		l.warn(err)
	}
	return nil
}
