//go:build linux

package cases

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tracewire/tracewire/test/attach"
)

// TestOrigin: what callers put into the environment of a plugin. A valid parent
// is one; nothing else of it gets into spans, log or result.
func TestOrigin(t *testing.T) {
	needSandbox(t)
	const trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	annotated := `{"io.kubernetes.cri.pod-annotations": {"traceparent": "00-` + trace + "-" + span + `-01", "other": "noise"}}`
	for _, tt := range []struct {
		name   string
		env    []string
		args   string // runtimeConfig
		parent string // span id
	}{
		{name: "a parent", env: []string{"TRACEPARENT=00-" + trace + "-" + span + "-01"}, parent: span},
		{name: "an unsampled one", env: []string{"TRACEPARENT=00-" + trace + "-" + span + "-00", "TRACESTATE=noise=1"}, parent: span},
		{name: "a malformed one", env: []string{"TRACEPARENT=noise\n{}", "TRACESTATE=noise\x1b[31m"}},
		{name: "a baggage of 8 kB", env: []string{"BAGGAGE=k=noise\n\x1b[2J" + strings.Repeat("noise,", 1300)}},
		{name: "the SDK's variables", env: []string{
			"OTEL_SERVICE_NAME=noise", "OTEL_RESOURCE_ATTRIBUTES=service.name=noise,a=noise", "OTEL_SDK_DISABLED=true", "OTEL_TRACES_SAMPLER=always_off",
			"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1/noise", "OTEL_TRACES_EXPORTER=console", "OTEL_LOG_LEVEL=debug",
		}},
		{name: "an annotation", args: annotated, parent: span},
		{name: "an annotation that is none", args: `{"io.kubernetes.cri.pod-annotations": {"traceparent": ["noise"]}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := node(t)
			set := map[string]string{}
			if tt.args != "" {
				set["runtimeConfig"] = tt.args
			}
			stdin, a := conf(t, n, set), pod1(t, n)
			for _, verb := range []string{"ADD", "DEL"} {
				call := raw(t, n, verb, stdin, append(n.Environment(verb, a), tt.env...))
				if call.Exit != 0 || strings.Contains(string(call.Stdout), "noise") {
					t.Errorf("%s: %d, %s", verb, call.Exit, call.Stdout)
				}
			}
			ops, err := n.Operations()
			if err != nil || len(ops) != 2 {
				t.Fatalf("%d operations, %v", len(ops), err)
			}
			for _, o := range ops {
				if o.Root.ParentID != tt.parent || (o.Root.TraceID == trace) != (tt.parent != "") || o.Root.Resource.Text("service.name") != "tracewire" {
					t.Errorf("%s is below %q in %s, of %v", o.Root.Name, o.Root.ParentID, o.Root.TraceID, o.Root.Resource)
				}
			}
			quiet(t, n)
			nothingLeft(t, n)
		})
	}
}

// quiet looks that no log line has the word noise.
func quiet(t *testing.T, n *attach.Node) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(n.Dir, "log", "tracewire.jsonl"))
	if err != nil || strings.Contains(string(b), "noise") {
		t.Errorf("%v, %s", err, b)
	}
}
