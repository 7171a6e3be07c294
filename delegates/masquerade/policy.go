package masquerade

import (
	"context"
	"net/netip"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// lookTime bounds the look for rules that are not expected to be there.
const lookTime = 2 * time.Second

// Policy is what a network's configuration asks for.
type Policy struct {
	On       bool
	Iptables bool // the reference's chains instead of our table
	Rules    Rules
}

// Parse reads ipMasq and ipMasqBackend. bridge is the interface packets come
// from, "" for any; ranges the subnets of the configuration, nil where each ADD
// brings its own.
func Parse(doc *conflist.Value, network, bridge string, ranges []netip.Prefix) Policy {
	p := Policy{Rules: Rules{Network: network, Bridge: bridge, Ranges: ranges}}
	doc.At("ipMasq").Into(&p.On)
	switch backend := doc.At("ipMasqBackend"); backend.Text() {
	case "", "nftables":
	case "iptables":
		p.Iptables = true
	default:
		backend.Fail("must be nftables or iptables")
	}
	return p
}

// Shared tells that the network's attachments share a table.
func (p Policy) Shared() bool { return p.On && !p.Iptables }

// Ensure makes the rules for an attachment.
func (p Policy) Ensure(ctx context.Context, c delegates.Call, r *types100.Result) error {
	return p.ensure(ctx, c, r, p.Rules.Ensure)
}

func (p Policy) ensure(ctx context.Context, c delegates.Call, r *types100.Result, shared func(context.Context, []netip.Prefix) error) error {
	if p.Iptables {
		return chains(c).Ensure(ctx, addresses(r))
	}
	unlock, err := c.Shared(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return shared(ctx, addresses(r))
}

// Row is ADD's phase, none when nothing is asked for.
func (p Policy) Row(c delegates.Call, r *types100.Result) []trace.Row {
	if !p.On || c.IPAM == nil && c.Lease == nil {
		return nil
	}
	return []trace.Row{{Name: "masquerade.ensure", Do: func(ctx context.Context) error { return p.Ensure(ctx, c, r) }}}
}

// Delete is DEL's phase, none where an attachment has nothing of its own: our
// table goes with the network's last. One without a record may be one that the
// reference plugins made.
func (p Policy) Delete(c delegates.Call, wait bool) []trace.Row {
	var do func(context.Context) error
	switch {
	case !c.Made.Known:
		do = func(ctx context.Context) error {
			if !p.On { // only in case that the list lost its ipMasq since
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, lookTime)
				defer cancel()
			}
			err := chains(c).RemoveReference(ctx, addresses(c.Before), wait)
			if err != nil && !p.On {
				trace.Warn(ctx, "cannot look for masquerade rules of the reference plugins", trace.KeyError.String(err.Error()))
				return nil
			}
			return err
		}
	case !p.On:
	case p.Iptables:
		do = func(ctx context.Context) error { return chains(c).Remove(ctx, addresses(c.Made.Result)) }
	case len(p.Rules.Ranges) == 0:
		do = func(ctx context.Context) error { return p.Rules.RemoveSingle(ctx, addresses(c.Made.Result), wait) }
	}
	if do == nil {
		return nil
	}
	return []trace.Row{{Name: "masquerade.delete", Do: do}}
}

// Check finds the rules that ADD made and that are gone, and tells what makes
// them anew. One without a record may be one that the reference plugins made, and
// is not looked at.
func (p Policy) Check(ctx context.Context, c delegates.Call, find func(code, expected, found string, back func() error)) error {
	if !p.On || !c.Made.Known {
		return nil
	}
	missing := p.Rules.Missing
	if p.Iptables {
		missing = func(own []netip.Prefix) ([]netip.Prefix, error) { return chains(c).Missing(ctx, own) }
	}
	gone, err := missing(addresses(c.Made.Result))
	for _, subnet := range gone {
		find("masquerade.missing", "masquerade for "+subnet.String(), "none", func() error { return p.ensure(ctx, c, c.Made.Result, p.Rules.Restore) })
	}
	return err
}

func chains(c delegates.Call) Chains {
	return Chains{Network: c.Network, ContainerID: c.ContainerID, IfName: c.IfName}
}

// addresses is a result's, with prefix length; none for nil.
func addresses(r *types100.Result) (out []netip.Prefix) {
	if r == nil {
		return nil
	}
	for _, ip := range r.IPs {
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		if ones, _ := ip.Address.Mask.Size(); ok {
			out = append(out, netip.PrefixFrom(a.Unmap(), ones))
		}
	}
	return out
}
