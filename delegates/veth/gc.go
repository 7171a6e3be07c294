package veth

import (
	"context"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
)

// GC removes the host ends of a network's attachments that are not kept, proven
// by their alias, and returns whose they were. An alias that is a hash names no
// network: it stays.
func GC(ctx context.Context, network string, k delegates.Kept, wait bool) (gone []delegates.Attachment, err error) {
	host, err := Dial()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	all, err := host.Links()
	errs := []error{err}
	for _, l := range all {
		a, ok := parseOwner(Owner(l.Alias))
		if !ok || a.Network != network || k.Has(a) {
			continue
		}
		err := removeEnd(ctx, host, l, wait)
		if err == nil {
			gone = append(gone, a)
		}
		errs = append(errs, err)
	}
	return gone, errors.Join(errs...)
}

// Marked looks at the aliases of all interfaces, and returns what tells of an
// attachment whether it has one: it lives then. An IfName of "" stands for any
// interface of the container.
func Marked() (func(delegates.Attachment) bool, error) {
	host, err := Dial()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	all, err := host.Links()
	var aliases []string
	for _, l := range all {
		if Owner(l.Alias) != "" {
			aliases = append(aliases, l.Alias)
		}
	}
	return func(a delegates.Attachment) bool {
		if a.IfName != "" {
			return slices.Contains(aliases, Alias(a.String()))
		}
		return slices.ContainsFunc(aliases, func(alias string) bool {
			return strings.HasPrefix(alias, aliasPrefix+a.String()) || !strings.Contains(alias, "/") // a hash may be of it
		})
	}, err
}

// parseOwner reads network/containerID:ifname.
func parseOwner(text string) (a delegates.Attachment, ok bool) {
	network, rest, slash := strings.Cut(text, "/")
	id, ifName, colon := strings.Cut(rest, ":")
	return delegates.Attachment{Network: network, ContainerID: id, IfName: ifName}, slash && colon
}

// Links lists all interfaces of the kind veth.
func (c *Conn) Links() (out []Link, err error) {
	var m batch
	m.Add("list interfaces", unix.RTM_GETLINK, 0)
	m.IfInfo(0, 0, 0)
	m.U32(unix.IFLA_EXT_MASK, skipStats)
	info := m.Nest(unix.IFLA_LINKINFO)
	m.Str(unix.IFLA_INFO_KIND, "veth")
	info()
	m.End()
	err = c.Dump(&m.Batch, func() { out = nil }, func(body []byte) { out = append(out, readLink(body)) })
	return out, err
}
