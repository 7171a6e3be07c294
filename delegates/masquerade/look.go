package masquerade

import (
	"context"
	"errors"
	"strings"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/iptables"
	"github.com/tracewire/tracewire/delegates/nft"
)

// Found is a table, a chain or a rule of masquerade, and what its name and
// comments tell of whose it is.
type Found struct {
	What string // "table", "chain" or "rule"
	Name string // of the table or chain; the rule's comment
	// Handle is a rule's: one that is made anew has another. 0 for what has none.
	Handle uint64
	// Mark is one of Marks of each attachment that it may be of.
	Mark string
	// Attachment is what can be read: of a table the network, of a chain no IfName.
	// A long name may be cut or hashed: Mark alone tells.
	delegates.Attachment
}

// Marks is what Found has of an attachment: of its network's tables, of its
// chain, of its rules.
func Marks(a delegates.Attachment) [3]string {
	return [3]string{ofNetwork(a.Network), Chains{Network: a.Network, ContainerID: a.ContainerID}.Chain(), referenceComment(a)}
}

// Look lists our tables, the reference plugins' rules of nf_tables, and the
// chains of both that are in rules of iptables (iptables.Nat). A kernel or a node
// without has none.
func Look(rules []string) (all []Found, err error) {
	marked, err := lookNft()
	return append(marked, chainsIn(rules)...), err
}

func lookNft() (all []Found, err error) {
	c, err := nft.Dial()
	if nft.Lacking(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	own, errOwn := tables(c)
	for _, t := range own {
		mark := t.Name[:min(len(t.Name), len(ofNetwork("")))]
		all = append(all, Found{What: "table", Name: t.Name, Mark: mark, Attachment: delegates.Attachment{Network: t.Network}})
	}
	rules, errRules := c.Rules(referenceChain)
	for _, r := range rules {
		mark, told, _ := strings.Cut(r.Comment, ", ")
		if len(mark) == len(referenceComment(delegates.Attachment{})) {
			all = append(all, Found{What: "rule", Name: r.Comment, Handle: r.Handle, Mark: mark, Attachment: readComment(mark, told)})
		}
	}
	return all, errors.Join(errOwn, errRules)
}

// readComment reads "net: a, if: b, id: c", which may be cut short: then it is
// nobody's.
func readComment(mark, told string) (a delegates.Attachment) {
	network, rest, _ := strings.Cut(strings.TrimPrefix(told, "net: "), ", if: ")
	ifName, id, _ := strings.Cut(rest, ", id: ")
	if a = (delegates.Attachment{Network: network, ContainerID: id, IfName: ifName}); referenceComment(a) != mark {
		return delegates.Attachment{}
	}
	return a
}

// chainsIn is the chains that rules of iptables are of, or lead to.
func chainsIn(rules []string) (all []Found) {
	seen := map[string]bool{}
	for _, line := range rules {
		if c, ok := chainIn(line); ok && !seen[c.Name] {
			seen[c.Name], all = true, append(all, c)
		}
	}
	return all
}

// chainIn is the chain of an attachment that a rule is of, or leads to: the one
// that follows from the names in its comment.
func chainIn(line string) (f Found, ok bool) {
	network, id, ok := iptables.Names(line)
	chain := Chains{Network: network, ContainerID: id}.Chain()
	if !ok || iptables.Chain(line) != chain && iptables.Target(line) != chain {
		return f, false
	}
	return Found{What: "chain", Name: chain, Mark: chain, Attachment: delegates.Attachment{Network: network, ContainerID: id}}, true
}

// RemoveRule removes the rules of the reference plugins that have a comment. One
// that is gone is success.
func RemoveRule(ctx context.Context, comment string) error {
	return remove(ctx, true, func(c *nft.Conn) ([]nft.Object, error) {
		return rulesOf(c, referenceChain, func(s string) bool { return s == comment })
	})
}
