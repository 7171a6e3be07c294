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
				got.Routes = veth.Routes(r)
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

func TestVLANsOfPort(t *testing.T) {
	for _, tt := range []struct {
		name      string
		of        VLANs
		drop, add []veth.VLAN
	}{
		{"none", VLANs{KeepDefault: true}, nil, nil},
		{"one", VLANs{ID: 5}, []veth.VLAN{{ID: 1}}, []veth.VLAN{{ID: 5, Native: true, Untagged: true}}},
		{"and the default", VLANs{ID: 5, KeepDefault: true}, nil, []veth.VLAN{{ID: 5, Native: true, Untagged: true}}},
		{"trunk", VLANs{Trunk: []int{7, 8}}, []veth.VLAN{{ID: 1}}, []veth.VLAN{{ID: 1, Native: true, Untagged: true}, {ID: 7}, {ID: 8}}},
		{"trunk with its own", VLANs{ID: 7, Trunk: []int{7, 8}}, []veth.VLAN{{ID: 1}}, []veth.VLAN{{ID: 7, Native: true, Untagged: true}, {ID: 8}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			drop, add := tt.of.ofPort()
			if diff := cmp.Diff([][]veth.VLAN{tt.drop, tt.add}, [][]veth.VLAN{drop, add}); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
