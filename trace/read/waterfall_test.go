package read

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/trace"
)

// drawn is an operation with all that a waterfall can show.
func drawn(failed bool) Operation {
	at := func(us int) time.Time { return begun.Add(time.Duration(us) * time.Microsecond) }
	span := func(name string, from, to int, below ...Node) Node {
		return Node{Span: Span{Name: name, Start: at(from), End: at(to)}, Children: below}
	}
	ipam := span("ipam", 700, 1040)
	ipam.Events = []Event{
		{Name: "address passed over", Attributes: Attributes{{trace.KeyMAC, "0a:58:0a:16:00:04"}, {trace.KeyError, "its MAC lives on the bridge of another record"}}},
		{Name: "exception"},
	}
	ipam.Links = []Link{{TraceID: strings.Repeat("c", 32)}}
	bridge := span("bridge", 1040, 3900, span("veth.create", 1200, 1700), span("route.add", 1700, 1702))
	commit := span("cache.commit", 3900, 4380)
	o := Operation{Root: span("cni.ADD", 0, 4380, span("cache.read", 300, 402), ipam, bridge, commit)}
	id := "1635e8a1b2c3d4e5f60718293a4b5c6d7e8f901122334455667788990011aabb"
	o.Root.TraceID = "4eb491f3aa000cc2ad650e7b79685ef2"
	o.Root.Attributes = Attributes{
		{trace.KeyCommand, "ADD"}, {trace.KeyName, "podnet"}, {trace.KeyID, id}, {trace.KeyIfName, "eth0"},
		{trace.KeyPodNamespace, "default"}, {trace.KeyPod, "web-0"}, {trace.KeyAddresses, []any{"10.22.0.5/16", "fd00::5/64"}},
		{trace.KeyRuntime, "/usr/bin/containerd"},
	}
	o.Root.Links = []Link{{TraceID: strings.Repeat("d", 32), Target: "ADD of podnet/1635e8a1b2c3:eth0, 2m30s before"}}
	if failed {
		fail := func(n *Node, why string) { n.Failed, n.Message = true, why }
		fail(&o.Root.Children[2].Children[1], "add route 10.0.0.0/8 via \x1b[31m10.22.0.1: network is unreachable: Nexthop has invalid gateway")
		fail(&o.Root.Children[2], "route.add: add route 10.0.0.0/8")
		fail(&o.Root, "bridge: route.add: add route 10.0.0.0/8 via 10.22.0.1: network is unreachable")
		o.Root.Attributes = append(o.Root.Attributes, Attribute{trace.KeyErrorCode, int64(104)}, Attribute{trace.KeyErrorType, "kernel refused"})
	}
	return o
}

// TestWaterfall compares with the files in testdata; TRACEWIRE_GOLDEN=1 writes them.
func TestWaterfall(t *testing.T) {
	for _, tt := range []struct {
		name           string
		failed, colour bool
		width          int
	}{
		{"ok-100", false, false, 100},
		{"failed-100", true, false, 100},
		{"failed-60", true, false, 60},
		{"failed-pipe", true, false, 0},
		{"failed-colour", true, true, 80},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			if err := Waterfall(&b, drawn(tt.failed), tt.width, tt.colour); err != nil {
				t.Fatal(err)
			}
			golden(t, tt.name+".txt", b.String())
			for l := range strings.SplitSeq(b.String(), "\n") {
				if n := utf8.RuneCountInString(l); !tt.colour && tt.width > 0 && n > tt.width {
					t.Errorf("%d columns: %s", n, l)
				}
			}
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("TRACEWIRE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Error("(-want +got):\n" + diff)
	}
}

func TestWaterfallOfNothing(t *testing.T) {
	for _, o := range []Operation{{}, {Root: Node{Span: Span{Name: "cni.DEL", Start: begun, End: begun.Add(-time.Hour)}}}} {
		var b strings.Builder
		if err := Waterfall(&b, o, 0, false); err != nil || b.Len() == 0 {
			t.Errorf("%q, %v", b.String(), err)
		}
	}
}

func TestBar(t *testing.T) {
	d := &drawing{lane: 4, start: begun, total: 32}
	for _, tt := range []struct {
		name     string
		from, to int
		want     string
	}{
		{"all", 0, 32, "████"},
		{"half", 0, 16, "██  "},
		{"by eighths", 0, 19, "██▍ "},
		{"from the middle of a cell", 12, 32, " ▐██"},
		{"from the last eighth of a cell", 15, 32, " ▕██"},
		{"within a cell", 17, 20, "  ▍ "},
		{"no time at all", 9, 9, " ▏  "},
		{"no time at the end", 32, 32, "   ▕"},
		{"outside", -50, 99, "████"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := d.bar(Span{Start: begun.Add(time.Duration(tt.from)), End: begun.Add(time.Duration(tt.to))})
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestHuman(t *testing.T) {
	for _, tt := range []struct {
		d    time.Duration
		want string
	}{
		{0, "0 µs"}, {499, "0 µs"}, {103 * time.Microsecond, "103 µs"}, {999600, "1.00 ms"}, {4384 * time.Microsecond, "4.38 ms"},
		{9996 * time.Microsecond, "10.0 ms"}, {99960 * time.Microsecond, "100 ms"}, {1250 * time.Millisecond, "1.25 s"},
		{150 * time.Second, "2m30s"}, {-time.Millisecond, "-1000 µs"},
	} {
		if got := Human(tt.d); got != tt.want {
			t.Errorf("%d: got %q, want %q", tt.d, got, tt.want)
		}
	}
}

func TestWrap(t *testing.T) {
	for _, tt := range []struct {
		text string
		want []string
	}{
		{"", []string{""}},
		{"one two three", []string{"one two", "three"}},
		{"abcdefghijkl", []string{"abcdefgh", "ijkl"}},
		{"ab abcdefghijklmnopq r", []string{"ab", "abcdefgh", "ijklmnop", "q r"}},
		{"äöüäöüäö ü", []string{"äöüäöüäö", "ü"}},
	} {
		if diff := cmp.Diff(tt.want, wrap(tt.text, 8)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.text, diff)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "µs → █": "µs → █", "a\x1b[2Jb": "a [2Jb", "a\nb\tc": "a b c", "\xff\u202e": "??",
	} {
		if got := Printable(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestShortID(t *testing.T) {
	for in, want := range map[string]string{
		"":                                     "",
		"1635e8a1b2c3":                         "1635e8a1b2c3",
		strings.Repeat("1635e8a1b2c3d4e5", 4):  "1635e8a1b2c3",
		"cnitool-f3fef9b9576e4680797c":         "cnitool-f3fef9b9",
		"5b1c2d3e-1111-2222-3333-444455556666": "5b1c2d3e-1111-22",
	} {
		if got := ShortID(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
