package delegates

import (
	"encoding/json"
	"fmt"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
)

// asJSON is a result as it would be printed, "" for none.
func asJSON(t *testing.T, r *types100.Result) string {
	t.Helper()
	if r == nil {
		return ""
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const full = `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"0a:58:0a:01:00:02","mtu":1400,"sandbox":"/run/netns/c1"}],` +
	`"ips":[{"interface":0,"address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"}],"dns":{"nameservers":["10.1.0.1"]}}`

func TestPrevious(t *testing.T) {
	const (
		ip  = `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}]}`
		six = `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"},{"address":"fd00::2/64"}],"routes":[{"dst":"::/0","gw":"fd00::1"}]}`
	)
	for _, tt := range []struct {
		name, raw, want, err string
		salvaged             string // where it is not want
	}{
		{"absent", ``, "", "", ""},
		{"null", `null`, "", "", ""},
		{"1.1.0", full, `{"cniVersion":"1.1.0","dns":{"nameservers":["10.1.0.1"]},"interfaces":[{"name":"eth0","mac":"0a:58:0a:01:00:02","mtu":1400,"sandbox":"/run/netns/c1"}],` +
			`"ips":[{"interface":0,"address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"}]}`, "", ""},
		{"1.0.0", `{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}]}`, ip, "", ""},
		{"0.4.0", `{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.0.2/24","gateway":"10.1.0.1"}]}`, ip, "", ""},
		{"0.3.0", `{"cniVersion":"0.3.0","ips":[{"version":"4","address":"10.1.0.2/24","gateway":"10.1.0.1"}]}`, ip, "", ""},
		{"0.2.0", `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24"},"ip6":{"ip":"fd00::2/64","routes":[{"dst":"::/0","gw":"fd00::1"}]}}`, six, "", ""},
		{"lists that are null", `{"cniVersion":"1.1.0","interfaces":null,"ips":null,"routes":null}`, `{"cniVersion":"1.1.0"}`, "", ""},
		{"an interface that is null", `{"cniVersion":"1.1.0","interfaces":[null,{"name":"eth0"}]}`, "", "has an entry that is null", `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}]}`},
		{"an address that is null", `{"cniVersion":"0.4.0","ips":[null]}`, "", "has an entry that is null", `{"cniVersion":"1.1.0"}`},
		{"routes that are null", `{"cniVersion":"1.0.0","routes":[null,{"dst":"10.0.0.0/8"},null]}`, "", "has an entry that is null", `{"cniVersion":"1.1.0","routes":[{"dst":"10.0.0.0/8"}]}`},
		{"nulls that are no entries", `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":null,"interface":null}]}`, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}]}`, "", ""},
		{"a version that is not known", `{"cniVersion":"9.0.0"}`, "", `unsupported CNI result version "9.0.0"`, ""},
		{"a version that is a number", `{"cniVersion":1}`, "", "json: cannot unmarshal number into Go struct field .cniVersion of type string", ""},
		{"an array", `[]`, "", "json: cannot unmarshal array into Go value of type struct { CNIVersion string \"json:\\\"cniVersion\\\"\" }", ""},
		{"no address", `{"cniVersion":"1.1.0","ips":[{"address":"nonsense"}]}`, "", "invalid CIDR address: nonsense", ""},
		{"nulls and no address", `{"cniVersion":"1.1.0","ips":[null,{"address":"nonsense"}]}`, "", "has an entry that is null", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Previous(json.RawMessage(tt.raw))
			if diff := cmp.Diff(canonical(t, tt.want), canonical(t, asJSON(t, got))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if said := fmt.Sprint(err); said != tt.err && (err != nil || tt.err != "") {
				t.Errorf("error %s, want %s", said, tt.err)
			}
			salvaged := tt.want
			if tt.salvaged != "" {
				salvaged = tt.salvaged
			}
			if diff := cmp.Diff(canonical(t, salvaged), canonical(t, asJSON(t, Salvage(json.RawMessage(tt.raw))))); diff != "" {
				t.Errorf("salvaged (-want +got)\n%s", diff)
			}
		})
	}
}

// canonical is JSON with its keys in order.
func canonical(t *testing.T, s string) string {
	t.Helper()
	if s == "" {
		return ""
	}
	var v any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatalf("%v: %s", err, s)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
