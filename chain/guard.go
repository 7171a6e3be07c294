package chain

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/tracewire/tracewire/trace"
)

// ErrPanic marks a mistake of this program.
var ErrPanic = errors.New("panic")

// Guard turns a panic in do into an error, and keeps its stack in the trace.
func Guard(ctx context.Context, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			trace.Warn(ctx, "panic", trace.KeyStack.String(string(debug.Stack())))
			err = fmt.Errorf("%w: %v", ErrPanic, p)
		}
	}()
	return do()
}
