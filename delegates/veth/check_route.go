package veth

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// routes looks for each route of ADD that the final result still has, in any
// table: later plugins move them.
func (k *Check) routes() error {
	wanted := k.wanted()
	if len(wanted) == 0 {
		return nil
	}
	have, err := k.Pod.Conn().Routes(0)
	if err != nil {
		return err
	}
	for _, may := range wanted {
		if !slices.ContainsFunc(may, func(want Route) bool { return k.installed(want, have) }) {
			k.Find("route", may[0].String(), k.instead(may[0], have), func() error { return k.putRoute(may[0], wanted) })
		}
	}
	return nil
}

// wanted is the routes that the pod should have, each with what a later plugin
// made of it.
func (k *Check) wanted() (out [][]Route) {
	if k.Own != nil {
		for _, r := range k.Own(k.made) {
			out = append(out, []Route{r})
		}
	}
	made := Routes(k.made)
	for _, want := range made {
		if k.now == nil {
			out = append(out, []Route{want})
			continue
		}
		if may := later(want, made, Routes(k.now)); may != nil {
			out = append(out, may)
		}
	}
	return out
}

// later is a route with those that the final result has in its place; nil where
// it has none to that destination. What the final result does not say, as an
// older version cannot, is as ADD made it.
func later(want Route, made, now []Route) (may []Route) {
	same := func(a, b Route) bool { return a.Dst.Masked() == b.Dst.Masked() }
	for _, n := range now {
		if !same(n, want) {
			continue
		}
		if may == nil {
			may = []Route{want}
		}
		another := func(m Route) bool { return same(m, want) && m.Gateway == n.Gateway && m.Gateway != want.Gateway }
		if slices.ContainsFunc(made, another) {
			continue
		}
		r := want
		r.Gateway = n.Gateway
		for _, f := range []struct {
			to   *int
			from int
		}{{&r.MTU, n.MTU}, {&r.AdvMSS, n.AdvMSS}, {&r.Priority, n.Priority}} {
			if f.from != 0 {
				*f.to = f.from
			}
		}
		if n.Scope != nil {
			r.Scope = n.Scope
		}
		may = append(may, r)
	}
	return may
}

// installed tells whether the kernel has a route as it was asked for, by the
// pod's end. The reference plugins apply no mtu and advmss.
func (k *Check) installed(want Route, have []Installed) bool {
	for _, r := range have {
		ours := !k.Call.Made.Known || fits(r.MTU, want.MTU) && fits(r.AdvMSS, want.AdvMSS)
		if r.Dst == want.Dst.Masked() && r.Index == k.pod.Index && r.Gateway == want.Gateway &&
			fits(r.Priority, want.Priority) && ours && r.reaches(want) {
			return true
		}
	}
	return false
}

// reaches compares what has a default in the kernel: the source, and the scope,
// which IPv6 has not, and which a plugin that moves a route to another table may
// choose anew.
func (r Installed) reaches(want Route) bool {
	asked := want.Table
	if asked == 0 {
		asked = unix.RT_TABLE_MAIN
	}
	moved := r.Table != asked
	source := !want.Source.IsValid() || !r.Source.IsValid() || r.Source == want.Source
	return source && (want.Scope == nil || want.Dst.Addr().Is6() || moved || *r.Scope == *want.Scope)
}

// fits tells whether the kernel's value is what was asked for; 0 asked for nothing.
func fits(got, asked int) bool { return asked == 0 || got == asked }

// instead is what the kernel has to a route's destination.
func (k *Check) instead(want Route, have []Installed) string {
	for _, r := range have {
		if r.Dst != want.Dst.Masked() {
			continue
		}
		if r.Index != k.pod.Index {
			return fmt.Sprintf("%s by interface %d", r, r.Index)
		}
		return r.String()
	}
	return "none"
}
