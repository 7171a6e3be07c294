package bridge

import (
	"context"
	"errors"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/trace"
)

// Del implements delegates.Delegate. It works from the host: the pod's
// namespace may be gone, or another's by now.
func (b Bridge) Del(ctx context.Context, c delegates.Call) error {
	return trace.Rows(ctx, c.Watcher(), trace.Row{Name: "veth.delete", Do: func(ctx context.Context) error {
		return b.remove(ctx, c)
	}})
}

// remove removes every host end that is proven to be the attachment's. The
// pod's end goes with it.
func (b Bridge) remove(ctx context.Context, c delegates.Call) error {
	host, err := veth.Dial()
	if err != nil {
		return err
	}
	defer host.Close()
	var errs []error
	for _, name := range candidates(b.Conf, c) {
		l, err := host.LinkByName(name)
		if veth.Gone(err) {
			continue
		}
		if err == nil && ours(l, c) {
			var reaped bool
			reaped, err = host.Remove(ctx, l.Index, b.Wait)
			trace.Set(ctx, trace.KeyInterface.String(name), trace.KeyReaped.Bool(reaped))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// candidates is the names that the host end may have: the one the record has,
// else prevResult's and the derived ones.
func candidates(conf Conf, c delegates.Call) []string {
	if host := hostEnd(c.Made.Result, conf.Bridge); c.Made.Known && host != nil {
		return []string{host.Name}
	}
	n := veth.HostNames(c.String())
	out := n[:]
	if host := hostEnd(c.Before, conf.Bridge); host != nil && host.Name != n[0] && host.Name != n[1] {
		out = append(out, host.Name)
	}
	return out
}

// ours tells whether an interface is proven to be the attachment's: by its
// alias, or, where the alias was not set yet, by name and MAC in a record of
// this boot or in the result that the runtime kept.
func ours(l veth.Link, c delegates.Call) bool {
	if l.Alias == veth.Alias(c.String()) {
		return true
	}
	if l.Kind != "veth" || l.Alias != "" {
		return false
	}
	from := c.Before
	if c.Made.Known {
		from = nil
		if c.Made.ThisBoot {
			from = c.Made.Result
		}
	}
	if from == nil {
		return false
	}
	for _, i := range from.Interfaces {
		if i != nil && i.Sandbox == "" && i.Name == l.Name && i.Mac == l.MAC.String() {
			return true
		}
	}
	return false
}

// hostEnd is the interface of a result that is the host's and not the bridge.
func hostEnd(r *types100.Result, bridge string) *types100.Interface {
	if r == nil {
		return nil
	}
	for _, i := range r.Interfaces {
		if i != nil && i.Sandbox == "" && i.Name != bridge && i.Name != "" {
			return i
		}
	}
	return nil
}
