//go:build linux

package cases

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
)

// moved is how many pods live on the node that moves.
const moved = 20

// moving is a node whose pods go on running while its list changes its type
// (DESIGN section 1: there and back). Network, IPAM folder and libcni's cache
// stay.
type moving struct {
	*attach.Node
	backend string
	talks   map[string]*attach.Conversation
}

// TestMoveLiveNode: twenty pods of the reference's, then DEL and CHECK come to
// us; twenty of ours, then they come to the reference. One more pod of each
// lives through it all with a TCP connection from outside (by portmap) and one
// to the outside (by masquerade).
func TestMoveLiveNode(t *testing.T) {
	netns.Need(t, "nft", "iptables")
	for _, backend := range []string{"nftables", "iptables"} {
		t.Run(backend, func(t *testing.T) {
			m := &moving{Node: node(t), backend: backend, talks: map[string]*attach.Conversation{}}
			if err := m.Outside("out", []string{"192.0.2.1/24"}, []string{"192.0.2.9/24"}); err != nil {
				t.Fatal(err)
			}
			m.there(t)
			m.back(t)
		})
	}
}

// there moves the reference's pods to us.
func (m *moving) there(t *testing.T) {
	m.become(t, "bridge")
	theirs := names("theirs", moved)
	lost := names("lost", 2)
	m.each(t, "ADD", slices.Concat(theirs, lost, []string{"long"})...)
	m.open(t, "long", "203")
	m.become(t, "tracewire")
	m.each(t, "CHECK", append(theirs, "long")...)
	m.alive(t, "after CHECK")
	m.each(t, "DEL", theirs[:moved/2]...)
	m.each(t, "ADD", "beside")
	m.each(t, "CHECK", append(theirs[moved/2:], "long", "beside")...)
	m.alive(t, "beside new pods")
	// The rest ends by GC: most with the result that libcni kept, two without.
	for _, pod := range lost {
		if err := errors.Join(os.Remove(m.Dir+"/cache/results/net-"+pod+"-eth0"), m.RemovePod(pod)); err != nil {
			t.Fatal(err)
		}
	}
	m.collect(t, "long", "beside")
	m.alive(t, "after GC")
	m.each(t, "CHECK", "long", "beside")
	m.each(t, "DEL", "beside")
	m.only(t, "long")
}

// back moves our pods to the reference.
func (m *moving) back(t *testing.T) {
	ours := names("ours", moved)
	m.each(t, "ADD", append(ours, "ours-long")...)
	m.open(t, "ours-long", "204")
	m.become(t, "bridge")
	m.each(t, "CHECK", append(ours, "ours-long", "long")...)
	m.each(t, "DEL", ours...)
	m.alive(t, "after the reference's DEL")
	m.each(t, "DEL", "long", "ours-long")
	m.recordsOnly(t, append(ours, "ours-long"))
	// A later DEL or GC of ours ends them.
	m.become(t, "tracewire")
	m.each(t, "DEL", ours[:moved/2]...)
	m.collect(t)
	nothingLeft(t, m.Node)
}

// collect runs GC of the list: the named pods' attachments are valid.
func (m *moving) collect(t *testing.T, pods ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	valid := []types.GCAttachment{}
	for _, pod := range pods {
		valid = append(valid, types.GCAttachment{ContainerID: pod, IfName: "eth0"})
	}
	if err := m.GC(ctx, valid); err != nil {
		t.Fatal(describe(err))
	}
}

// recordsOnly tells that the reference left nothing of our pods but what it
// does not know of: our records, and the table of rules that they share.
func (m *moving) recordsOnly(t *testing.T, pods []string) {
	t.Helper()
	var want []string
	for _, pod := range pods {
		want = append(want, "state/attachments/net/"+pod+":eth0")
	}
	slices.Sort(want)
	left, err := m.Left()
	if err != nil {
		t.Fatal(err)
	}
	if m.backend == "nftables" {
		want = append(want, "state/networks/net", "table inet tracewire_")
		last := &left[len(left)-1]
		*last = (*last)[:min(len(*last), len("table inet tracewire_"))]
	}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("after the reference's DEL: -want +got:\n%s", diff)
	}
}

func names(prefix string, count int) (out []string) {
	for i := range count {
		out = append(out, fmt.Sprintf("%s%02d", prefix, i))
	}
	return out
}

// become loads the list with another type.
func (m *moving) become(t *testing.T, kind string) {
	t.Helper()
	ours := ""
	if kind == "tracewire" {
		ours = `, "tracewire": {"stateDir": "@DIR@/state", "log": {"path": "@DIR@/log/tracewire.jsonl"}}`
	}
	err := m.Load([]byte(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "plugins": [
		{"type": %q, "bridge": "tb0", "isGateway": true, "hairpinMode": true, "ipMasq": true, "ipMasqBackend": %q,
		 "ipam": {"type": "host-local", "dataDir": "@DIR@/ipam", "ranges": [[{"subnet": "10.77.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}%s},
		{"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}}]}`, kind, m.backend, ours)))
	if err != nil {
		t.Fatal(err)
	}
}

// attachment is a pod's: each publishes a port, but those that the runtime
// loses, whose rules the reference's portmap alone could remove.
func (m *moving) attachment(name string) attach.Attachment {
	if strings.HasPrefix(name, "lost") {
		return attach.Attachment{ContainerID: name, IfName: "eth0", NetNS: m.PodPath(name)}
	}
	port := map[string]any{"hostPort": port(name), "containerPort": 80, "protocol": "tcp"}
	return attach.Attachment{ContainerID: name, IfName: "eth0", NetNS: m.PodPath(name), Capabilities: map[string]any{"portMappings": []any{port}}}
}

// port is a pod's on the node, by its name.
func port(name string) int {
	port := 20000
	for _, b := range []byte(name) {
		port = (port*31+int(b))%20000 + 20000
	}
	return port
}

func (m *moving) each(t *testing.T, verb string, pods ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*stepTime)
	defer cancel()
	for _, name := range pods {
		if _, err := m.Pod(name); err != nil {
			t.Fatal(err)
		}
		var err error
		switch a := m.attachment(name); verb {
		case "ADD":
			_, err = m.Add(ctx, a)
		case "CHECK":
			err = m.Check(ctx, a)
		case "DEL":
			err = m.Del(ctx, a)
		}
		if err != nil {
			t.Fatalf("%s %s: %s", verb, name, describe(err))
		}
	}
}

// open opens a pod's two connections.
func (m *moving) open(t *testing.T, pod, listen string) {
	t.Helper()
	in, err := m.Connect("out", fmt.Sprintf("192.0.2.1:%d", port(pod)), pod, ":80")
	if err != nil {
		t.Fatalf("to %s: %v", pod, err)
	}
	t.Cleanup(in.Close)
	out, err := m.Connect(pod, "192.0.2.9:"+listen, "out", ":"+listen)
	if err != nil {
		t.Fatalf("from %s: %v", pod, err)
	}
	t.Cleanup(out.Close)
	if got := out.Peer.Addr().String(); got != "192.0.2.1" {
		t.Errorf("%s is seen as %s outside", pod, got)
	}
	m.talks["to "+pod], m.talks["from "+pod] = in, out
}

// alive says a line each way on all connections, and opens new ones of the same pods.
func (m *moving) alive(t *testing.T, when string) {
	t.Helper()
	for name, talk := range m.talks {
		if _, err := talk.Say(when); err != nil {
			t.Errorf("connection %s, %s: %v", name, when, err)
		}
	}
	if peer, err := m.Connect("long", "192.0.2.9:205", "out", ":205"); err != nil {
		t.Errorf("a new connection, %s: %v", when, err)
	} else {
		peer.Close()
	}
}

// only tells that nothing is left but of one pod of the reference's.
func (m *moving) only(t *testing.T, pod string) {
	t.Helper()
	files, errFiles := m.Files()
	links, errLinks := m.Links()
	rules, errRules := m.RulesLeft()
	if err := errors.Join(errFiles, errLinks, errRules); err != nil {
		t.Fatal(err)
	}
	if len(files) != 2 || !strings.HasPrefix(files[0], "ipam/net/10.77.0.") || files[1] != "cache/results/net-"+pod+"-eth0" {
		t.Errorf("files left: %q", files)
	}
	if len(links) != 2 || links[1] != pod+"/eth0" {
		t.Errorf("interfaces left: %q", links)
	}
	// By portmap a rule; by bridge a rule, or a jump and its chain.
	if len(rules) != map[string]int{"nftables": 2, "iptables": 3}[m.backend] {
		t.Errorf("rules left: %q", rules)
	}
}

// TestMoveOnePod: a pod of the reference's is removed by us, whatever the
// runtime still has of it, and by which of its keys it was made. The reference
// leaves rules behind where CNI_NETNS is empty (plugins#810).
func TestMoveOnePod(t *testing.T) {
	netns.Need(t, "nft", "iptables")
	keys := map[string]string{
		"nftables": `"ipMasq": true, "ipMasqBackend": "nftables"`, "iptables": `"ipMasq": true, "ipMasqBackend": "iptables"`,
		"no backend named": `"ipMasq": true`, "macspoofchk": `"macspoofchk": true`,
	}
	losses := map[string]func(*testing.T, *attach.Node, *attach.Attachment) error{
		"nothing":       func(*testing.T, *attach.Node, *attach.Attachment) error { return nil },
		"CNI_NETNS":     func(_ *testing.T, _ *attach.Node, a *attach.Attachment) error { a.NetNS = ""; return nil },
		"its namespace": func(_ *testing.T, n *attach.Node, _ *attach.Attachment) error { return n.RemovePod("pod1") },
		"its interface": func(_ *testing.T, n *attach.Node, _ *attach.Attachment) error {
			return n.In("pod1", func() error { return change("eth0", "del", "") })
		},
	}
	for _, version := range []string{"0.4.0", "1.1.0"} {
		for what, key := range keys {
			for lost, lose := range losses {
				t.Run(version+" "+what+" lost "+lost, func(t *testing.T) {
					n := node(t)
					load := func(kind, ours string) {
						err := n.Load([]byte(fmt.Sprintf(`{"cniVersion": %q, "name": "net", "plugins": [{"type": %q, "bridge": "tb0", "isGateway": true, %s,
							"ipam": {"type": "host-local", "dataDir": "@DIR@/ipam", "ranges": [[{"subnet": "10.77.0.0/24"}]]}%s}]}`, version, kind, key, ours)))
						if err != nil {
							t.Fatal(err)
						}
					}
					ctx, cancel := context.WithTimeout(context.Background(), stepTime)
					defer cancel()
					load("bridge", "")
					a := pod1(t, n)
					if _, err := n.Add(ctx, a); err != nil {
						t.Fatal(describe(err))
					}
					load("tracewire", `, "tracewire": {"stateDir": "@DIR@/state", "log": {"level": "off"}}`)
					if err := n.Check(ctx, a); err != nil {
						t.Error(describe(err))
					}
					if err := lose(t, n, &a); err != nil {
						t.Fatal(err)
					}
					if err := n.Del(ctx, a); err != nil {
						t.Error(describe(err))
					}
					nothingLeft(t, n)
				})
			}
		}
	}
}

// TestDelOfTheReferencesWithoutResult: of a pod that the reference made we have
// no record, and where libcni has no result either, as before CNI 0.4.0, only
// its interface and the rules' comments tell of it. The list may have lost
// ipMasq and macspoofchk since.
func TestDelOfTheReferencesWithoutResult(t *testing.T) {
	netns.Need(t, "nft")
	const conf = `{"cniVersion": "0.3.1", "name": "net", "type": %q, "bridge": "tb0", "isGateway": true, %s
		"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.77.0.0/24"}]]}, "tracewire": {"stateDir": %q, "log": {"level": "off"}}}`
	const rules = `"ipMasq": true, "ipMasqBackend": "nftables", "macspoofchk": true,`
	for name, more := range map[string]string{"same list": rules, "list without rules": ""} {
		t.Run(name, func(t *testing.T) {
			n := node(t)
			ctx, cancel := context.WithTimeout(context.Background(), stepTime)
			defer cancel()
			a, other := pod1(t, n), pod1(t, n)
			if _, err := n.Pod("pod2"); err != nil {
				t.Fatal(err)
			}
			other.ContainerID, other.NetNS = "c2", n.PodPath("pod2")
			do := func(plugin, verb, more string, a attach.Attachment) {
				t.Helper()
				stdin := fmt.Sprintf(conf, plugin, more, n.Dir+"/ipam", n.Dir+"/state")
				if _, err := n.Run(ctx, plugin, []byte(stdin), n.Environment(verb, a)); err != nil {
					t.Fatal(describe(err))
				}
			}
			do("bridge", "ADD", rules, a)
			do("tracewire", "ADD", more, other)
			do("tracewire", "DEL", more, a)
			stranger := a
			stranger.NetNS = other.NetNS // a path that names another pod's namespace by now
			do("tracewire", "DEL", more, stranger)
			if err := n.Ping("pod2", "10.77.0.1"); err != nil {
				t.Errorf("another pod lost its interface: %v", err)
			}
			do("tracewire", "DEL", more, other)
			nothingLeft(t, n)
		})
	}
}
