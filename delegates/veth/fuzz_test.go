package veth

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
)

// message is the body of one that the kernel might send.
func message(head []byte, attributes func(*netlink.Batch)) []byte {
	var m netlink.Batch
	m.Add("message", 0, 0)
	m.Raw(head...)
	attributes(&m)
	m.End()
	return m.Bytes()[unix.SizeofNlMsghdr:]
}

func FuzzLink(f *testing.F) {
	whole := message(make([]byte, unix.SizeofIfInfomsg), func(m *netlink.Batch) {
		m.Str(unix.IFLA_IFNAME, "veth0")
		m.Attr(unix.IFLA_ADDRESS, []byte{10, 0x58, 10, 22, 0, 5})
		m.U32(unix.IFLA_MTU, 1500)
		m.Str(unix.IFLA_IFALIAS, "tracewire:net/c1:eth0")
		m.Attr(unix.IFLA_OPERSTATE, []byte{6})
		info := m.Nest(unix.IFLA_LINKINFO)
		m.Str(unix.IFLA_INFO_KIND, "bridge")
		port := m.Nest(unix.IFLA_INFO_SLAVE_DATA)
		m.Bool(unix.IFLA_BRPORT_MODE, true)
		port()
		data := m.Nest(unix.IFLA_INFO_DATA)
		m.Bool(vlanFiltering, true)
		data()
		info()
	})
	f.Add(whole)
	for _, kind := range []uint16{unix.IFLA_MTU, unix.IFLA_MASTER, unix.IFLA_LINK, unix.IFLA_LINK_NETNSID, unix.IFLA_OPERSTATE, unix.IFLA_LINKINFO} {
		f.Add(message(make([]byte, unix.SizeofIfInfomsg), func(m *netlink.Batch) { m.Attr(kind, nil) }))
	}
	for n := range len(whole) {
		f.Add(whole[:n])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if l := readLink(body); len(l.Name)+len(l.Alias)+len(l.Kind)+len(l.MAC) > len(body) {
			t.Errorf("%+v of %d bytes", l, len(body))
		}
	})
}

func FuzzRoute(f *testing.F) {
	head := []byte{unix.AF_INET, 24, 0, 0, unix.RT_TABLE_MAIN, 0, 0, unix.RTN_UNICAST, 0, 0, 0, 0}
	hop := append([]byte{8, 0, 0, 0, 7, 0, 0, 0}, 4, 0, unix.RTA_VIA, 0)
	f.Add(message(head, func(m *netlink.Batch) {
		m.Attr(unix.RTA_DST, []byte{10, 22, 0, 0})
		m.Attr(unix.RTA_VIA, []byte{unix.AF_INET6, 0, 1})
		metrics := m.Nest(unix.RTA_METRICS)
		m.U32(unix.RTAX_MTU, 1400)
		m.Attr(unix.RTAX_ADVMSS, nil)
		metrics()
	}))
	f.Add(message(head, func(m *netlink.Batch) { m.Attr(unix.RTA_MULTIPATH, append(append([]byte{}, hop...), hop...)) }))
	for _, kind := range []uint16{unix.RTA_DST, unix.RTA_OIF, unix.RTA_PRIORITY, unix.RTA_TABLE, unix.RTA_VIA, unix.RTA_GATEWAY, unix.RTA_MULTIPATH} {
		f.Add(message(head, func(m *netlink.Batch) { m.Attr(kind, nil) }))
	}
	f.Fuzz(func(_ *testing.T, body []byte) {
		if len(body) < unix.SizeofRtMsg { // Routes passes it over
			return
		}
		for _, r := range readRoute(body) {
			_ = r.String()
		}
	})
}

func FuzzAddress(f *testing.F) {
	f.Add(message([]byte{unix.AF_INET, 24, 0, 0, 7, 0, 0, 0}, func(m *netlink.Batch) { m.Attr(unix.IFA_LOCAL, []byte{10, 22, 0, 5}) }))
	f.Add(message([]byte{unix.AF_INET6, 255, 0, 0, 7, 0, 0, 0}, func(m *netlink.Batch) { m.Attr(unix.IFA_ADDRESS, []byte{1}) }))
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) < unix.SizeofIfAddrmsg { // addresses passes it over
			return
		}
		if p := readAddress(body); p.IsValid() && p.Addr() == (netip.Addr{}) {
			t.Errorf("%v", p)
		}
	})
}

func FuzzVLANs(f *testing.F) {
	head := []byte{unix.AF_BRIDGE, 0, 0, 0, 7, 0, 0, 0}
	f.Add(message(head, func(m *netlink.Batch) {
		entry := m.Nest(vlanEntry)
		m.Attr(vlanEntryInfo, []byte{0, 0, 0xff, 0xff})
		m.Attr(vlanEntryRange, []byte{0xff, 0xff})
		entry()
	}))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, v := range readVLANs(7, body) {
			if v.ID < 0 || v.ID > 0xffff {
				t.Errorf("%+v", v)
			}
		}
	})
}

func FuzzOwner(f *testing.F) {
	for _, text := range []string{"net/c1:eth0", "", "/", ":", "/:", "net", "net/", "net/c1", "net/c1:", "a/b/c:d:e", "net/c1:eth0\x00", "\xff/\xff:\xff", strings.Repeat("x", 300)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, ok := parseOwner(text)
		if ok && a.String() != text {
			t.Errorf("%q is read as %q", text, a)
		}
		if of := Owner(Alias(text)); of != text && len(text) < 200 && !strings.ContainsRune(text, 0) {
			t.Errorf("the mark of %q names %q", text, of)
		}
	})
}
