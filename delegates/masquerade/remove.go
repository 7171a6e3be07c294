package masquerade

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/tracewire/tracewire/delegates/nft"
)

// Info is one table of ours, of whichever network.
type Info struct {
	Name string
	// Network is the network's name, or "sha256:" and a hash of a long one; ""
	// where the kernel keeps no comments (before Linux 5.10).
	Network string
}

// Of tells whether the table is, or was before a change of the configuration,
// a network's.
func (i Info) Of(network string) bool { return strings.HasPrefix(i.Name, ofNetwork(network)) }

// Tables lists the tables of all networks. It is a dump, for DEL, GC and audit.
func Tables() ([]Info, error) {
	c, err := nft.Dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return tables(c)
}

func tables(c *nft.Conn) (out []Info, err error) {
	all, err := c.Tables(nft.Inet)
	for _, t := range all {
		if strings.HasPrefix(t.Name, prefix) {
			out = append(out, Info{Name: t.Name, Network: strings.TrimPrefix(t.Comment, commentPrefix)})
		}
	}
	return out, err
}

// Remove removes the table. One that is gone is success. Unless wait is asked
// for, the kernel's waiting is left to a child process.
func (r Rules) Remove(ctx context.Context, wait bool) error {
	return remove(ctx, wait, func(c *nft.Conn) ([]nft.Object, error) {
		there, err := c.Has(r.table())
		if err != nil || !there {
			return nil, err
		}
		return []nft.Object{r.table()}, nil
	})
}

// RemoveAll removes every table that a network ever had but those to keep, by
// name: after a change of ranges while pods lived there is more than one.
func RemoveAll(ctx context.Context, network string, wait bool, keep ...string) error {
	return remove(ctx, wait, func(c *nft.Conn) (stale []nft.Object, err error) {
		all, err := tables(c)
		for _, i := range all {
			if i.Of(network) && !slices.Contains(keep, i.Name) {
				stale = append(stale, nft.Table{Family: nft.Inet, Name: i.Name})
			}
		}
		return stale, err
	})
}

// RemoveTables removes tables of ours by name, whosever they are.
func RemoveTables(ctx context.Context, wait bool, names ...string) error {
	return remove(ctx, wait, func(c *nft.Conn) (out []nft.Object, err error) {
		all, err := tables(c)
		for _, i := range all {
			if slices.Contains(names, i.Name) {
				out = append(out, nft.Table{Family: nft.Inet, Name: i.Name})
			}
		}
		return out, err
	})
}

// RemoveSingle removes, without Ranges, the rules of those addresses that are a
// subnet of their own: no other attachment can need them. Other rules stay
// until the table goes.
func (r Rules) RemoveSingle(ctx context.Context, addresses []netip.Prefix, wait bool) error {
	single := slices.DeleteFunc(distinct(addresses), func(p netip.Prefix) bool { return !p.IsSingleIP() })
	if len(r.Ranges) > 0 || len(single) == 0 {
		return nil
	}
	return remove(ctx, wait, func(c *nft.Conn) ([]nft.Object, error) {
		return rulesOf(c, r.chain(), func(comment string) bool {
			return slices.ContainsFunc(single, func(p netip.Prefix) bool { return comment == r.comment(p) })
		})
	})
}

// rulesOf is a chain's rules whose comment matches.
func rulesOf(c *nft.Conn, chain nft.Chain, match func(comment string) bool) (out []nft.Object, err error) {
	all, err := c.Rules(chain)
	for _, r := range all {
		if match(r.Comment) {
			out = append(out, r)
		}
	}
	return out, err
}

// turns bounds how often remove looks again.
const turns = 10

// remove deletes what find finds, all in one transaction, and looks again when
// some of it went meanwhile.
func remove(ctx context.Context, wait bool, find func(*nft.Conn) ([]nft.Object, error)) error {
	c, err := nft.Dial()
	if nft.Lacking(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	for range turns {
		found, ferr := find(c)
		if ferr != nil || len(found) == 0 {
			return ferr
		}
		var t nft.Transaction
		for _, o := range found {
			t.Delete(o)
		}
		if _, err = c.Remove(ctx, &t, wait); !nft.Gone(err) {
			return err
		}
	}
	return err
}
