package main

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/chain/audit"
	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace/read"
)

func TestNamed(t *testing.T) {
	of := func(network, id, ifname, pod string, addresses ...string) subject {
		namespace, name, _ := strings.Cut(pod, "/")
		s := subject{Attachment: delegates.Attachment{Network: network, ContainerID: id, IfName: ifname}, namespace: namespace, pod: name}
		for _, a := range addresses {
			s.addresses = append(s.addresses, netip.MustParseAddr(a))
		}
		return s
	}
	all := []subject{
		of("podnet", "1635e8", "eth0", "default/web-0", "10.22.0.5", "fd00::5"),
		of("podnet", "1635e8", "net1", "default/web-0", "10.22.0.6"),
		of("podnet", "1635f0", "eth0", "default/db-0"),
		of("other", "abc", "eth0", "", "10.22.0.5"),
		of("other", "abcdef", "eth0", "kube-system/web-0"),
		of("other", "ffff", "eth0", "default/abc"),
		of("other", "eeee", "eth0", "default/ee"),
	}
	for _, tt := range []struct {
		text string
		want []string
		err  string
	}{
		{"1635e8", []string{"podnet/1635e8:eth0", "podnet/1635e8:net1"}, ""},
		{"1635e", []string{"podnet/1635e8:eth0", "podnet/1635e8:net1"}, ""},
		{"1635", nil, "1635 is ambiguous: podnet/1635e8:eth0, podnet/1635e8:net1, podnet/1635f0:eth0"},
		{"abc", []string{"other/abc:eth0"}, ""}, // whole, though another begins so
		{"ab", nil, "ab is ambiguous: other/abc:eth0, other/abcdef:eth0"},
		{"635e8", nil, "nothing found: no attachment 635e8"},
		{"default/web-0", []string{"podnet/1635e8:eth0", "podnet/1635e8:net1"}, ""},
		{"db-0", []string{"podnet/1635f0:eth0"}, ""},
		{"web-0", nil, "web-0 is ambiguous: other/abcdef:eth0 of kube-system/web-0, podnet/1635e8:eth0 of default/web-0, podnet/1635e8:net1 of default/web-0"},
		{"ee", []string{"other/eeee:eth0"}, ""}, // by either
		{"web", nil, "nothing found: no attachment web"},
		{"default/web", nil, "nothing found: no attachment default/web"},
		{"podnet/1635e8:net1", []string{"podnet/1635e8:net1"}, ""},
		{"podnet/1635f:eth0", []string{"podnet/1635f0:eth0"}, ""},
		{"podnet/1635:eth0", nil, "podnet/1635:eth0 is ambiguous: podnet/1635e8:eth0, podnet/1635f0:eth0"},
		{"other/1635e8:eth0", nil, "nothing found: no attachment other/1635e8:eth0"},
		{"10.22.0.5", []string{"podnet/1635e8:eth0", "other/abc:eth0"}, ""},
		{"10.22.0.6/16", []string{"podnet/1635e8:net1"}, ""},
		{"::ffff:10.22.0.6", []string{"podnet/1635e8:net1"}, ""},
		{"fd00:0::5", []string{"podnet/1635e8:eth0"}, ""},
		{"10.22.0.7", nil, "nothing found: no attachment 10.22.0.7"},
		{"", nil, "ATTACHMENT is empty"},
		{"podnet/:eth0", nil, `the container id of "podnet/:eth0" is empty`},
		{"default/", nil, `"default/" is no attachment: want a container id, [NAMESPACE/]POD, NETWORK/CONTAINER:IFNAME or an address`},
	} {
		t.Run(tt.text, func(t *testing.T) {
			n, err := named(tt.text)
			var got []string
			if err == nil {
				var picked []subject
				picked, err = n.pick(all)
				for _, s := range picked {
					got = append(got, s.String())
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error("(-want +got):\n" + diff)
			}
			if text := words(err); text != tt.err {
				t.Errorf("got %q, want %q", text, tt.err)
			}
		})
	}
}

func words(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestAmbiguousIsBounded(t *testing.T) {
	var all []subject
	for _, c := range "abcdefghijklm" {
		all = append(all, subject{Attachment: delegates.Attachment{Network: "n", ContainerID: "1" + string(c), IfName: "eth0"}})
	}
	n, err := named("1")
	if err == nil {
		_, err = n.pick(all)
	}
	if text := words(err); !strings.HasSuffix(text, "n/1j:eth0 and 3 more") || errors.Is(err, errNothing) {
		t.Errorf("got %q", text)
	}
}

func TestWhen(t *testing.T) {
	zone := time.FixedZone("", 3600)
	c := &command{zone: zone, now: func() time.Time { return time.Date(2026, 3, 1, 12, 30, 20, 0, zone) }}
	at := func(d, h, m, s int) time.Time { return time.Date(2026, 3, d, h, m, s, 0, zone) }
	for _, tt := range []struct {
		text  string
		first time.Time
		names time.Duration
		bad   bool
	}{
		{"", time.Time{}, 0, false},
		{"2026-03-01T10:00:00Z", at(1, 11, 0, 0), time.Second, false},
		{"2026-03-01T10:00:00.25Z", at(1, 11, 0, 0).Add(25e7), 10 * time.Millisecond, false},
		{"2026-03-01T10:00:00.123456789Z", at(1, 11, 0, 0).Add(123456789), 1, false},
		{"2026-03-01T10:00:00", at(1, 10, 0, 0), time.Second, false},
		{"2026-03-01 10:00:05", at(1, 10, 0, 5), time.Second, false},
		{"2026-03-01 10:00", at(1, 10, 0, 0), time.Minute, false},
		{"2026-03-01", at(1, 0, 0, 0), day, false},
		{"02-28 10:00:05", at(0, 10, 0, 5), time.Second, false},
		{"12-31 10:00", at(-59, 10, 0, 0), time.Minute, false}, // last year's
		{"12:05", at(1, 12, 5, 0), time.Minute, false},
		{"12:30", at(1, 12, 30, 0), time.Minute, false}, // this minute, which goes on
		{"12:29:59.5", at(1, 12, 29, 59).Add(5e8), 100 * time.Millisecond, false},
		{"13:00", at(0, 13, 0, 0), time.Minute, false}, // yesterday's
		{"90s", at(1, 12, 28, 50), 1, false},
		{"7d", at(-6, 12, 30, 20), 1, false},
		{"-5m", time.Time{}, 0, true},
		{"7dx", time.Time{}, 0, true},
		{"noon", time.Time{}, 0, true},
	} {
		first, last, err := c.when("--at", tt.text)
		want := tt.first
		if tt.names > 0 {
			want = want.Add(tt.names - 1)
		}
		if !first.Equal(tt.first) || !last.Equal(want) || (err != nil) != tt.bad {
			t.Errorf("%q: got %v to %v, %v, want %v to %v", tt.text, first, last, err, tt.first, want)
		}
	}
}

func TestClock(t *testing.T) {
	c := &command{zone: time.UTC, now: func() time.Time { return now }}
	for want, at := range map[string]time.Time{
		"12:00:00": noon, "02-28 12:00:00": noon.AddDate(0, 0, -1), "2025-12-31 12:00:00": noon.AddDate(0, -2, -1),
	} {
		got := c.clock(at)
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if _, last, err := c.when("--at", got); err != nil || last.Before(at) {
			t.Errorf("%q is read as %v, %v", got, last, err)
		}
	}
}

func TestAround(t *testing.T) {
	entry := func(minute int, command, id, outcome string) read.Entry {
		return read.Entry{Time: noon.Add(time.Duration(minute) * time.Minute), Command: command, Network: "n", ContainerID: id, IfName: "eth0", Outcome: outcome}
	}
	past := []read.Entry{
		entry(0, "ADD", "a", read.OK), entry(1, "CHECK", "a", read.OK), entry(2, "DEL", "a", read.Failed), entry(4, "DEL", "a", read.OK),
		entry(5, "ADD", "a", read.OK), entry(6, "ADD", "b", read.Failed), entry(7, "ADD", "c", read.OK), entry(8, "ADD", "c", read.OK), entry(9, "GC", "", read.OK),
	}
	for _, tt := range []struct {
		minute int
		want   []int // of past
	}{
		{-1, nil}, {0, []int{0, 3}}, {3, []int{0, 3}}, {4, nil}, {5, []int{4}}, {6, []int{4}}, {7, []int{4, 6, 7}}, {10, []int{4, 7}},
	} {
		var want []read.Entry
		for _, i := range tt.want {
			want = append(want, past[i])
		}
		got := around(past, noon.Add(time.Duration(tt.minute)*time.Minute))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("minute %d (-want +got):\n%s", tt.minute, diff)
		}
	}
}

func TestBroken(t *testing.T) {
	for _, tt := range []struct {
		text string
		want []string
	}{
		{"", []string{""}},
		{"default/db", []string{"default/db"}},
		{"default/web-5d4b9c7f6-x2x9k", []string{"default/", "web-", "5d4b9c7f6-", "x2x9k"}},
		{"abcdefghijklmno", []string{"abcdefghij", "klmno"}},
		{"one two three", []string{"one two", "three"}},
		{"one  two's   three", []string{"one  two's", "three"}},
		{"0123456789 12345678901", []string{"0123456789", "1234567890", "1"}},
		{"ab/abc-abcd", []string{"ab/", "abc-abcd"}},
	} {
		if diff := cmp.Diff(tt.want, broken(tt.text, 10)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.text, diff)
		}
	}
}

func TestShorten(t *testing.T) {
	const attachment, pod, addresses = "podnet/1635e8a1b2c3:eth0", "kube-system/coredns-5d78c9869d-x7v2k", "2001:db8:aaaa:bbbb::1:5,10.22.0.5,fd00::5"
	for _, tt := range []struct {
		shorten func(string, int) string
		text    string
		width   int
		want    string
	}{
		{shortAttachment, attachment, 24, attachment},
		{shortAttachment, attachment, 23, "podnet/1635e8a1b2…:eth0"},
		{shortAttachment, attachment, 19, "podnet/1635e8…:eth0"},
		{shortAttachment, attachment, 18, "1635e8a1b2c3:eth0"},
		{shortAttachment, attachment, 12, "1635e8…:eth0"},
		{shortAttachment, attachment, 11, "1635e8a1b2…"},
		{shortAttachment, attachment, 4, "163…"},
		{shortAttachment, "a/b:eth0", 7, "b:eth0"},
		{shortAttachments, attachment, 18, "1635e8a1b2c3:eth0"},
		{shortAttachments, "5 attachments, first " + attachment, 33, "5 attachments, first 1635e8…:eth0"},
		{shortAttachments, "5 attachments, first " + attachment, 32, "5 attachments\npodnet/1635e8a1b2c3:eth0"},
		{shortAttachments, "110 attachments, first " + attachment, 12, "110 attachm…\n1635e8…:eth0"},
		{shortAttachment, "a-long-network", 10, "a-long-ne…"},
		{shortDone, "leaked-address: del", 19, "leaked-address: del"},
		{shortDone, "leaked-address: del", 18, "leaked-address"},
		{shortDone, "leaked-address: del", 12, "leaked-addr…"},
		{shortDone, pod, 22, "kube-system/cor…-x7v2k"},
		{shortPod, pod, 36, pod},
		{shortPod, pod, 22, "kube-system/cor…-x7v2k"},
		{shortPod, pod, 10, "kub…-x7v2k"},
		{shortPod, pod, 4, "k…2k"},
		{shortPod, pod, 1, "…"},
		{shortAddresses, addresses, 41, "2001:db8:aaaa:bbbb::1:5 +2"},
		{shortAddresses, addresses, 15, "2001:db8…::1:5…"},
		{shortAddresses, "10.22.117.205,fd00::5", 16, "10.22.117.205 +1"},
		{shortAddresses, "10.22.117.205,fd00::5", 14, "10.22.117.205…"},
		{shortAddresses, "255.255.255.255", 11, "255.2…5.255"},
	} {
		if got := tt.shorten(tt.text, tt.width); got != tt.want {
			t.Errorf("%s in %d: got %q, want %q", tt.text, tt.width, got, tt.want)
		}
	}
}

func TestFit(t *testing.T) {
	columns := []column{{head: "A"}, {head: "BB", least: 4}, {head: "EMPTY"}, {head: "C", least: 3}}
	rows := [][]cell{{{text: "12345"}, {text: "1234567890"}, {}, {text: "1234567"}}, {{text: "1"}, {}, {}, {}}}
	first := []column{{head: "A", least: 2}, {head: "B", first: 6, least: 2}}
	all := []column{{head: "A", last: 4}, {head: "B", least: 8}, {head: "C", leftOut: 2}, {head: "D", leftOut: 1}}
	lines := []column{{head: "A", last: 2}, {head: "B", last: 8, shorten: shortPod}}
	words := []column{{head: "A", least: 6, words: true, last: 6}, {head: "B", least: 10, last: 6, shorten: shortPod}}
	phrases := [][]cell{{{text: "one /twelve/long two"}, {text: "1234567890123456"}}}
	tens := [][]cell{{{text: "1234567890"}, {text: "1234567890"}, {text: "1234567890"}, {text: "1234567890"}}}
	for _, tt := range []struct {
		name    string
		columns []column
		rows    [][]cell
		width   int
		want    []int
	}{
		{"room", columns, rows, 100, []int{5, 10, 0, 7}},
		{"just", columns, rows, 26, []int{5, 10, 0, 7}},
		{"the widest goes first", columns, rows, 23, []int{5, 7, 0, 7}},
		{"at the least", columns, rows, 16, []int{5, 4, 0, 3}},
		{"no room", columns, rows, 3, []int{5, 4, 0, 3}},
		{"no bound", columns, rows, 0, []int{5, 10, 0, 7}},
		{"one goes first", first, [][]cell{{{text: "1234567890"}, {text: "1234567890"}}}, 17, []int{9, 6}},
		{"narrowed before one is left out", all, tens, 44, []int{10, 8, 10, 10}},
		{"one left out", all, tens, 43, []int{10, 10, 10, 0}},
		{"two left out", all, tens, 31, []int{10, 10, 0, 0}},
		{"shortened before lines are broken", lines, [][]cell{{{text: "123456789012"}, {text: "1234567890"}}}, 20, []int{10, 8}},
		{"no word is broken", words, phrases, 24, []int{12, 10}},
		{"but where nothing else is left", words, phrases, 18, []int{10, 6}},
		{"the last in the end", all, tens, 18, []int{8, 8, 0, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := &grid{columns: tt.columns}
			g.fit(tt.rows, tt.width)
			if diff := cmp.Diff(tt.want, g.widths); diff != "" {
				t.Error("(-want +got):\n" + diff)
			}
		})
	}
}

func TestVerdict(t *testing.T) {
	two := []compared{{Differs: true}, {}, {Differs: true}}
	for _, tt := range []struct {
		v    view
		want string
	}{
		{view{State: cache.Attached, Compared: two[1:2]}, "record and kernel agree"},
		{view{State: cache.Attached, Compared: two}, "2 differences"},
		{view{State: cache.Attached, Compared: two[:1]}, "1 difference"},
		{view{State: cache.Attached, Compared: two, err: errNothing}, "2 differences in what could be seen"},
		{view{State: cache.Attached, Damaged: true}, "the record is damaged"},
		{view{State: cache.Deleting, Compared: two}, "the DEL did not end, 2 differences"},
		{view{State: cache.None}, "there is no record"},
	} {
		if got := tt.v.verdict(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestAgo(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s ago", 59 * time.Second: "59s ago", 61 * time.Second: "1m1s ago",
		130 * time.Minute: "2h10m ago", 50 * time.Hour: "2d2h ago",
	} {
		if got := ago(d); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
}

func TestRoutes(t *testing.T) {
	_, six, err := net.ParseCIDR("::/0")
	if err != nil {
		t.Fatal(err)
	}
	link := 253
	for _, tt := range []struct {
		name string
		edit func(*types100.Result)
		want []string
	}{
		{"its own next hop", func(*types100.Result) {}, []string{"0.0.0.0/0 via 10.22.0.1"}},
		{"the address's gateway", func(r *types100.Result) { r.Routes[0].GW = nil }, []string{"0.0.0.0/0 via 10.22.0.9"}},
		{"scope link", func(r *types100.Result) { r.Routes[0].GW, r.Routes[0].Scope = nil, &link }, []string{"0.0.0.0/0"}},
		{"no gateway of the family", func(r *types100.Result) { r.Routes[0].Dst, r.Routes[0].GW = *six, nil }, []string{"::/0"}},
		{"null", func(r *types100.Result) { r.Routes[0], r.IPs[0] = nil, nil }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := result(t, "10.22.0.5/16")
			r.IPs[0].Gateway = net.IPv4(10, 22, 0, 9)
			tt.edit(r)
			var got []string
			for _, x := range routes(r) {
				got = append(got, routeText(x))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error("(-want +got):\n" + diff)
			}
		})
	}
}

// TestEnds: what a delegated plugin adds behind the pod's end is not the host's.
func TestEnds(t *testing.T) {
	r := result(t)
	a := delegates.Attachment{Network: "podnet", ContainerID: web, IfName: "eth0"}
	r.Interfaces = append(r.Interfaces, &types100.Interface{Name: "bwp0123456789ab"})
	e := endsOf(a, r)
	if got := e.bridge.Name + " " + e.host.Name + " " + e.pod.Name; got != "twtest0 vethtw00000001 eth0" {
		t.Errorf("got %s", got)
	}
	r.Interfaces = r.Interfaces[2:] // as macvlan answers, with bandwidth behind it
	e = endsOf(a, r)
	if got := e.bridge.Name + e.host.Name + e.pod.Name; got != "eth0" {
		t.Errorf("got %s", got)
	}
}

func TestProgressLine(t *testing.T) {
	for _, tt := range []struct {
		p    *progress
		want string
	}{
		{&progress{what: "CHECK", all: 4, done: 1}, "CHECK [======                  ] 1/4 "},
		{&progress{what: "looking", said: "2 findings"}, "looking … 3s 2 findings"},
		{&progress{what: "looking"}, "looking … 3s"},
	} {
		if got := tt.p.line(3 * time.Second); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// TestProgressIsSilent: into a pipe nothing is written, however long it takes.
func TestProgressIsSilent(t *testing.T) {
	var e strings.Builder
	p := (&command{err: &e}).progress("CHECK", 2)
	p.step()
	p.end()
	if p.out != nil || e.Len() > 0 {
		t.Errorf("got %q", e.String())
	}
}

// TestChanges: what came and what went, each once.
func TestChanges(t *testing.T) {
	var out strings.Builder
	c := &command{out: &out, zone: time.UTC, now: func() time.Time { return noon }, getenv: func(string) string { return "" }}
	c.flags.colour = "never"
	leak := func(id, address string) audit.Finding {
		return audit.Finding{ID: id, Kind: audit.LeakedAddress, Network: "podnet", Address: netip.MustParseAddr(address),
			Evidence: []audit.Evidence{{Source: audit.IPAM, Says: "reserved for x"}}}
	}
	one := map[string]audit.Finding{"1": leak("1", "10.22.0.7")}
	two := map[string]audit.Finding{"1": one["1"], "2": leak("2", "10.22.0.8")}
	if err := errors.Join(c.changes(nil, one), c.changes(one, one), c.changes(one, two), c.changes(two, one)); err != nil {
		t.Fatal(err)
	}
	want := `12:00:00 + leaked-address 10.22.0.7 of podnet: ipam: reserved for x
12:00:00 + leaked-address 10.22.0.8 of podnet: ipam: reserved for x
12:00:00 - leaked-address 10.22.0.8 of podnet
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error("(-want +got):\n" + diff)
	}
}

// TestManyFindings: of one kind the first are shown, and how many more there are.
func TestManyFindings(t *testing.T) {
	for _, all := range []bool{false, true} {
		r := newReport(all)
		for i := range 30 {
			r.add(audit.Finding{ID: "1", Kind: audit.LeakedAddress, Severity: audit.Error, Network: "podnet", Address: netip.AddrFrom4([4]byte{10, 22, 0, byte(i)})})
		}
		var out strings.Builder
		c := &command{getenv: func(string) string { return "" }}
		if err := c.printReport(&out, r, audit.Counts{Findings: 30}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out.String(), "and 10 more (-v shows all)"); got == all || !strings.Contains(out.String(), "leaked-address (error, 30)") {
			t.Errorf("%t: %s", all, out.String())
		}
	}
}
