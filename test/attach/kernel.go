//go:build linux

package attach

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ifaces is the interfaces of one namespace but lo.
type ifaces struct {
	where string
	links []netlink.Link
}

// Kernel tells what the kernel has in the host's namespace and in each pod's:
// interfaces, addresses, routes and the settings that matter. Indexes are names
// in it; link-local addresses, which come at their own time, are left out.
func (n *Node) Kernel() (string, error) {
	all := []ifaces{{where: "host"}}
	for _, pod := range n.own() {
		all = append(all, ifaces{where: pod})
	}
	for i := range all {
		if err := n.In(all[i].where, func() (err error) { all[i].links, err = n.links(); return err }); err != nil {
			return "", err
		}
	}
	n.learnMACs(all[0].links)
	var b strings.Builder
	for _, in := range all {
		if err := n.In(in.where, func() error { return describe(&b, in, all) }); err != nil {
			return "", err
		}
	}
	return n.Normal(b.String()), nil
}

func (n *Node) learnMACs(host []netlink.Link) {
	for _, l := range host {
		if l.Type() == "bridge" || l.Type() == "ifb" {
			n.macs[l.Attrs().HardwareAddr.String()] = "MAC of " + l.Attrs().Name
		}
	}
}

// Normal is a text with all replaced that differs from run to run: the node's
// folder, and the MACs of bridges, which follow from the boot.
func (n *Node) Normal(text string) string {
	for mac, name := range n.macs {
		text = strings.ReplaceAll(text, mac, name)
	}
	return strings.ReplaceAll(text, n.Dir, Dir)
}

// own is the names of the node's pods, in order.
func (n *Node) own() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(n.pods)), func(pod string) bool { return n.beyond[pod] })
}

// links is the interfaces of the calling thread's namespace but lo and uplinks,
// bridges first.
func (n *Node) links() ([]netlink.Link, error) {
	ls, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	ls = slices.DeleteFunc(ls, func(l netlink.Link) bool { return l.Attrs().Name == "lo" || n.uplinks[l.Attrs().Name] })
	key := func(l netlink.Link) string {
		if l.Type() == "bridge" {
			return " " + l.Attrs().Name
		}
		return l.Attrs().Name
	}
	slices.SortFunc(ls, func(a, b netlink.Link) int { return strings.Compare(key(a), key(b)) })
	return ls, nil
}

func describe(b *strings.Builder, in ifaces, all []ifaces) error {
	fmt.Fprintf(b, "%s\n", in.where)
	for _, l := range in.links {
		if err := describeLink(b, l, in, all); err != nil {
			return fmt.Errorf("%s: %s: %w", in.where, l.Attrs().Name, err)
		}
	}
	if in.where != "host" {
		if err := describeRoutes(b, in); err != nil {
			return fmt.Errorf("%s: routes: %w", in.where, err)
		}
	}
	for _, s := range settings(in) {
		if v, err := os.ReadFile("/proc/sys/net/" + s); err == nil {
			fmt.Fprintf(b, "  %s = %s\n", s, strings.TrimSpace(string(v)))
		}
	}
	return nil
}

func describeLink(b *strings.Builder, l netlink.Link, in ifaces, all []ifaces) error {
	a := l.Attrs()
	words := []string{l.Type()}
	for _, f := range []struct {
		bit  uint32
		word string
	}{{unix.IFF_UP, "up"}, {unix.IFF_PROMISC, "promisc"}} {
		if a.RawFlags&f.bit != 0 {
			words = append(words, f.word)
		}
	}
	words = append(words, fmt.Sprintf("mtu %d", a.MTU), "mac "+a.HardwareAddr.String())
	if peer := peerOf(l, in, all); peer != "" {
		words = append(words, "peer "+peer)
	}
	if a.MasterIndex != 0 {
		port, err := netlink.LinkGetProtinfo(l)
		if err != nil {
			return err
		}
		words = append(words, "port of "+nameOf(in.links, a.MasterIndex)+portFlags(port))
	}
	fmt.Fprintf(b, "  %s: %s\n", a.Name, strings.Join(words, ", "))
	if a.Alias != "" {
		fmt.Fprintf(b, "    alias %s\n", a.Alias)
	}
	return describeAddresses(b, l)
}

func portFlags(p netlink.Protinfo) (text string) {
	for _, f := range []struct {
		on   bool
		word string
	}{{p.Hairpin, "hairpin"}, {p.Isolated, "isolated"}, {p.Learning, "learning"}, {p.Flood, "flood"}} {
		if f.on {
			text += " " + f.word
		}
	}
	return text
}

func describeAddresses(b *strings.Builder, l netlink.Link) error {
	addresses, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	var lines []string
	for _, a := range addresses {
		if a.IP.To4() == nil && a.IP.IsLinkLocalUnicast() {
			continue
		}
		line := "    address " + a.IPNet.String()
		if a.Broadcast != nil {
			line += " broadcast " + a.Broadcast.String()
		}
		for _, f := range []struct {
			bit  int
			word string
		}{{unix.IFA_F_NODAD, "nodad"}, {unix.IFA_F_TENTATIVE, "tentative"}, {unix.IFA_F_DADFAILED, "dadfailed"}} {
			if a.Flags&f.bit != 0 && a.IP.To4() == nil {
				line += " " + f.word
			}
		}
		lines = append(lines, line+"\n")
	}
	slices.Sort(lines)
	b.WriteString(strings.Join(lines, ""))
	return nil
}

// describeRoutes leaves out what the kernel adds by itself: the table local,
// multicast and link-local.
func describeRoutes(b *strings.Builder, in ifaces) error {
	filter := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	var lines []string
	for _, r := range routes {
		if r.Table == unix.RT_TABLE_LOCAL || r.Dst != nil && (r.Dst.IP.IsMulticast() || r.Dst.IP.IsLinkLocalUnicast() && r.Dst.IP.To4() == nil) {
			continue
		}
		lines = append(lines, "  route "+describeRoute(r, in)+"\n")
	}
	slices.Sort(lines)
	b.WriteString(strings.Join(lines, ""))
	return nil
}

func describeRoute(r netlink.Route, in ifaces) string {
	dst := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	if r.Family == netlink.FAMILY_V6 {
		dst = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	if r.Dst != nil {
		dst = r.Dst
	}
	text := dst.String()
	hops := r.MultiPath
	if len(hops) == 0 {
		hops = []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via}}
	}
	for _, hop := range hops {
		text += describeHop(hop, in)
	}
	if r.Table != unix.RT_TABLE_MAIN {
		text += fmt.Sprintf(" table %d", r.Table)
	}
	if r.Scope != netlink.SCOPE_UNIVERSE {
		text += " scope " + r.Scope.String()
	}
	for _, v := range []struct {
		word  string
		value int
	}{{"metric", r.Priority}, {"mtu", r.MTU}, {"advmss", r.AdvMSS}} {
		if v.value != 0 {
			text += fmt.Sprintf(" %s %d", v.word, v.value)
		}
	}
	return text + " proto " + r.Protocol.String()
}

func describeHop(hop *netlink.NexthopInfo, in ifaces) (text string) {
	if hop.Gw != nil {
		text = " via " + hop.Gw.String()
	}
	if hop.Via != nil {
		text += " via " + hop.Via.String()
	}
	return text + " dev " + nameOf(in.links, hop.LinkIndex)
}

// settings is the paths below /proc/sys/net that an ADD may have changed.
func settings(in ifaces) (out []string) {
	if in.where == "host" {
		out = append(out, "ipv4/ip_forward", "ipv6/conf/all/forwarding")
		for _, l := range in.links {
			out = append(out, "ipv6/conf/"+l.Attrs().Name+"/accept_ra")
		}
		return out
	}
	for _, l := range in.links {
		name := l.Attrs().Name
		out = append(out, "ipv4/conf/"+name+"/arp_notify")
		for _, s := range []string{"accept_dad", "disable_ipv6", "keep_addr_on_down", "ndisc_notify"} {
			out = append(out, "ipv6/conf/"+name+"/"+s)
		}
	}
	return out
}

// peerOf names the other end of a veth. Indexes are one namespace's own, so
// both ends have to name each other.
func peerOf(l netlink.Link, in ifaces, all []ifaces) string {
	if l.Type() != "veth" {
		return ""
	}
	a := l.Attrs()
	for _, other := range all {
		for _, p := range other.links {
			if other.where != in.where && p.Type() == "veth" && p.Attrs().Index == a.ParentIndex && p.Attrs().ParentIndex == a.Index {
				return other.where + "/" + p.Attrs().Name
			}
		}
	}
	return ""
}

func nameOf(links []netlink.Link, index int) string {
	for _, l := range links {
		if l.Attrs().Index == index {
			return l.Attrs().Name
		}
	}
	return fmt.Sprintf("interface %d", index)
}

// Links is the interfaces of the host and of each pod but lo and bridges, as
// "host/veth0": what has to be gone in the end.
func (n *Node) Links() (out []string, err error) {
	var errs []error
	for _, where := range append([]string{"host"}, n.own()...) {
		errs = append(errs, n.In(where, func() error {
			ls, err := n.links()
			for _, l := range ls {
				if l.Type() != "bridge" {
					out = append(out, where+"/"+l.Attrs().Name)
				}
			}
			return err
		}))
	}
	return out, errors.Join(errs...)
}
