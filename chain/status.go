package chain

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tracewire/tracewire/delegates"
)

var (
	// ErrUnavailable marks what would make the next ADD fail (CNI spec 1.1.0,
	// STATUS: code 50).
	ErrUnavailable = errors.New("the next ADD would fail")
	// ErrLimited marks it where delegated plugins alone say so, and all of them that
	// pods may have limited connectivity (CNI spec 1.1.0, STATUS: code 51).
	ErrLimited = errors.New("the next ADD would fail, and pods may have limited connectivity")
)

// Status asks every step whether the next ADD would succeed, past failures. It
// makes nothing, and a step that runs no plugin has no span. What the steps
// remember is in v, which the caller settles.
func (c *Chain) Status(ctx context.Context, call delegates.Call, v *Verdict) error {
	s, err := c.Build(call.Conf, call.Args)
	if err != nil {
		return err
	}
	errs := []error{c.Records.Trusted()}
	for _, path := range s.Writes {
		errs = append(errs, writable(path))
	}
	if errors.Join(errs...) == nil {
		errs = append(errs, c.Records.Usable(call.Network))
	}
	for _, step := range s.forward() {
		call.Notes = notes{v, step.Name}
		err := Guard(ctx, func() error { return step.Status(ctx, call) })
		if err != nil {
			err = fmt.Errorf("%s: %w", step.Name, err)
		}
		errs = append(errs, err)
	}
	return unavailable(errs)
}

// unavailable joins what the steps said. A runtime may take limited connectivity
// for less, so it is only where all of them call it that.
func unavailable(errs []error) error {
	joined, kind := errors.Join(errs...), ErrLimited
	if joined == nil || errors.Is(joined, context.DeadlineExceeded) || errors.Is(joined, context.Canceled) {
		return joined // who had no time to look knows nothing of the next ADD
	}
	for _, err := range errs {
		var answer *types.Error
		if err != nil && (!errors.As(err, &answer) || answer.Code != types.ErrLimitedConnectivity) {
			kind = ErrUnavailable
		}
	}
	return fmt.Errorf("%w: %w", kind, joined)
}
