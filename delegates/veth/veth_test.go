package veth

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
	"github.com/tracewire/tracewire/test/netns"
)

const attachment = "net/c1:eth0"

func TestNames(t *testing.T) {
	long := "net/" + strings.Repeat("c", 300) + ":eth0"
	names := HostNames(attachment)
	for _, tt := range []struct {
		name      string
		got, want any
	}{
		{"two names", names[0] != names[1] && len(names[0]) == unix.IFNAMSIZ-1 && strings.HasPrefix(names[1], "veth"), true},
		{"another attachment", HostNames("net/c1:eth1") == names, false},
		{"alias", Alias(attachment), "tracewire:net/c1:eth0"},
		{"long alias", len(Alias(long)) <= maxAlias && Alias(long) != Alias(long+"x"), true},
		{"owner", Owner(Alias(attachment)), attachment},
		{"a stranger's", Owner("uplink"), ""},
		{"MAC of an IPv4 address", PodMAC(attachment, addresses("fd00::5/64", "10.1.2.3/24")).String(), "0a:58:0a:01:02:03"},
		{"MAC of an IPv6 address", PodMAC(attachment, addresses("fd00::5/64")).String()[:5], "0a:59"},
		{"it is the network's", cmp.Equal(PodMAC("net/c2:eth0", addresses("fd00::5/64")), PodMAC(attachment, addresses("fd00::5/64"))), true},
		{"and no other's", cmp.Equal(PodMAC("other/c1:eth0", addresses("fd00::5/64")), PodMAC(attachment, addresses("fd00::5/64"))), false},
		{"MAC without address", PodMAC(attachment, nil).String()[:5], "0a:5a"},
		{"host end's MAC", HostMAC(attachment).String()[:5], "0a:57"},
		{"bridge's MAC", BridgeMAC("cni0", "boot").String()[:5], "0a:56"},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tt.name, diff)
		}
	}
}

func addresses(texts ...string) (out []netip.Prefix) {
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// world is a host with a bridge, and a pod.
type world struct {
	host   *Conn
	pod    *Namespace
	bridge Link
}

func newWorld(t *testing.T) world {
	t.Helper()
	netns.Enter(t)
	host, err := Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(host.Close)
	pod, err := Open(netns.New(t).Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pod.Close)
	if err := host.CreateBridge(NewBridge{Name: "br0", MAC: BridgeMAC("br0", "boot"), MTU: 1400}); err != nil {
		t.Fatal(err)
	}
	bridge, err := host.LinkByName("br0")
	if err != nil {
		t.Fatal(err)
	}
	return world{host, pod, bridge}
}

func (w world) pair() Pair {
	return Pair{Host: HostNames(attachment)[0], Pod: "eth0", HostMAC: HostMAC(attachment), PodMAC: PodMAC(attachment, nil),
		MTU: 1400, Bridge: w.bridge.Index, Namespace: w.pod}
}

// create makes the pair and returns the indexes of its ends.
func (w world) create(t *testing.T) (host, pod int) {
	t.Helper()
	if err := w.host.Create(w.pair()); err != nil {
		t.Fatal(err)
	}
	host, err := w.host.Index(w.pair().Host)
	if err != nil {
		t.Fatal(err)
	}
	pod, err = w.pod.Conn().Index("eth0")
	if err != nil {
		t.Fatal(err)
	}
	return host, pod
}

func TestWire(t *testing.T) {
	w := newWorld(t)
	host, pod := w.create(t)
	if err := w.host.Mark(host, Alias(attachment), &Port{Hairpin: true, Isolated: true}); err != nil {
		t.Fatal(err)
	}
	want := addresses("10.1.0.5/24", "fd00::5/64")
	if err := w.pod.Conn().AddAddresses(pod, Addressing{Up: true}, want...); err != nil {
		t.Fatal(err)
	}
	scope := unix.RT_SCOPE_UNIVERSE
	routes := []Route{
		{Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.1.0.1"), Table: unix.RT_TABLE_MAIN, Scope: &scope},
		{Dst: netip.MustParsePrefix("10.9.0.0/16"), Gateway: netip.MustParseAddr("10.1.0.9"), MTU: 1300, AdvMSS: 1200, Priority: 7, Table: 1000, Scope: &scope},
		{Dst: netip.MustParsePrefix("fd09::/48"), Gateway: netip.MustParseAddr("fd00::1"), Priority: 9, Table: 100, Scope: &scope},
		{Dst: netip.MustParsePrefix("10.8.0.0/16"), Gateway: netip.MustParseAddr("fd00::1"), Table: unix.RT_TABLE_MAIN, Scope: &scope},
	}
	for range 2 { // what is there already is success
		if err := w.pod.Conn().AddRoutes(pod, routes...); err != nil {
			t.Fatal(err)
		}
	}
	l, err := w.host.WaitPort(t.Context(), host, portTime)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Link{
		Name: w.pair().Host, Index: host, Kind: "veth", MAC: HostMAC(attachment), MTU: 1400, Master: w.bridge.Index, Peer: pod,
		Alias: Alias(attachment), Up: true, Carrier: true, OperState: OperUp, Port: Port{State: StateForwarding, Hairpin: true, Isolated: true, Learning: true}, Promisc: l.Promisc,
	}, l); diff != "" {
		t.Errorf("host end (-want +got)\n%s", diff)
	}
	have, err := w.pod.Conn().Addresses(pod)
	if err != nil || !containsAll(have, want) {
		t.Errorf("addresses %v, error %v, want %v", have, err, want)
	}
	w.routed(t, pod, routes)
}

// TestStopped: a port of no carrier is another's finding, and one that spanning
// tree lets forward soon is none.
func TestStopped(t *testing.T) {
	for state, want := range []string{"disabled", "", "", "", "blocking"} {
		l := Link{OperState: OperUp, Port: Port{State: uint8(state)}}
		if got := l.Stopped(); got != want {
			t.Errorf("state %d: %q, want %q", state, got, want)
		}
		l.OperState--
		if l.Stopped() != "" {
			t.Errorf("state %d without carrier: %q", state, l.Stopped())
		}
	}
}

const portTime = 5e9 // ns

func containsAll(have, want []netip.Prefix) bool {
	for _, p := range want {
		found := false
		for _, h := range have {
			found = found || h == p
		}
		if !found {
			return false
		}
	}
	return true
}

// routed looks for each route as the kernel has it.
func (w world) routed(t *testing.T, index int, want []Route) {
	t.Helper()
	have, err := w.pod.Conn().Routes(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range want {
		found := false
		for _, h := range have {
			found = found || h.Index == index && cmp.Equal(h.Route, r, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
		}
		if !found {
			t.Errorf("no route %+v in %+v", r, have)
		}
	}
}

// TestTaken: EEXIST does not say which end it is, and nothing is made.
func TestTaken(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(*Pair)
	}{
		{"the host end", func(p *Pair) { p.Pod = "eth1" }},
		{"the pod's end", func(p *Pair) { p.Host = HostNames(attachment)[1] }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.create(t)
			p := w.pair()
			tt.spoil(&p)
			if err := w.host.Create(p); !errors.Is(err, unix.EEXIST) {
				t.Errorf("%v is no EEXIST", err)
			}
			for _, name := range []string{"eth1"} {
				if _, err := w.pod.Conn().Index(name); !Gone(err) {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

// TestBatchGoesOn: the kernel goes on after a request that failed, and the
// error names that one.
func TestBatchGoesOn(t *testing.T) {
	w := newWorld(t)
	_, pod := w.create(t)
	err := w.pod.Conn().AddAddresses(pod, Addressing{Up: true}, addresses("10.1.0.5/24", "10.1.0.5/24", "10.1.0.6/24")...)
	if !errors.Is(err, unix.EEXIST) || !strings.HasPrefix(err.Error(), "add address 10.1.0.5/24: ") {
		t.Errorf("error %v", err)
	}
	have, err := w.pod.Conn().Addresses(pod)
	if err != nil || !containsAll(have, addresses("10.1.0.5/24", "10.1.0.6/24")) {
		t.Errorf("addresses %v, error %v", have, err)
	}
}

func TestHasAddress(t *testing.T) {
	w := newWorld(t)
	if err := w.host.AddAddresses(w.bridge.Index, Addressing{}, addresses("10.1.0.1/24", "10.2.0.1/24", "fd00::1/64")...); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		"10.1.0.1/24": true, "10.2.0.1/24": true, "fd00::1/64": true,
		"10.1.0.1/25": false, "10.1.0.2/24": false, "fd00::1/63": false, "fd00::2/64": false,
	} {
		got, err := w.host.HasAddress(w.bridge, netip.MustParsePrefix(text))
		if got != want || err != nil {
			t.Errorf("%s: %t, error %v", text, got, err)
		}
	}
	if err := w.host.DropAddress(w.bridge.Index, netip.MustParsePrefix("10.1.0.1/24")); err != nil {
		t.Fatal(err)
	}
	if has, _ := w.host.HasAddress(w.bridge, netip.MustParsePrefix("10.1.0.1/24")); has {
		t.Error("a removed address is there")
	}
}

// TestOpen: what is no network namespace is told apart, and a pipe or a
// missing path is not waited for (plugins#1110).
func TestOpen(t *testing.T) {
	netns.Enter(t)
	dir := t.TempDir()
	plain := dir + "/plain"
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := dir + "/pipe"
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", dir, plain, pipe, plain + "/below", dir + "/missing", "/proc/self/ns/uts", "/proc/self/status"} {
		if p, err := Open(path); !errors.Is(err, ErrNoNamespace) {
			t.Errorf("%q: %v, %v", path, p, err)
		}
	}
	own, err := Open(ownPath)
	if err != nil || !own.Own || own.Cookie == 0 {
		t.Fatalf("%+v, %v", own, err)
	}
	own.Close()
	a, b := open(t), open(t)
	if a.Own || a.Cookie == b.Cookie || a.Inode == b.Inode {
		t.Errorf("two namespaces: %+v, %+v", a, b)
	}
	if err := a.Still(); err != nil {
		t.Error(err)
	}
}

func open(t *testing.T) *Namespace {
	t.Helper()
	p, err := Open(netns.New(t).Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// TestRemove: 300 turns of the same names in the same namespace, both ends
// gone each time Remove returns, with a child and without one.
func TestRemove(t *testing.T) {
	for _, tt := range []struct {
		name   string
		turns  int
		remove func(*testing.T, world, int) error
	}{
		{"the child waits", 300, func(t *testing.T, w world, index int) error {
			reaped, err := w.host.Remove(t.Context(), index, false)
			if reaped != netlink.MayReap() {
				t.Errorf("left to a child: %t", reaped)
			}
			return err
		}},
		{"we wait", 20, func(t *testing.T, w world, index int) error {
			_, err := w.host.Remove(t.Context(), index, true)
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			for range tt.turns {
				host, _ := w.create(t)
				if err := tt.remove(t, w, host); err != nil {
					t.Fatal(err)
				}
				if _, err := w.host.Index(w.pair().Host); !Gone(err) {
					t.Fatalf("host end: %v", err)
				}
				if _, err := w.pod.Conn().Index("eth0"); !Gone(err) {
					t.Fatalf("pod's end: %v", err)
				}
				collect()
			}
		})
	}
}

// collect takes the exit status of the children that are through: a plugin
// ends before they do, this test does not.
func collect() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil)
		if pid <= 0 || err != nil {
			return
		}
	}
}

// TestRemoveTells: an interface that is gone is success, one that the kernel
// does not give up is its error, at once.
func TestRemoveTells(t *testing.T) {
	w := newWorld(t)
	if _, err := w.host.Remove(t.Context(), 4711, false); err != nil {
		t.Errorf("an interface that is not there: %v", err)
	}
	lo, err := w.host.Index("lo")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.host.Remove(t.Context(), lo, false); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("the loopback: %v", err)
	}
	collect()
}

// TestChildKeepsNothing: no pipe that a runtime waits for, and no lock.
func TestChildKeepsNothing(t *testing.T) {
	if !netlink.MayReap() {
		t.Skip("no child is made here: pid 1 runs us, or the race detector does")
	}
	w := newWorld(t)
	host, _ := w.create(t)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], 0); err != nil { // inherited, as a plugin's standard output is
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	path := t.TempDir() + "/lock"
	locked, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(locked, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := w.host.Remove(t.Context(), host, false); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(pipe[1])
	_ = unix.Close(locked)
	fds := []unix.PollFd{{Fd: int32(pipe[0]), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 0); n != 1 || fds[0].Revents&unix.POLLHUP == 0 {
		t.Errorf("the pipe is still open: %d, %v, %#x", n, err, fds[0].Revents)
	}
	again, err := unix.Open(path, unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(again)
	if err := unix.Flock(again, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("the lock is still held: %v", err)
	}
	collect()
}

// TestDuplicateAddress: duplicate address detection finds another host on the
// segment.
func TestDuplicateAddress(t *testing.T) {
	w := newWorld(t)
	_, pod := w.create(t)
	same := netip.MustParsePrefix("fd00::7/64")
	if err := w.host.AddAddresses(w.bridge.Index, Addressing{}, same); err != nil {
		t.Fatal(err)
	}
	err := w.pod.Do(func() error {
		if err := Write(Sysctl{Path: "ipv6/conf/eth0/accept_dad", Value: "1"}); err != nil {
			return err
		}
		if err := w.pod.Conn().AddAddresses(pod, Addressing{Up: true, DAD: true}, same); err != nil {
			return err
		}
		return w.pod.Conn().WaitDAD(t.Context(), pod, same)
	})
	if !errors.Is(err, ErrDuplicate) || !strings.Contains(err.Error(), same.String()) {
		t.Errorf("error %v", err)
	}
}

func TestSysctl(t *testing.T) {
	netns.Enter(t)
	for _, tt := range []struct {
		name string
		s    Sysctl
		ok   bool
	}{
		{"is written", Sysctl{Path: "ipv4/conf/lo/arp_notify", Value: "1"}, true},
		{"is missing", Sysctl{Path: "ipv4/conf/none/arp_notify", Value: "1"}, true},
		{"is missing and must be", Sysctl{Path: "ipv4/conf/none/arp_notify", Value: "1", Must: true}, false},
		{"is no value", Sysctl{Path: "ipv4/conf/lo/arp_notify", Value: "x"}, false},
	} {
		for name, set := range map[string]func(...Sysctl) error{"Write": Write, "Ensure": Ensure} {
			if err := set(tt.s); (err == nil) != tt.ok {
				t.Errorf("%s %s: %v", name, tt.name, err)
			}
		}
	}
}
