package masquerade

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/test/netns"
)

// program runs one in the calling thread's namespace.
func program(t testing.TB, name, stdin string, args ...string) string {
	t.Helper()
	netns.Need(t, name)
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

// ruleset is the tables as nft lists them, without empty lines.
func ruleset(t testing.TB) string {
	t.Helper()
	return strings.ReplaceAll(program(t, "nft", "", "list", "ruleset"), "\n\n", "\n")
}

// saved is the rules of the table nat that are not its own chains, both
// families, as iptables-save lists them.
func saved(t testing.TB) (out string) {
	t.Helper()
	for _, name := range []string{"iptables-save", "ip6tables-save"} {
		for line := range strings.Lines(program(t, name, "", "-t", "nat")) {
			if strings.HasPrefix(line, "-A") || strings.HasPrefix(line, ":CNI") {
				out += counters.ReplaceAllString(line, "[0:0]")
			}
		}
	}
	return out
}

var counters = regexp.MustCompile(`\[\d+:\d+\]`)

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// must ends a test that cannot be set up.
func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// world is a host that routes between a bridge with two pods and a network
// outside, whose only host knows no way to the pods.
type world struct{ web, db, outside ns.NetNS }

func newWorld(t *testing.T) world {
	t.Helper()
	netns.Enter(t)
	w := world{netns.New(t), netns.New(t), netns.New(t)}
	must(t, up("lo"), netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}),
		up("cni0", "10.1.0.1/24", "fd00:1::1/64"),
		os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0), os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
	plug(t, w.web, "web", "cni0", "10.1.0.1", "fd00:1::1", "10.1.0.2/24", "fd00:1::2/64")
	plug(t, w.db, "db", "cni0", "10.1.0.1", "fd00:1::1", "10.1.0.3/24", "fd00:1::3/64")
	plug(t, w.outside, "out", "", "", "", "192.0.2.2/24", "fd00:2::2/64")
	must(t, up("out", "192.0.2.1/24", "fd00:2::1/64"))
	return w
}

// plug makes a pair: its end in n is eth0 with the addresses.
func plug(t *testing.T, n ns.NetNS, host, bridge, gateway4, gateway6 string, addresses ...string) {
	t.Helper()
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: host}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(n.Fd()))}
	must(t, netlink.LinkAdd(pair), n.Do(func(ns.NetNS) error { return up("eth0", addresses...) }))
	if bridge != "" {
		br, err := netlink.LinkByName(bridge)
		must(t, err, netlink.LinkSetMaster(pair, br), up(host))
		must(t, n.Do(func(ns.NetNS) error {
			for _, gw := range []string{gateway4, gateway6} {
				if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gw)}); err != nil {
					return err
				}
			}
			return nil
		}))
	}
}

func up(name string, addresses ...string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, s := range addresses {
		a, err := netlink.ParseAddr(s)
		if err != nil {
			return err
		}
		a.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(l, a); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(l)
}

// seen is the address that a server at an address in to sees a client in from have.
func seen(t *testing.T, from, to ns.NetNS, address string) string {
	t.Helper()
	var server net.Listener
	must(t, to.Do(func(ns.NetNS) (err error) {
		server, err = net.Listen("tcp", net.JoinHostPort(address, "0"))
		return err
	}))
	defer func() { _ = server.Close() }()
	go func() {
		if c, err := server.Accept(); err == nil {
			from, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			_, _ = fmt.Fprintln(c, from)
			_ = c.Close()
		}
	}()
	answer := ""
	must(t, from.Do(func(ns.NetNS) error {
		c, err := net.DialTimeout("tcp", server.Addr().String(), 3*time.Second)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(3 * time.Second))
		answer, err = bufio.NewReader(c).ReadString('\n')
		return err
	}))
	return strings.TrimSpace(answer)
}

// reference runs a plugin of the reference for c1.
func reference(t *testing.T, command, conf string, pod ns.NetNS) {
	t.Helper()
	dir := os.Getenv("TRACEWIRE_REFERENCE")
	if dir == "" {
		t.Skip("needs the program bridge of the reference plugins: run make test")
	}
	var head struct{ Type string }
	must(t, json.Unmarshal([]byte(conf), &head))
	cmd := exec.Command(filepath.Join(dir, head.Type))
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + c1.ContainerID, "CNI_IFNAME=" + c1.IfName,
		"CNI_NETNS=" + pod.Path(), "CNI_PATH=" + dir, "PATH=" + os.Getenv("PATH")}
	cmd.Stdin = strings.NewReader(conf)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}
