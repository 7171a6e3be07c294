package delegates

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
)

// Status implements Delegate: the plugin's own STATUS, its code in the error. A
// plugin that is older than STATUS has no say.
func (p Plugin) Status(ctx context.Context, c Call) error {
	_, err := p.with(ctx, "STATUS", c)
	err = ignoreUnknownVerb(ctx, p.Type, "STATUS", err)
	var answer *types.Error
	if errors.As(err, &answer) {
		return fmt.Errorf("%w (code %d)", err, answer.Code)
	}
	return err
}
