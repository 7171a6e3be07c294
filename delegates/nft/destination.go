package nft

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
)

// Destination is what a rule that was read tells of where its packets go. What
// it does not tell is zero, and what is read of another rule than those of the
// reference plugins' may be less than it tells.
type Destination struct {
	Protocol byte           // that it is for: unix.IPPROTO_TCP
	Address  netip.Addr     // that it is for
	Port     uint16         // that it is for
	Instead  netip.AddrPort // where it sends them
}

// Destination reads the rule.
func (r Rule) Destination() Destination {
	d := reading{values: map[uint32][]byte{}}
	for _, e := range attributes(r.body) {
		named := members(e.data)
		if read := readers[netlink.String(named[unix.NFTA_EXPR_NAME])]; read != nil {
			read(&d, members(named[unix.NFTA_EXPR_DATA]))
		}
	}
	return d.Destination
}

// reading is a rule that is read as far as an expression.
type reading struct {
	Destination
	loaded field
	values map[uint32][]byte // by register
}

// field is what can be loaded and compared: a key of meta, or a place in a header.
type field struct{ meta, base, offset, length uint32 }

// fields is what a field that is compared tells.
var fields = map[field]func(*Destination, []byte){
	{meta: unix.NFT_META_L4PROTO}:                                   func(d *Destination, b []byte) { d.Protocol = b[0] },
	{base: unix.NFT_PAYLOAD_NETWORK_HEADER, offset: 16, length: 4}:  (*Destination).address,
	{base: unix.NFT_PAYLOAD_NETWORK_HEADER, offset: 24, length: 16}: (*Destination).address,
	{base: unix.NFT_PAYLOAD_NETWORK_HEADER, offset: 12, length: 8}:  func(d *Destination, b []byte) { d.address(b[len(b)/2:]) }, // after the source
	{base: unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset: 2, length: 2}: func(d *Destination, b []byte) { d.Port = uint16(number(b)) },
}

func (d *Destination) address(b []byte) { d.Address, _ = netip.AddrFromSlice(b) }

// readers is what each expression adds.
var readers = map[string]func(*reading, map[uint16][]byte){
	"meta": func(d *reading, m map[uint16][]byte) { d.loaded = field{meta: number(m[unix.NFTA_META_KEY])} },
	"payload": func(d *reading, m map[uint16][]byte) {
		d.loaded = field{base: number(m[unix.NFTA_PAYLOAD_BASE]), offset: number(m[unix.NFTA_PAYLOAD_OFFSET]), length: number(m[unix.NFTA_PAYLOAD_LEN])}
	},
	"bitwise": func(d *reading, _ map[uint16][]byte) { d.loaded = field{} }, // a part of it
	"cmp": func(d *reading, m map[uint16][]byte) {
		data := members(m[unix.NFTA_CMP_DATA])[unix.NFTA_DATA_VALUE]
		if tell := fields[d.loaded]; tell != nil && number(m[unix.NFTA_CMP_OP]) == unix.NFT_CMP_EQ && len(data) > 0 {
			tell(&d.Destination, data)
		}
	},
	"immediate": func(d *reading, m map[uint16][]byte) {
		d.values[number(m[unix.NFTA_IMMEDIATE_DREG])] = members(m[unix.NFTA_IMMEDIATE_DATA])[unix.NFTA_DATA_VALUE]
	},
	"nat": func(d *reading, m map[uint16][]byte) {
		if a, ok := netip.AddrFromSlice(d.values[number(m[unix.NFTA_NAT_REG_ADDR_MIN])]); ok && number(m[unix.NFTA_NAT_TYPE]) == unix.NFT_NAT_DNAT {
			d.Instead = netip.AddrPortFrom(a, uint16(number(d.values[number(m[unix.NFTA_NAT_REG_PROTO_MIN])])))
		}
	},
}

// members is attributes by their kinds.
func members(b []byte) map[uint16][]byte {
	out := map[uint16][]byte{}
	for _, a := range attributes(b) {
		out[a.kind] = a.data
	}
	return out
}

// number is one of two or four bytes, as nf_tables has them; 0 for anything else.
func number(b []byte) uint32 {
	switch len(b) {
	case 2:
		return uint32(binary.BigEndian.Uint16(b))
	case 4:
		return binary.BigEndian.Uint32(b)
	}
	return 0
}
