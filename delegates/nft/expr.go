package nft

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
)

// Expr is one expression of a rule: it appends itself to a message.
type Expr func(*netlink.Batch)

// Exprs puts the expressions of several matches and of what is done into one list.
func Exprs(lists ...[]Expr) (out []Expr) {
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}

// From matches packets that came in through an interface. In postrouting it
// needs Linux 5.7.
func From(iface string) []Expr {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name[:unix.IFNAMSIZ-1], iface)
	return []Expr{meta(unix.NFT_META_IIFNAME), compare(unix.NFT_CMP_EQ, name)}
}

// SameFamily matches packets of an address's family. A table of the family
// Inet needs it before Source and Destination.
func SameFamily(a netip.Addr) []Expr {
	proto := byte(unix.NFPROTO_IPV6)
	if a.Is4() {
		proto = unix.NFPROTO_IPV4
	}
	return []Expr{meta(unix.NFT_META_NFPROTO), compare(unix.NFT_CMP_EQ, []byte{proto})}
}

// Source matches packets from a subnet.
func Source(p netip.Prefix) []Expr {
	return subnet(p, sourceAt(p.Addr()), unix.NFT_CMP_EQ)
}

// NotDestination matches packets that do not go to a subnet.
func NotDestination(p netip.Prefix) []Expr {
	return subnet(p, sourceAt(p.Addr())+uint32(p.Addr().BitLen()/8), unix.NFT_CMP_NEQ)
}

// SourceMAC matches frames from a MAC, in a table of the family Bridge.
func SourceMAC(mac net.HardwareAddr) []Expr {
	const source = 6 // after the destination
	return []Expr{payload(unix.NFT_PAYLOAD_LL_HEADER, source, uint32(len(mac))), compare(unix.NFT_CMP_EQ, mac)}
}

// Masquerade gives packets the address of the interface they leave through.
func Masquerade() []Expr { return []Expr{expr("masq", func(*netlink.Batch) {})} }

// Jump goes on in another chain, and comes back at its end.
func Jump(c Chain) []Expr { return verdict(unix.NFT_JUMP, c.Name) }

// Goto goes on in another chain, and does not come back.
func Goto(c Chain) []Expr { return verdict(unix.NFT_GOTO, c.Name) }

// Return leaves the chain.
func Return() []Expr { return verdict(unix.NFT_RETURN, "") }

// Accept lets the packet pass.
func Accept() []Expr { return verdict(accept, "") }

// Drop throws the packet away.
func Drop() []Expr { return verdict(drop, "") }

// NF_DROP and NF_ACCEPT of linux/netfilter.h.
const (
	drop   = 0
	accept = 1
)

// sourceAt is where the source is in an IP header, in bytes. The destination
// follows it.
func sourceAt(a netip.Addr) uint32 {
	if a.Is4() {
		return 12
	}
	return 8
}

// subnet compares as nft(8) does, so that a rule which went through its hands
// reads the same: of a prefix of whole bytes just those are loaded.
func subnet(p netip.Prefix, offset, op uint32) []Expr {
	address := p.Masked().Addr().AsSlice()
	if whole := p.Bits() / 8; whole > 0 && p.Bits()%8 == 0 {
		return []Expr{payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, uint32(whole)), compare(op, address[:whole])}
	}
	return []Expr{
		payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, uint32(len(address))),
		bitwise(net.CIDRMask(p.Bits(), 8*len(address))),
		compare(op, address),
	}
}

func expr(name string, data func(*netlink.Batch)) Expr {
	return func(m *netlink.Batch) {
		elem := m.Nest(unix.NFTA_LIST_ELEM)
		m.Str(unix.NFTA_EXPR_NAME, name)
		inner := m.Nest(unix.NFTA_EXPR_DATA)
		data(m)
		inner()
		elem()
	}
}

// meta loads a fact about the packet into register 1, as all below do.
func meta(key uint32) Expr {
	return expr("meta", func(m *netlink.Batch) {
		u32(m, unix.NFTA_META_KEY, key)
		u32(m, unix.NFTA_META_DREG, unix.NFT_REG_1)
	})
}

// payload loads bytes of the packet.
func payload(base, offset, length uint32) Expr {
	return expr("payload", func(m *netlink.Batch) {
		u32(m, unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1)
		u32(m, unix.NFTA_PAYLOAD_BASE, base)
		u32(m, unix.NFTA_PAYLOAD_OFFSET, offset)
		u32(m, unix.NFTA_PAYLOAD_LEN, length)
	})
}

// bitwise keeps the bits of a mask.
func bitwise(mask []byte) Expr {
	return expr("bitwise", func(m *netlink.Batch) {
		u32(m, unix.NFTA_BITWISE_SREG, unix.NFT_REG_1)
		u32(m, unix.NFTA_BITWISE_DREG, unix.NFT_REG_1)
		u32(m, unix.NFTA_BITWISE_LEN, uint32(len(mask)))
		value(m, unix.NFTA_BITWISE_MASK, mask)
		value(m, unix.NFTA_BITWISE_XOR, make([]byte, len(mask)))
	})
}

// compare ends the rule unless the register compares so (NFT_CMP_*).
func compare(op uint32, data []byte) Expr {
	return expr("cmp", func(m *netlink.Batch) {
		u32(m, unix.NFTA_CMP_SREG, unix.NFT_REG_1)
		u32(m, unix.NFTA_CMP_OP, op)
		value(m, unix.NFTA_CMP_DATA, data)
	})
}

func value(m *netlink.Batch, kind uint16, data []byte) {
	nest := m.Nest(kind)
	m.Attr(unix.NFTA_DATA_VALUE, data)
	nest()
}

// verdict is the packet's fate; chain is where a jump goes.
func verdict(code int32, chain string) []Expr {
	return []Expr{expr("immediate", func(m *netlink.Batch) {
		u32(m, unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		data := m.Nest(unix.NFTA_IMMEDIATE_DATA)
		v := m.Nest(unix.NFTA_DATA_VERDICT)
		m.Attr(unix.NFTA_VERDICT_CODE, binary.BigEndian.AppendUint32(nil, uint32(code)))
		if chain != "" {
			m.Str(unix.NFTA_VERDICT_CHAIN, chain)
		}
		v()
		data()
	})}
}
