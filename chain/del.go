package chain

import (
	"context"
	"errors"
	"fmt"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// Del removes an attachment. What is gone already is success. span is the
// traceparent of the operation.
func (c *Chain) Del(ctx context.Context, call delegates.Call, span string) error {
	r, err := c.read(ctx, call.Attachment, nil)
	if err != nil {
		return err
	}
	trace.Link(ctx, trace.ParseContext(r.Span))
	if err := c.remove(ctx, r, call, func() error { return c.journal.Deleting(span) }); err != nil {
		return fmt.Errorf("%w: %w", ErrLeft, err)
	}
	return nil
}

// remove takes back what a record stands for, with the configuration that its
// ADD used. What can not be written down keeps nothing from being freed: first
// is called with the journal open, and its error is a warning.
func (c *Chain) remove(ctx context.Context, r cache.Record, call delegates.Call, first ...func() error) error {
	var opened error
	if r.State != cache.None {
		c.journal, opened = c.Records.Open(r, call.Attachment, c.Start)
	}
	for _, f := range first {
		if c.journal == nil {
			break
		}
		if err := f(); err != nil {
			trace.Warn(ctx, "record can not be written", trace.KeyError.String(err.Error()))
		}
	}
	if len(r.Conf) > 0 {
		call.Conf, call.Args = r.Conf, r.Args
	}
	call.Made = r.Made(c.Boot)
	if !call.Made.Known {
		call.Before = delegates.Salvage(call.Prev)
	}
	steps, err := c.Build(call.Conf, call.Args)
	if err != nil {
		trace.Warn(ctx, "configuration has errors: what can be read of it is used", trace.KeyError.String(err.Error()))
	}
	return errors.Join(opened, c.down(ctx, steps, call))
}

// undo takes back a failed ADD, the step that failed too.
func (c *Chain) undo(ctx context.Context, s Steps, call delegates.Call) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	err := trace.Run(ctx, "undo", func(ctx context.Context) error {
		call.Made = c.journal.Record().Made(c.Boot)
		return c.down(ctx, s, call)
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUndone, err)
	}
	return nil
}

// down runs the steps backward, past failures, and removes the record when
// nothing is left that it stands for. The interface goes before its address,
// so that no address is free while the old pod answers on it.
func (c *Chain) down(ctx context.Context, s Steps, call delegates.Call) error {
	call.Journal, call.Lease = nil, nil
	steps := []trace.Row{{Name: s.Name, Do: func(ctx context.Context) error { return s.Main.Del(ctx, call) }}}
	if s.IPAM != nil {
		ipam := trace.Row{Name: "ipam", Do: func(ctx context.Context) error { return s.IPAM.Del(ctx, call) }}
		if steps = append(steps, ipam); s.Early {
			steps[0], steps[1] = steps[1], steps[0]
		}
	}
	var errs []error
	for _, step := range steps {
		errs = append(errs, trace.Rows(ctx, nil, step))
	}
	if err := errors.Join(errs...); err != nil || c.journal == nil {
		return err
	}
	return row(ctx, "cache.delete", func(context.Context) error { return c.journal.Remove() })
}
