//go:build linux

package cases

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
)

// TestInterruptedOperations: an ADD and a DEL that are killed half way are told
// by who meets their record next, once each, with the ids that others know them
// by (containerd#5438).
func TestInterruptedOperations(t *testing.T) {
	bin, reference := os.Getenv("TRACEWIRE_BIN"), os.Getenv("TRACEWIRE_REFERENCE")
	if bin == "" || reference == "" {
		t.Skip("needs the program tracewire: run make test")
	}
	netns.Enter(t)
	dir := t.TempDir()
	plugins := filepath.Join(dir, "plugins")
	// An IPAM plugin in whose middle we are killed, while the file kill is there.
	script := "#!/bin/sh\n[ -e " + dir + "/kill ] && kill -9 $PPID\n" + `echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.77.0.9/24"}]}'` + "\n"
	if err := os.MkdirAll(plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(plugins, "leases"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	n, err := attach.NewNode(dir, plugins, bin, reference)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	stdin := conf(t, n, map[string]string{"ipam": `{"type": "leases"}`, "tracewire.syncDelete": "true"})
	a := pod1(t, n)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	run := func(verb string, killed bool) {
		t.Helper()
		kill := filepath.Join(dir, "kill")
		if killed {
			if err := os.WriteFile(kill, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = os.Remove(kill) }()
		}
		ctx, cancel := context.WithTimeout(context.Background(), stepTime)
		defer cancel()
		env := append(n.Environment(verb, a), "TRACEPARENT="+parent)
		_, _ = n.Run(ctx, "tracewire", []byte(stdin), env)
		calls := n.Exec.Calls()
		if got := calls[len(calls)-1].Exit; killed != (got == -1) {
			t.Fatalf("%s: exit %d: %s", verb, got, calls[len(calls)-1].Stdout)
		}
	}
	a.Args = [][2]string{{"K8S_POD_NAME", "web-0"}, {"K8S_POD_NAMESPACE", "default"}}
	run("ADD", true)
	run("DEL", true)
	run("DEL", false)
	run("DEL", false)
	nothingLeft(t, n)
	spans, err := n.Spans()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimLeft(`
cni.ADD [error: interrupted]
  bridge.ensure
  veth.create
  ipam [error]
    exec [error]
cni.DEL [error: interrupted] [link: cni.ADD]
  veth.delete
  exec [error]
cni.DEL [link: cni.ADD]
  * an earlier operation was killed: its span is written now
  cache.read
  bridge
    veth.delete
  ipam
    exec
  cache.delete
cni.DEL
  cache.read
  bridge
    veth.delete
    macspoof.delete
    masquerade.delete
  ipam
    exec
`, "\n"), spans); diff != "" {
		t.Errorf("spans (-want +got)\n%s", diff)
	}
	ops, err := n.Operations()
	if err != nil {
		t.Fatal(err)
	}
	for i, verb := range []string{"ADD", "DEL"} {
		root := ops[i].Root
		if root.TraceID != "0af7651916cd43dd8448eb211c80319c" || root.ParentID != "b7ad6b7169203331" || root.Attributes.Text("k8s.pod.name") != "web-0" || root.Message != "interrupted" {
			t.Errorf("%s: %+v", verb, root.Span)
		}
	}
	if ops[2].Root.Links[0].SpanID != ops[0].Root.SpanID || ops[1].Root.Links[0].SpanID != ops[0].Root.SpanID {
		t.Errorf("the DELs do not link to the ADD's span %s", ops[0].Root.SpanID)
	}
	log, err := os.ReadFile(filepath.Join(dir, "log", "tracewire.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	for line := range strings.Lines(string(log)) {
		var l struct{ Error, Message string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		if l.Error == "interrupted" && strings.HasPrefix(l.Message, "cni.") {
			told++
		}
	}
	if told != 2 {
		t.Errorf("the log tells of %d interrupted operations:\n%s", told, log)
	}
}
