// Package house holds the map of the rooms: which may import which, and what
// the plugin may link.
package house

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/tracewire/tracewire/"

// imports is what each room imports of ours.
var imports = map[string]string{
	"conflist":             "",
	"proc":                 "",
	"trace":                "proc trace/point",
	"trace/point":          "",
	"chain/codes":          "",
	"chain/lock":           "",
	"delegates":            "proc trace trace/point",
	"delegates/nft":        "delegates/netlink trace/point",
	"delegates/iptables":   "delegates",
	"delegates/masquerade": "conflist delegates delegates/iptables delegates/nft trace",
	"delegates/portmap":    "delegates delegates/iptables delegates/nft",
	"delegates/macspoof":   "delegates/nft",
	"delegates/netlink":    "proc trace/point",
	"delegates/veth":       "conflist delegates delegates/netlink trace",
	"delegates/bridge":     "conflist delegates delegates/macspoof delegates/masquerade delegates/veth trace",
	"delegates/ptp":        "conflist delegates delegates/masquerade delegates/veth trace",
	"ipam":                 "chain/lock conflist delegates trace trace/point",
	"chain/cache":          "delegates trace trace/point",
	"chain/audit":          "chain/cache chain/codes chain/lock conflist delegates delegates/bridge delegates/iptables delegates/masquerade delegates/portmap delegates/veth ipam",
	"chain/audit/cri":      "chain/audit",
	"chain":                "chain/cache delegates trace",
	"trace/read":           "trace",
	"trace/ship":           "trace trace/read",
	"cmd/tracewire":        "chain chain/cache chain/codes chain/lock conflist delegates delegates/bridge delegates/iptables delegates/macspoof delegates/masquerade delegates/netlink delegates/ptp delegates/veth ipam trace trace/point",
	"cmd/tracewire-agent":  "chain/audit chain/audit/cri chain/cache chain/lock conflist delegates ipam trace trace/read trace/ship",
	"cmd/tracewirectl":     "chain chain/audit chain/audit/cri chain/cache chain/codes chain/lock conflist delegates delegates/bridge delegates/masquerade delegates/veth ipam trace trace/read",
	"test/attach":          "trace trace/read",
	"test/cases":           "",
	"test/demo":            "test/attach trace/read",
	"test/e2e/telemetry":   "",
	"test/house":           "",
	"test/kill":            "",
	"test/netns":           "",
	"test/reference":       "",
	"test/sandboxes":       "",
	"test/soak":            "",
	"test/summary":         "",
}

// unlinked is what would cost each start of the plugin a millisecond, or has
// no place in it.
var unlinked = []string{
	"net/http", "crypto/tls", "google.golang.org/grpc", "google.golang.org/protobuf",
	"go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters", "go.opentelemetry.io/otel/propagation", "go.opentelemetry.io/proto",
	"go.opentelemetry.io/collector", "github.com/cenkalti/backoff",
	"github.com/spf13/cobra", "github.com/containernetworking/cni/pkg/invoke", "github.com/containernetworking/cni/libcni",
	"github.com/containernetworking/plugins/pkg/ip",
}

type listed struct {
	ImportPath string
	Imports    []string
	Standard   bool
}

func list(t *testing.T, args ...string) (out []listed) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports,Standard"}, args...)...)
	cmd.Dir = "../.."
	b, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for d := json.NewDecoder(strings.NewReader(string(b))); ; {
		var p listed
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
}

func TestRoomsImportDownhill(t *testing.T) {
	for _, p := range list(t, "./...") {
		room := strings.TrimPrefix(p.ImportPath, module)
		want, known := imports[room]
		if !known {
			t.Errorf("%s is no room of the house", room)
		}
		got := []string{}
		for _, i := range p.Imports {
			if to, ours := strings.CutPrefix(i, module); ours {
				got = append(got, to)
			}
		}
		slices.Sort(got)
		if strings.Join(got, " ") != want {
			t.Errorf("%s imports %q, on the map it is %q", room, strings.Join(got, " "), want)
		}
	}
}

// TestOnlyTraceKnowsOpenTelemetry: and the shipping; the agent reads lines as a
// collector does.
func TestOnlyTraceKnowsOpenTelemetry(t *testing.T) {
	known := map[string]string{"trace": "go.opentelemetry.io/", "trace/ship": "go.opentelemetry.io/", "cmd/tracewire-agent": "go.opentelemetry.io/collector/pdata/"}
	for _, p := range list(t, "./...") {
		may, some := known[strings.TrimPrefix(p.ImportPath, module)]
		allowed := func(i string) bool { return some && strings.HasPrefix(i, may) }
		for _, i := range p.Imports {
			if strings.HasPrefix(i, "go.opentelemetry.io/") && !allowed(i) {
				t.Errorf("%s imports %s", p.ImportPath, i)
			}
		}
	}
}

func TestPluginStaysLean(t *testing.T) {
	for _, p := range list(t, "-deps", "./cmd/tracewire") {
		for _, u := range unlinked {
			if p.ImportPath == u || strings.HasPrefix(p.ImportPath, u+"/") {
				t.Errorf("the plugin links %s", p.ImportPath)
			}
		}
	}
}
