package iptables

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tracewire/tracewire/test/netns"
)

// TestNat: the rules of both families, and of one where the other's program is
// missing or fails.
func TestNat(t *testing.T) {
	netns.Need(t, "iptables", "ip6tables")
	rules := []string{"-N CNI-A", "-N SVC", `-A CNI-A -m comment --comment "x name: \"net\" id: \"c1\"" -j ACCEPT`, "-A POSTROUTING -j CNI-A", "-A POSTROUTING -j SVC"}
	one := []string{rules[2], rules[3]}
	for _, tt := range []struct {
		name, program string // of IPv6
		want          []string
		says          string
	}{
		{"both", "", append(one, one...), ""},
		{"one fails", "#!/bin/sh\necho no such table >&2\nexit 3\n", one, "no such table"},
		{"one is missing", "-", one, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			netns.Enter(t)
			for _, f := range []Family{IPv4, IPv6} {
				if err := f.Restore(t.Context(), rules); err != nil {
					t.Fatal(err)
				}
			}
			if tt.program != "" {
				t.Setenv("PATH", instead(t, tt.program))
			}
			got, err := Nat(t.Context())
			if sorted(got) != sorted(tt.want) || (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%q, error %v, want %q, %q", got, err, tt.want, tt.says)
			}
		})
	}
}

// TestListing: rules of others are not kept, however many there are, and however
// they are cut into pieces.
func TestListing(t *testing.T) {
	l := listing{text: []byte(ofPlugins)}
	for range 1000 {
		for _, piece := range []string{"-N CNI-1\n-A POSTROUT", "ING -j CNI-1\n-A SVC -j AC", "CEPT\n"} {
			if _, err := l.Write([]byte(piece)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(l.rules) != 1000 || l.rules[0] != "-A POSTROUTING -j CNI-1" || len(l.rest) != 0 {
		t.Errorf("%d rules, %q", len(l.rules), l.rules[0])
	}
}

// instead is a folder with iptables, and a program in the place of ip6tables.
func instead(t *testing.T, program string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	there, err := exec.LookPath("iptables")
	if err == nil {
		err = os.Symlink(there, filepath.Join(dir, "iptables"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if program != "-" {
		if err := os.WriteFile(filepath.Join(dir, "ip6tables"), []byte(program), 0o755); err != nil { //nolint:gosec // it is to be run
			t.Fatal(err)
		}
	}
	return dir
}

func sorted(rules []string) string {
	own := slices.Clone(rules)
	slices.Sort(own)
	return strings.Join(own, "\n")
}

// TestHangs: a program that never ends is ended with the context.
func TestHangs(t *testing.T) {
	dir := t.TempDir()
	began := filepath.Join(dir, "began")
	if err := os.WriteFile(filepath.Join(dir, "iptables"), []byte("#!/bin/sh\n/bin/mkdir "+began+"\nexec /bin/sleep 1000\n"), 0o755); err != nil { //nolint:gosec // as above
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(began); err == nil {
				cancel()
			}
		}
	}()
	if _, err := Nat(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestWords(t *testing.T) {
	for _, tt := range []struct{ rule, chain, target, network, id string }{
		{`-A POSTROUTING -s 10.1.0.2/32 -m comment --comment "name: \"net\" id: \"c1\"" -j CNI-1`, "POSTROUTING", "CNI-1", "net", "c1"},
		{`-A D -m comment --comment "dnat name: \"net\" id: \"c...` + `" -j DNAT --to-destination 10.1.0.2:80`, "D", "DNAT", "", ""},
		{"-A X", "X", "", "", ""},
	} {
		network, id, ok := Names(tt.rule)
		if !ok {
			network, id = "", ""
		}
		if Chain(tt.rule) != tt.chain || Target(tt.rule) != tt.target || network != tt.network || id != tt.id || ok != (tt.id != "") {
			t.Errorf("%s: %s, %s, %s, %s, %t", tt.rule, Chain(tt.rule), Target(tt.rule), network, id, ok)
		}
	}
}
