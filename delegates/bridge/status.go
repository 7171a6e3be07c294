package bridge

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
)

// ErrNoPort marks a bridge that can have no more ports.
var ErrNoPort = errors.New("no bridge port left")

// Status is an error when the next pod could not become a port of the bridge.
// One that is not there yet will be made, and one that cannot be asked is no
// error: what counts is what ADD will find.
func (b Bridge) Status(context.Context, delegates.Call) error {
	n, err := veth.Ports(b.Conf.Bridge)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return b.suitsAtAll()
	case n >= veth.MaxPorts:
		return fmt.Errorf("%w: %s has %d of %d", ErrNoPort, b.Conf.Bridge, n, veth.MaxPorts)
	}
	return nil
}

// suitsAtAll is an error when another kind of device has the bridge's name.
func (b Bridge) suitsAtAll() error {
	host, err := veth.Dial()
	if err != nil {
		return nil
	}
	defer host.Close()
	if l, err := host.LinkByName(b.Conf.Bridge); err == nil && l.Kind != "bridge" {
		return noBridge(b.Conf.Bridge, l)
	}
	return nil
}

func noBridge(name string, l veth.Link) error {
	return fmt.Errorf("%w: %s is not a bridge but %s", ErrConflict, name, kindOf(l))
}
