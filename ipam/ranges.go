package ipam

import (
	"encoding/binary"
	"iter"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/tracewire/tracewire/conflist"
)

// Range is a part of a subnet, Start and End included.
type Range struct {
	Subnet     netip.Prefix
	Start, End netip.Addr
	Gateway    netip.Addr // never leased
}

// Set is ranges of one family. An attachment gets one address of each Set.
type Set struct {
	Ranges    []Range
	Requested netip.Addr // asked for by the runtime; the zero Addr when none is
}

// String is start-end, as host-local prints it.
func (r Range) String() string { return r.Start.String() + "-" + r.End.String() }

func (r Range) contains(a netip.Addr) bool {
	return r.Start.Compare(a) <= 0 && a.Compare(r.End) <= 0
}

// overlaps is false for two families: every IPv4 address sorts before every IPv6 one.
func (r Range) overlaps(o Range) bool {
	return r.Start.Compare(o.End) <= 0 && o.Start.Compare(r.End) <= 0
}

// String lists the ranges.
func (s Set) String() string {
	var texts []string
	for _, r := range s.Ranges {
		texts = append(texts, r.String())
	}
	return strings.Join(texts, ",")
}

// index is the range that holds the address, -1 when none does.
func (s Set) index(a netip.Addr) int {
	return slices.IndexFunc(s.Ranges, func(r Range) bool { return r.contains(a) })
}

func (s Set) gateway(a netip.Addr) bool {
	return slices.ContainsFunc(s.Ranges, func(r Range) bool { return r.Gateway == a })
}

func (s Set) overlaps(o Set) bool {
	return slices.ContainsFunc(s.Ranges, func(r Range) bool { return slices.ContainsFunc(o.Ranges, r.overlaps) })
}

// after goes once round the set, from the address after last to last itself,
// and passes over gateways. It begins with the first range when last is not of
// the set: that costs no more than one turn of the round robin.
func (s Set) after(last netip.Addr) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		i, a := 0, s.Ranges[0].Start
		if at := s.index(last); at >= 0 {
			i, a = s.next(at, last)
		}
		for first := a; ; {
			if !s.gateway(a) && !yield(a) {
				return
			}
			if i, a = s.next(i, a); a == first {
				return
			}
		}
	}
}

// next is the address after a, which is of range i, and its range.
func (s Set) next(i int, a netip.Addr) (int, netip.Addr) {
	if a != s.Ranges[i].End {
		return i, a.Next()
	}
	i = (i + 1) % len(s.Ranges)
	return i, s.Ranges[i].Start
}

// size is how many addresses of the set can be leased; the largest number for a
// set that is larger.
func (s Set) size() uint64 {
	var n uint64
	var gateways []netip.Addr
	for _, r := range s.Ranges {
		span := r.size()
		if n += span; n < span || n == math.MaxUint64 {
			return math.MaxUint64
		}
		if s.index(r.Gateway) >= 0 && !slices.Contains(gateways, r.Gateway) {
			gateways = append(gateways, r.Gateway)
		}
	}
	return n - uint64(len(gateways))
}

// size is Start to End, both included; the largest number for more.
func (r Range) size() uint64 {
	startHigh, startLow := halves(r.Start)
	endHigh, endLow := halves(r.End)
	low, borrow := bits.Sub64(endLow, startLow, 0)
	if high, _ := bits.Sub64(endHigh, startHigh, borrow); high > 0 || low == math.MaxUint64 {
		return math.MaxUint64
	}
	return low + 1
}

func halves(a netip.Addr) (high, low uint64) {
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

// rangeText is a range as it is written, and the key it stands at.
type rangeText struct {
	key                                   string
	subnet, rangeStart, rangeEnd, gateway string
}

func (t rangeText) parse() (Range, error) {
	p, err := parseSubnet(t.key+".subnet", t.subnet)
	if err != nil {
		return Range{}, err
	}
	r := Range{Subnet: p, Start: p.Addr().Next(), End: last(p), Gateway: p.Addr().Next()}
	for _, f := range [...]struct {
		key, text string
		into      *netip.Addr
	}{
		{"gateway", t.gateway, &r.Gateway},
		{"rangeStart", t.rangeStart, &r.Start},
		{"rangeEnd", t.rangeEnd, &r.End},
	} {
		if f.text == "" {
			continue
		}
		a, ok := parseAddr(f.text)
		if !ok || !p.Contains(a) {
			return Range{}, conflist.Invalid(t.key+"."+f.key, f.text, "must be an address in "+p.String())
		}
		*f.into = a
	}
	if r.End.Less(r.Start) {
		return Range{}, conflist.Invalid(t.key+".rangeStart", r.Start, "must not be after rangeEnd "+r.End.String())
	}
	return r, nil
}

// parseSubnet refuses a subnet that could hold only a network, a gateway or a
// broadcast address (plugins#908 asks for /31).
func parseSubnet(key, text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil, p.Addr().Is4In6():
		return p, conflist.Invalid(key, text, "must be a subnet such as 10.22.0.0/16")
	case p != p.Masked():
		return p, conflist.Invalid(key, text, "has host bits set, the subnet is "+p.Masked().String())
	case p.Bits() > p.Addr().BitLen()-2:
		return p, conflist.Invalid(key, text, "is too small to lease from")
	}
	return p, nil
}

// last is the last address that may be leased: IPv4 keeps the broadcast address.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := range b {
		host := min(max((i+1)*8-p.Bits(), 0), 8)
		b[i] |= byte(1<<host - 1)
	}
	a, _ := netip.AddrFromSlice(b)
	if a.Is4() {
		return a.Prev()
	}
	return a
}

// parseAddr reads an address, with or without a prefix length.
func parseAddr(text string) (netip.Addr, bool) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Addr().Unmap(), true
	}
	a, err := netip.ParseAddr(text)
	return a.Unmap(), err == nil && a.Zone() == ""
}

// setText is a range set as it is written, and the key it stands at.
type setText struct {
	key    string
	ranges []rangeText
}

func (t setText) parse() (Set, error) {
	var s Set
	if len(t.ranges) == 0 {
		return s, conflist.Invalid(t.key, t.ranges, "must hold a range")
	}
	for _, text := range t.ranges {
		r, err := text.parse()
		if err != nil {
			return s, err
		}
		if len(s.Ranges) > 0 && s.Ranges[0].Subnet.Addr().Is4() != r.Subnet.Addr().Is4() {
			return s, conflist.Invalid(text.key+".subnet", text.subnet, "must be of the family of the set's first range")
		}
		if s.overlaps(Set{Ranges: []Range{r}}) {
			return s, conflist.Invalid(text.key, r.String(), "must not overlap a range of its set")
		}
		s.Ranges = append(s.Ranges, r)
	}
	return s, nil
}
