package chain

import (
	"context"
	"errors"
	"slices"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

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
	var errs []error
	for _, step := range steps.forward() {
		errs = append(errs, row(ctx, step.Name, func(ctx context.Context) error { return step.Check(ctx, call) }))
	}
	return findings(errs)
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
