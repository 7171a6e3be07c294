package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// EnvRestore is the environment variable that asks a CHECK, by the value 1, to put
// right what it finds: what ADD made and that is gone, or is another by now. It
// is for the repairs of an audit; no runtime sets it.
const EnvRestore = "TRACEWIRE_RESTORE"

// Check compares an attachment with its record. All that differs is in the
// error, as delegates.Findings.
func (c *Chain) Check(ctx context.Context, call delegates.Call) error {
	r, err := c.read(ctx, call.Attachment, nil)
	if err != nil {
		return err
	}
	trace.Link(ctx, trace.ParseContext(r.Span))
	if len(r.Conf) > 0 {
		call.Conf, call.Args = r.Conf, r.Args
	}
	call.Made = r.Made(c.Boot)
	steps, err := c.Build(call.Conf, call.Args)
	if err != nil {
		return err
	}
	if call.Restore {
		if err := c.restore(ctx, steps, call); err != nil {
			return err
		}
		call.Restore = false
	}
	return check(ctx, steps, call)
}

func check(ctx context.Context, steps Steps, call delegates.Call) error {
	var errs []error
	for _, step := range steps.forward() {
		errs = append(errs, row(ctx, step.Name, func(ctx context.Context) error { return step.Check(ctx, call) }))
	}
	return findings(errs)
}

// passes bounds how often a CHECK puts right what it finds: what one pass makes,
// as a bridge, lets the next one see what it lacks.
const passes = 3

// restore puts right what a CHECK finds. What is left of it is found by another.
func (c *Chain) restore(ctx context.Context, steps Steps, call delegates.Call) error {
	if !call.Made.Known || !call.Made.ThisBoot {
		return fmt.Errorf("%w: %s", ErrUnrecorded, call.Attachment)
	}
	call.Shared = func(ctx context.Context) (func(), error) { return c.share(ctx, call.Network) }
	return row(ctx, "restore", func(ctx context.Context) error {
		for range passes {
			err := check(ctx, steps, call)
			if err == nil || !errors.As(err, &delegates.Findings{}) {
				return err
			}
		}
		return nil
	})
}

// forward is the steps in the order of their CHECK: the interface, then what
// else it needs.
func (s Steps) forward() []Step {
	own := []Step{{s.Name, s.Main}, {"ipam", s.IPAM}}
	return slices.Concat(slices.DeleteFunc(own, func(s Step) bool { return s.Delegate == nil }), s.Delegates)
}

// findings puts the steps' findings into one; an error of another kind, that
// one could not look, goes before them.
func findings(errs []error) error {
	var all delegates.Findings
	var other []error
	for _, err := range errs {
		var f delegates.Findings
		if errors.As(err, &f) {
			all = append(all, f...)
		} else if err != nil {
			other = append(other, err)
		}
	}
	if len(other) > 0 {
		return errors.Join(other...)
	}
	if len(all) > 0 {
		return all
	}
	return nil
}
