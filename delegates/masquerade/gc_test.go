package masquerade

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/test/netns"
)

// TestStale finds, in what iptables prints, chains of the network's containers
// that are not kept.
func TestStale(t *testing.T) {
	one, two, other := Chains{"net", "c1", "eth0"}, Chains{"net", "c2", "eth0"}, Chains{"net2", "c1", "eth0"}
	rules := func(c Chains, a string) string {
		return "-A POSTROUTING -s " + a + "/32 " + c.match() + " -j " + c.Chain() + "\n" +
			"-A " + c.Chain() + " -d 10.1.0.0/24 " + c.match() + " -j ACCEPT\n" +
			"-A " + c.Chain() + " ! -d 224.0.0.0/4 " + c.match() + " -j MASQUERADE\n"
	}
	removes := func(c Chains, a string) []string {
		return []string{"-D POSTROUTING -s " + a + "/32 " + c.match() + " -j " + c.Chain(), "-F " + c.Chain(), "-X " + c.Chain()}
	}
	strange := `-A POSTROUTING -m comment --comment "name: \"net\" id: \"c9\"" -j ACCEPT` + "\n" + `-A KUBE -m comment --comment "say \"name: net\"" -j RETURN` + "\n"
	table := strings.Split(strings.TrimSpace(strange+rules(one, "10.1.0.2")+rules(two, "10.1.0.3")+rules(other, "10.2.0.2")), "\n")
	for _, tt := range []struct {
		name string
		kept []string
		want []string
	}{
		{"one is kept", []string{"c1"}, removes(two, "10.1.0.3")},
		{"all are", []string{"c1", "c2"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := delegates.Kept{Recorded: func(delegates.Attachment) bool { return false }}
			for _, id := range tt.kept {
				k.All = append(k.All, delegates.Attachment{Network: "net", ContainerID: id, IfName: "eth0"})
			}
			if diff := cmp.Diff(tt.want, stale(table, "net", k)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	k := delegates.Kept{Recorded: func(a delegates.Attachment) bool { return a.ContainerID == "c2" }}
	if diff := cmp.Diff(removes(one, "10.1.0.2"), stale(table, "net", k)); diff != "" {
		t.Errorf("one has a record (-want +got)\n%s", diff)
	}
}

// TestGCOfReference removes what the reference plugins made, with either
// backend, for attachments that are not kept, also where the list lost ipMasq.
func TestGCOfReference(t *testing.T) {
	const conf = `{"cniVersion":"1.0.0","name":"podnet","type":"bridge","bridge":"cni0","ipMasq":true,"ipMasqBackend":%q,"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24"},{"address":"fd00:1::5/64"}]}}`
	for _, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			netns.Need(t, "nft", "iptables", "ip6tables", "iptables-save")
			netns.Enter(t)
			reference(t, "ADD", fmt.Sprintf(conf, backend), netns.New(t))
			collect := func(network string, kept ...delegates.Attachment) string {
				k := delegates.Kept{All: kept, Recorded: func(delegates.Attachment) bool { return false }}
				must(t, Policy{}.GC(t.Context(), delegates.Call{Attachment: delegates.Attachment{Network: network}}, k, true))
				if backend == "iptables" {
					return saved(t)
				}
				list := program(t, "nft", "", "list", "chain", "inet", "cni_plugins_masquerade", "masq_checks")
				return list[:strings.Count(list, "saddr")]
			}
			if collect("podnet", delegates.Attachment(c1)) == "" {
				t.Error("a kept attachment's rules are gone")
			}
			if collect("other") == "" {
				t.Error("another network's rules are gone")
			}
			if left := collect("podnet"); left != "" {
				t.Errorf("left:\n%s", left)
			}
		})
	}
}
