package bridge

import (
	"encoding/json"
	"net/netip"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
)

func result(t *testing.T, text string) *types100.Result {
	t.Helper()
	if text == "" {
		return nil
	}
	r := &types100.Result{}
	if err := json.Unmarshal([]byte(text), r); err != nil {
		t.Fatal(err)
	}
	return r
}

// planned is a plan as far as a configuration and IPAM decide it.
type planned struct {
	Result   string // addresses, routes and dns, as JSON
	Routes   []veth.Route
	Gateways []netip.Prefix
}

func TestPlan(t *testing.T) {
	call := delegates.Call{Attachment: delegates.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"}, NetNS: "/run/netns/p"}
	p, a := netip.MustParsePrefix, netip.MustParseAddr
	local := 253
	for _, tt := range []struct {
		name, ipam string
		conf       Conf
		want       planned
	}{
		{"no IPAM", "", Conf{}, planned{Result: `{"cniVersion":"1.1.0"}`}},
		{"as IPAM says", `{"ips":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"domain":"d"}}`, Conf{},
			planned{`{"cniVersion":"1.1.0","ips":[{"interface":2,"address":"10.1.0.5/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"domain":"d"}}`,
				[]veth.Route{{Dst: p("0.0.0.0/0"), Gateway: a("10.1.0.1")}}, nil}},
		{"a gateway that IPAM did not name", `{"ips":[{"address":"10.1.0.5/24"},{"address":"fd00::5/64"}]}`, Conf{Gateway: true},
			planned{`{"cniVersion":"1.1.0","ips":[{"interface":2,"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"interface":2,"address":"fd00::5/64","gateway":"fd00::1"}]}`,
				[]veth.Route{}, []netip.Prefix{p("10.1.0.1/24"), p("fd00::1/64")}}},
		{"default routes of both families", `{"ips":[{"address":"10.1.0.5/24"},{"address":"fd00::5/64"},{"address":"10.2.0.5/24"}]}`, Conf{Gateway: true, DefaultGateway: true},
			planned{`{"cniVersion":"1.1.0","ips":[{"interface":2,"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"interface":2,"address":"fd00::5/64","gateway":"fd00::1"},{"interface":2,"address":"10.2.0.5/24","gateway":"10.2.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"},{"dst":"::/0","gw":"fd00::1"}]}`,
				[]veth.Route{{Dst: p("0.0.0.0/0"), Gateway: a("10.1.0.1")}, {Dst: p("::/0"), Gateway: a("fd00::1")}},
				[]netip.Prefix{p("10.1.0.1/24"), p("fd00::1/64"), p("10.2.0.1/24")}}},
		{"IPAM's own default route stays", `{"ips":[{"address":"10.1.0.5/24"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.9"}]}`, Conf{Gateway: true, DefaultGateway: true},
			planned{`{"cniVersion":"1.1.0","ips":[{"interface":2,"address":"10.1.0.5/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.9"}]}`,
				[]veth.Route{{Dst: p("0.0.0.0/0"), Gateway: a("10.1.0.9")}}, []netip.Prefix{p("10.1.0.1/24")}}},
		{"a route of link scope needs no gateway", `{"ips":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}],"routes":[{"dst":"10.9.0.0/16","scope":253}]}`, Conf{},
			planned{`{"cniVersion":"1.1.0","ips":[{"interface":2,"address":"10.1.0.5/24","gateway":"10.1.0.1"}],"routes":[{"dst":"10.9.0.0/16","scope":253}]}`,
				[]veth.Route{{Dst: p("10.9.0.0/16"), Scope: &local}}, nil}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.conf.Bridge = "cni0"
			call.IPAM = result(t, tt.ipam)
			r, err := plan(tt.conf, call)
			if err != nil {
				t.Fatal(err)
			}
			got := planned{}
			if r.IPs != nil {
				got.Routes = routes(r)
			}
			if tt.conf.Gateway {
				got.Gateways = gateways(r)
			}
			r.Interfaces = nil
			b, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			got.Result, tt.want.Result = sorted(t, string(b)), sorted(t, tt.want.Result)
			if diff := cmp.Diff(tt.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// sorted is the same JSON with its keys in order.
func sorted(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestOurs: what may be removed is what is proven to be the attachment's.
func TestOurs(t *testing.T) {
	att := delegates.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"}
	name, mac := "veth0a1b2c3d4e5", veth.HostMAC(att.String())
	made := &types100.Result{Interfaces: []*types100.Interface{{Name: "cni0"}, {Name: name, Mac: mac.String()}, {Name: "eth0", Sandbox: "/n"}}}
	for _, tt := range []struct {
		name string
		link veth.Link
		call delegates.Call
		want bool
	}{
		{"by alias", veth.Link{Name: name, Alias: veth.Alias(att.String())}, delegates.Call{}, true},
		{"another's alias", veth.Link{Name: name, Kind: "veth", MAC: mac, Alias: veth.Alias("net/c2:eth0")}, delegates.Call{Made: delegates.Made{Known: true, ThisBoot: true, Result: made}}, false},
		{"by the record of this boot", veth.Link{Name: name, Kind: "veth", MAC: mac}, delegates.Call{Made: delegates.Made{Known: true, ThisBoot: true, Result: made}}, true},
		{"a record of an earlier boot proves nothing", veth.Link{Name: name, Kind: "veth", MAC: mac}, delegates.Call{Made: delegates.Made{Known: true, Result: made}}, false},
		{"by prevResult, without a record", veth.Link{Name: name, Kind: "veth", MAC: mac}, delegates.Call{Before: made}, true},
		{"another MAC", veth.Link{Name: name, Kind: "veth", MAC: veth.HostMAC("x")}, delegates.Call{Before: made}, false},
		{"another name", veth.Link{Name: "vethx", Kind: "veth", MAC: mac}, delegates.Call{Before: made}, false},
		{"no veth", veth.Link{Name: name, Kind: "macvlan", MAC: mac}, delegates.Call{Before: made}, false},
		{"nothing known", veth.Link{Name: name, Kind: "veth", MAC: mac}, delegates.Call{}, false},
	} {
		tt.call.Attachment = att
		if got := ours(tt.link, tt.call); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}
