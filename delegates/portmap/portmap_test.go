package portmap

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/iptables"
	"github.com/tracewire/tracewire/test/netns"
)

// run runs the reference's portmap for a container with an address of each family.
func run(t *testing.T, verb string, backend Backend, network, id string) {
	t.Helper()
	bin := os.Getenv("TRACEWIRE_REFERENCE")
	if bin == "" {
		t.Skip("needs the reference's portmap: run make test")
	}
	cmd := exec.Command(filepath.Join(bin, "portmap"))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id, "CNI_NETNS=/none", "CNI_IFNAME=eth0", "CNI_PATH=" + bin}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "type": "portmap", "backend": %q, "runtimeConfig": {"portMappings": [
		{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
		{"hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "192.0.2.1"},
		{"hostPort": 54, "containerPort": 5353, "protocol": "udp", "hostIP": "2001:db8::1"},
		{"hostPort": 9, "containerPort": 10, "protocol": "sctp", "hostIP": "0.0.0.0"}]},
		"prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/none"}],
			"ips": [{"address": "10.1.0.2/24", "interface": 0}, {"address": "fd00::2/64", "interface": 0}]}}`, network, backend))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", verb, err, out)
	}
}

// mapped is what run maps.
const mapped = "sctp 9 to 10.1.0.2:10\ntcp 8080 to 10.1.0.2:80\ntcp 8080 to [fd00::2]:80\nudp 192.0.2.1:53 to 10.1.0.2:5353\nudp [2001:db8::1]:54 to [fd00::2]:5353"

func look(t *testing.T) []Rules {
	t.Helper()
	nat, err := iptables.Nat(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all, err := Look(nat)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b Rules) int { return strings.Compare(a.ContainerID, b.ContainerID) })
	return all
}

func texts[T fmt.Stringer](all []T) string {
	var out []string
	for _, a := range all {
		out = append(out, a.String())
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// TestLook: what the plugin made is read, by the marks of its attachment, and is
// gone after its DEL.
func TestLook(t *testing.T) {
	for _, backend := range []Backend{Iptables, Nftables} {
		t.Run(string(backend), func(t *testing.T) {
			netns.Need(t, "iptables", "ip6tables", "nft")
			netns.Enter(t)
			ids := []string{"c1", strings.Repeat("c", 64)}
			for _, id := range ids {
				run(t, "ADD", backend, "podnet", id)
			}
			all := look(t)
			if len(all) != len(ids) {
				t.Fatalf("%+v", all)
			}
			for i, r := range all {
				marks := Marks(delegates.Attachment{Network: "podnet", ContainerID: ids[i], IfName: "eth0"})
				want := Rules{backend, marks[1], "cni_hostport", "", ids[i], r.Maps, r.Stamp}
				if backend == Iptables {
					want.Mark, want.Name, want.Network = marks[0], marks[0], "podnet"
				}
				if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(r)); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
				if got := texts(r.Maps); got != mapped || texts(r.Addresses()) != "10.1.0.2\nfd00::2" {
					t.Errorf("%s\n%v", got, r.Addresses())
				}
				run(t, "DEL", backend, "podnet", ids[i])
			}
			if left := look(t); len(left) > 0 {
				t.Errorf("left after DEL: %+v", left)
			}
		})
	}
}

// TestOdd: rules that tell less, or are not the plugin's.
func TestOdd(t *testing.T) {
	chain := chainOf("net", "c1")
	long := strings.Repeat("n", 250)
	for _, tt := range []struct {
		name string
		nat  []string
		want string
	}{
		{"none", nil, ""},
		{"others'", []string{"-A POSTROUTING -j CNI-1", `-A ` + top + ` -j OTHER`, "-A OTHER -j DNAT --to-destination 10.1.0.2:80"}, ""},
		{"no rule leads there", []string{"-A " + chain + " -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.1.0.2:80"}, chain + " of / [tcp 80 to 10.1.0.2:80]"},
		{"no rule is in it", []string{`-A ` + top + ` -m comment --comment "dnat name: \"net\" id: \"c1\"" -j ` + chain}, chain + " of net/c1 []"},
		{"a comment that was cut", []string{`-A ` + top + ` -m comment --comment "dnat name: \"` + long + `..." -j ` + chain}, chain + " of / []"},
		{"a comment of another", []string{`-A ` + top + ` -m comment --comment "dnat name: \"net\" id: \"c2\"" -j ` + chain}, chain + " of / []"},
		{"no port", []string{"-A " + chain + " -j DNAT --to-destination 10.1.0.2"}, chain + " of / []"},
	} {
		got := ""
		for _, r := range inChains(tt.nat) {
			got += fmt.Sprintf("%s of %s/%s %v", r.Mark, r.Network, r.ContainerID, r.Maps)
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	if s := (Map{To: mapOf(t, "-A X -p tcp --dport 1 --to-destination 10.1.0.2:80").To}).String(); s != "masquerade to 10.1.0.2" {
		t.Error(s)
	}
}

func mapOf(t *testing.T, line string) Map {
	t.Helper()
	m, ok := mapIn(line)
	if !ok {
		t.Fatal(line)
	}
	return m
}
