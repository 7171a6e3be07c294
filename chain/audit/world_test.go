package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
)

const (
	ours = `{"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "tracewire", "bridge": "tb0", "isGateway": true, "ipMasq": true,
		"ipam": {"type": "host-local", "dataDir": "@DIR@/ipam", "ranges": [[{"subnet": "10.213.0.0/24"}]]},
		"tracewire": {"stateDir": "@DIR@/state", "log": {"path": "@DIR@/log"}}},
		{"type": "portmap", "capabilities": {"portMappings": true}}]}`
	theirs = `{"cniVersion": "1.0.0", "name": "ref", "plugins": [{"type": "bridge", "bridge": "rb0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables",
		"ipam": {"type": "host-local", "dataDir": "@DIR@/networks", "ranges": [[{"subnet": "10.214.0.0/24"}]]}},
		{"type": "portmap", "capabilities": {"portMappings": true}}]}`
)

// world is a node with a network, whose pods p0 and p1 are attached to it.
type world struct {
	*attach.Node
	t         *testing.T
	sandboxes []Sandbox
	checks    bool // CHECK is run too
	conflists bool // the node has the list
	list      string
}

// TestMain runs the tests apart: an audit sees all processes and namespaces of the
// machine.
func TestMain(m *testing.M) { os.Exit(netns.Apart(m)) }

// newWorld makes a node. Its boot has no other id than the machine's.
func newWorld(t *testing.T, list string, pods int) *world {
	t.Helper()
	bin, reference := os.Getenv("TRACEWIRE_BIN"), os.Getenv("TRACEWIRE_REFERENCE")
	if bin == "" || reference == "" {
		t.Skip("needs the program tracewire: run make test")
	}
	netns.Enter(t)
	n, err := attach.NewNode(t.TempDir(), bin, reference)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	w := &world{Node: n, t: t, conflists: true, list: strings.ReplaceAll(list, attach.Dir, n.Dir)}
	w.must(n.Load([]byte(list)))
	for i := range pods {
		w.add(fmt.Sprintf("p%d", i))
	}
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) attachment(pod string) attach.Attachment {
	return attach.Attachment{ContainerID: pod, IfName: "eth0", NetNS: w.PodPath(pod)}
}

// add attaches a pod.
func (w *world) add(pod string) {
	w.t.Helper()
	_, err := w.Pod(pod)
	w.must(err)
	_, err = w.Add(w.t.Context(), w.attachment(pod))
	w.must(err)
}

// publish attaches a pod with ports of the host's, which portmap maps with a
// backend, and an address of each family.
func (w *world) publish(pod, backend string) {
	w.t.Helper()
	netns.Need(w.t, "iptables", "ip6tables", "nft")
	w.map6(backend)
	_, err := w.Pod(pod)
	w.must(err)
	_, err = w.Add(w.t.Context(), w.published(pod, 8080))
	w.must(err)
}

// map6 gives the list's portmap a backend, and its network IPv6 too.
func (w *world) map6(backend string) {
	w.t.Helper()
	w.list = regexp.MustCompile(`"type": "portmap"(, "backend": "[a-z]*")?`).ReplaceAllString(w.list, `"type": "portmap", "backend": "`+backend+`"`)
	w.list = strings.Replace(w.list, `/24"}]]`, `/24"}], [{"subnet": "fd00:213::/64"}]]`, 1)
	w.must(w.Load([]byte(w.list)))
}

// published is a pod's attachment with a port of TCP and one of UDP.
func (w *world) published(pod string, port int) attach.Attachment {
	a := w.attachment(pod)
	a.Capabilities = map[string]any{"portMappings": []map[string]any{
		{"hostPort": port, "containerPort": 80, "protocol": "tcp"}, {"hostPort": port, "containerPort": 53, "protocol": "udp", "hostIP": "192.0.2.1"},
	}}
	return a
}

// lose takes a pod away with all that tells of it: what is left is rules.
func (w *world) lose(pod string) {
	w.t.Helper()
	w.must(w.Vanish(pod))
	w.forget(pod)
}

// forget removes what tells of a pod, but for the kernel's.
func (w *world) forget(pod string) {
	w.t.Helper()
	w.remove("cache/results/"+w.Network()+"-"+pod+"-eth0", "state/attachments/net/"+pod+":eth0")
	for _, dir := range []string{w.Dir + "/ipam/net", w.Dir + "/networks/ref"} {
		files, _ := filepath.Glob(dir + "/*")
		for _, f := range files {
			if b, _ := os.ReadFile(f); strings.HasPrefix(string(b), pod+"\r\n") {
				w.must(os.Remove(f))
			}
		}
	}
}

// apart makes a namespace with an address that the host does not lead to. A
// process is in it: else nobody could look.
func (w *world) apart(name, address string) {
	w.t.Helper()
	a, err := netlink.ParseAddr(address)
	w.must(err)
	w.must(w.In(name, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(lo, a)
	}))
	w.inhabit(name)
}

// inhabit puts a process into a pod's namespace.
func (w *world) inhabit(pod string) {
	w.t.Helper()
	inside := exec.Command("cat")
	in, err := inside.StdinPipe()
	w.must(err)
	w.must(w.In(pod, inside.Start))
	w.t.Cleanup(func() { _ = errors.Join(in.Close(), inside.Wait()) })
}

// node is where the audit looks.
func (w *world) node() Node {
	w.t.Helper()
	n := Node{
		Boot: cache.BootID(), StateDirs: []string{w.Dir + "/state"}, CacheDirs: []string{w.Dir + "/cache/results"},
		DataDirs: []string{w.Dir + "/networks"}, Sandboxes: w.sandboxes,
	}
	if w.checks {
		n.Checked = w.checked()
	}
	if w.conflists {
		entries, err := conflist.Entries("net.conflist", []byte(w.list))
		w.must(err)
		n.Conflists = entries
	}
	return n
}

// checked runs CHECK of all attachments that have a record.
func (w *world) checked() (out []Checked) {
	w.t.Helper()
	all, err := cache.Dir{Path: w.Dir + "/state/attachments"}.List()
	w.must(err)
	for _, r := range all {
		c := Checked{Attachment: r.Attachment, Err: w.check(r.Attachment)}
		var answer *types.Error
		var details struct{ Findings delegates.Findings }
		if errors.As(c.Err, &answer) && json.Unmarshal([]byte(answer.Details), &details) == nil && len(details.Findings) > 0 {
			c.Findings, c.Err = details.Findings, nil
		}
		out = append(out, c)
	}
	return out
}

// look is one audit.
func (w *world) look() (found []Finding) {
	w.t.Helper()
	_, err := w.node().Audit(w.t.Context(), Told{
		Finding: func(f Finding) { found = append(found, f) },
		Unread:  func(u Unread) { w.t.Errorf("unread: %v", u) },
	})
	w.must(err)
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(w.line(a), w.line(b)) })
	return found
}

// line is a finding as a line: kind, what it is about, and whether it is mended.
func (w *world) line(f Finding) string {
	fix := "reported"
	if f.Repair != nil {
		fix = string(f.Repair.Action)
	}
	about := f.About()
	if strings.HasPrefix(about, "veth") { // the reference's are random
		about = "veth"
	}
	return w.Normal(fmt.Sprintf("%s %s %s", f.Kind, about, fix))
}

// full is a finding with its evidence, for who reads the test's output.
func (w *world) full(f Finding) string {
	b, err := json.MarshalIndent(f, "", "  ")
	w.must(err)
	return w.Normal(string(b))
}

// expect compares the findings' lines, the node's folder replaced.
func (w *world) expect(found []Finding, want ...string) {
	w.t.Helper()
	var got []string
	for _, f := range found {
		got = append(got, w.line(f))
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("found\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
		for _, f := range found {
			w.t.Log(w.full(f))
		}
	}
}

// put writes a file below the node's folder.
func (w *world) put(name, content string) {
	w.t.Helper()
	path := filepath.Join(w.Dir, name)
	w.must(os.MkdirAll(filepath.Dir(path), 0o755))
	w.must(os.WriteFile(path, []byte(content), 0o600))
}

// remove removes files below the node's folder.
func (w *world) remove(names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.must(os.RemoveAll(filepath.Join(w.Dir, name)))
	}
}

// cut leaves a record its first line, the intent.
func (w *world) cut(name string) {
	w.t.Helper()
	b, err := os.ReadFile(filepath.Join(w.Dir, name))
	w.must(err)
	first, _, _ := strings.Cut(string(b), "\n")
	w.put(name, first+"\n")
}
