package bridge

import (
	"context"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
)

// Check implements delegates.Delegate. What differs is a delegates.Findings;
// another error tells that it could not look.
func (b Bridge) Check(ctx context.Context, c delegates.Call) error {
	host, err := veth.Dial()
	if err != nil {
		return err
	}
	defer host.Close()
	k := &veth.Check{Call: c, Pod: b.Namespace, Host: host, Down: b.Conf.Down}
	err = k.Look(b.Conf.Bridge, func(end veth.Link, _ *types100.Result) error { return b.port(k, end) })
	if err != nil {
		return err
	}
	rules, err := b.Masquerade.Check(ctx, c)
	if err != nil {
		return err
	}
	k.Findings = append(k.Findings, rules...)
	return k.Result()
}

// port compares the host end with its bridge.
func (b Bridge) port(k *veth.Check, end veth.Link) error {
	bridge, err := k.Host.LinkByName(b.Conf.Bridge)
	if veth.Gone(err) {
		k.Find("bridge.missing", "bridge "+b.Conf.Bridge, "none")
		return nil
	}
	if err == nil && end.Master != bridge.Index {
		k.Find("host.master", fmt.Sprintf("%s a port of %s", end.Name, b.Conf.Bridge), fmt.Sprintf("a port of interface %d", end.Master))
	}
	return err
}
