package bridge

import (
	"net"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates/veth"
)

func mustMAC(t *testing.T, text string) net.HardwareAddr {
	t.Helper()
	m, err := net.ParseMAC(text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestParse(t *testing.T) {
	a, b, c := "0a:00:00:00:00:0a", "0a:00:00:00:00:0b", "0a:00:00:00:00:0c"
	for _, tt := range []struct {
		name, conf, args string
		want             Conf
	}{
		{"nothing", `{}`, "", Conf{Bridge: "cni0"}},
		{"all", `{"bridge":"br1","isGateway":true,"isDefaultGateway":true,"forceAddress":true,"mtu":1400,"hairpinMode":true,"portIsolation":true,"enabledad":true,"dns":{"nameservers":["10.1.0.1"],"domain":"d","search":["s"],"options":["o"]}}`, "",
			Conf{Bridge: "br1", Gateway: true, DefaultGateway: true, ForceAddress: true, MTU: 1400, Hairpin: true, Isolated: true, DAD: true,
				DNS: &types.DNS{Nameservers: []string{"10.1.0.1"}, Domain: "d", Search: []string{"s"}, Options: []string{"o"}}}},
		{"a default gateway is a gateway", `{"isDefaultGateway":true}`, "", Conf{Bridge: "cni0", Gateway: true, DefaultGateway: true}},
		{"promiscuous", `{"promiscMode":true}`, "", Conf{Bridge: "cni0", Promisc: true}},
		{"nulls and empty values", `{"bridge":"","isGateway":null,"mtu":0,"dns":{},"ipMasq":false,"vlan":0,"vlanTrunk":[{}],"macspoofchk":false}`, "", Conf{Bridge: "cni0"}},
		{"VLANs", `{"vlan":5,"vlanTrunk":[{"minID":200,"maxID":202},{"id":101},{"id":201}],"preserveDefaultVlan":true}`, "",
			Conf{Bridge: "cni0", VLANs: VLANs{ID: 5, Trunk: []int{101, 200, 201, 202}, KeepDefault: true}}},
		{"the last VLAN", `{"vlan":4094,"vlanTrunk":[{"id":1,"minID":4094,"maxID":4094}]}`, "", Conf{Bridge: "cni0", VLANs: VLANs{ID: 4094, Trunk: []int{1, 4094}}}},
		{"an interface that stays down", `{"disableContainerInterface":true,"ipam":{}}`, "", Conf{Bridge: "cni0", Down: true}},
		{"a bridge that goes", `{"tracewire":{"removeBridge":true}}`, "", Conf{Bridge: "cni0", RemoveBridge: true}},
		{"keys that nobody knows", `{"x":1,"ipam":{"type":"y"}}`, "", Conf{Bridge: "cni0"}},
		{"MAC by capability", `{"runtimeConfig":{"mac":"` + a + `"},"args":{"cni":{"mac":"` + b + `"}}}`, "MAC=" + c, Conf{Bridge: "cni0", MAC: mustMAC(t, a)}},
		{"MAC by args", `{"args":{"cni":{"mac":"` + b + `"}}}`, "MAC=" + c, Conf{Bridge: "cni0", MAC: mustMAC(t, b)}},
		{"MAC by CNI_ARGS", `{}`, "MAC=" + c, Conf{Bridge: "cni0", MAC: mustMAC(t, c)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args, err := conflist.ParseArgs(tt.args)
			if err != nil {
				t.Fatal(err)
			}
			doc := conflist.Read([]byte(tt.conf))
			got := Parse(doc, args)
			if err := doc.Err(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	for _, tt := range []struct{ conf, args, want string }{
		{`{"bridge":5}`, "", `invalid network configuration: bridge: must be a string, got 5`},
		{`{"bridge":"a/b"}`, "", `invalid network configuration: bridge: must be an interface name of 1 to 15 bytes without slash, colon, percent sign or white space, got "a/b"`},
		{`{"bridge":"abcdefghijklmnop"}`, "", `invalid network configuration: bridge: must be an interface name of 1 to 15 bytes without slash, colon, percent sign or white space, got "abcdefghijklmnop"`},
		{`{"bridge":"br%d"}`, "", `invalid network configuration: bridge: must be an interface name of 1 to 15 bytes without slash, colon, percent sign or white space, got "br%d"`},
		{`{"mtu":67}`, "", `invalid network configuration: mtu: must be 68 to 65535 bytes, or 0, got 67`},
		{`{"mtu":"1400"}`, "", `invalid network configuration: mtu: must be a whole number, got "1400"`},
		{`{"isGateway":"yes"}`, "", `invalid network configuration: isGateway: must be a boolean, got "yes"`},
		{`{"hairpinMode":true,"promiscMode":true}`, "", `invalid network configuration: promiscMode: cannot be set together with hairpinMode, got true`},
		{`{"dns":{"search":"a"}}`, "", `invalid network configuration: dns.search: must be an array, got "a"`},
		{`{"runtimeConfig":{"mac":"01:00:00:00:00:00"}}`, "", `invalid network configuration: runtimeConfig.mac: must be a unicast MAC of 6 bytes, got "01:00:00:00:00:00"`},
		{`{"args":{"cni":{"mac":"x"}}}`, "", `invalid network configuration: args.cni.mac: must be a unicast MAC of 6 bytes, got "x"`},
		{`{}`, "MAC=00:00:00:00:00:00", `invalid CNI_ARGS: MAC: must be a unicast MAC of 6 bytes, got "00:00:00:00:00:00"`},
		{`{"vlan":4095}`, "", `invalid network configuration: vlan: must be 0 to 4094, got 4095`},
		{`{"vlan":-1}`, "", `invalid network configuration: vlan: must be 0 to 4094, got -1`},
		{`{"vlan":5,"isGateway":true,"bridge":"abcdefghijklmno"}`, "", `invalid network configuration: bridge: must leave room for the gateway's interface abcdefghijklmno.5, got "abcdefghijklmno"`},
		{`{"vlanTrunk":{"id":5}}`, "", `invalid network configuration: vlanTrunk: must be an array, got {"id":5}`},
		{`{"vlanTrunk":[{"id":0}]}`, "", `invalid network configuration: vlanTrunk[0].id: must be 1 to 4094, got 0`},
		{`{"vlanTrunk":[{"id":5},{"id":4095}]}`, "", `invalid network configuration: vlanTrunk[1].id: must be 0 to 4094, got 4095`},
		{`{"vlanTrunk":[{"minID":5}]}`, "", `invalid network configuration: vlanTrunk[0]: must have both minID and maxID, got {"minID":5}`},
		{`{"vlanTrunk":[{"minID":6,"maxID":5}]}`, "", `invalid network configuration: vlanTrunk[0].minID: must not be greater than maxID 5, got 6`},
		{`{"vlanTrunk":[5]}`, "", `invalid network configuration: vlanTrunk[0]: must be an object, got 5`},
		{`{"preserveDefaultVlan":1}`, "", `invalid network configuration: preserveDefaultVlan: must be a boolean, got 1`},
		{`{"disableContainerInterface":true,"ipam":{"type":"host-local"}}`, "", `invalid network configuration: disableContainerInterface: cannot be set together with ipam, got true`},
		{`{"tracewire":{"removeBridge":"yes"}}`, "", `invalid network configuration: tracewire.removeBridge: must be a boolean, got "yes"`},
	} {
		t.Run(strings.Trim(tt.conf, "{}")+tt.args, func(t *testing.T) {
			args, err := conflist.ParseArgs(tt.args)
			if err != nil {
				t.Fatal(err)
			}
			doc := conflist.Read([]byte(tt.conf))
			Parse(doc, args)
			if err := doc.Err(); err == nil || err.Error() != tt.want {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`{"bridge":"br1","isGateway":true,"mtu":1400,"dns":{"search":["a"]},"runtimeConfig":{"mac":"0a:00:00:00:00:0a"}}`, "MAC=0a:00:00:00:00:0a")
	f.Add(`{"args":{"cni":5},"vlanTrunk":[{}]}`, "=")
	f.Fuzz(func(t *testing.T, conf, args string) {
		pairs, _ := conflist.ParseArgs(args)
		doc := conflist.Read([]byte(conf))
		if c := Parse(doc, pairs); !veth.ValidName(c.Bridge) || c.MAC != nil && len(c.MAC) != 6 {
			t.Errorf("not usable: %+v", c)
		}
	})
}
