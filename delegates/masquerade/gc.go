package masquerade

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/iptables"
	"github.com/tracewire/tracewire/delegates/nft"
	"github.com/tracewire/tracewire/trace"
)

// GC removes the rules that the reference plugins, or our iptables form, made
// for attachments of the network that are not kept. Our own table goes with the
// network's last attachment. Where nothing is asked for, the look is bounded and
// its failure a warning: the list may have lost its ipMasq.
func (p Policy) GC(ctx context.Context, c delegates.Call, k delegates.Kept, wait bool) error {
	if !p.On {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, lookTime)
		defer cancel()
	}
	err := errors.Join(collectReference(ctx, c.Network, k, wait), collectChains(ctx, c.Network, k))
	if err != nil && !p.On {
		trace.Warn(ctx, "cannot look for masquerade rules of the reference plugins", trace.KeyError.String(err.Error()))
		return nil
	}
	return err
}

// collectReference removes rules of the reference's nf_tables form. Their
// comments hold hashes: what is no kept attachment's is stale.
func collectReference(ctx context.Context, network string, k delegates.Kept, wait bool) error {
	mine := referenceHash(network) + "-"
	kept := make([]string, len(k.All))
	for i, a := range k.All {
		kept[i] = referenceComment(a)
	}
	return remove(ctx, wait, func(conn *nft.Conn) ([]nft.Object, error) {
		return rulesOf(conn, referenceChain, func(comment string) bool {
			of := func(prefix string) bool { return strings.HasPrefix(comment, prefix) }
			return of(mine) && !slices.ContainsFunc(kept, of)
		})
	})
}

// collectChains removes chains of containers that are not kept, and what leads
// to them. The comments name network and container.
func collectChains(ctx context.Context, network string, k delegates.Kept) error {
	var errs []error
	for _, f := range families {
		rules, err := f.List(ctx, "")
		if err == nil {
			err = f.Restore(ctx, stale(rules, network, k))
		}
		if err != nil && !errors.Is(err, iptables.ErrMissing) {
			errs = append(errs, fmt.Errorf("%s: %w", f.Family, err))
		}
	}
	return errors.Join(errs...)
}

// stale is what removes, of all rules of a table, those of a network's
// containers that are not kept.
func stale(rules []string, network string, k delegates.Kept) (lines []string) {
	var gone []string
	for _, line := range rules {
		of, id, ok := iptables.Names(line)
		chain := Chains{Network: network, ContainerID: id}.Chain()
		if !ok || of != network || k.Has(delegates.Attachment{Network: network, ContainerID: id}) {
			continue
		}
		if iptables.Target(line) == chain {
			lines = append(lines, deleted([]string{line})...)
		}
		if iptables.Chain(line) == chain && !slices.Contains(gone, chain) {
			gone = append(gone, chain)
		}
	}
	for _, chain := range gone {
		lines = append(lines, "-F "+chain, "-X "+chain)
	}
	return lines
}
