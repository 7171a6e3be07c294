package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
)

// Conn is a netlink socket to nf_tables. While anything that was deleted in
// its network namespace, by whomever, is not yet forgotten by all processors,
// Close waits for that: 10 to 15 ms.
type Conn struct{ *netlink.Conn }

// Dial opens a Conn in the calling thread's network namespace.
func Dial() (*Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	return &Conn{c}, nil
}

// Gone tells that an error means that no such table, chain or rule is there.
func Gone(err error) bool { return errors.Is(err, unix.ENOENT) }

// Lacking tells that an error of Dial means that the kernel has no nf_tables,
// and so nothing to remove. Where it has other parts of netfilter, Has and
// Rules find nothing.
func Lacking(err error) bool { return errors.Is(err, unix.EPROTONOSUPPORT) }

// never tells that a look-up was refused because no such thing can be: it has a
// name that is too long, or the kernel lacks nf_tables or the family.
func never(err error) bool {
	return errors.Is(err, unix.ERANGE) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)
}

// Has tells whether a table or a chain is there: 12 us.
func (c *Conn) Has(o Object) (bool, error) {
	_, err := c.look(o)
	if Gone(err) || never(err) {
		return false, nil
	}
	return err == nil, err
}

// Uses is the number of rules in a chain and of rules that lead to it. An
// error that is Gone tells that there is no such chain. 12 us.
func (c *Conn) Uses(ch Chain) (n int, err error) {
	body, err := c.look(ch)
	if err != nil {
		return 0, err
	}
	walk(body, func(kind uint16, d []byte) {
		if kind == unix.NFTA_CHAIN_USE && len(d) >= 4 {
			n = int(binary.BigEndian.Uint32(d))
		}
	})
	return n, nil
}

func (c *Conn) look(o Object) ([]byte, error) {
	var m netlink.Batch
	add(&m, "", o.kind()+1, 0, o.table().Family)
	o.identify(&m)
	m.End()
	body, err := c.Ask(&m)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", o, err)
	}
	return body, nil
}

// Generation is a number that every transaction in the network namespace
// changes. A Transaction may depend on it. 0, which a kernel before Linux 4.12
// may have, means that it cannot.
func (c *Conn) Generation() (g uint32, err error) {
	var m netlink.Batch
	add(&m, "", unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC)
	m.End()
	body, err := c.Ask(&m)
	if err != nil {
		return 0, fmt.Errorf("look up generation: %w", err)
	}
	walk(body, func(kind uint16, d []byte) {
		if kind == unix.NFTA_GEN_ID && len(d) >= 4 {
			g = binary.BigEndian.Uint32(d)
		}
	})
	return g, nil
}

// Tables lists the tables of a family.
func (c *Conn) Tables(f Family) (out []Table, err error) {
	var m netlink.Batch
	add(&m, "list tables", unix.NFT_MSG_GETTABLE, 0, f)
	m.End()
	err = c.Dump(&m, func() { out = nil }, func(body []byte) {
		t := Table{Family: f}
		walk(body, func(kind uint16, d []byte) {
			switch kind {
			case unix.NFTA_TABLE_NAME:
				t.Name = netlink.String(d)
			case tableUserdata:
				t.Comment = commentIn(d)
			}
		})
		out = append(out, t)
	})
	if never(err) {
		return nil, nil
	}
	return out, err
}

// Rules lists the rules of a chain with their comments and handles; none where
// there is no such chain, or can be none. One rule costs 130 us, a thousand some
// 2 ms.
func (c *Conn) Rules(ch Chain) ([]Rule, error) {
	out, err := c.Look(ch)
	if never(err) {
		return nil, nil
	}
	return out, err
}

// Look is Rules for rules that were there: a kernel that has no such thing as
// nf_tables any more is an error, because it cannot be asked.
func (c *Conn) Look(ch Chain) (out []Rule, err error) {
	var m netlink.Batch
	add(&m, "list rules", unix.NFT_MSG_GETRULE, 0, ch.Table.Family)
	Rule{Chain: ch}.identify(&m)
	m.End()
	err = c.Dump(&m, func() { out = nil }, func(body []byte) {
		r, table, chain := Rule{Chain: ch}, "", ""
		walk(body, func(kind uint16, d []byte) {
			switch kind {
			case unix.NFTA_RULE_TABLE:
				table = netlink.String(d)
			case unix.NFTA_RULE_CHAIN:
				chain = netlink.String(d)
			case unix.NFTA_RULE_HANDLE:
				r.Handle = binary.BigEndian.Uint64(d)
			case unix.NFTA_RULE_USERDATA:
				r.Comment = commentIn(d)
			case unix.NFTA_RULE_EXPRESSIONS:
				r.body = append([]byte{}, d...)
			}
		})
		if table == ch.Table.Name && chain == ch.Name {
			out = append(out, r)
		}
	})
	if Gone(err) {
		return nil, nil
	}
	return out, err
}

// walk hands each attribute after a struct nfgenmsg to each.
func walk(body []byte, each func(kind uint16, data []byte)) {
	if len(body) >= 4 {
		netlink.Walk(body[4:], each)
	}
}
