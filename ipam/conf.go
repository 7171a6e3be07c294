package ipam

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/tracewire/tracewire/conflist"
)

// DefaultDataDir is host-local's.
const DefaultDataDir = "/var/lib/cni/networks"

// ErrNoRanges is part of Parse's error when the configuration has no range set.
// A runtime may give them by the capability ipRanges, on ADD only.
var ErrNoRanges = conflist.Invalid("ipam.ranges", nil, "must hold a range set")

type text struct {
	CNIVersion string `json:"cniVersion"`
	IPAM       struct {
		Subnet     string            `json:"subnet"`
		RangeStart string            `json:"rangeStart"`
		RangeEnd   string            `json:"rangeEnd"`
		Gateway    string            `json:"gateway"`
		Ranges     []json.RawMessage `json:"ranges"`
		Routes     []json.RawMessage `json:"routes"`
		DataDir    string            `json:"dataDir"`
		ResolvConf string            `json:"resolvConf"`
	} `json:"ipam"`
	RuntimeConfig struct {
		IPRanges []json.RawMessage `json:"ipRanges"`
		IPs      []json.RawMessage `json:"ips"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []json.RawMessage `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
}

// Parse reads host-local's part of a network configuration, and CNI_ARGS. The
// HostLocal is usable for DEL also beside an error: what could not be read is
// left out or has its default.
func Parse(conf []byte, args string) (HostLocal, error) {
	var t text
	bad := conflist.Decode(conf, &t)
	h := HostLocal{DataDir: t.IPAM.DataDir, ResolvConf: t.IPAM.ResolvConf}
	if h.DataDir == "" {
		h.DataDir = DefaultDataDir
	}
	var ranges, routes, requests error
	h.Sets, ranges = t.sets()
	h.Routes, routes = t.routes()
	if ranges == nil {
		requests = t.request(h.Sets, args)
	}
	return h, errors.Join(bad, ranges, routes, requests)
}

// sets puts together what can be written in three places, in host-local's
// order: it numbers last_reserved_ip by it.
func (t *text) sets() ([]Set, error) {
	texts, err := t.setTexts()
	if err == nil && len(texts) == 0 {
		return nil, ErrNoRanges
	}
	errs := []error{err}
	var sets []Set
	for _, text := range texts {
		s, err := text.parse()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if i := slices.IndexFunc(sets, s.overlaps); i >= 0 {
			errs = append(errs, conflist.Invalid(text.key, s.String(), "must not overlap the range set "+sets[i].String()))
		}
		sets = append(sets, s)
	}
	return sets, errors.Join(append(errs, t.families(sets))...)
}

// setTexts leaves out a set that has a value of a wrong type.
func (t *text) setTexts() ([]setText, error) {
	texts, given := readSets("runtimeConfig.ipRanges", t.RuntimeConfig.IPRanges)
	if o := &t.IPAM; o.Subnet != "" {
		old := rangeText{"ipam", o.Subnet, o.RangeStart, o.RangeEnd, o.Gateway}
		texts = append(texts, setText{"ipam", []rangeText{old}})
	}
	written, err := readSets("ipam.ranges", t.IPAM.Ranges)
	return append(texts, written...), errors.Join(given, err)
}

func readSets(key string, raws []json.RawMessage) ([]setText, error) {
	var sets []setText
	var errs []error
	for i, raw := range raws {
		set, err := readSet(fmt.Sprintf("%s[%d]", key, i), raw)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		sets = append(sets, set)
	}
	return sets, errors.Join(errs...)
}

func readSet(key string, raw json.RawMessage) (setText, error) {
	set := setText{key: key}
	var ranges []json.RawMessage
	if err := decode(raw, key, &ranges); err != nil {
		return set, err
	}
	for i, raw := range ranges {
		r := rangeText{key: fmt.Sprintf("%s[%d]", key, i)}
		if err := decode(raw, r.key, &r); err != nil {
			return set, err
		}
		set.ranges = append(set.ranges, r)
	}
	return set, nil
}

// families refuses what a result of an old version can not hold.
func (t *text) families(sets []Set) error {
	four := 0
	for _, s := range sets {
		if s.Ranges[0].Start.Is4() {
			four++
		}
	}
	if four <= 1 && len(sets)-four <= 1 {
		return nil
	}
	if ok, err := version.GreaterThanOrEqualTo(t.CNIVersion, "0.3.0"); !ok || err != nil {
		return conflist.Invalid("cniVersion", t.CNIVersion, "must be 0.3.0 or later for two addresses of one family")
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
func (t *text) request(sets []Set, args string) error {
	wishes, bad := t.wishes(args)
	errs := []error{bad}
	seen := map[netip.Addr]bool{}
	for _, w := range wishes {
		a, ok := parseAddr(w.text)
		if !ok {
			errs = append(errs, w.wrong("must be an IP address"))
		} else if !seen[a] {
			errs = append(errs, grant(sets, w, a))
		}
		seen[a] = true
	}
	return errors.Join(errs...)
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

func (t *text) wishes(args string) ([]wish, error) {
	pairs, err := conflist.ParseArgs(args)
	errs := []error{err}
	var wishes []wish
	if a := pairs["IP"]; a != "" {
		wishes = append(wishes, wish{"IP", a, conflist.ErrArgs})
	}
	for _, from := range [...]struct {
		key string
		ips []json.RawMessage
	}{
		{"args.cni.ips", t.Args.CNI.IPs},
		{"runtimeConfig.ips", t.RuntimeConfig.IPs},
	} {
		for i, raw := range from.ips {
			w := wish{key: fmt.Sprintf("%s[%d]", from.key, i)}
			if err := decode(raw, w.key, &w.text); err != nil {
				errs = append(errs, err)
				continue
			}
			wishes = append(wishes, w)
		}
	}
	return wishes, errors.Join(errs...)
}

// routeText is types.Route before anything in it is read: its own decoder stops
// at the first wrong address and does not say where it stood.
type routeText struct {
	Dst      string `json:"dst"`
	GW       string `json:"gw"`
	MTU      int    `json:"mtu"`
	AdvMSS   int    `json:"advmss"`
	Priority int    `json:"priority"`
	Table    *int   `json:"table"`
	Scope    *int   `json:"scope"`
}

func (t *text) routes() ([]*types.Route, error) {
	var routes []*types.Route
	var errs []error
	for i, raw := range t.IPAM.Routes {
		key := fmt.Sprintf("ipam.routes[%d]", i)
		r, err := parseRoute(raw, key)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		routes = append(routes, r)
	}
	return routes, errors.Join(errs...)
}

func parseRoute(raw json.RawMessage, key string) (*types.Route, error) {
	var t routeText
	if err := decode(raw, key, &t); err != nil {
		return nil, err
	}
	dst, err := types.ParseCIDR(t.Dst)
	if err != nil {
		return nil, conflist.Invalid(key+".dst", t.Dst, "must be a destination such as 0.0.0.0/0")
	}
	r := &types.Route{Dst: *dst, MTU: t.MTU, AdvMSS: t.AdvMSS, Priority: t.Priority, Table: t.Table, Scope: t.Scope}
	if t.GW == "" {
		return r, nil
	}
	gw, err := netip.ParseAddr(t.GW)
	if err != nil || gw.Zone() != "" {
		return nil, conflist.Invalid(key+".gw", t.GW, "must be an IP address")
	}
	r.GW = gw.Unmap().AsSlice()
	return r, nil
}

// decode reads the JSON value at key: a string, a number, a list or a flat object.
func decode(raw json.RawMessage, key string, into any) error {
	err := json.Unmarshal(raw, into)
	t, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok || t.Field == "" {
		if err != nil {
			err = conflist.Invalid(key, raw, "has the wrong type")
		}
		return err
	}
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(raw, &fields)
	for name, value := range fields {
		if strings.EqualFold(name, t.Field) {
			raw = value
		}
	}
	return conflist.Invalid(key+"."+t.Field, raw, "has the wrong type")
}
