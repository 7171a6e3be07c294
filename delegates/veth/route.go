package veth

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
)

// Route is one route of the pod. Zero values are the kernel's own defaults.
type Route struct {
	Dst      netip.Prefix
	Gateway  netip.Addr // invalid for a route without one
	Source   netip.Addr // that packets by it get; invalid for the kernel's choice
	MTU      int        // bytes
	AdvMSS   int        // bytes
	Priority int        // metric
	Table    int        // 0 for main
	Scope    *int       // rtnetlink's number; nil for universe, or link without a gateway
}

// String is the route as ip-route(8) writes it, what is zero left out.
func (r Route) String() string {
	text := r.Dst.String()
	if r.Gateway.IsValid() {
		text += " via " + r.Gateway.String()
	}
	for _, part := range []struct {
		name string
		n    int
	}{{"metric", r.Priority}, {"mtu", r.MTU}, {"advmss", r.AdvMSS}, {"table", r.Table}} {
		if part.n != 0 && (part.name != "table" || part.n != unix.RT_TABLE_MAIN) {
			text += fmt.Sprintf(" %s %d", part.name, part.n)
		}
	}
	if r.Source.IsValid() {
		text += " src " + r.Source.String()
	}
	if r.Scope != nil && r.Dst.Addr().Is4() {
		text += scopes[*r.Scope]
	}
	return text
}

// scopes is those that ip-route(8) writes by name (linux/rtnetlink.h).
var scopes = map[int]string{unix.RT_SCOPE_SITE: " scope site", unix.RT_SCOPE_LINK: " scope link", unix.RT_SCOPE_HOST: " scope host"}

// AddRoutes adds routes through an interface, in one send. One that is there
// already, whole, is success.
func (c *Conn) AddRoutes(index int, routes ...Route) error {
	if len(routes) == 0 {
		return nil
	}
	var m batch
	for _, r := range routes {
		m.route(index, r, 0)
	}
	err := c.Do(&m.Batch)
	if only(err, unix.EEXIST) {
		return nil
	}
	return err
}

// ReplaceRoute adds a route in place of one of the same destination and metric.
func (c *Conn) ReplaceRoute(index int, r Route) error {
	var m batch
	m.route(index, r, unix.NLM_F_REPLACE)
	return c.Do(&m.Batch)
}

// only tells that each of the joined errors is target.
func only(err, target error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			if !errors.Is(e, target) {
				return false
			}
		}
	}
	return errors.Is(err, target)
}

// route appends an RTM_NEWROUTE (rtnetlink(7)). Without NLM_F_EXCL two routes
// of one destination stand side by side, as the reference's do.
func (m *batch) route(index int, r Route, how uint16) {
	m.Add("add route "+r.Dst.String(), unix.RTM_NEWROUTE, unix.NLM_F_CREATE|how)
	table := byte(unix.RT_TABLE_MAIN)
	if r.Table > 0 && r.Table < 256 {
		table = byte(r.Table)
	}
	m.Raw(family(r.Dst.Addr()), byte(r.Dst.Bits()), 0, 0,
		table, unix.RTPROT_BOOT, r.scope(), unix.RTN_UNICAST, 0, 0, 0, 0)
	if r.Dst.Bits() > 0 {
		m.Attr(unix.RTA_DST, r.Dst.Masked().Addr().AsSlice())
	}
	m.gateway(r)
	if r.Source.IsValid() {
		m.Attr(unix.RTA_PREFSRC, r.Source.AsSlice())
	}
	m.U32(unix.RTA_OIF, uint32(index))
	if r.Table > 255 {
		m.U32(unix.RTA_TABLE, uint32(r.Table))
	}
	if r.Priority > 0 {
		m.U32(unix.RTA_PRIORITY, uint32(r.Priority))
	}
	m.metrics(r)
	m.End()
}

func (r Route) scope() byte {
	switch {
	case r.Scope != nil:
		return byte(*r.Scope)
	case !r.Gateway.IsValid() && r.Dst.Addr().Is4():
		return unix.RT_SCOPE_LINK
	}
	return unix.RT_SCOPE_UNIVERSE
}

// gateway adds the next hop: one of the other family goes into RTA_VIA.
func (m *batch) gateway(r Route) {
	if !r.Gateway.IsValid() {
		return
	}
	if r.Gateway.Is4() == r.Dst.Addr().Is4() {
		m.Attr(unix.RTA_GATEWAY, r.Gateway.AsSlice())
		return
	}
	m.Attr(unix.RTA_VIA, append(netlink.Order.AppendUint16(nil, uint16(family(r.Gateway))), r.Gateway.AsSlice()...))
}

func (m *batch) metrics(r Route) {
	if r.MTU == 0 && r.AdvMSS == 0 {
		return
	}
	done := m.Nest(unix.RTA_METRICS)
	if r.MTU > 0 {
		m.U32(unix.RTAX_MTU, uint32(r.MTU))
	}
	if r.AdvMSS > 0 {
		m.U32(unix.RTAX_ADVMSS, uint32(r.AdvMSS))
	}
	done()
}
