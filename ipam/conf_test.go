package ipam

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/conflist"
)

var exact = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.AllowUnexported(HostLocal{}),
}

func span(subnet, start, end, gateway string) Range {
	a := netip.MustParseAddr
	return Range{Subnet: netip.MustParsePrefix(subnet), Start: a(start), End: a(end), Gateway: a(gateway)}
}

func one(r Range) Set { return Set{Ranges: []Range{r}} }

func asked(addr string, r Range) Set {
	return Set{Ranges: []Range{r}, Requested: netip.MustParseAddr(addr)}
}

func cidr(t *testing.T, s string) net.IPNet {
	t.Helper()
	n, err := types.ParseCIDR(s)
	if err != nil {
		t.Fatal(err)
	}
	return *n
}

// parse reads a configuration and CNI_ARGS as the plugin does.
func parse(conf, args string) (HostLocal, error) {
	doc := conflist.Read([]byte(conf))
	pairs, err := conflist.ParseArgs(args)
	h := Parse(doc, pairs)
	return h, errors.Join(err, doc.Err())
}

func TestParse(t *testing.T) {
	small := span("10.1.0.0/29", "10.1.0.1", "10.1.0.6", "10.1.0.1")
	six := span("fd00::/64", "fd00::1", "fd00::ffff:ffff:ffff:ffff", "fd00::1")
	scope, table := 253, 100
	for _, tt := range []struct {
		name, conf, args string
		want             HostLocal
	}{
		{"old style", `{"ipam":{"subnet":"10.1.0.0/29"}}`, "", HostLocal{Sets: []Set{one(small)}}},
		{"old style, all keys", `{"ipam":{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.10","rangeEnd":"10.1.0.20","gateway":"10.1.0.254"}}`, "",
			HostLocal{Sets: []Set{one(span("10.1.0.0/24", "10.1.0.10", "10.1.0.20", "10.1.0.254"))}}},
		{"v6 ends with the last address", `{"ipam":{"ranges":[[{"subnet":"fd00::/64"}]]}}`, "", HostLocal{Sets: []Set{one(six)}}},
		{"old style is before ranges", `{"ipam":{"ranges":[[{"subnet":"fd00::/64"}]],"subnet":"10.1.0.0/29"}}`, "", HostLocal{Sets: []Set{one(small), one(six)}}},
		{"the capability is first", `{"ipam":{"ranges":[[{"subnet":"fd00::/64"}]]},"runtimeConfig":{"ipRanges":[[{"Subnet":"10.1.0.0/29","RangeStart":""}]]}}`, "",
			HostLocal{perCall: true, Sets: []Set{one(small), one(six)}}},
		{"two ranges in a set", `{"ipam":{"ranges":[[{"subnet":"10.1.0.0/29"},{"subnet":"10.2.0.0/30"}]]}}`, "",
			HostLocal{Sets: []Set{{Ranges: []Range{small, span("10.2.0.0/30", "10.2.0.1", "10.2.0.2", "10.2.0.1")}}}}},
		{"two of a family since 0.3.0", `{"cniVersion":"0.3.0","ipam":{"ranges":[[{"subnet":"10.1.0.0/29"}],[{"subnet":"10.2.0.0/30"}]]}}`, "",
			HostLocal{Sets: []Set{one(small), one(span("10.2.0.0/30", "10.2.0.1", "10.2.0.2", "10.2.0.1"))}}},
		{"start at the network, end at the broadcast", `{"ipam":{"subnet":"10.1.0.0/29","rangeStart":"10.1.0.0","rangeEnd":"10.1.0.7"}}`, "",
			HostLocal{Sets: []Set{one(span("10.1.0.0/29", "10.1.0.0", "10.1.0.7", "10.1.0.1"))}}},
		{"a mapped address is IPv4", `{"ipam":{"subnet":"10.1.0.0/29","gateway":"::ffff:10.1.0.1"}}`, "", HostLocal{Sets: []Set{one(small)}}},
		{"requested by CNI_ARGS", `{"ipam":{"subnet":"10.1.0.0/29"}}`, "IgnoreUnknown=1;IP=10.1.0.5;X=y", HostLocal{Sets: []Set{asked("10.1.0.5", small)}}},
		{"requested by args", `{"ipam":{"subnet":"10.1.0.0/29"},"args":{"cni":{"ips":["10.1.0.5/29"]}}}`, "", HostLocal{Sets: []Set{asked("10.1.0.5", small)}}},
		{"requested by capability", `{"ipam":{"subnet":"10.1.0.0/29"},"runtimeConfig":{"ips":["10.1.0.5"]}}`, "", HostLocal{Sets: []Set{asked("10.1.0.5", small)}}},
		{"requested in all places", `{"ipam":{"ranges":[[{"subnet":"10.1.0.0/29"}],[{"subnet":"fd00::/64"}]]},"args":{"cni":{"ips":["fd00::5/64"]}},"runtimeConfig":{"ips":["10.1.0.5","fd00:0::5"]}}`, "IP=10.1.0.5",
			HostLocal{Sets: []Set{asked("10.1.0.5", small), asked("fd00::5", six)}}},
		{"CNI_ARGS with an empty IP", `{"ipam":{"subnet":"10.1.0.0/29"}}`, "IP=;;", HostLocal{Sets: []Set{one(small)}}},
		{"paths", `{"ipam":{"subnet":"10.1.0.0/29","dataDir":"/d","resolvConf":"/r"}}`, "", HostLocal{DataDir: "/d", ResolvConf: "/r", Sets: []Set{one(small)}}},
		{"routes", `{"ipam":{"subnet":"10.1.0.0/29","routes":[{"dst":"0.0.0.0/0"},{"dst":"fd01::/48","gw":"fd00::1","mtu":1400,"advmss":1300,"priority":5,"table":100,"scope":253}]}}`, "",
			HostLocal{Sets: []Set{one(small)}, Routes: []*types.Route{
				{Dst: cidr(t, "0.0.0.0/0")},
				{Dst: cidr(t, "fd01::/48"), GW: net.ParseIP("fd00::1"), MTU: 1400, AdvMSS: 1300, Priority: 5, Table: &table, Scope: &scope}}}},
		{"nulls", `{"ipam":{"subnet":"10.1.0.0/29","ranges":null,"routes":null},"runtimeConfig":null,"args":null}`, "", HostLocal{Sets: []Set{one(small)}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(tt.conf, tt.args)
			if err != nil {
				t.Fatal(err)
			}
			if tt.want.DataDir == "" {
				tt.want.DataDir = DefaultDataDir
			}
			if diff := cmp.Diff(tt.want, got, exact); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	for _, tt := range []struct {
		name, conf, args string
		want             []string // the lines of the error, without the sentinel's text
	}{
		{"no JSON", `{`, "", []string{`network configuration: must be an object, got "{"`}},
		{"no ipam", `{}`, "", []string{"ipam.ranges: must hold a range set, got null"}},
		{"ranges of the wrong type", `{"ipam":{"ranges":5}}`, "", []string{`ipam.ranges: must be an array, got 5`}},
		{"an empty set", `{"ipam":{"ranges":[[]]}}`, "", []string{`ipam.ranges[0]: must hold a range, got null`}},
		{"a set that is null", `{"ipam":{"ranges":[null]}}`, "", []string{`ipam.ranges[0]: must hold a range, got null`}},
		{"a set that is no list", `{"ipam":{"ranges":[{"subnet":"10.1.0.0/24"}]}}`, "", []string{`ipam.ranges[0]: must be an array, got {"subnet":"10.1.0.0/24"}`}},
		{"a range that is no object", `{"ipam":{"ranges":[["10.1.0.0/24"]]}}`, "", []string{`ipam.ranges[0][0]: must be an object, got "10.1.0.0/24"`}},
		{"no subnet", `{"ipam":{"ranges":[[{}]]}}`, "", []string{`ipam.ranges[0][0].subnet: must be a subnet such as 10.22.0.0/16, got ""`}},
		{"subnet of the wrong type", `{"ipam":{"ranges":[[{"Subnet":5}]]}}`, "", []string{`ipam.ranges[0][0].subnet: must be a string, got 5`}},
		{"subnet without length", `{"ipam":{"subnet":"10.1.0.0"}}`, "", []string{`ipam.subnet: must be a subnet such as 10.22.0.0/16, got "10.1.0.0"`}},
		{"a mapped subnet", `{"ipam":{"subnet":"::ffff:10.1.0.0/120"}}`, "", []string{`ipam.subnet: must be a subnet such as 10.22.0.0/16, got "::ffff:10.1.0.0/120"`}},
		{"host bits", `{"ipam":{"subnet":"10.1.0.5/24"}}`, "", []string{`ipam.subnet: has host bits set, the subnet is 10.1.0.0/24, got "10.1.0.5/24"`}},
		{"a /31", `{"ipam":{"subnet":"10.1.0.0/31"}}`, "", []string{`ipam.subnet: is too small to lease from, got "10.1.0.0/31"`}},
		{"a /32", `{"ipam":{"subnet":"10.1.0.0/32"}}`, "", []string{`ipam.subnet: is too small to lease from, got "10.1.0.0/32"`}},
		{"a /127", `{"ipam":{"subnet":"fd00::/127"}}`, "", []string{`ipam.subnet: is too small to lease from, got "fd00::/127"`}},
		{"a /128", `{"ipam":{"subnet":"fd00::/128"}}`, "", []string{`ipam.subnet: is too small to lease from, got "fd00::/128"`}},
		{"gateway elsewhere", `{"ipam":{"ranges":[[{"subnet":"10.1.0.0/24"},{"subnet":"10.2.0.0/24","gateway":"10.1.0.1"}]]}}`, "", []string{`ipam.ranges[0][1].gateway: must be an address in 10.2.0.0/24, got "10.1.0.1"`}},
		{"gateway of the other family", `{"ipam":{"subnet":"10.1.0.0/24","gateway":"fd00::1"}}`, "", []string{`ipam.gateway: must be an address in 10.1.0.0/24, got "fd00::1"`}},
		{"gateway of the wrong type", `{"cniVersion":"1.0.0","ipam":{"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.2.0.0/24"},{"subnet":"10.3.0.0/24","gateway":[1]}]]}}`, "", []string{`ipam.ranges[1][1].gateway: must be a string, got [1]`}},
		{"start elsewhere", `{"ipam":{"subnet":"10.1.0.0/24","rangeStart":"10.2.0.1"}}`, "", []string{`ipam.rangeStart: must be an address in 10.1.0.0/24, got "10.2.0.1"`}},
		{"end is no address", `{"ipam":{"subnet":"10.1.0.0/24","rangeEnd":"x"}}`, "", []string{`ipam.rangeEnd: must be an address in 10.1.0.0/24, got "x"`}},
		{"start after end", `{"ipam":{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.9","rangeEnd":"10.1.0.8"}}`, "", []string{`ipam.rangeStart: must not be after rangeEnd 10.1.0.8, got "10.1.0.9"`}},
		{"start after the default end", `{"ipam":{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.255"}}`, "", []string{`ipam.rangeStart: must not be after rangeEnd 10.1.0.254, got "10.1.0.255"`}},
		{"ranges overlap", `{"ipam":{"ranges":[[{"subnet":"10.1.0.0/24"},{"subnet":"10.1.0.0/28"}]]}}`, "", []string{`ipam.ranges[0][1]: must not overlap a range of its set, got "10.1.0.1-10.1.0.14"`}},
		{"sets overlap", `{"cniVersion":"1.0.0","ipam":{"subnet":"10.1.0.0/24","ranges":[[{"subnet":"10.1.0.0/16"}]]}}`, "", []string{`ipam.ranges[0]: must not overlap the range set 10.1.0.1-10.1.0.254, got "10.1.0.1-10.1.255.254"`}},
		{"mixed families", `{"ipam":{"ranges":[[{"subnet":"10.1.0.0/24"},{"subnet":"fd00::/64"}]]}}`, "", []string{`ipam.ranges[0][1].subnet: must be of the family of the set's first range, got "fd00::/64"`}},
		{"two of a family before 0.3.0", `{"cniVersion":"0.2.0","ipam":{"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.2.0.0/24"}]]}}`, "", []string{`cniVersion: must be 0.3.0 or later for two addresses of one family, got "0.2.0"`}},
		{"two of a family, version unknown", `{"ipam":{"ranges":[[{"subnet":"fd00::/64"}],[{"subnet":"fd01::/64"}]]}}`, "", []string{`cniVersion: must be 0.3.0 or later for two addresses of one family, got ""`}},
		{"capability", `{"ipam":{"subnet":"10.1.0.0/24"},"runtimeConfig":{"ipRanges":[[{"subnet":"no"}]]}}`, "", []string{`runtimeConfig.ipRanges[0][0].subnet: must be a subnet such as 10.22.0.0/16, got "no"`}},
		{"dataDir", `{"ipam":{"subnet":"10.1.0.0/24","dataDir":5}}`, "", []string{`ipam.dataDir: must be a string, got 5`}},
		{"route", `{"ipam":{"subnet":"10.1.0.0/24","routes":[{"dst":"0.0.0.0/0"},{"dst":"x"}]}}`, "", []string{`ipam.routes[1].dst: must be a destination such as 0.0.0.0/0, got "x"`}},
		{"route that is null", `{"ipam":{"subnet":"10.1.0.0/24","routes":[null]}}`, "", []string{`ipam.routes[0].dst: must be a destination such as 0.0.0.0/0, got null`}},
		{"gateway of a route", `{"ipam":{"subnet":"10.1.0.0/24","routes":[{"dst":"0.0.0.0/0","gw":"10.1"}]}}`, "", []string{`ipam.routes[0].gw: must be an IP address, got "10.1"`}},
		{"mtu of a route", `{"ipam":{"subnet":"10.1.0.0/24","routes":[{"dst":"0.0.0.0/0","mtu":"big"}]}}`, "", []string{`ipam.routes[0].mtu: must be a whole number, got "big"`}},
		{"requested in no set", `{"ipam":{"subnet":"10.1.0.0/24"},"runtimeConfig":{"ips":["10.1.0.5","10.9.9.9"]}}`, "", []string{`runtimeConfig.ips[1]: must be in a range set that serves no other requested address, got "10.9.9.9"`}},
		{"two requested of a set", `{"ipam":{"subnet":"10.1.0.0/24"},"runtimeConfig":{"ips":["10.1.0.5"]},"args":{"cni":{"ips":["10.1.0.6"]}}}`, "", []string{`runtimeConfig.ips[0]: must be in a range set that serves no other requested address, got "10.1.0.5"`}},
		{"requested the gateway", `{"ipam":{"subnet":"10.1.0.0/24"},"args":{"cni":{"ips":["10.1.0.1"]}}}`, "", []string{`args.cni.ips[0]: must not be the gateway of its range, got "10.1.0.1"`}},
		{"requested of the wrong type", `{"ipam":{"subnet":"10.1.0.0/24"},"args":{"cni":{"ips":[5,null]}}}`, "", []string{`args.cni.ips[0]: must be a string, got 5`, `args.cni.ips[1]: must be an IP address, got ""`}},
		{"CNI_ARGS", `{"ipam":{"subnet":"10.1.0.0/24"}}`, "IP=10.1.0", []string{`IP: must be an IP address, got "10.1.0"`}},
		{"CNI_ARGS malformed", `{"ipam":{"subnet":"10.1.0.0/24"}}`, "IP", []string{`pair "IP" is not KEY=VALUE`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse(tt.conf, tt.args)
			if err == nil {
				t.Fatal("no error")
			}
			sentinel := conflist.ErrInvalid
			if strings.HasPrefix(tt.name, "CNI_ARGS") {
				sentinel = conflist.ErrArgs
			}
			if !errors.Is(err, sentinel) {
				t.Errorf("%v is no %v", err, sentinel)
			}
			got := strings.Split(strings.ReplaceAll(err.Error(), sentinel.Error()+": ", ""), "\n")
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestParseBesideAnError(t *testing.T) {
	got, err := parse(`{"cniVersion":5,"ipam":{"dataDir":"/d","ranges":[["x"],[{"subnet":"10.1.0.0/30"}]],"routes":[{"dst":"x"}]}}`, "IP=x")
	if err == nil {
		t.Fatal("no error")
	}
	want := HostLocal{DataDir: "/d", Sets: []Set{one(span("10.1.0.0/30", "10.1.0.1", "10.1.0.2", "10.1.0.1"))}}
	if diff := cmp.Diff(want, got, exact); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if _, err := parse(`{"ipam":{"type":"host-local"}}`, ""); !errors.Is(err, ErrNoRanges) {
		t.Errorf("%v is no ErrNoRanges", err)
	}
}

func TestResolv(t *testing.T) {
	const text = "# c\n; c\nnameserver 10.1.0.1 x\nnameserver fd00::1\n\ndomain a.test\nsearch a.test b.test\nsearch c.test\noptions ndots:5 rotate\nnameserver\nsortlist x\n"
	want := types.DNS{
		Nameservers: []string{"10.1.0.1", "fd00::1"}, Domain: "a.test",
		Search: []string{"a.test", "b.test", "c.test"}, Options: []string{"ndots:5", "rotate"},
	}
	if diff := cmp.Diff(want, parseResolv(text)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if _, err := resolv("/does/not/exist"); !errors.Is(err, conflist.ErrInvalid) {
		t.Errorf("%v is no ErrInvalid", err)
	}
}
