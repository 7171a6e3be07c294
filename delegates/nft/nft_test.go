package nft

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
	"github.com/tracewire/tracewire/test/netns"
)

// program runs nft, in the calling thread's namespace.
func program(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	netns.Need(t, "nft")
	cmd := exec.Command("nft", args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft %v: %v: %s", args, err, out)
	}
	return string(out)
}

// ruleset is what nft says is there, without handles.
func ruleset(t *testing.T) (out []any) {
	t.Helper()
	var doc struct{ Nftables []map[string]map[string]any }
	if err := json.Unmarshal([]byte(program(t, "", "-j", "list", "ruleset")), &doc); err != nil {
		t.Fatal(err)
	}
	for _, o := range doc.Nftables[1:] { // the first is about nft itself
		for kind, v := range o {
			delete(v, "handle")
			out = append(out, kind, v)
		}
	}
	return out
}

func dial(t *testing.T) *Conn {
	t.Helper()
	netns.Enter(t)
	c, err := Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

var (
	inet   = Table{Family: Inet, Name: "t", Comment: "tracewire podnet"}
	post   = Chain{Table: inet, Name: "postrouting", Hook: &Hook{Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: 100}}
	side   = Chain{Table: inet, Name: "side"}
	frames = Chain{Table: Table{Family: Bridge, Name: "nat"}, Name: "PREROUTING", Hook: &Hook{Type: "filter", Priority: -300}}
)

// text is what nft makes the rules of.
const text = `
table inet t {
	comment "tracewire podnet"
	chain side {
		return
		drop
	}
	chain postrouting {
		type nat hook postrouting priority 100; policy accept;
		iifname "cni0" ip saddr 10.1.0.0/16 ip daddr != 10.1.0.0/17 masquerade comment "podnet 10.1.0.0/16"
		ip6 saddr fd00:1::/64 ip6 daddr != fd00:1::/63 masquerade
		ip saddr 10.2.0.9 ip daddr != 224.0.0.0/4 accept
		ip6 saddr fd00::9 ip6 daddr != ff00::/8 accept
		jump side comment "with \\ and ' and é"
		goto side
	}
}
table bridge nat {
	chain PREROUTING {
		type filter hook prerouting priority -300; policy accept;
		iifname "veth0123456789a" ether saddr 0a:58:0a:01:00:02 return
	}
}
`

// ofText is the same rules as we describe them.
func ofText() []Rule {
	p := netip.MustParsePrefix
	four, six := SameFamily(netip.IPv4Unspecified()), SameFamily(netip.IPv6Unspecified())
	mac := net.HardwareAddr{0x0a, 0x58, 0x0a, 0x01, 0x00, 0x02}
	return []Rule{
		{Chain: side, Exprs: Return()},
		{Chain: side, Exprs: Drop()},
		{Chain: post, Comment: "podnet 10.1.0.0/16", Exprs: Exprs(From("cni0"), four, Source(p("10.1.3.4/16")), NotDestination(p("10.1.0.0/17")), Masquerade())},
		{Chain: post, Exprs: Exprs(six, Source(p("fd00:1::/64")), NotDestination(p("fd00:1::/63")), Masquerade())},
		{Chain: post, Exprs: Exprs(four, Source(p("10.2.0.9/32")), NotDestination(p("224.0.0.0/4")), Accept())},
		{Chain: post, Exprs: Exprs(six, Source(p("fd00::9/128")), NotDestination(p("ff00::/8")), Accept())},
		{Chain: post, Comment: `with \\ and ' and é`, Exprs: Jump(side)},
		{Chain: post, Exprs: Goto(side)},
		{Chain: frames, Exprs: Exprs(From("veth0123456789a"), SourceMAC(mac), Return())},
	}
}

// TestSameAsNft: what we write is what nft writes, comments and all.
func TestSameAsNft(t *testing.T) {
	c := dial(t)
	tx := &Transaction{}
	tx.Create(inet)
	tx.Create(side)
	tx.Create(post)
	tx.Ensure(frames.Table)
	tx.Ensure(frames)
	for _, r := range ofText() {
		tx.Append(r)
	}
	if err := c.Apply(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	got := ruleset(t)
	t.Run("nft", func(t *testing.T) {
		netns.Enter(t)
		program(t, text, "-f", "-")
		if diff := cmp.Diff(ruleset(t), got); diff != "" {
			t.Errorf("(-nft +ours)\n%s", diff)
		}
	})
}

// TestDoes: each rule that nft wrote is known by what it does, and no other is
// taken for it.
func TestDoes(t *testing.T) {
	c := dial(t)
	program(t, text, "-f", "-")
	var have []Rule
	for _, ch := range []Chain{side, post, frames} {
		rules, err := c.Look(ch)
		if err != nil {
			t.Fatal(err)
		}
		have = append(have, rules...)
	}
	want := ofText()
	if len(have) != len(want) {
		t.Fatalf("%d rules, want %d", len(have), len(want))
	}
	for i, h := range have {
		for j, w := range want {
			if h.Does(w.Exprs) != (i == j) {
				t.Errorf("rule %d does what rule %d says: %t", i, j, i != j)
			}
		}
		if h.Does(nil) || h.Does(Exprs(want[i].Exprs, Return())) {
			t.Errorf("rule %d does less, or more", i)
		}
	}
}

// TestDestination: what is read of rules that nft wrote.
func TestDestination(t *testing.T) {
	c := dial(t)
	a, ap := netip.MustParseAddr, netip.MustParseAddrPort
	for _, tt := range []struct {
		family Family
		name   string
		rule   string
		want   Destination
	}{
		{IPv4, "ip", "tcp dport 8080 dnat to 10.1.0.2:80", Destination{unix.IPPROTO_TCP, netip.Addr{}, 8080, ap("10.1.0.2:80")}},
		{IPv4, "ip", "ip daddr 192.0.2.1 udp dport 53 dnat to 10.1.0.2:5353", Destination{unix.IPPROTO_UDP, a("192.0.2.1"), 53, ap("10.1.0.2:5353")}},
		{IPv4, "ip", "ip daddr 192.0.2.1 dnat to 10.1.0.2", Destination{0, a("192.0.2.1"), 0, ap("10.1.0.2:0")}},
		{IPv6, "ip6", "ip6 daddr 2001:db8::1 sctp dport 9 dnat to [fd00::2]:10", Destination{unix.IPPROTO_SCTP, a("2001:db8::1"), 9, ap("[fd00::2]:10")}},
		{IPv4, "ip", "ip saddr 127.0.0.1 ip daddr 10.1.0.2 masquerade", Destination{Address: a("10.1.0.2")}},
		{IPv4, "ip", "@nh,96,64 0x7f0000010a010002 masquerade", Destination{Address: a("10.1.0.2")}},
		{IPv4, "ip", "ip daddr != 10.1.0.2 tcp dport != 80 snat to 10.1.0.3:7", Destination{Protocol: unix.IPPROTO_TCP}},
		{IPv4, "ip", "ip daddr 10.1.0.0/24 meta mark 7 return", Destination{}},
		{IPv4, "ip", "tcp dport { 80, 81 } dnat to 10.1.0.2", Destination{unix.IPPROTO_TCP, netip.Addr{}, 0, ap("10.1.0.2:0")}},
	} {
		program(t, fmt.Sprintf("table %s d {}\ndelete table %[1]s d\ntable %[1]s d {\nchain c {\ntype nat hook postrouting priority 0\n}\nchain d {\n%s\n}\n}\n", tt.name, tt.rule), "-f", "-")
		rules, err := c.Rules(Chain{Table: Table{Family: tt.family, Name: "d"}, Name: "d"})
		if err != nil || len(rules) != 1 {
			t.Fatalf("%s: %v, %v", tt.rule, rules, err)
		}
		if got := rules[0].Destination(); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.rule, got, tt.want)
		}
	}
}

// TestTransactions: what one turn answers, and what is there after all of them.
func TestTransactions(t *testing.T) {
	c := dial(t)
	rule := func(comment string) Rule { return Rule{Chain: side, Comment: comment, Exprs: Return()} }
	for _, tt := range []struct {
		name string
		do   func(*Transaction)
		err  string
	}{
		{"nothing is there", func(t *Transaction) { t.Delete(inet) }, "delete table t: no such file or directory"},
		{"no table", func(t *Transaction) { t.Create(side) }, "create chain side: no such file or directory"},
		{"all", func(t *Transaction) { t.Create(inet); t.Create(side); t.Append(rule("a")) }, ""},
		{"there already", func(t *Transaction) { t.Create(inet); t.Create(side); t.Append(rule("b")) }, "create table t: file exists"},
		{"does not matter", func(t *Transaction) { t.Ensure(inet); t.Ensure(side); t.Append(rule("c")) }, ""},
		{"none of it", func(t *Transaction) { t.Append(rule("d")); t.Delete(Rule{Chain: side, Handle: 99}) }, `delete rule "" of chain side: no such file or directory`},
		{"a later generation", func(t *Transaction) { t.If = 1; t.Append(rule("e")) }, "nf_tables changed meanwhile"},
		{"nowhere to jump", func(t *Transaction) { t.Append(Rule{Chain: side, Exprs: Jump(Chain{Name: "x"})}) }, `add rule "" of chain side: no such file or directory`},
		{"base chain of no type", func(t *Transaction) { t.Create(Chain{Table: inet, Name: "x", Hook: &Hook{Type: "x"}}) }, "create chain x: no such file or directory"},
	} {
		tx := &Transaction{}
		tt.do(tx)
		err := c.Apply(t.Context(), tx)
		if said := fmt.Sprint(err); said != tt.err && (err != nil || tt.err != "") {
			t.Errorf("%s: %s, want %s", tt.name, said, tt.err)
		}
	}
	rules, err := c.Rules(side)
	if err != nil {
		t.Fatal(err)
	}
	comments := ""
	for _, r := range rules {
		comments += r.Comment
		if r.Handle == 0 {
			t.Errorf("rule %s has no handle", r.Comment)
		}
	}
	if n, err := c.Uses(side); comments != "ac" || n != 2 || err != nil {
		t.Errorf("rules %s, %d uses, error %v", comments, n, err)
	}
	tx := &Transaction{}
	tx.Delete(rules[0])
	if err := c.Apply(t.Context(), tx); err != nil {
		t.Error(err)
	}
	if rules, err = c.Rules(side); len(rules) != 1 || rules[0].Comment != "c" || err != nil {
		t.Errorf("%v, error %v", rules, err)
	}
}

func TestLookUps(t *testing.T) {
	c := dial(t)
	if rules, err := c.Rules(side); len(rules) > 0 || err != nil {
		t.Errorf("rules %v, error %v", rules, err)
	}
	if rules, err := c.Look(side); len(rules) > 0 || err != nil {
		t.Errorf("rules %v, error %v", rules, err)
	}
	nowhere := Chain{Table: inet, Name: strings.Repeat("x", 300)} // refused, as a kernel without nf_tables refuses
	if rules, err := c.Rules(nowhere); len(rules) > 0 || err != nil {
		t.Errorf("rules %v, error %v", rules, err)
	}
	if _, err := c.Look(nowhere); err == nil {
		t.Error("what cannot be there was looked at")
	}
	if _, err := c.Uses(side); !Gone(err) || err.Error() != "look up chain side: no such file or directory" {
		t.Errorf("error %v", err)
	}
	before, err := c.Generation()
	if err != nil {
		t.Fatal(err)
	}
	tx := &Transaction{If: before}
	tx.Create(inet)
	tx.Create(side)
	long := strings.Repeat("x", 300)
	tx.Append(Rule{Chain: side, Comment: long, Exprs: Return()})
	if err := c.Apply(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	if after, err := c.Generation(); after == before || err != nil {
		t.Errorf("generation %d after %d, error %v", after, before, err)
	}
	for o, want := range map[Object]bool{inet: true, side: true, Table{Family: Bridge, Name: "t"}: false, Chain{Table: inet, Name: "x"}: false,
		Chain{Table: inet, Name: strings.Repeat("x", 300)}: false, Table{Family: 99, Name: "t"}: false} {
		if got, err := c.Has(o); got != want || err != nil {
			t.Errorf("%s: %t, error %v", o, got, err)
		}
	}
	tables, err := c.Tables(Inet)
	if diff := cmp.Diff([]Table{inet}, tables); diff != "" || err != nil {
		t.Errorf("error %v (-want +got)\n%s", err, diff)
	}
	if rules, err := c.Rules(side); len(rules) != 1 || rules[0].Comment != long[:maxComment] || err != nil {
		t.Errorf("rules %v, error %v", rules, err)
	}
}

// TestManyRules: a list of several datagrams.
func TestManyRules(t *testing.T) {
	c := dial(t)
	for i := range 500 {
		tx := &Transaction{}
		tx.Ensure(inet)
		tx.Ensure(side)
		tx.Append(Rule{Chain: side, Comment: fmt.Sprint(i), Exprs: Return()})
		if err := c.Apply(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
	}
	rules, err := c.Rules(side)
	if len(rules) != 500 || rules[499].Comment != "499" || err != nil {
		t.Errorf("%d rules, error %v", len(rules), err)
	}
}

func TestRemove(t *testing.T) {
	for _, wait := range []bool{false, true} {
		t.Run(fmt.Sprintf("wait %t", wait), func(t *testing.T) {
			c := dial(t)
			for range 20 {
				tx := &Transaction{}
				tx.Create(inet)
				if err := c.Apply(t.Context(), tx); err != nil {
					t.Fatal(err)
				}
				tx = &Transaction{}
				tx.Delete(inet)
				if reaped, err := c.Remove(t.Context(), tx, wait); err != nil || reaped != (!wait && netlink.MayReap()) {
					t.Fatalf("reaped %t, error %v", reaped, err)
				}
				if there, err := c.Has(inet); there || err != nil {
					t.Fatalf("there %t, error %v", there, err)
				}
				if _, err := c.Remove(t.Context(), tx, wait); !Gone(err) {
					t.Fatal(err)
				}
			}
			for err := error(nil); !errors.Is(err, unix.ECHILD); {
				_, err = unix.Wait4(-1, nil, unix.WALL, nil)
			}
		})
	}
}

func TestChange(t *testing.T) {
	c := dial(t)
	other := func(name string) {
		tx := &Transaction{}
		tx.Create(Table{Family: Inet, Name: name})
		if err := c.Apply(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
	}
	tried := 0
	err := c.Change(t.Context(), func(tx *Transaction) error {
		tried++
		if tried < 4 {
			other(fmt.Sprint("other", tried))
		}
		tx.Create(inet)
		return nil
	})
	if tried != 4 || err != nil {
		t.Errorf("tried %d times, error %v", tried, err)
	}
	if err := c.Change(t.Context(), func(*Transaction) error { return nil }); err != nil {
		t.Error(err)
	}
	broken := errors.New("broken")
	if err := c.Change(t.Context(), func(*Transaction) error { return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// TestUserdata: what others wrote there is passed over.
func TestUserdata(t *testing.T) {
	for _, tt := range []struct {
		name string
		b    []byte
		want string
	}{
		{"none", nil, ""},
		{"ours", comment("a b"), "a b"},
		{"after another", append([]byte{2, 1, 9}, comment("c")...), "c"},
		{"cut short", comment("abc")[:4], ""},
		{"empty", []byte{0, 0}, ""},
	} {
		if got := commentIn(tt.b); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// FuzzDestination: whatever the kernel lists is read.
func FuzzDestination(f *testing.F) {
	var m netlink.Batch
	for _, e := range Exprs(From("cni0"), Source(netip.MustParsePrefix("10.1.0.0/17")), Masquerade()) {
		e(&m)
	}
	f.Add(m.Bytes())
	f.Fuzz(func(_ *testing.T, b []byte) { Rule{body: b}.Destination() })
}

func FuzzUserdata(f *testing.F) {
	f.Add([]byte{2, 1, 9, 0, 2, 'a', 0})
	f.Add(comment(strings.Repeat("x", 300)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got := commentIn(b); len(got) > len(b) {
			t.Errorf("%q", got)
		}
		if s := string(b); len(s) <= maxComment && !strings.Contains(s, "\x00") && commentIn(comment(s)) != s {
			t.Errorf("%q does not come back", s)
		}
	})
}
