package veth

import (
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/delegates"
)

// TestOurs: what may be removed is what is proven to be the attachment's.
func TestOurs(t *testing.T) {
	att := delegates.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"}
	name, mac := "veth0a1b2c3d4e5", HostMAC(att.String())
	made := &types100.Result{Interfaces: []*types100.Interface{{Name: "cni0"}, {Name: name, Mac: mac.String()}, {Name: "eth0", Sandbox: "/n"}}}
	for _, tt := range []struct {
		name string
		link Link
		call delegates.Call
		want bool
	}{
		{"by alias", Link{Name: name, Alias: Alias(att.String())}, delegates.Call{}, true},
		{"another's alias", Link{Name: name, Kind: "veth", MAC: mac, Alias: Alias("net/c2:eth0")}, delegates.Call{Made: delegates.Made{Known: true, ThisBoot: true, Result: made}}, false},
		{"by the record of this boot", Link{Name: name, Kind: "veth", MAC: mac}, delegates.Call{Made: delegates.Made{Known: true, ThisBoot: true, Result: made}}, true},
		{"a record of an earlier boot proves nothing", Link{Name: name, Kind: "veth", MAC: mac}, delegates.Call{Made: delegates.Made{Known: true, Result: made}}, false},
		{"by prevResult, without a record", Link{Name: name, Kind: "veth", MAC: mac}, delegates.Call{Before: made}, true},
		{"another MAC", Link{Name: name, Kind: "veth", MAC: HostMAC("x")}, delegates.Call{Before: made}, false},
		{"another name", Link{Name: "vethx", Kind: "veth", MAC: mac}, delegates.Call{Before: made}, false},
		{"no veth", Link{Name: name, Kind: "macvlan", MAC: mac}, delegates.Call{Before: made}, false},
		{"nothing known", Link{Name: name, Kind: "veth", MAC: mac}, delegates.Call{}, false},
	} {
		tt.call.Attachment = att
		if got := ours(tt.link, tt.call); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}

// TestCandidates: what all pods of a network share is none of them.
func TestCandidates(t *testing.T) {
	made := &types100.Result{Interfaces: []*types100.Interface{
		{Name: "br0"}, {Name: "veth1"}, {Name: "eth0", Sandbox: "/run/netns/x"}, {Name: "br0.5"},
	}}
	a := delegates.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"}
	derived := HostNames(a.String())
	for _, tt := range []struct {
		name string
		call delegates.Call
		want []string
	}{
		{"record", delegates.Call{Attachment: a, Made: delegates.Made{Known: true, Result: made}}, []string{"veth1"}},
		{"prevResult", delegates.Call{Attachment: a, Before: made}, append(derived[:], "veth1")},
		{"neither", delegates.Call{Attachment: a}, derived[:]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, candidates(tt.call, "br0")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
