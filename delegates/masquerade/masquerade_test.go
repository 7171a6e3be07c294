package masquerade

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
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

var dual = Rules{Network: "podnet", Bridge: "cni0", Ranges: prefixes("10.1.0.0/24", "fd00:1::/64")}

func TestTable(t *testing.T) {
	for _, tt := range []struct {
		name string
		r    Rules
		same bool
	}{
		{"the same", dual, true},
		{"ranges in another order", Rules{dual.Network, dual.Bridge, prefixes("fd00:1::/64", "10.1.0.0/24", "10.1.0.9/24")}, true},
		{"another network", Rules{"othernet", dual.Bridge, dual.Ranges}, false},
		{"another bridge", Rules{dual.Network, "cni1", dual.Ranges}, false},
		{"no bridge", Rules{dual.Network, "", dual.Ranges}, false},
		{"other ranges", Rules{dual.Network, dual.Bridge, dual.Ranges[:1]}, false},
		{"no ranges", Rules{dual.Network, dual.Bridge, nil}, false},
	} {
		if got := tt.r.Table(); got == dual.Table() != tt.same || (Info{Name: got}).Of("podnet") != (tt.r.Network == "podnet") {
			t.Errorf("%s: %s, and %s", tt.name, got, dual.Table())
		}
	}
	if got, want := dual.Table(), "tracewire_3aa0627f1611cce1_"; !strings.HasPrefix(got, want) || len(got) != len(want)+16 {
		t.Errorf("got %s, want %s and 16 digits", got, want)
	}
	long := Rules{Network: strings.Repeat("n", 250)}
	if got := long.comment(netip.MustParsePrefix("1111:2222:3333:4444:5555:6666:7777:8888/128")); len(got) > 128 {
		t.Errorf("%s has %d bytes", got, len(got))
	}
}

// rulesetOf is what nft says of a table.
func rulesetOf(table string, rules ...string) string {
	return "table inet " + table + " {\n\tcomment \"tracewire podnet\"\n\tchain postrouting {\n" +
		"\t\ttype nat hook postrouting priority srcnat; policy accept;\n\t\t" + strings.Join(rules, "\n\t\t") + "\n\t}\n}\n"
}

// TestEnsure: what is there after Ensure, whatever was there before.
func TestEnsure(t *testing.T) {
	const (
		four = `ip saddr 10.1.0.0/24 ip daddr != 10.1.0.0/24 ip daddr != 224.0.0.0/4 masquerade comment "tracewire podnet 10.1.0.0/24"`
		six  = `ip6 saddr fd00:1::/64 ip6 daddr != fd00:1::/64 ip6 daddr != ff00::/8 masquerade comment "tracewire podnet fd00:1::/64"`
	)
	asked := Rules{Network: "podnet", Bridge: "cni0"}
	ptp := Rules{Network: "podnet", Ranges: dual.Ranges}
	full := rulesetOf(dual.Table(), `iifname "cni0" `+four, `iifname "cni0" `+six)
	for _, tt := range []struct {
		name      string
		before    string // nft's
		r         Rules
		addresses []netip.Prefix
		want      string
	}{
		{"nothing", "", dual, nil, full},
		{"all", full, dual, prefixes("10.1.0.5/24"), full},
		{"a table without chain", "table inet " + dual.Table() + "{\ncomment \"tracewire podnet\"\n}\n", dual, nil, full},
		{"rules flushed", full + "flush table inet " + dual.Table() + "\n", dual, nil, full},
		{"one rule of two", rulesetOf(dual.Table(), `iifname "cni0" `+four), dual, nil, full},
		{"no bridge", "", ptp, nil, rulesetOf(ptp.Table(), four, six)},
		{"addresses of this ADD", "", asked, prefixes("10.1.0.5/24", "10.1.0.6/24", "fd00:1::5/64"), rulesetOf(asked.Table(), `iifname "cni0" `+four, `iifname "cni0" `+six)},
		{"addresses of a later ADD", rulesetOf(asked.Table(), `iifname "cni0" `+six), asked, prefixes("10.1.0.7/24", "fd00:1::7/64"), rulesetOf(asked.Table(), `iifname "cni0" `+six, `iifname "cni0" `+four)},
		{"no addresses", "", asked, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			netns.Enter(t)
			program(t, "nft", tt.before, "-f", "-")
			for range 2 {
				if err := tt.r.Ensure(t.Context(), tt.addresses); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, ruleset(t)); diff != "" {
					t.Fatalf("(-want +got)\n%s", diff)
				}
				if missing, err := tt.r.Missing(tt.addresses); len(missing) > 0 || err != nil {
					t.Errorf("missing %v, error %v", missing, err)
				}
			}
		})
	}
}

func TestMissing(t *testing.T) {
	netns.Enter(t)
	missing := func(want ...string) {
		t.Helper()
		got, err := dual.Missing(nil)
		if diff := cmp.Diff(want, strings.Fields(texts(got))); diff != "" || err != nil {
			t.Errorf("error %v (-want +got)\n%s", err, diff)
		}
	}
	missing("10.1.0.0/24", "fd00:1::/64")
	must(t, dual.Ensure(t.Context(), nil))
	missing([]string{}...)
	saved := program(t, "nft", "", "list", "ruleset")
	program(t, "nft", "flush ruleset\n"+saved, "-f", "-") // as a firewall's service does
	missing([]string{}...)
	for _, other := range []string{"masquerade", "ip daddr != 10.1.0.0/24 ip daddr != 224.0.0.0/4 masquerade", "return"} {
		changed := strings.Replace(saved, "ip daddr != 10.1.0.0/24 ip daddr != 224.0.0.0/4 masquerade", other, 1)
		program(t, "nft", "flush ruleset\n"+strings.Replace(changed, "ip saddr 10.1.0.0/24", "ip saddr 10.1.0.0/25", 1), "-f", "-")
		missing("10.1.0.0/24")
	}
	program(t, "nft", "", "flush", "ruleset")
	missing("10.1.0.0/24", "fd00:1::/64")
}

// TestAtOnce: twelve first ADDs leave each rule once.
func TestAtOnce(t *testing.T) {
	for _, r := range []Rules{dual, {Network: "podnet", Bridge: "cni0"}} {
		t.Run(fmt.Sprintf("%d ranges", len(r.Ranges)), func(t *testing.T) {
			netns.Enter(t)
			host, err := ns.GetCurrentNS()
			must(t, err)
			done := make(chan error)
			for i := range 12 {
				go func() {
					done <- host.Do(func(ns.NetNS) error {
						return r.Ensure(context.Background(), prefixes(fmt.Sprintf("10.1.%d.5/24", i/2), fmt.Sprintf("fd00:1::%d/64", i)))
					})
				}()
			}
			for range 12 {
				must(t, <-done)
			}
			want := 2
			if len(r.Ranges) == 0 {
				want = 7
			}
			c, err := nft.Dial()
			must(t, err)
			defer c.Close()
			if rules, err := c.Rules(r.chain()); len(rules) != want || err != nil {
				t.Errorf("%d rules, want %d, error %v:\n%s", len(rules), want, err, ruleset(t))
			}
		})
	}
}

// TestRemove: what is left of four tables.
func TestRemove(t *testing.T) {
	before := Rules{Network: "podnet", Bridge: "cni0", Ranges: prefixes("10.9.0.0/16")}
	asked := Rules{Network: "podnet", Bridge: "cni0"}
	other := Rules{Network: "othernet", Bridge: "cni0", Ranges: dual.Ranges}
	for _, tt := range []struct {
		name   string
		remove func(context.Context, bool) error
		left   []Rules
	}{
		{"one table", dual.Remove, []Rules{before, asked, other}},
		{"a table that is not there", Rules{Network: "podnet"}.Remove, []Rules{dual, before, asked, other}},
		{"all of a network", func(ctx context.Context, wait bool) error { return RemoveAll(ctx, "podnet", wait) }, []Rules{other}},
		{"all but one", func(ctx context.Context, wait bool) error { return RemoveAll(ctx, "podnet", wait, dual.Table()) }, []Rules{dual, other}},
		{"none of another", func(ctx context.Context, wait bool) error { return RemoveAll(ctx, "pod", wait) }, []Rules{dual, before, asked, other}},
	} {
		for _, wait := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, wait %t", tt.name, wait), func(t *testing.T) {
				netns.Enter(t)
				for _, r := range []Rules{dual, before, asked, other} {
					must(t, r.Ensure(t.Context(), prefixes("10.1.0.5/24")))
				}
				var want []Info
				for _, r := range tt.left {
					want = append(want, Info{r.Table(), r.Network})
				}
				for range 2 {
					if err := tt.remove(t.Context(), wait); err != nil {
						t.Error(err)
					}
					got, err := Tables()
					if diff := cmp.Diff(want, got); diff != "" || err != nil {
						t.Errorf("error %v (-want +got)\n%s", err, diff)
					}
				}
			})
		}
	}
}

func TestRemoveSingle(t *testing.T) {
	netns.Enter(t)
	r := Rules{Network: "podnet", Bridge: "cni0"}
	must(t, r.Ensure(t.Context(), prefixes("10.1.0.5/32", "10.1.0.6/32", "10.1.0.7/24")))
	for range 2 {
		must(t, r.RemoveSingle(t.Context(), prefixes("10.1.0.5/32", "10.1.0.7/24"), false))
		left, err := r.Missing(prefixes("10.1.0.5/32", "10.1.0.6/32", "10.1.0.7/24"))
		if got := texts(left); got != "10.1.0.5/32 " || err != nil {
			t.Errorf("missing %s, error %v", got, err)
		}
	}
	must(t, dual.Ensure(t.Context(), nil), dual.RemoveSingle(t.Context(), prefixes("10.1.0.5/32"), false))
	if left, err := dual.Missing(nil); len(left) > 0 || err != nil {
		t.Errorf("missing %v, error %v", left, err)
	}
}

// TestPackets: what the servers see.
func TestPackets(t *testing.T) {
	for _, tt := range []struct {
		name   string
		ensure func(context.Context) error
	}{
		{"ranges", func(ctx context.Context) error { return dual.Ensure(ctx, nil) }},
		{"addresses", func(ctx context.Context) error {
			return Rules{Network: "podnet", Bridge: "cni0"}.Ensure(ctx, prefixes("10.1.0.2/24", "fd00:1::2/64"))
		}},
		{"no bridge", func(ctx context.Context) error { return Rules{Network: "podnet", Ranges: dual.Ranges}.Ensure(ctx, nil) }},
		{"iptables", func(ctx context.Context) error {
			return Chains{"podnet", "c1", "eth0"}.Ensure(ctx, prefixes("10.1.0.2/24", "fd00:1::2/64"))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			netns.Need(t, "nft", "iptables", "ip6tables")
			w := newWorld(t)
			for range 2 {
				must(t, tt.ensure(t.Context()))
				for _, to := range []struct {
					server        ns.NetNS
					address, want string
				}{
					{w.outside, "192.0.2.2", "192.0.2.1"}, {w.outside, "fd00:2::2", "fd00:2::1"},
					{w.db, "10.1.0.3", "10.1.0.2"}, {w.db, "fd00:1::3", "fd00:1::2"},
				} {
					if got := seen(t, w.web, to.server, to.address); got != to.want {
						t.Errorf("%s sees %s, want %s", to.address, got, to.want)
					}
				}
				if _, err := netlink.LinkByName("cni0"); err == nil {
					program(t, "nft", "", "flush", "ruleset") // and the second turn repairs it
				}
			}
		})
	}
}

// TestMulticast: the host sends from an address of the subnet into the network
// outside, to a group and to a host.
func TestMulticast(t *testing.T) {
	w := newWorld(t)
	must(t, Rules{Network: "podnet", Ranges: dual.Ranges}.Ensure(t.Context(), nil))
	host, err := ns.GetCurrentNS()
	must(t, err)
	out, err := netlink.LinkByName("out")
	must(t, err, w.outside.Do(func(ns.NetNS) error { // else it takes nothing from there
		return netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP("192.0.2.1")})
	}))
	for to, want := range map[string]string{"224.1.1.1": "10.1.0.1", "192.0.2.2": "192.0.2.1"} {
		a := &net.UDPAddr{IP: net.ParseIP(to), Port: 7000}
		var server *net.UDPConn
		must(t, w.outside.Do(func(ns.NetNS) (err error) {
			if !a.IP.IsMulticast() {
				server, err = net.ListenUDP("udp4", a)
				return err
			}
			eth0, err := net.InterfaceByName("eth0")
			if err == nil {
				server, err = net.ListenMulticastUDP("udp4", eth0, a)
			}
			return err
		}))
		must(t, host.Do(func(ns.NetNS) error {
			c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP("10.1.0.1")})
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			return errors.Join(through(c, out.Attrs().Index), write(c, a))
		}))
		_ = server.SetReadDeadline(time.Now().Add(3 * time.Second))
		_, from, err := server.ReadFromUDP(make([]byte, 16))
		_ = server.Close()
		if err != nil || from.IP.String() != want {
			t.Errorf("%s sees %v, want %s, error %v", to, from, want, err)
		}
	}
}

// through makes a socket send to groups through an interface, not through the
// one that has its address.
func through(c *net.UDPConn, index int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) {
		serr = unix.SetsockoptIPMreqn(int(fd), unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(index)})
	})
	return errors.Join(err, serr)
}

func write(c *net.UDPConn, to *net.UDPAddr) error {
	_, err := c.WriteToUDP([]byte("hello"), to)
	return err
}

func BenchmarkEnsure(b *testing.B) {
	netns.Enter(b)
	b.Run("there", func(b *testing.B) {
		netns.Enter(b)
		must(b, dual.Ensure(b.Context(), nil))
		for b.Loop() {
			must(b, dual.Ensure(b.Context(), nil))
		}
	})
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			netns.Enter(b)
			b.StartTimer()
			must(b, dual.Ensure(b.Context(), nil))
		}
	})
	b.Run("addresses", func(b *testing.B) {
		netns.Enter(b)
		for b.Loop() {
			must(b, Rules{Network: "podnet", Bridge: "cni0"}.Ensure(b.Context(), prefixes("10.1.0.2/24", "fd00:1::2/64")))
		}
	})
	b.Run("iptables first", func(b *testing.B) {
		netns.Enter(b)
		for i := 0; b.Loop(); i++ {
			must(b, Chains{"podnet", fmt.Sprint(i), "eth0"}.Ensure(b.Context(), prefixes("10.1.0.2/24")))
		}
	})
}

func BenchmarkRemove(b *testing.B) {
	for _, wait := range []bool{false, true} {
		b.Run(fmt.Sprintf("wait %t", wait), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				netns.Enter(b)
				must(b, dual.Ensure(b.Context(), nil))
				b.StartTimer()
				must(b, dual.Remove(b.Context(), wait))
			}
		})
	}
	b.Run("not there", func(b *testing.B) {
		netns.Enter(b)
		for b.Loop() {
			must(b, dual.Remove(b.Context(), false))
		}
	})
	b.Run("iptables", func(b *testing.B) {
		netns.Enter(b)
		c := Chains{"podnet", "c1", "eth0"}
		for b.Loop() {
			b.StopTimer()
			must(b, c.Ensure(b.Context(), prefixes("10.1.0.2/24")))
			b.StartTimer()
			must(b, c.Remove(b.Context(), prefixes("10.1.0.2/24")))
		}
	})
}
