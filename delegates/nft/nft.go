// Package nft writes nf_tables transactions and reads what they depend on:
// tables, chains and a chain's rules.
package nft

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
)

// Family is what packets a table is for (NFPROTO_*, linux/netfilter.h).
type Family byte

// The families that have tables of ours, or of the reference plugins.
const (
	Inet   Family = unix.NFPROTO_INET // IPv4 and IPv6; NAT since Linux 5.2
	IPv4   Family = unix.NFPROTO_IPV4
	IPv6   Family = unix.NFPROTO_IPV6
	Bridge Family = unix.NFPROTO_BRIDGE
)

// Table is one table. Comment needs Linux 5.10; an older kernel forgets it.
type Table struct {
	Family  Family
	Name    string
	Comment string
}

// Chain is one chain of a table.
type Chain struct {
	Table Table
	Name  string
	Hook  *Hook // nil for a chain that only rules lead to
}

// Hook is where packets enter a base chain. Its policy is accept.
type Hook struct {
	Type     string // "nat", "filter"
	Number   uint32 // NF_INET_*, NF_BR_*
	Priority int32  // lower comes first
}

// Rule is one rule of a chain.
type Rule struct {
	Chain   Chain
	Comment string // cut at 253 bytes; nft(8) itself takes 128
	Exprs   []Expr // in the order they are evaluated; not read back: see Does
	Handle  uint64 // of a rule that was read: what it is deleted by

	body []byte // of a rule that was read: its expressions, as the kernel lists them
}

// Object is a Table, a Chain or a Rule.
type Object interface {
	// String names it in errors.
	String() string
	table() Table
	kind() uint16            // NFT_MSG_NEW*; one more looks it up, two more delete it
	identify(*netlink.Batch) // the attributes that find it
	describe(*netlink.Batch) // the attributes that make it
}

func (t Table) String() string { return "table " + t.Name }
func (c Chain) String() string { return "chain " + c.Name }
func (r Rule) String() string  { return fmt.Sprintf("rule %q of chain %s", r.Comment, r.Chain.Name) }

func (t Table) table() Table { return t }
func (c Chain) table() Table { return c.Table }
func (r Rule) table() Table  { return r.Chain.Table }

func (Table) kind() uint16 { return unix.NFT_MSG_NEWTABLE }
func (Chain) kind() uint16 { return unix.NFT_MSG_NEWCHAIN }
func (Rule) kind() uint16  { return unix.NFT_MSG_NEWRULE }

func (t Table) identify(m *netlink.Batch) { m.Str(unix.NFTA_TABLE_NAME, t.Name) }

func (t Table) describe(m *netlink.Batch) {
	t.identify(m)
	if t.Comment != "" {
		m.Attr(tableUserdata, comment(t.Comment))
	}
}

func (c Chain) identify(m *netlink.Batch) {
	m.Str(unix.NFTA_CHAIN_TABLE, c.Table.Name)
	m.Str(unix.NFTA_CHAIN_NAME, c.Name)
}

func (c Chain) describe(m *netlink.Batch) {
	c.identify(m)
	if c.Hook == nil {
		return
	}
	hook := m.Nest(unix.NFTA_CHAIN_HOOK)
	u32(m, unix.NFTA_HOOK_HOOKNUM, c.Hook.Number)
	u32(m, unix.NFTA_HOOK_PRIORITY, uint32(c.Hook.Priority))
	hook()
	u32(m, unix.NFTA_CHAIN_POLICY, accept)
	m.Str(unix.NFTA_CHAIN_TYPE, c.Hook.Type)
}

func (r Rule) identify(m *netlink.Batch) {
	m.Str(unix.NFTA_RULE_TABLE, r.Chain.Table.Name)
	m.Str(unix.NFTA_RULE_CHAIN, r.Chain.Name)
	if r.Handle != 0 {
		m.Attr(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, r.Handle))
	}
}

func (r Rule) describe(m *netlink.Batch) {
	r.identify(m)
	list := m.Nest(unix.NFTA_RULE_EXPRESSIONS)
	for _, e := range r.Exprs {
		e(m)
	}
	list()
	if r.Comment != "" {
		m.Attr(unix.NFTA_RULE_USERDATA, comment(r.Comment))
	}
}

// tableUserdata is NFTA_TABLE_USERDATA (linux/netfilter/nf_tables.h).
const tableUserdata = 6

// u32 appends a number as nf_tables wants it: big endian.
func u32(m *netlink.Batch, kind uint16, v uint32) {
	m.Attr(kind, binary.BigEndian.AppendUint32(nil, v))
}

// add begins a message about a family: its header and struct nfgenmsg.
func add(m *netlink.Batch, what string, kind, flags uint16, f Family) {
	m.Add(what, unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags)
	m.Raw(byte(f), unix.NFNETLINK_V0, 0, 0)
}

// commentKind is NFTNL_UDATA_TABLE_COMMENT and NFTNL_UDATA_RULE_COMMENT of
// libnftnl: what nft(8) shows as a comment.
const (
	commentKind = 0
	maxComment  = 253 // NFT_USERDATA_MAXLEN, less kind, length and NUL
)

// comment is user data that holds a comment only.
func comment(s string) []byte {
	s = s[:min(len(s), maxComment)]
	return append(append([]byte{commentKind, byte(len(s) + 1)}, s...), 0)
}

// commentIn is the comment in user data, "" for none.
func commentIn(b []byte) string {
	for len(b) >= 2 && len(b)-2 >= int(b[1]) {
		end := 2 + int(b[1])
		if b[0] == commentKind {
			return netlink.String(b[2:end])
		}
		b = b[end:]
	}
	return ""
}
