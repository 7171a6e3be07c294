//go:build linux

package kill

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
	"github.com/tracewire/tracewire/trace/point"
)

const plain = `{"cniVersion": "1.1.0", "name": "net", "type": "tracewire", "bridge": "tb0",
	"ipam": {"type": "host-local", "dataDir": "@DIR@/ipam", "ranges": [[{"subnet": "10.77.0.0/24"}]]},
	"tracewire": {"stateDir": "@DIR@/state", "log": {"path": "@DIR@/log"}, "spool": {"dir": "@DIR@/state/spool"}}}`

// TestKilledInVethCreate: an ADD whose process ends in veth.create is told of by
// the DEL, once: with the phases that ended, the one that was open, and a link
// from the DEL's span.
func TestKilledInVethCreate(t *testing.T) {
	bin := os.Getenv(envBin)
	if bin == "" {
		t.Skip("runs by make test-kill")
	}
	netns.Enter(t)
	n, err := attach.NewNode(t.TempDir(), bin, os.Getenv("TRACEWIRE_REFERENCE"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	if _, err := n.Pod("pod1"); err != nil {
		t.Fatal(err)
	}
	a := attach.Attachment{ContainerID: "c1", IfName: "eth0", NetNS: n.PodPath("pod1")}
	points := filepath.Join(t.TempDir(), "points")
	run := func(verb string, env ...string) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, _ = n.Run(ctx, "tracewire", []byte(strings.ReplaceAll(plain, attach.Dir, n.Dir)), append(n.Environment(verb, a), env...))
	}
	run("ADD") // the network's first has more points
	run("DEL")
	run("ADD", "TRACEWIRE_POINTS="+points)
	at := slices.Index(lines(points), point.After+" veth.create")
	run("DEL")
	run("ADD", fmt.Sprint("TRACEWIRE_KILL_AT=", at+1))
	run("DEL")
	spans, err := n.Spans()
	if err != nil {
		t.Fatal(err)
	}
	_, told, _ := strings.Cut(spans, "cni.ADD [error: interrupted]")
	want := `
  bridge.ensure
  gateway.ensure
  veth.create [error]
`
	if got, _, _ := strings.Cut(told, "cni.DEL"); cmp.Diff(want, got) != "" || strings.Contains(told, "cni.ADD [error") {
		t.Errorf("(-want +got)\n%s", cmp.Diff(want, got))
	}
	if !strings.Contains(told, "\ncni.DEL [link: cni.ADD]\n  * an earlier operation was killed: its span is written now\n") {
		t.Errorf("the DEL does not tell:\n%s", told)
	}
}
