package ipam

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/tracewire/tracewire/conflist"
)

// DefaultDataDir is host-local's.
const DefaultDataDir = "/var/lib/cni/networks"

// ErrNoRanges is part of Parse's error when the configuration has no range set.
// A runtime may give them by the capability ipRanges, on ADD only.
var ErrNoRanges = conflist.Invalid("ipam.ranges", nil, "must hold a range set")

// Subnets is the subnets of all range sets, each once; nil when the runtime gave
// ranges of this call's own (capability ipRanges).
func (h HostLocal) Subnets() (out []netip.Prefix) {
	for _, s := range h.Sets {
		for _, r := range s.Ranges {
			if !h.perCall && !slices.Contains(out, r.Subnet) {
				out = append(out, r.Subnet)
			}
		}
	}
	return out
}

// Parse reads host-local's part of a network configuration, and CNI_ARGS. What
// is wrong is in doc.Err; the HostLocal is usable for DEL all the same.
func Parse(doc *conflist.Value, args conflist.Args) HostLocal {
	keys := doc.At("ipam")
	h := HostLocal{DataDir: keys.At("dataDir").Text(), ResolvConf: keys.At("resolvConf").Text(), Routes: routes(keys.At("routes"))}
	if h.DataDir == "" {
		h.DataDir = DefaultDataDir
	}
	h.perCall = doc.At("runtimeConfig").At("ipRanges").Asks()
	if h.Sets = sets(doc); doc.Err() == nil {
		request(doc, h.Sets, args)
	}
	return h
}

// sets puts together what can be written in three places, in host-local's
// order: it numbers last_reserved_ip by it. A set that is wrong is left out.
func sets(doc *conflist.Value) (sets []Set) {
	texts := setTexts(doc)
	if len(texts) == 0 && doc.Err() == nil {
		doc.Add(ErrNoRanges)
	}
	for _, text := range texts {
		s, err := text.parse()
		if err != nil {
			doc.Add(err)
			continue
		}
		if i := slices.IndexFunc(sets, s.overlaps); i >= 0 {
			doc.Add(conflist.Invalid(text.key, s.String(), "must not overlap the range set "+sets[i].String()))
		}
		sets = append(sets, s)
	}
	doc.Add(families(doc, sets))
	return sets
}

func setTexts(doc *conflist.Value) []setText {
	texts := readSets(doc.At("runtimeConfig").At("ipRanges"))
	keys := doc.At("ipam")
	if old := readRange(keys); old.subnet != "" {
		texts = append(texts, setText{"ipam", []rangeText{old}})
	}
	return append(texts, readSets(keys.At("ranges"))...)
}

func readSets(v *conflist.Value) (sets []setText) {
	for _, set := range v.Each() {
		t := setText{key: set.Path}
		for _, r := range set.Each() {
			t.ranges = append(t.ranges, readRange(r))
		}
		sets = append(sets, t)
	}
	return sets
}

func readRange(v *conflist.Value) rangeText {
	return rangeText{v.Path, v.At("subnet").Text(), v.At("rangeStart").Text(), v.At("rangeEnd").Text(), v.At("gateway").Text()}
}

// families refuses what a result of an old version cannot hold.
func families(doc *conflist.Value, sets []Set) error {
	four := 0
	for _, s := range sets {
		if s.Ranges[0].Start.Is4() {
			four++
		}
	}
	if four <= 1 && len(sets)-four <= 1 {
		return nil
	}
	asked := doc.At("cniVersion").Text()
	if ok, err := version.GreaterThanOrEqualTo(asked, "0.3.0"); !ok || err != nil {
		return conflist.Invalid("cniVersion", asked, "must be 0.3.0 or later for two addresses of one family")
	}
	return nil
}

// wish is an address the runtime asks for, and where it does so.
type wish struct {
	key  string
	text string
	bad  error // what kind of error a wrong one is
}

func (w wish) wrong(why string) error {
	if w.bad == nil {
		return conflist.Invalid(w.key, w.text, why)
	}
	return fmt.Errorf("%w: %s: %s, got %s", w.bad, w.key, why, conflist.Shown(w.text))
}

// request gives every requested address to the first set that holds it and
// serves no other. host-local serves all places at once, and refuses to leave a
// request out: a pod without its address is worse than no pod.
func request(doc *conflist.Value, sets []Set, args conflist.Args) {
	seen := map[netip.Addr]bool{}
	for _, w := range wishes(doc, args) {
		a, ok := parseAddr(w.text)
		if !ok {
			doc.Add(w.wrong("must be an IP address"))
		} else if !seen[a] {
			doc.Add(grant(sets, w, a))
		}
		seen[a] = true
	}
}

func grant(sets []Set, w wish, a netip.Addr) error {
	for i := range sets {
		if sets[i].Requested.IsValid() || sets[i].index(a) < 0 {
			continue
		}
		if sets[i].gateway(a) {
			return w.wrong("must not be the gateway of its range")
		}
		sets[i].Requested = a
		return nil
	}
	return w.wrong("must be in a range set that serves no other requested address")
}

func wishes(doc *conflist.Value, args conflist.Args) (wishes []wish) {
	if a := args["IP"]; a != "" {
		wishes = append(wishes, wish{"IP", a, conflist.ErrArgs})
	}
	for _, from := range []*conflist.Value{doc.At("args").At("cni").At("ips"), doc.At("runtimeConfig").At("ips")} {
		for _, v := range from.Each() {
			wishes = append(wishes, wish{key: v.Path, text: v.Text()})
		}
	}
	return wishes
}

func routes(v *conflist.Value) (out []*types.Route) {
	for _, r := range v.Each() {
		if route := route(r); route != nil {
			out = append(out, route)
		}
	}
	return out
}

// route reads types.Route's keys one by one: its own decoder stops at the first
// wrong address and does not say where it stood. It is nil for a wrong one.
func route(v *conflist.Value) *types.Route {
	dst, gw := v.At("dst"), v.At("gw")
	n, err := types.ParseCIDR(dst.Text())
	if err != nil {
		dst.Fail("must be a destination such as 0.0.0.0/0")
		return nil
	}
	r := &types.Route{Dst: *n}
	if text := gw.Text(); text != "" {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			gw.Fail("must be an IP address")
			return nil
		}
		r.GW = a.Unmap().AsSlice()
	}
	for _, n := range []struct {
		key  string
		into *int
		most int // what the kernel's field holds (rtnetlink(7))
	}{
		{"mtu", &r.MTU, math.MaxUint32},
		{"advmss", &r.AdvMSS, math.MaxUint32},
		{"priority", &r.Priority, math.MaxUint32},
	} {
		v.At(n.key).Number(n.into, n.most)
	}
	r.Table = v.At("table").Optional(math.MaxUint32)
	r.Scope = v.At("scope").Optional(math.MaxUint8)
	return r
}
