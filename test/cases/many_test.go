//go:build linux

package cases

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/test/attach"
)

// TestFirstADDsAtOnce: twelve pods start at once on a node without the bridge
// (containerd#3507, containerd/cri#1024): one bridge, one gateway address,
// twelve addresses, and all is gone after as many DELs at once.
func TestFirstADDsAtOnce(t *testing.T) {
	n := node(t)
	if err := n.Load([]byte(`{"cniVersion": "1.1.0", "name": "net", "plugins": [` + plain + `]}`)); err != nil {
		t.Fatal(err)
	}
	const pods = 12
	var all [pods]attach.Attachment
	for i := range all {
		pod := fmt.Sprintf("pod%02d", i)
		if _, err := n.Pod(pod); err != nil {
			t.Fatal(err)
		}
		all[i] = attach.Attachment{ContainerID: fmt.Sprintf("c%02d", i), IfName: "eth0", NetNS: n.PodPath(pod)}
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	addresses := make([]string, pods)
	atOnce(t, n, pods, func(i int) error {
		r, err := n.Add(ctx, all[i])
		if err != nil {
			return err
		}
		made, err := types100.GetResult(r)
		if err == nil {
			addresses[i] = made.IPs[0].Address.String()
		}
		return err
	})
	slices.Sort(addresses)
	if distinct := slices.Compact(slices.Clone(addresses)); len(distinct) != pods {
		t.Errorf("addresses %v", addresses)
	}
	kernel, err := n.Kernel()
	if err != nil || strings.Count(kernel, "tb0: bridge") != 1 || strings.Count(kernel, "address 10.77.0.1/24") != 1 || strings.Count(kernel, "port of tb0") != pods {
		t.Errorf("error %v, kernel:\n%s", err, kernel)
	}
	atOnce(t, n, pods, func(i int) error { return n.Check(ctx, all[i]) })
	atOnce(t, n, pods, func(i int) error { return n.Del(ctx, all[i]) })
	nothingLeft(t, n)
	told(t, n, 3*pods)
}

// atOnce runs do count times at once, each on a thread in the node's namespace.
func atOnce(t *testing.T, n *attach.Node, count int, do func(int) error) {
	t.Helper()
	var wait sync.WaitGroup
	for i := range count {
		wait.Go(func() {
			if err := n.In("host", func() error { return do(i) }); err != nil {
				t.Errorf("%d: %s", i, describe(err))
			}
		})
	}
	wait.Wait()
}

// TestVersions: the result is in the version that was asked for (cni#701).
func TestVersions(t *testing.T) {
	const (
		ip4  = `"ip4": {"ip": "10.77.0.2/24", "gateway": "10.77.0.1", "routes": [{"dst": "0.0.0.0/0"}]}, "dns": {}`
		ips3 = `"ips": [{"version": "4", "interface": 2, "address": "10.77.0.2/24", "gateway": "10.77.0.1"}], "routes": [{"dst": "0.0.0.0/0"}], "dns": {}`
		ips  = `"ips": [{"interface": 2, "address": "10.77.0.2/24", "gateway": "10.77.0.1"}], "routes": [{"dst": "0.0.0.0/0"}]`
		ifs  = `"interfaces": [{"name": "tb0", "mac": "MAC of tb0"}, {"name": "veth9bbf135062c", "mac": "0a:57:21:08:43:d5"},
			{"name": "eth0", "mac": "0a:58:0a:4d:00:02", "sandbox": "@DIR@/netns/pod1"}]`
		ifs11 = `"interfaces": [{"name": "tb0", "mac": "MAC of tb0", "mtu": 1500}, {"name": "veth9bbf135062c", "mac": "0a:57:21:08:43:d5", "mtu": 1500},
			{"name": "eth0", "mac": "0a:58:0a:4d:00:02", "mtu": 1500, "sandbox": "@DIR@/netns/pod1"}]`
	)
	for _, tt := range []struct{ version, want string }{
		{"0.1.0", ip4},
		{"0.2.0", ip4},
		{"0.3.0", ifs + "," + ips3},
		{"0.3.1", ifs + "," + ips3},
		{"0.4.0", ifs + "," + ips3},
		{"1.0.0", ifs11 + "," + ips},
		{"1.1.0", ifs11 + "," + ips},
	} {
		t.Run(tt.version, func(t *testing.T) {
			n := node(t)
			stdin := conf(t, n, map[string]string{"cniVersion": `"` + tt.version + `"`, "ipam.routes": `[{"dst": "0.0.0.0/0"}]`})
			a := pod1(t, n)
			got := raw(t, n, "ADD", stdin, n.Environment("ADD", a))
			if _, err := n.Kernel(); err != nil { // learns the bridge's MAC
				t.Fatal(err)
			}
			want := `{"cniVersion": "` + tt.version + `",` + tt.want + `}`
			if diff := cmp.Diff(value(t, want), value(t, n.Normal(string(got.Stdout)))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if err := raw(t, n, "DEL", stdin, n.Environment("DEL", a)).Err(); err != nil {
				t.Error(describe(err))
			}
			nothingLeft(t, n)
		})
	}
}

// TestOddArgs: the values of CNI_ARGS are anybody's. They hinder nothing, and
// spool and log stay lines of JSON (kubernetes#23049).
func TestOddArgs(t *testing.T) {
	for name, pod := range map[string]string{
		"empty": "", "long": strings.Repeat("x", 100_000), "not UTF-8": "\xff\xfe", "line feed": "a\nb", "quotes": `"}\`, "escape": "\x1b[31m",
	} {
		t.Run(name, func(t *testing.T) {
			n := node(t)
			a := pod1(t, n)
			a.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", pod}}
			for _, verb := range []string{"ADD", "DEL"} {
				if err := raw(t, n, verb, conf(t, n, nil), n.Environment(verb, a)).Err(); err != nil {
					t.Error(describe(err))
				}
			}
			nothingLeft(t, n)
			told(t, n, 2)
			log, err := os.ReadFile(filepath.Join(n.Dir, "log", "tracewire.jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(log)) {
				if !json.Valid([]byte(line)) || !utf8.ValidString(line) {
					t.Errorf("the log has the line %.200q", line)
				}
			}
		})
	}
}

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

// value is JSON as a value that can be compared.
func value(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}
