package masquerade

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tracewire/tracewire/delegates/iptables"
)

// Chains is the masquerade of one attachment as the reference plugins make it
// with iptables (plugins v1.10.0, pkg/ip/ipmasq_iptables_linux.go): either can
// remove the other's. Like theirs, it is one of a container's on a network:
// IfName does not count. A second interface of the container there shares the
// chain, which goes with the last address.
type Chains struct{ Network, ContainerID, IfName string }

// Chain is the name of the chain in the table nat.
func (c Chains) Chain() string {
	sum := sha512.Sum512([]byte(c.Network + c.ContainerID))
	return "CNI-" + hex.EncodeToString(sum[:12])
}

// Comment is on every rule.
func (c Chains) Comment() string { return fmt.Sprintf("name: %q id: %q", c.Network, c.ContainerID) }

// Ensure makes the chain and the rules that lead to it. In the first ADD of a
// container that is one iptables-restore a family, which is refused whole when
// the chain is there; then two look at what is there and one replaces it.
// iptables.ErrMissing tells that there is none.
func (c Chains) Ensure(ctx context.Context, addresses []netip.Prefix) error {
	for _, f := range families {
		if own := f.of(addresses); len(own) > 0 {
			if err := c.ensure(ctx, f, own); err != nil {
				return fmt.Errorf("%s: %w", f.Family, err)
			}
		}
	}
	return nil
}

func (c Chains) ensure(ctx context.Context, f family, own []netip.Prefix) error {
	lines := append([]string{"-N " + c.Chain()}, c.filling(f, c.accepts(own))...)
	err := f.Restore(ctx, append(lines, c.jumps(own)...))
	if err == nil || errors.Is(err, iptables.ErrMissing) {
		return err
	}
	have, ferr := f.List(ctx, c.Chain())
	if ferr != nil {
		return err // there is no chain: it was refused for another reason
	}
	leading, lerr := f.List(ctx, "POSTROUTING")
	if lerr != nil {
		return lerr
	}
	accepts := c.accepts(own)
	for _, line := range have {
		if iptables.Target(line) == "ACCEPT" && !slices.Contains(accepts, line) {
			accepts = append(accepts, line)
		}
	}
	lines = append([]string{":" + c.Chain() + " - [0:0]"}, deleted(c.leading(leading, own))...) // flushes the chain
	lines = append(lines, c.filling(f, accepts)...)
	return f.Restore(ctx, append(lines, c.jumps(own)...))
}

// filling is the chain's rules: what goes to one of the subnets stays as it is.
// The reference adds those of a second subnet after the rule that takes all.
func (c Chains) filling(f family, accepts []string) []string {
	return append(accepts, f.take(c))
}

func (c Chains) accepts(own []netip.Prefix) (out []string) {
	for _, subnet := range distinct(own) {
		out = append(out, fmt.Sprintf("-A %s -d %s %s -j ACCEPT", c.Chain(), subnet, c.match()))
	}
	return out
}

// jumps is the rules that lead packets of the pod's addresses to the chain.
func (c Chains) jumps(own []netip.Prefix) (out []string) {
	for _, a := range distinctAddresses(own) {
		out = append(out, fmt.Sprintf("-A POSTROUTING -s %s %s -j %s", a, c.match(), c.Chain()))
	}
	return out
}

// match is the comment as iptables-restore reads it and iptables -S prints it.
func (c Chains) match() string {
	return `-m comment --comment "` + escaped(c.Comment()) + `"`
}

// escaped is a text as it stands between an iptables line's quotes.
func escaped(text string) string { return strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) }

// distinctAddresses is the addresses as prefixes of one address each.
func distinctAddresses(own []netip.Prefix) (out []netip.Prefix) {
	for _, a := range own {
		out = append(out, netip.PrefixFrom(a.Addr(), a.Addr().BitLen()))
	}
	return distinct(out)
}

// Remove removes the rules that lead from the addresses to the chain, and the
// chain unless other addresses' rules lead there. Without addresses it removes
// all. What is gone is success, and so is a node without iptables. In the usual
// case that is one iptables-restore a family; a half-made chain takes four runs.
func (c Chains) Remove(ctx context.Context, addresses []netip.Prefix) error {
	var errs []error
	for _, f := range families {
		own := f.of(addresses)
		if len(own) == 0 && len(addresses) > 0 {
			continue
		}
		if err := c.remove(ctx, f, own); err != nil && !errors.Is(err, iptables.ErrMissing) {
			errs = append(errs, fmt.Errorf("%s: %w", f.Family, err))
		}
	}
	return errors.Join(errs...)
}

func (c Chains) remove(ctx context.Context, f family, own []netip.Prefix) error {
	gone := []string{"-F " + c.Chain(), "-X " + c.Chain()}
	if len(own) > 0 {
		err := f.Restore(ctx, append(deleted(c.jumps(own)), gone...))
		if err == nil || errors.Is(err, iptables.ErrMissing) {
			return err
		}
	}
	leading, err := f.List(ctx, "POSTROUTING")
	if err != nil {
		return err
	}
	all := c.leading(leading, nil)
	lines := deleted(all)
	if len(own) > 0 {
		lines = deleted(c.leading(leading, own))
	}
	if len(lines) < len(all) { // another interface's address needs the chain
		return f.Restore(ctx, lines)
	}
	if _, err := f.List(ctx, c.Chain()); err != nil {
		return nil //nolint:nilerr // iptables says it in many ways: there is no such chain
	}
	return f.Restore(ctx, append(lines, gone...))
}

// Missing is the addresses whose packets are not masqueraded: no rule leads from
// them to the chain, or it lacks its own.
func (c Chains) Missing(ctx context.Context, addresses []netip.Prefix) (missing []netip.Prefix, err error) {
	for _, f := range families {
		own := f.of(addresses)
		if len(own) == 0 {
			continue
		}
		leading, err := f.List(ctx, "POSTROUTING")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Family, err)
		}
		chain, err := f.List(ctx, c.Chain())
		if err != nil && len(c.leading(leading, nil)) > 0 { // iptables says it in many ways: there is no such chain
			return nil, fmt.Errorf("%s: %w", f.Family, err)
		}
		for _, a := range own {
			if len(c.leading(leading, []netip.Prefix{a})) == 0 || !c.filled(f, chain, a) {
				missing = append(missing, a)
			}
		}
	}
	return missing, nil
}

// filled tells whether a chain's rules leave alone what goes from an address to
// its subnet, and take the rest after that.
func (c Chains) filled(f family, chain []string, a netip.Prefix) bool {
	at := -1
	for _, want := range c.filling(f, c.accepts([]netip.Prefix{a})) {
		next := slices.Index(chain, want)
		if next <= at {
			return false
		}
		at = next
	}
	return true
}

// leading is those of POSTROUTING's rules that lead to the chain from one of
// the addresses, or from its subnet, as the reference had it long ago; from any
// where none is given.
func (c Chains) leading(rules []string, own []netip.Prefix) (out []string) {
	for _, line := range rules {
		words := strings.Fields(line)
		source := func(a netip.Prefix) bool {
			i := slices.Index(words, "-s")
			return i >= 0 && i+1 < len(words) && (words[i+1] == netip.PrefixFrom(a.Addr(), a.Addr().BitLen()).String() || words[i+1] == a.Masked().String())
		}
		if iptables.Target(line) == c.Chain() && (len(own) == 0 || slices.ContainsFunc(own, source)) {
			out = append(out, line)
		}
	}
	return out
}

// deleted is the rules as what deletes them.
func deleted(rules []string) (out []string) {
	for _, line := range rules {
		out = append(out, "-D "+strings.TrimPrefix(line, "-A "))
	}
	return out
}

// family is an address family and what is its own.
type family struct {
	iptables.Family
	multicast string
	four      bool
}

var families = [...]family{{iptables.IPv4, "224.0.0.0/4", true}, {iptables.IPv6, "ff00::/8", false}}

// take is the rule that takes what a chain leaves.
func (f family) take(c Chains) string {
	return fmt.Sprintf("-A %s ! -d %s %s -j MASQUERADE", c.Chain(), f.multicast, c.match())
}

// of is the addresses of the family.
func (f family) of(addresses []netip.Prefix) (out []netip.Prefix) {
	for _, a := range addresses {
		if a.Addr().Is4() == f.four {
			out = append(out, a)
		}
	}
	return out
}
