//go:build linux

package cases

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/test/attach"
)

// TestTelemetryThatFails: where spool and log cannot be written, all is as if
// they were turned off (moby/buildkit#6912).
func TestTelemetryThatFails(t *testing.T) {
	needSandbox(t)
	answers := map[string][]string{}
	for name, set := range map[string]map[string]string{
		"off":    {"tracewire.log": `{"level": "off"}`, "tracewire.spool": `{"maxBytes": 0}`},
		"broken": {"tracewire.log": `{"path": "@DIR@/plain/log"}`, "tracewire.spool": `{"dir": "@DIR@/plain"}`},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(t)
			if err := os.WriteFile(filepath.Join(n.Dir, "plain"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			stdin := strings.ReplaceAll(conf(t, n, set), attach.Dir, n.Dir)
			a := pod1(t, n)
			for _, verb := range []string{"ADD", "DEL"} {
				call := raw(t, n, verb, stdin, n.Environment(verb, a))
				if _, err := n.Kernel(); err != nil { // learns the bridge's MAC
					t.Fatal(err)
				}
				answers[name] = append(answers[name], fmt.Sprint(call.Exit, " ", n.Normal(string(call.Stdout))))
			}
			nothingLeft(t, n)
		})
	}
	if diff := cmp.Diff(answers["off"], answers["broken"]); diff != "" {
		t.Errorf("-off +broken:\n%s", diff)
	}
}
