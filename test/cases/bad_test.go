//go:build linux

package cases

import (
	"context"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/test/attach"
)

// plain is the configuration of the cases that have no folder.
const plain = `{"cniVersion": "1.1.0", "name": "net", "type": "tracewire", "bridge": "tb0", "isGateway": true,
	"ipam": {"type": "host-local", "dataDir": "@DIR@/ipam", "ranges": [[{"subnet": "10.77.0.0/24"}]]},
	"tracewire": {"stateDir": "@DIR@/state", "log": {"path": "@DIR@/log/tracewire.jsonl"}}}`

// input is a plugin's input that is bad in one place.
type input struct {
	name string
	// set has new JSON values for keys of plain, by dotted path; "" takes a key out.
	set map[string]string
	// stdin, where it is not nil, changes the whole of standard input.
	stdin func(string) string
	env   map[string]string
	code  uint     // that ADD answers
	names []string // what its message has
	// refused tells that DEL is refused too, by skel.
	refused bool
	// another tells that a DEL with it is of another attachment.
	another bool
	// lost tells that the state folder cannot be read: DEL does what it can
	// without the record.
	lost bool
}

var bad = []input{
	// Keys of ours.
	{name: "unknown key", set: map[string]string{"tracewire.colour": `"red"`}, code: 7, names: []string{"tracewire.colour", `"red"`}},
	{name: "unknown key below", set: map[string]string{"tracewire.log.pth": `"/x"`}, code: 7, names: []string{"tracewire.log.pth", `"/x"`}},
	{name: "type of tracewire", set: map[string]string{"tracewire": `7`}, code: 7, names: []string{"tracewire", "7"}, lost: true},
	{name: "type of timeout", set: map[string]string{"tracewire.timeout": `5`}, code: 7, names: []string{"tracewire.timeout", "5"}},
	{name: "timeout", set: map[string]string{"tracewire.timeout": `"-1s"`}, code: 7, names: []string{"tracewire.timeout", `"-1s"`}},
	{name: "relative state folder", set: map[string]string{"tracewire.stateDir": `"state"`}, code: 7, names: []string{"tracewire.stateDir", `"state"`}, lost: true},
	{name: "level", set: map[string]string{"tracewire.log.level": `"loud"`}, code: 7, names: []string{"tracewire.log.level", `"loud"`}},
	{name: "budget", set: map[string]string{"tracewire.spool.maxBytes": `-1`}, code: 7, names: []string{"tracewire.spool.maxBytes", "-1"}},
	// Keys of the reference's bridge.
	{name: "type of mtu", set: map[string]string{"mtu": `"large"`}, code: 7, names: []string{"mtu", `"large"`}},
	{name: "type of isGateway", set: map[string]string{"isGateway": `"yes"`}, code: 7, names: []string{"isGateway", `"yes"`}},
	{name: "type of bridge", set: map[string]string{"bridge": `5`}, code: 7, names: []string{"bridge", "5"}},
	{name: "long bridge", set: map[string]string{"bridge": `"b123456789012345"`}, code: 7, names: []string{"bridge", `"b123456789012345"`}},
	{name: "bridge with a slash", set: map[string]string{"bridge": `"../b"`}, code: 7, names: []string{"bridge", `"../b"`}},
	{name: "small mtu", set: map[string]string{"mtu": `67`}, code: 7, names: []string{"mtu", "67"}},
	{name: "large mtu", set: map[string]string{"mtu": `65536`}, code: 7, names: []string{"mtu", "65536"}},
	{name: "fraction of mtu", set: map[string]string{"mtu": `1400.5`}, code: 7, names: []string{"mtu", "1400.5"}},
	{name: "hairpin and promiscuous", set: map[string]string{"hairpinMode": `true`, "promiscMode": `true`}, code: 7, names: []string{"promiscMode", "hairpinMode"}},
	{name: "mac", set: map[string]string{"runtimeConfig.mac": `"02:zz"`}, code: 7, names: []string{"runtimeConfig.mac", `"02:zz"`}},
	{name: "multicast mac", set: map[string]string{"args.cni.mac": `"03:00:00:00:00:01"`}, code: 7, names: []string{"args.cni.mac", "03:00:00:00:00:01"}},
	{name: "ipMasqBackend", set: map[string]string{"ipMasq": `true`, "ipMasqBackend": `"pf"`}, code: 7, names: []string{"ipMasqBackend", "pf"}},
	{name: "vlan", set: map[string]string{"vlan": `4095`}, code: 7, names: []string{"vlan", "4095"}},
	{name: "trunk", set: map[string]string{"vlanTrunk": `[{"minID": 9}]`}, code: 7, names: []string{"vlanTrunk[0]", "maxID"}},
	{name: "disableContainerInterface", set: map[string]string{"disableContainerInterface": `true`}, code: 7, names: []string{"disableContainerInterface", "ipam"}},
	// Delegates.
	{name: "delegates is an object", set: map[string]string{"delegates": `{"type": "bandwidth"}`}, code: 7, names: []string{"delegates", "bandwidth"}},
	{name: "delegate without a type", set: map[string]string{"delegates": `[{"ingressRate": 1}]`}, code: 7, names: []string{"delegates[0].type"}},
	{name: "path as delegate", set: map[string]string{"delegates": `[{"type": "../bandwidth"}]`}, code: 7, names: []string{"delegates[0].type", "../bandwidth"}},
	{name: "ourselves as delegate", set: map[string]string{"delegates": `[{"type": "tuning"}, {"type": "tracewire"}]`}, code: 7, names: []string{"delegates[1].type", "tracewire"}},
	{name: "delegate that is not there", set: map[string]string{"delegates": `[{"type": "nonesuch"}]`}, code: 105, names: []string{"nonesuch"}},
	{name: "mode delegate without delegates", set: map[string]string{"tracewire.mode": `"delegate"`, "ipam": ""}, code: 7, names: []string{"delegates", "mode delegate"}},
	{name: "mode delegate with ipam", set: map[string]string{"tracewire.mode": `"delegate"`, "delegates": `[{"type": "macvlan"}]`}, code: 7, names: []string{"ipam", "delegates[0]"}},
	{name: "unknown mode", set: map[string]string{"tracewire.mode": `"vpn"`}, code: 7, names: []string{"tracewire.mode", `"vpn"`}},
	// Addresses.
	{name: "type of ipam", set: map[string]string{"ipam": `"host-local"`}, code: 7, names: []string{"ipam", `"host-local"`}},
	{name: "type of ranges", set: map[string]string{"ipam.ranges": `"none"`}, code: 7, names: []string{"ipam.ranges", `"none"`}},
	{name: "path as ipam", set: map[string]string{"ipam.type": `"../host-local"`}, code: 7, names: []string{"ipam.type", "../host-local"}},
	{name: "no ranges", set: map[string]string{"ipam.ranges": ""}, code: 7, names: []string{"ipam"}},
	{name: "subnet", set: map[string]string{"ipam.ranges": `[[{"subnet": "10.77.0.0/33"}]]`}, code: 7, names: []string{"subnet", "10.77.0.0/33"}},
	{name: "subnet with host bits", set: map[string]string{"ipam.ranges": `[[{"subnet": "10.77.0.5/24"}]]`}, code: 7, names: []string{"subnet", "10.77.0.5/24"}},
	{name: "gateway", set: map[string]string{"ipam.ranges": `[[{"subnet": "10.77.0.0/24", "gateway": "x"}]]`}, code: 7, names: []string{"gateway", `"x"`}},
	{name: "range outside", set: map[string]string{"ipam.ranges": `[[{"subnet": "10.77.0.0/24", "rangeStart": "10.78.0.9"}]]`}, code: 7, names: []string{"10.78.0.9"}},
	{name: "route", set: map[string]string{"ipam.routes": `[{"dst": "nonsense"}]`}, code: 7, names: []string{"routes", "nonsense"}},
	{name: "asked address outside", env: map[string]string{"CNI_ARGS": "IP=10.99.0.1"}, code: 4, names: []string{"CNI_ARGS", "IP", "10.99.0.1"}},
	{name: "asked address", set: map[string]string{"runtimeConfig.ips": `["nonsense"]`}, code: 7, names: []string{"runtimeConfig.ips", "nonsense"}},
	{name: "ipam that is not there", set: map[string]string{"ipam": `{"type": "nonesuch"}`}, code: 105, names: []string{"nonesuch"}},
	// Environment (cni#126, cni#679).
	{name: "interface name of 16 letters", env: map[string]string{"CNI_IFNAME": "eth4567890123456"}, code: 4, refused: true},
	{name: "interface name with a slash", env: map[string]string{"CNI_IFNAME": "a/b"}, code: 4, refused: true},
	{name: "interface name of two dots", env: map[string]string{"CNI_IFNAME": ".."}, code: 4, refused: true},
	{name: "container id with a slash", env: map[string]string{"CNI_CONTAINERID": "../../c1"}, code: 4, names: []string{"../../c1"}, refused: true},
	{name: "no container id", env: map[string]string{"CNI_CONTAINERID": ""}, code: 4, names: []string{"CNI_CONTAINERID"}, refused: true},
	{name: "CNI_ARGS", env: map[string]string{"CNI_ARGS": "K8S_POD_NAME=a;B"}, code: 4, names: []string{"CNI_ARGS", `"B"`}},
	{name: "mac of CNI_ARGS", env: map[string]string{"CNI_ARGS": "MAC=nonsense"}, code: 4, names: []string{"CNI_ARGS", "MAC", "nonsense"}},
	{name: "missing namespace", env: map[string]string{"CNI_NETNS": "@DIR@/netns/none"}, code: 4, names: []string{"CNI_NETNS", "@DIR@/netns/none"}},
	{name: "empty namespace", env: map[string]string{"CNI_NETNS": ""}, code: 4, names: []string{"CNI_NETNS"}},
	{name: "plain file as namespace", env: map[string]string{"CNI_NETNS": "@DIR@/plain"}, code: 4, names: []string{"CNI_NETNS", "@DIR@/plain"}},
	{name: "folder as namespace", env: map[string]string{"CNI_NETNS": "@DIR@"}, code: 4, names: []string{"CNI_NETNS", "@DIR@"}},
	{name: "namespace of another kind", env: map[string]string{"CNI_NETNS": "/proc/self/ns/uts"}, code: 4, names: []string{"CNI_NETNS", "/proc/self/ns/uts"}},
	{name: "own namespace", env: map[string]string{"CNI_NETNS": "/proc/thread-self/ns/net"}, code: 8, names: []string{"CNI_NETNS"}},
	{name: "interface name that is a template", env: map[string]string{"CNI_IFNAME": "e%d"}, code: 4, names: []string{"CNI_IFNAME", "e%d"}, another: true},
	{name: "interface name that is a setting", env: map[string]string{"CNI_IFNAME": "all"}, code: 4, names: []string{"CNI_IFNAME", "all"}, another: true},
	{name: "named pipe as namespace", env: map[string]string{"CNI_NETNS": "@DIR@/pipe"}, code: 4, names: []string{"CNI_NETNS", "@DIR@/pipe"}},
	{name: "bridge that is a template", set: map[string]string{"bridge": `"br%d"`}, code: 7, names: []string{"bridge", "br%d"}},
	{name: "mtu too small for IPv6", set: map[string]string{"mtu": "1000", "ipam.ranges": `[[{"subnet": "fd77::/64"}]]`}, code: 7, names: []string{"mtu", "1000", "fd77::"}},
	{name: "network name of 300 letters", set: map[string]string{"name": `"` + strings.Repeat("n", 300) + `"`}, code: 7, names: []string{"name", "nnnn"}, another: true},
	{name: "unknown command", env: map[string]string{"CNI_COMMAND": "MOVE"}, code: 4, names: []string{"MOVE"}, refused: true},
	// The document, as an installer that is not through leaves it (aws#1437,
	// istio#42046, kmesh#150).
	{name: "unknown version", set: map[string]string{"cniVersion": `"9.9.9"`}, code: 1, names: []string{"9.9.9"}, refused: true},
	{name: "type of version", set: map[string]string{"cniVersion": `7`}, code: 6, refused: true},
	{name: "no name", set: map[string]string{"name": ""}, code: 7, names: []string{"name"}, refused: true},
	{name: "name with a slash", set: map[string]string{"name": `"../net"`}, code: 7, refused: true},
	{name: "prevResult", set: map[string]string{"prevResult": `{"cniVersion": "1.1.0", "ips": [{"address": "10.1.1.1/24"}]}`}, code: 7, names: []string{"prevResult"}},
	{name: "truncated", stdin: func(s string) string { return s[:len(s)/2] }, code: 6, refused: true},
	{name: "empty", stdin: func(string) string { return "" }, code: 6, refused: true},
	{name: "an array", stdin: func(s string) string { return "[" + s + "]" }, code: 6, refused: true},
	{name: "two documents", stdin: func(s string) string { return s + s }, code: 6, refused: true},
	{name: "byte order mark", stdin: func(s string) string { return "\ufeff" + s }, code: 6, refused: true},
	{name: "too long", stdin: func(s string) string { return s + strings.Repeat(" ", 4<<20) }, code: 6, names: []string{"4194304"}, refused: true},
	{name: "deep", stdin: func(s string) string {
		return strings.Replace(s, "{", `{"x":`+strings.Repeat("[", 20000)+strings.Repeat("]", 20000)+",", 1)
	}, code: 6, refused: true},
}

// TestBadInputOfADD: a CNI error with the right code that names field and
// value, and nothing is left or written elsewhere.
func TestBadInputOfADD(t *testing.T) {
	needSandbox(t)
	for _, in := range bad {
		t.Run(in.name, func(t *testing.T) {
			n := node(t)
			stdin, env := in.of(t, n, "ADD")
			before := files(t, n.Dir)
			call := raw(t, n, "ADD", stdin, env)
			in.answered(t, n, call)
			nothingLeft(t, n)
			for _, f := range files(t, n.Dir) {
				if !slices.Contains(before, f) && !strings.HasPrefix(f, "state/") && !strings.HasPrefix(f, "log/") && !strings.HasPrefix(f, "ipam/") {
					t.Errorf("%s was written", f)
				}
			}
		})
	}
}

// TestBadInputOfDEL: whatever is wrong with it, an attachment goes away
// wherever its name can be read; what skel refuses stays its error, and a good
// DEL works after it.
func TestBadInputOfDEL(t *testing.T) {
	needSandbox(t)
	for _, in := range bad {
		if in.another {
			continue
		}
		t.Run(in.name, func(t *testing.T) {
			n := node(t)
			good := conf(t, n, nil)
			a := pod1(t, n)
			if err := raw(t, n, "ADD", good, n.Environment("ADD", a)).Err(); err != nil {
				t.Fatal(describe(err))
			}
			stdin, env := in.of(t, n, "DEL")
			call := raw(t, n, "DEL", stdin, env)
			if in.refused {
				in.answered(t, n, call)
			}
			if links, err := n.Links(); in.lost && (call.Exit != 0 || err != nil || len(links) > 0) {
				t.Errorf("exit %d, error %v, interfaces %q", call.Exit, err, links)
			}
			if in.refused || in.lost {
				call = raw(t, n, "DEL", good, n.Environment("DEL", a))
			}
			if err := call.Err(); err != nil {
				t.Error(describe(err))
			}
			nothingLeft(t, n)
		})
	}
}

// TestKeysThatAskForNothing: a value that asks for nothing is accepted.
func TestKeysThatAskForNothing(t *testing.T) {
	for key, none := range map[string]string{
		"ipMasq": "false", "vlan": "0", "macspoofchk": "false", "delegates": "[]", "tracewire.mode": `"bridge"`, "mtu": "0", "vlanTrunk": "null", "ipMasqBackend": `""`,
	} {
		t.Run(key, func(t *testing.T) {
			n := node(t)
			stdin := conf(t, n, map[string]string{key: none})
			a := pod1(t, n)
			for _, verb := range []string{"ADD", "DEL"} {
				if err := raw(t, n, verb, stdin, n.Environment(verb, a)).Err(); err != nil {
					t.Error(describe(err))
				}
			}
			nothingLeft(t, n)
		})
	}
}

// needSandbox skips a test in which the plugin writes to its default folders:
// where its configuration cannot be read there are no others.
func needSandbox(t *testing.T) {
	t.Helper()
	if os.Getenv("TRACEWIRE_SANDBOX") != "1" {
		t.Skip("writes below /var and /run: run make test")
	}
}

// of is the input's standard input and environment.
func (in input) of(t *testing.T, n *attach.Node, verb string) (stdin string, env []string) {
	t.Helper()
	stdin = conf(t, n, in.set)
	if in.stdin != nil {
		stdin = in.stdin(stdin)
	}
	if err := os.WriteFile(filepath.Join(n.Dir, "plain"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(n.Dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, kv := range n.Environment(verb, pod1(t, n)) {
		if key, _, _ := strings.Cut(kv, "="); !has(in.env, key) {
			env = append(env, kv)
		}
	}
	for k, v := range in.env {
		env = append(env, k+"="+strings.ReplaceAll(v, attach.Dir, n.Dir))
	}
	return stdin, env
}

func has(m map[string]string, key string) bool {
	_, ok := m[key]
	return ok
}

// answered compares the error of a call.
func (in input) answered(t *testing.T, n *attach.Node, call attach.Call) {
	t.Helper()
	var answer types.Error
	if err := json.Unmarshal(call.Stdout, &answer); err != nil || call.Exit != 1 {
		t.Fatalf("exit %d, %v: %s", call.Exit, err, call.Stdout)
	}
	if answer.Code != in.code {
		t.Errorf("code %d, want %d: %s; %s", answer.Code, in.code, answer.Msg, answer.Details)
	}
	for _, want := range in.names {
		if !strings.Contains(n.Normal(answer.Msg+answer.Details), want) {
			t.Errorf("%s; %s: does not name %s", answer.Msg, answer.Details, want)
		}
	}
}

// conf is plain with other values.
func conf(t *testing.T, n *attach.Node, set map[string]string) string {
	t.Helper()
	doc := json.RawMessage(strings.ReplaceAll(plain, attach.Dir, n.Dir))
	for _, path := range slices.Sorted(maps.Keys(set)) {
		doc = put(t, doc, strings.Split(path, "."), set[path])
	}
	return string(doc)
}

// put is a JSON object with another value at a path, or without one.
func put(t *testing.T, object json.RawMessage, path []string, val string) json.RawMessage {
	t.Helper()
	m := map[string]json.RawMessage{}
	if len(object) > 0 {
		if err := json.Unmarshal(object, &m); err != nil {
			t.Fatal(err)
		}
	}
	switch {
	case len(path) > 1:
		m[path[0]] = put(t, m[path[0]], path[1:], val)
	case val == "":
		delete(m, path[0])
	default:
		m[path[0]] = json.RawMessage(val)
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pod1 is c1's eth0 in pod1.
func pod1(t *testing.T, n *attach.Node) attach.Attachment {
	t.Helper()
	if _, err := n.Pod("pod1"); err != nil {
		t.Fatal(err)
	}
	return attach.Attachment{ContainerID: "c1", IfName: "eth0", NetNS: n.PodPath("pod1")}
}

// raw runs our plugin once. Its answer has the right form, error or not.
func raw(t *testing.T, n *attach.Node, verb, stdin string, env []string) attach.Call {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	_, err := n.Run(ctx, "tracewire", []byte(stdin), env)
	calls := n.Exec.Calls()
	if len(calls) != 1 {
		t.Fatalf("%s: %v", verb, err)
	}
	if err := calls[0].Sound(); err != nil {
		t.Errorf("%s: %v", verb, err)
	}
	return calls[0]
}

// files is every file below a folder.
func files(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
