package cache

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/delegates"
)

// TestEntries reads what libcni v0.8 to v1.3 and what came before wrote, and
// what a crash left.
func TestEntries(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	for name, content := range map[string]string{
		"net-c1-eth0":   `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"net","netns":"/run/netns/a","result":{"interfaces":[{"name":"veth1"},{"name":"eth0","sandbox":"/run/netns/b"}]}}`,
		"net-c2-eth0":   `{"kind":"cniCacheV1","containerId":"c2","ifName":"eth0","networkName":"net","result":{"interfaces":[{"name":"eth0","sandbox":"/run/netns/b"}]}}`,
		"net-c3-eth0":   `{"kind":"cniCacheV1","containerId":"c3","ifName":"eth0","networkName":"net"}`,
		"net-c4-eth0":   `{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/d"}]}`,
		"net-c5-eth0":   ``,
		"net-b-c6-eth0": `{"kind":"cniCacheV1","containerId":"c6","ifName":"eth0","networkName":"net-b"}`,
		"other-c7-eth0": ``,
		"net-c8-eth0":   `{"kind":"cniCacheV1","containerId":"c8","ifName":"eth0","networkName":"net","result":{"ip4":{"ip":"10.1.0.2/24"}}}`,
		"net-c9-eth0":   `{"kind":"cniCacheV1","containerId":5}`,
	} {
		if err := os.WriteFile(filepath.Join(first, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(second, "net-c1-eth0"), 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := Entries("net", first, second, filepath.Join(first, "none"))
	if err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(got, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	of := func(id string) delegates.Attachment {
		return delegates.Attachment{Network: "net", ContainerID: id, IfName: "eth0"}
	}
	want := []Entry{
		{Attachment: of("c1"), Name: "net-c1-eth0", NetNS: []string{"/run/netns/a"}, Host: []string{"veth1"}},
		{Name: "net-c1-eth0"},
		{Attachment: of("c2"), Name: "net-c2-eth0", NetNS: []string{"/run/netns/b"}},
		{Attachment: of("c3"), Name: "net-c3-eth0"},
		{Name: "net-c4-eth0", NetNS: []string{"/run/netns/d"}},
		{Name: "net-c5-eth0"},
		{Attachment: of("c8"), Name: "net-c8-eth0", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.2")}},
		{Name: "net-c9-eth0"},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if _, err := Entries("net", filepath.Join(first, "net-c5-eth0")); err == nil {
		t.Error("a file in the folder's place is no error")
	}
}

// TestHolders: who may hold an address, told by one thing at a time.
func TestHolders(t *testing.T) {
	const now = "boot-2"
	address := netip.MustParseAddr("10.1.0.2")
	reserved := func(a string) func(*Journal) error {
		return func(j *Journal) error {
			return j.Reserved(&types100.Result{IPs: []*types100.IPConfig{{Address: net.IPNet{IP: net.ParseIP(a), Mask: net.CIDRMask(24, 32)}}}})
		}
	}
	attached := func(j *Journal) error { return j.Result(&types100.Result{}) }
	deleting := func(j *Journal) error { return j.Deleting(Operation{Name: "cni.DEL", Span: ""}) }
	alive := Entry{Attachment: web, Name: "net-c1-eth0", NetNS: []string{"/alive"}}
	for _, tt := range []struct {
		name        string
		boot        string // of the record; empty where there is none
		lines       []func(*Journal) error
		entries     []Entry
		marked      bool
		routed      []netip.Addr
		lives, left bool
	}{
		{name: "nothing"},
		{name: "a record of this boot", boot: now, lines: []func(*Journal) error{reserved("10.1.0.2"), attached}, lives: true},
		{name: "that holds another address", boot: now, lines: []func(*Journal) error{reserved("10.1.0.3"), attached}, entries: []Entry{alive}, marked: true},
		{name: "that ends before it tells", boot: now, lives: true},
		{name: "that is interrupted", boot: now, lines: []func(*Journal) error{reserved("10.1.0.3")}, lives: true},
		{name: "that is being removed", boot: now, lines: []func(*Journal) error{reserved("10.1.0.3"), attached, deleting}, lives: true},
		{name: "a record of an earlier boot", boot: "boot-1", lines: []func(*Journal) error{reserved("10.1.0.2"), attached}, left: true},
		{name: "and an entry whose namespace lives", boot: "boot-1", lines: []func(*Journal) error{reserved("10.1.0.2"), attached}, entries: []Entry{alive}, lives: true, left: true},
		{name: "an entry whose namespace lives", entries: []Entry{alive}, lives: true},
		{name: "one whose is gone", entries: []Entry{{Attachment: web, NetNS: []string{"/gone"}}}},
		{name: "one of two lives", entries: []Entry{{Attachment: web, NetNS: []string{"/gone", "/alive"}}}, lives: true},
		{name: "an entry that tells of none", entries: []Entry{{Attachment: web}}, lives: true},
		{name: "one that cannot be read", entries: []Entry{{Name: "net-c1-eth0"}}, lives: true},
		{name: "one that cannot be read, another's", entries: []Entry{{Name: "net-c1-eth01"}}},
		{name: "another's entry", entries: []Entry{{Attachment: delegates.Attachment{Network: "net", ContainerID: "c11", IfName: "eth0"}, NetNS: []string{"/alive"}}}},
		{name: "an interface", marked: true, lives: true},
		{name: "a route", routed: []netip.Addr{address}, lives: true},
		{name: "another route", routed: []netip.Addr{netip.MustParseAddr("10.1.0.3")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := Dir{Path: filepath.Join(t.TempDir(), "attachments")}
			if tt.boot != "" {
				in := intent
				in.Boot = tt.boot
				j, err := d.Begin(in, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				for _, line := range tt.lines {
					if err := line(j); err != nil {
						t.Fatal(err)
					}
				}
			}
			records, err := d.Of("net")
			if err != nil {
				t.Fatal(err)
			}
			h := Holders{Dir: d, Boot: now, Records: records, Entries: tt.entries, Routed: tt.routed,
				Marked: func(delegates.Attachment) bool { return tt.marked }, Gone: func(path string) bool { return path == "/gone" }}
			if lives, left := h.Lives(web, address), h.Left(web); lives != tt.lives || left != tt.left {
				t.Errorf("lives %t, left %t; want %t, %t", lives, left, tt.lives, tt.left)
			}
			old := web
			old.IfName = "" // as a reservation of an old host-local has it
			if lives := h.Lives(old, address); tt.lives && !lives {
				t.Error("without an interface's name it does not live")
			}
			h.Boot = "" // not known: nothing is of an earlier one
			if tt.boot != "" && h.Left(web) {
				t.Error("without a boot id a record is of an earlier boot")
			}
		})
	}
}

// TestHoldersUnreadable: a record that cannot be read holds by its file's name.
func TestHoldersUnreadable(t *testing.T) {
	d := Dir{Path: filepath.Join(t.TempDir(), "attachments")}
	if err := os.MkdirAll(filepath.Join(d.Path, "net"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.File(web), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	records, err := d.Of("net")
	if err != nil {
		t.Fatal(err)
	}
	h := Holders{Dir: d, Boot: "boot-2", Records: records, Marked: func(delegates.Attachment) bool { return false }}
	other := web
	other.ContainerID = "c2"
	if !h.Lives(web, netip.Addr{}) || h.Lives(other, netip.Addr{}) || h.Left(web) {
		t.Error("it does not hold, or another does")
	}
}
