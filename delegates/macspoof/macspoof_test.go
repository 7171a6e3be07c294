package macspoof

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/nft"
	"github.com/tracewire/tracewire/test/netns"
)

// ruleset is the tables as nft lists them, in the calling thread's namespace.
func ruleset(t *testing.T) string {
	t.Helper()
	netns.Need(t, "nft")
	out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.ReplaceAll(string(out), "\n\n", "\n")
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// reference runs the reference's bridge plugin for container c1, and returns
// host end and pod's MAC of its answer.
func reference(t *testing.T, command, more string, pod ns.NetNS) (k Check) {
	t.Helper()
	dir := os.Getenv("TRACEWIRE_REFERENCE")
	if dir == "" {
		t.Skip("needs the program bridge of the reference plugins: run make test")
	}
	netns.Need(t, "nft")
	cmd := exec.Command(filepath.Join(dir, "bridge"))
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=" + pod.Path(), "CNI_PATH=" + dir, "PATH=" + os.Getenv("PATH")}
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0","name":"podnet","type":"bridge","bridge":"cni0","ipam":{}` + more + "}")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	var answer struct{ Interfaces []struct{ Name, Mac string } }
	if command == "ADD" {
		must(t, json.Unmarshal(out, &answer))
		k = Check{ContainerID: "c1", IfName: "eth0", Interface: answer.Interfaces[1].Name}
		k.MAC, err = net.ParseMAC(answer.Interfaces[2].Mac)
		must(t, err)
	}
	return k
}

const (
	on   = `,"macspoofchk":true`
	bare = "table bridge nat {\n\tchain PREROUTING {\n\t\ttype filter hook prerouting priority dstnat; policy accept;\n\t}\n}\n"
)

// TestSameAsReference: both write the same, and either removes the other's.
func TestSameAsReference(t *testing.T) {
	netns.Enter(t)
	pod := netns.New(t)
	k := reference(t, "ADD", on, pod)
	want := ruleset(t)
	for _, step := range []struct {
		name string
		do   func() error
		want string
	}{
		{"another's removal", func() error { return Check{ContainerID: "c2", IfName: "eth0"}.Remove(t.Context(), false) }, want},
		{"ours over it", func() error { return k.Ensure(t.Context()) }, want},
		{"our removal", func() error { return Check{ContainerID: "c1", IfName: "eth0"}.Remove(t.Context(), false) }, bare},
		{"our removal again", func() error { return k.Remove(t.Context(), false) }, bare},
		{"ours", func() error { return k.Ensure(t.Context()) }, want},
		{"ours again", func() error { return k.Ensure(t.Context()) }, want},
		{"the reference's removal", func() error { reference(t, "DEL", on, pod); return nil }, bare},
		{"ours, waited for", func() error { return errors.Join(k.Ensure(t.Context()), k.Remove(t.Context(), true)) }, bare},
	} {
		if err := step.do(); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		if diff := cmp.Diff(step.want, ruleset(t)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", step.name, diff)
		}
	}
}

// TestHalfThere: whatever is left of the rules is removed, or replaced.
func TestHalfThere(t *testing.T) {
	k := Check{ContainerID: "c1", IfName: "eth0", Interface: "veth1", MAC: net.HardwareAddr{10, 88, 10, 1, 0, 2}}
	iface, mac := k.chains()
	jump := nft.Rule{Chain: base, Comment: k.comment(), Exprs: nft.Exprs(nft.From("veth0"), nft.Jump(iface))}
	for name, before := range map[string]func(*nft.Transaction){
		"nothing":     func(*nft.Transaction) {},
		"no chains":   func(*nft.Transaction) {},
		"one chain":   func(tx *nft.Transaction) { tx.Create(iface) },
		"other chain": func(tx *nft.Transaction) { tx.Create(mac) },
		"two jumps":   func(tx *nft.Transaction) { tx.Create(iface); tx.Append(jump); tx.Append(jump) },
		"other's jump": func(tx *nft.Transaction) {
			tx.Append(nft.Rule{Chain: base, Comment: "macspoofchk-c2-eth0", Exprs: nft.Return()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			netns.Enter(t)
			c, err := nft.Dial()
			must(t, err)
			defer c.Close()
			tx := &nft.Transaction{}
			if name != "nothing" {
				tx.Create(base.Table)
				tx.Create(base)
			}
			before(tx)
			if !tx.Empty() {
				must(t, c.Apply(t.Context(), tx))
			}
			must(t, k.Remove(t.Context(), false))
			bare := ruleset(t)
			if strings.Contains(bare, "c1-eth0") {
				t.Errorf("left:\n%s", bare)
			}
			if name != "nothing" && name != "other's jump" {
				must(t, c.Apply(t.Context(), func() *nft.Transaction { tx := &nft.Transaction{}; before(tx); tx.Ensure(base.Table); return tx }()))
			}
			must(t, k.Ensure(t.Context()))
			got := ruleset(t)
			if strings.Count(got, "macspoofchk-c1-eth0") != 4 || strings.Contains(got, "veth0") {
				t.Errorf("made:\n%s", got)
			}
			must(t, k.Remove(t.Context(), false))
			if left := ruleset(t); strings.Contains(left, "c1-eth0") || strings.Contains(left, "c2-eth0") != (name == "other's jump") {
				t.Errorf("left:\n%s", left)
			}
		})
	}
}

// TestLacking: rules that are gone, or in another order; the reference's are as
// good as ours.
func TestLacking(t *testing.T) {
	netns.Enter(t)
	k := reference(t, "ADD", on, netns.New(t))
	other := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	lacking := func(want string, macs ...net.HardwareAddr) {
		t.Helper()
		if got, err := k.Lacking(macs); got != want || err != nil {
			t.Errorf("got %q, error %v, want %q", got, err, want)
		}
	}
	const chain = "cni-br-iface-c1-eth0"
	lacking("", k.MAC)
	lacking("", other, k.MAC)
	lacking("2 rules in chain "+chain+"-mac, which are not those", other)
	for _, step := range []struct{ change, want string }{
		{"flush chain bridge nat PREROUTING", "no rule that leads to chain " + chain},
		{"flush chain bridge nat " + chain, "0 rules in chain " + chain + ", which are not those"},
		{"flush chain bridge nat " + chain + "-mac; add rule bridge nat " + chain + "-mac drop; add rule bridge nat " + chain + "-mac ether saddr " + k.MAC.String() + " return",
			"2 rules in chain " + chain + "-mac, which are not those"},
		{"insert rule bridge nat " + chain + "-mac accept", "3 rules in chain " + chain + "-mac, which are not those"},
		{"flush ruleset", "no chain " + chain},
	} {
		must(t, k.Ensure(t.Context()))
		lacking("", k.MAC)
		if out, err := exec.Command("nft", step.change).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", step.change, err, out)
		}
		lacking(step.want, k.MAC)
	}
	long := Check{ContainerID: strings.Repeat("c", 300), IfName: "eth0"} // refused, as a kernel without nf_tables refuses
	if got, err := long.Lacking(nil); err == nil {
		t.Errorf("what cannot be looked at lacks %q", got)
	}
}

// TestFrames: a pod is heard with its own MAC, and with no other.
func TestFrames(t *testing.T) {
	netns.Enter(t)
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}))
	bridge, err := netlink.LinkByName("cni0")
	must(t, err)
	address, err := netlink.ParseAddr("10.1.0.1/24")
	must(t, err, netlink.AddrAdd(bridge, address), netlink.LinkSetUp(bridge))
	pod := netns.New(t)
	k := reference(t, "ADD", `,"macspoofchk":false`, pod)
	must(t, pod.Do(func(ns.NetNS) error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		address, err := netlink.ParseAddr("10.1.0.2/24")
		return errors.Join(err, netlink.AddrAdd(l, address))
	}))
	server, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP("10.1.0.1")})
	must(t, err)
	defer func() { _ = server.Close() }()
	heard := func(mac net.HardwareAddr) bool {
		must(t, pod.Do(func(ns.NetNS) error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			must(t, netlink.LinkSetHardwareAddr(l, mac), netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT,
				IP: address.IP, HardwareAddr: bridge.Attrs().HardwareAddr}))
			c, err := net.Dial("udp4", server.LocalAddr().String())
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			_, err = c.Write([]byte("hello"))
			return err
		}))
		_ = server.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		_, _, err := server.ReadFromUDP(make([]byte, 16))
		return err == nil
	}
	other := net.HardwareAddr{10, 88, 10, 1, 0, 9}
	bridge, err = netlink.LinkByName("cni0") // its MAC followed the port
	must(t, err)
	for _, step := range []struct {
		name       string
		do         func() error
		own, spoof bool
	}{
		{"without", func() error { return nil }, true, true},
		{"with", func() error { return k.Ensure(t.Context()) }, true, false},
		{"removed", func() error { return k.Remove(t.Context(), false) }, true, true},
	} {
		must(t, step.do())
		if own, spoof := heard(k.MAC), heard(other); own != step.own || spoof != step.spoof {
			t.Errorf("%s: heard with its own MAC %t, with another %t", step.name, own, spoof)
		}
	}
}

// TestNoBridgeFamily: what such a kernel answers to a chain of a type unknown to it.
func TestNoBridgeFamily(t *testing.T) {
	for _, errno := range []error{unix.ENOENT, unix.EOPNOTSUPP, unix.EAFNOSUPPORT} {
		if err := explained(errno); !errors.Is(err, ErrNoBridge) || !errors.Is(err, errno) {
			t.Error(err)
		}
	}
	for _, err := range []error{nil, unix.EPERM} {
		if got := explained(err); !errors.Is(got, err) {
			t.Error(got)
		}
	}
	k := Check{ContainerID: strings.Repeat("c", 300), IfName: "eth0", Interface: "veth1", MAC: make(net.HardwareAddr, 6)}
	netns.Enter(t)
	if err := k.Ensure(t.Context()); err == nil || errors.Is(err, ErrNoBridge) {
		t.Errorf("error %v", err)
	}
	if err := k.Remove(t.Context(), false); err != nil {
		t.Errorf("what cannot be there: %v", err)
	}
}
