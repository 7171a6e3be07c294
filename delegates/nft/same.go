package nft

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
)

// Does tells whether a rule that was read does just what the expressions say,
// in their order. What the kernel adds of its own to one of them does not count.
func (r Rule) Does(exprs []Expr) bool {
	var m netlink.Batch
	for _, e := range exprs {
		e(&m)
	}
	want, have := attributes(m.Bytes()), attributes(r.body)
	if len(want) != len(have) {
		return false
	}
	for i := range want {
		if !covers(have[i].data, want[i].data) {
			return false
		}
	}
	return true
}

// attribute is one netlink attribute. Ours say whether they hold others, the
// kernel's of nf_tables do not.
type attribute struct {
	kind   uint16
	nested bool
	data   []byte
}

func attributes(b []byte) (out []attribute) {
	netlink.WalkRaw(b, func(kind uint16, d []byte) {
		out = append(out, attribute{kind &^ unix.NLA_F_NESTED, kind&unix.NLA_F_NESTED != 0, d})
	})
	return out
}

// covers tells that each attribute of want is in have, with the same data. One
// that holds nothing may be left out.
func covers(have, want []byte) bool {
	all := attributes(have)
	for _, w := range attributes(want) {
		found := w.nested && len(w.data) == 0
		for _, h := range all {
			found = found || h.kind == w.kind && (w.nested && covers(h.data, w.data) || !w.nested && bytes.Equal(h.data, w.data))
		}
		if !found {
			return false
		}
	}
	return true
}
