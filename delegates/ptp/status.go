package ptp

import (
	"context"

	"github.com/tracewire/tracewire/delegates"
)

// Status has nothing to say: a pair needs nothing that could be used up.
func (p PTP) Status(context.Context, delegates.Call) error { return nil }
