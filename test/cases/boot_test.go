//go:build linux

package cases

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain/cache"
)

// eightAddresses is a list whose range has five addresses.
const eightAddresses = `{"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "tracewire", "bridge": "tb0", "isGateway": true,
	"ipam": {"type": "host-local", "dataDir": "@DIR@/ipam", "ranges": [[{"subnet": "10.77.0.0/29"}]]},
	"tracewire": {"stateDir": "@DIR@/state", "log": {"path": "@DIR@/log/tracewire.jsonl"}}}]}`

// rebooting is a node of that list, as a story.
func rebooting(t *testing.T) *story {
	t.Helper()
	n := node(t)
	verdictDir(t, n)
	if err := n.Load([]byte(eightAddresses)); err != nil {
		t.Fatal(err)
	}
	return &story{Node: n, results: map[string]any{}, macs: map[string]string{}, ran: map[string]int{}}
}

// steps runs lines as in a case's file.
func (c *story) steps(t *testing.T, lines ...string) {
	t.Helper()
	for _, line := range lines {
		want := ""
		if at := strings.Index(line, " -> "); at >= 0 {
			line, want = line[:at], line[at+len(" -> "):]
		}
		verb, rest, _ := strings.Cut(line, " ")
		c.step(t, line, verb, strings.Fields(rest), want)
	}
}

// fill leaves reservations of other1 to other5.
func (c *story) fill(t *testing.T) {
	t.Helper()
	for i := 1; i <= 5; i++ {
		c.steps(t, fmt.Sprintf("reserve 10.77.0.%d other%d eth0", i+1, i))
	}
}

const full = " -> 100 5 of 5 in use"

// TestBootAndManyAtOnce: each of twelve ADDs at once finds no address until one
// of them, or another, has taken back what the last boot left.
func TestBootAndManyAtOnce(t *testing.T) {
	c := rebooting(t)
	if err := c.Load([]byte(strings.Replace(eightAddresses, "10.77.0.0/29", `10.77.0.0/24", "rangeStart": "10.77.0.2", "rangeEnd": "10.77.0.13`, 1))); err != nil {
		t.Fatal(err)
	}
	c.steps(t, "boot 1")
	for i := range 9 {
		c.steps(t, fmt.Sprintf("add old%d eth0 pod%d", i, i))
	}
	c.steps(t, "reserve 10.77.0.11 bare1 eth0", "reserve 10.77.0.12 bare2 eth0", "reserve 10.77.0.13 bare3 eth0",
		"boot now", "at-once 12 add c%d eth0 pod%d", "at-once 12 check c%d eth0 pod%d", "add c13 eth0 pod13 -> 100 12 of 12 in use",
		"at-once 12 del c%d eth0 pod%d")
	for i := range 9 {
		c.steps(t, fmt.Sprintf("forget old%d eth0", i))
	}
	nothingLeft(t, c.Node)
}

// TestBootClaims: libcni's entries keep the reservations of pods that live, also
// those that cannot be read; a dead one's keeps nothing. An entry's file is never
// split: a hyphen may stand in each of its parts.
func TestBootClaims(t *testing.T) {
	entry := func(id, netns, sandbox string) string {
		result := map[string]any{"cniVersion": "1.0.0", "interfaces": []any{map[string]any{"name": "eth0", "sandbox": sandbox}}}
		b, _ := json.Marshal(map[string]any{"kind": "cniCacheV1", "containerId": id, "ifName": "eth0", "networkName": "net", "netns": netns, "result": result})
		return string(b)
	}
	for _, tt := range []struct {
		name, file string
		content    func(pod string) string
		lives      bool
	}{
		{"a namespace", "net-other3-eth0", func(pod string) string { return entry("other3", pod, "") }, true},
		{"a sandbox of a result, as older ones have it", "net-other3-eth0", func(pod string) string { return entry("other3", "", pod) }, true},
		{"a namespace that is gone", "net-other3-eth0", func(pod string) string { return entry("other3", pod+"-gone", pod) }, false},
		{"a plain file in its place", "net-other3-eth0", func(string) string { return entry("other3", "/etc/hostname", "") }, false},
		{"neither", "net-other3-eth0", func(string) string { return entry("other3", "", "") }, true},
		{"empty after a crash", "net-other3-eth0", func(string) string { return "" }, true},
		{"zeroes", "net-other3-eth0", func(string) string { return "\x00\x00" }, true},
		{"empty, another container", "net-other33-eth0", func(string) string { return "" }, false},
		{"empty, another network", "net-a-other3-eth0", func(string) string { return "" }, false},
		{"another network's", "net-other3-eth0", func(pod string) string {
			return strings.Replace(entry("other3", pod, ""), `"net"`, `"net-b"`, 1)
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := rebooting(t)
			dir := "/var/lib/cni/results"
			c.fill(t)
			p, err := c.Pod("theirs")
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, tt.file)
			t.Cleanup(func() { _ = os.Remove(path) })
			if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(path, []byte(tt.content(p.Path())), 0o600)); err != nil {
				t.Fatal(err)
			}
			c.steps(t, "add c1 eth0 pod1", "add c2 eth0 pod2", "add c3 eth0 pod3", "add c4 eth0 pod4")
			last := "add c5 eth0 pod5"
			if tt.lives {
				last += full
			}
			c.steps(t, last)
			_, err = os.Stat(filepath.Join(c.Dir, "ipam", "net", "10.77.0.4"))
			b, _ := os.ReadFile(filepath.Join(c.Dir, "ipam", "net", "10.77.0.4"))
			if lives := err == nil && strings.HasPrefix(string(b), "other3"); lives != tt.lives {
				t.Errorf("10.77.0.4 is held by %q", b)
			}
		})
	}
}

// TestBootStrangers: while a port of the bridge is a pod's that nobody tells of,
// as the reference's under a runtime with another cache, nothing is given back.
func TestBootStrangers(t *testing.T) {
	c := rebooting(t)
	c.steps(t, "link host tb0 bridge", "link host veth9 veth", "link host veth9 master tb0")
	c.fill(t)
	c.steps(t, "add c1 eth0 pod1"+full, "link host veth9 del", "add c1 eth0 pod1"+full, "boot 2", "add c1 eth0 pod1", "del c1 eth0 pod1")
}

// TestBootRoutes: a pod without a bridge has a route of the host's to it.
func TestBootRoutes(t *testing.T) {
	c := rebooting(t)
	if err := c.Load([]byte(strings.Replace(eightAddresses, `"stateDir"`, `"mode": "ptp", "stateDir"`, 1))); err != nil {
		t.Fatal(err)
	}
	c.fill(t)
	c.steps(t, "link host veth9 veth", "link host veth9 up")
	l, err := netlink.LinkByName("veth9")
	if err != nil {
		t.Fatal(err)
	}
	to := net.IPNet{IP: net.IPv4(10, 77, 0, 4).To4(), Mask: net.CIDRMask(32, 32)}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: &to, Scope: netlink.SCOPE_LINK}); err != nil {
		t.Fatal(err)
	}
	c.steps(t, "add c1 eth0 pod1", "add c2 eth0 pod2", "add c3 eth0 pod3", "add c4 eth0 pod4", "add c5 eth0 pod5"+full)
}

// TestBootRunReadOnly: no operation needs /run, and without it nothing is given
// back, which the ADD that would have needed it tells.
func TestBootRunReadOnly(t *testing.T) {
	c := rebooting(t)
	c.steps(t, "boot 1") // mounts of the test's own
	if err := errors.Join(unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	if err := c.Load([]byte(strings.Replace(eightAddresses, `"stateDir"`, `"statusGrace": "0s", "stateDir"`, 1))); err != nil {
		t.Fatal(err)
	}
	for i := 2; i <= 5; i++ {
		c.steps(t, fmt.Sprintf("reserve 10.77.0.%d other eth0", i))
	}
	c.steps(t, "add c1 eth0 pod1", "check c1 eth0 pod1", "add c2 eth0 pod2"+full+" (what is of an earlier boot cannot be given back: mkdir /run/tracewire: read-only file system)", "status -> 50 5 of 5 in use", "del c1 eth0 pod1", "gc")
	nothingLeft(t, c.Node)
}

// TestBootListIsTakenOnce: the list of the first ADD counts for the boot, and
// files of the same boot are not on it.
func TestBootListIsTakenOnce(t *testing.T) {
	c := rebooting(t)
	run := verdictDir(t, c.Node)
	c.steps(t, "reserve 10.77.0.3 other eth0", "add c1 eth0 pod1")
	list := func() string {
		b, err := os.ReadFile(filepath.Join(run, "earlier-"+cache.BootID()))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	first := list()
	if !strings.Contains(first, `"10.77.0.3"`) || strings.Contains(first, `"10.77.0.2"`) {
		t.Errorf("the list is %s", first)
	}
	c.steps(t, "reserve 10.77.0.6 later eth0", "add c2 eth0 pod2")
	if got := list(); got != first {
		t.Errorf("the list became %s", got)
	}
}
