package masquerade

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/delegates/iptables"
	"github.com/tracewire/tracewire/test/netns"
)

var c1 = Chains{Network: "podnet", ContainerID: "c1", IfName: "eth0"}

func TestNames(t *testing.T) {
	for _, tt := range []struct {
		c              Chains
		chain, comment string
	}{
		{c1, "CNI-1d96a4c7e0d1b705cc10f1f7", `name: "podnet" id: "c1"`},
		{Chains{"podnet", "c1", "net1"}, c1.Chain(), c1.Comment()},
		{Chains{"pod", "netc1", "net1"}, c1.Chain(), `name: "pod" id: "netc1"`},
	} {
		if tt.c.Chain() != tt.chain || tt.c.Comment() != tt.comment {
			t.Errorf("got %s and %s, want %s and %s", tt.c.Chain(), tt.c.Comment(), tt.chain, tt.comment)
		}
	}
}

// flavours is the two kernels' sides of iptables.
func flavours(t *testing.T, do func(t *testing.T)) {
	for name, multi := range map[string]string{"nft": "xtables-nft-multi", "legacy": "xtables-legacy-multi"} {
		t.Run(name, func(t *testing.T) {
			path, err := exec.LookPath(multi)
			if err != nil {
				t.Skipf("needs the program %s: run make test", multi)
			}
			dir := t.TempDir()
			for _, p := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
				must(t, os.Symlink(path, filepath.Join(dir, p)))
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			netns.Enter(t)
			if out, err := exec.Command("ip6tables", "-t", "nat", "-S").CombinedOutput(); err != nil {
				t.Skipf("kernel has no %s iptables: %s", name, out)
			}
			do(t)
		})
	}
}

// TestSameAsReference: its plugin and we write the same, over what the other
// wrote too, and either removes all of the other's.
func TestSameAsReference(t *testing.T) {
	const static = `{"cniVersion":"1.0.0","name":"podnet","type":"ptp","ipMasq":true,"ipMasqBackend":"iptables","ipam":{"type":"static","addresses":[%s]}}`
	const four, six = `{"address":"10.1.0.5/24","gateway":"10.1.0.1"}`, `,{"address":"fd00:1::5/64","gateway":"fd00:1::1"}`
	flavours(t, func(t *testing.T) {
		for conf, addresses := range map[string][]netip.Prefix{
			fmt.Sprintf(static, four):     prefixes("10.1.0.5/24"),
			fmt.Sprintf(static, four+six): prefixes("10.1.0.5/24", "fd00:1::5/64"),
		} {
			pod := netns.New(t)
			reference(t, "ADD", conf, pod)
			want := saved(t)
			must(t, c1.Ensure(t.Context(), addresses))
			if diff := cmp.Diff(want, saved(t)); diff != "" {
				t.Errorf("after Ensure over it (-reference +ours)\n%s", diff)
			}
			must(t, c1.Remove(t.Context(), addresses))
			if diff := cmp.Diff("", saved(t)); diff != "" {
				t.Fatalf("after Remove\n%s", diff)
			}
			must(t, c1.Ensure(t.Context(), addresses))
			if diff := cmp.Diff(want, saved(t)); diff != "" {
				t.Errorf("after Ensure (-reference +ours)\n%s", diff)
			}
			reference(t, "DEL", conf, pod)
			if diff := cmp.Diff("", saved(t)); diff != "" {
				t.Fatalf("after the reference's DEL\n%s", diff)
			}
		}
	})
}

// TestHalfThere: what is there before does not count, neither on Ensure nor on Remove.
func TestHalfThere(t *testing.T) {
	chain, addresses := c1.Chain(), prefixes("10.1.0.5/24", "10.2.0.5/24", "fd00:1::5/64")
	jump := "-A POSTROUTING -s 10.1.0.5/32 " + c1.match() + " -j " + chain
	flavours(t, func(t *testing.T) {
		must(t, c1.Ensure(t.Context(), addresses))
		full := saved(t)
		must(t, c1.Remove(t.Context(), addresses))
		for _, before := range [][]string{
			nil,
			{"-N " + chain},
			{"-N " + chain, jump},
			{"-N " + chain, jump, jump},
			{"-N " + chain, "-A POSTROUTING -s 10.1.0.0/24 " + c1.match() + " -j " + chain},
			{"-N " + chain, fmt.Sprintf("-A %s ! -d 224.0.0.0/4 %s -j MASQUERADE", chain, c1.match())},
			append([]string{"-N " + chain}, append(c1.filling(families[0], c1.accepts(addresses[:2])), c1.jumps(addresses[:2])...)...),
		} {
			for _, own := range [][]netip.Prefix{addresses, nil} {
				must(t, families[0].Restore(t.Context(), before))
				if err := c1.Remove(t.Context(), own); err != nil {
					t.Errorf("%q: %v", before, err)
				}
				if diff := cmp.Diff("", saved(t)); diff != "" {
					t.Fatalf("%q: left after Remove of %v\n%s", before, own, diff)
				}
			}
			must(t, families[0].Restore(t.Context(), before))
			for range 2 {
				if err := c1.Ensure(t.Context(), addresses); err != nil {
					t.Errorf("%q: %v", before, err)
				}
			}
			if diff := cmp.Diff(full, saved(t)); diff != "" {
				t.Errorf("%q: (-want +got)\n%s", before, diff)
			}
			must(t, c1.Remove(t.Context(), addresses))
			if diff := cmp.Diff("", saved(t)); diff != "" {
				t.Fatalf("%q: left in the end\n%s", before, diff)
			}
		}
	})
}

// TestMissingChains: what CHECK finds of rules that are gone, or in another order.
func TestMissingChains(t *testing.T) {
	flavours(t, func(t *testing.T) {
		own := prefixes("10.1.0.5/24", "10.2.0.6/24", "fd00:1::5/64")
		chain, take := c1.Chain(), families[0].take(c1)
		for _, tt := range []struct {
			change []string // of IPv4
			want   string
		}{
			{nil, ""},
			{[]string{"-A " + chain + " -d 192.0.2.0/24 -j ACCEPT"}, ""},
			{deleted(c1.jumps(own[:1])), "10.1.0.5/24 "},
			{deleted(c1.accepts(own[1:2])), "10.2.0.6/24 "},
			{deleted([]string{take}), "10.1.0.5/24 10.2.0.6/24 "},
			{append(deleted([]string{take}), strings.Replace(take, "-A "+chain, "-I "+chain, 1)), "10.1.0.5/24 10.2.0.6/24 "},
			{[]string{"-F " + chain}, "10.1.0.5/24 10.2.0.6/24 "},
			{[]string{"-F POSTROUTING", "-F " + chain, "-X " + chain}, "10.1.0.5/24 10.2.0.6/24 "},
		} {
			must(t, c1.Ensure(t.Context(), own), families[0].Restore(t.Context(), tt.change))
			got, err := c1.Missing(t.Context(), own)
			if texts(got) != tt.want || err != nil {
				t.Errorf("%q: got %v, error %v, want %s", tt.change, got, err, tt.want)
			}
		}
	})
}

// TestTwoInterfaces: a container's second interface on the network shares the chain.
func TestTwoInterfaces(t *testing.T) {
	flavours(t, func(t *testing.T) {
		first, second := prefixes("10.1.0.5/24"), prefixes("10.2.0.6/24")
		must(t, c1.Ensure(t.Context(), first), Chains{"podnet", "c1", "net1"}.Ensure(t.Context(), second))
		match := c1.match()
		want := ":" + c1.Chain() + " - [0:0]\n-A POSTROUTING -s 10.1.0.5/32 " + match + " -j " + c1.Chain() + "\n-A POSTROUTING -s 10.2.0.6/32 " + match + " -j " + c1.Chain() +
			"\n-A " + c1.Chain() + " -d 10.2.0.0/24 " + match + " -j ACCEPT\n-A " + c1.Chain() + " -d 10.1.0.0/24 " + match + " -j ACCEPT\n-A " + c1.Chain() + " ! -d 224.0.0.0/4 " + match + " -j MASQUERADE\n"
		if diff := cmp.Diff(want, saved(t)); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		must(t, c1.Remove(t.Context(), first))
		want = strings.Replace(want, "-A POSTROUTING -s 10.1.0.5/32 "+match+" -j "+c1.Chain()+"\n", "", 1)
		if diff := cmp.Diff(want, saved(t)); diff != "" {
			t.Errorf("the first is gone (-want +got)\n%s", diff)
		}
		must(t, c1.Remove(t.Context(), second))
		if diff := cmp.Diff("", saved(t)); diff != "" {
			t.Errorf("both are gone\n%s", diff)
		}
	})
}

func TestNoIptables(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	netns.Enter(t)
	addresses := prefixes("10.1.0.5/24")
	if err := c1.Ensure(t.Context(), addresses); !errors.Is(err, iptables.ErrMissing) || err.Error() != "iptables: program is missing: iptables-restore" {
		t.Errorf("error %v", err)
	}
	if missing, err := c1.Missing(t.Context(), addresses); missing != nil || !errors.Is(err, iptables.ErrMissing) {
		t.Errorf("missing %v, error %v", missing, err)
	}
	for _, a := range [][]netip.Prefix{addresses, nil} {
		if err := errors.Join(c1.Remove(t.Context(), a), c1.RemoveReference(t.Context(), a, false)); err != nil {
			t.Errorf("error %v", err)
		}
	}
}

// TestBrokenIptables: what it printed is told, and nothing is left out.
func TestBrokenIptables(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []string{"iptables", "iptables-restore"} {
		must(t, os.WriteFile(filepath.Join(dir, p), []byte("#!/bin/sh\necho no memory >&2\nexit 4\n"), 0o700))
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	netns.Enter(t)
	for verb, err := range map[string]error{"-restore": c1.Ensure(t.Context(), prefixes("10.1.0.5/24")), "": c1.Remove(t.Context(), prefixes("10.1.0.5/24"))} {
		if want := "iptables: iptables" + verb + ": exit status 4: no memory"; err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c1.Ensure(ctx, prefixes("10.1.0.5/24")); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestReference: the reference's own plugins made it, and either removes what
// the other made.
func TestReference(t *testing.T) {
	const conf = `{"cniVersion":"1.0.0","name":"podnet","type":%q,"bridge":"cni0","isGateway":true,%s"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd00:1::5/64","gateway":"fd00:1::1"}]}}`
	addresses := prefixes("10.1.0.5/24", "fd00:1::5/64")
	for _, plugin := range []string{"bridge", "ptp"} {
		without := fmt.Sprintf(conf, plugin, "")
		for _, backend := range []string{"iptables", "nftables"} {
			with := fmt.Sprintf(conf, plugin, `"ipMasq":true,"ipMasqBackend":"`+backend+`",`)
			t.Run(plugin+" "+backend, func(t *testing.T) {
				netns.Need(t, "nft", "iptables", "ip6tables", "iptables-save")
				netns.Enter(t)
				pod := netns.New(t)
				rules := func() string {
					if backend == "iptables" {
						return saved(t)
					}
					list := program(t, "nft", "", "list", "chain", "inet", "cni_plugins_masquerade", "masq_checks")
					return list[:strings.Count(list, "saddr")]
				}
				reference(t, "ADD", with, pod)
				if rules() == "" {
					t.Fatalf("the reference made no rules:\n%s", ruleset(t))
				}
				other := Chains{"podnet", "c2", "eth0"}
				must(t, other.RemoveReference(t.Context(), addresses, false))
				if rules() == "" {
					t.Error("another's RemoveReference removed them")
				}
				for range 2 {
					if err := c1.RemoveReference(t.Context(), addresses, false); err != nil {
						t.Error(err)
					}
				}
				if left := rules(); left != "" {
					t.Errorf("left:\n%s", left)
				}
				reference(t, "DEL", with, pod)
			})
		}
		t.Run(plugin+" deletes ours", func(t *testing.T) {
			netns.Need(t, "nft", "iptables", "ip6tables", "iptables-save")
			netns.Enter(t)
			pod := netns.New(t)
			reference(t, "ADD", without, pod)
			must(t, c1.Ensure(t.Context(), addresses))
			reference(t, "DEL", fmt.Sprintf(conf, plugin, `"ipMasq":true,`), pod)
			if left := saved(t); left != "" {
				t.Errorf("left:\n%s", left)
			}
		})
	}
}
