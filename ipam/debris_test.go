package ipam

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
)

// odds is what may stand in the place of an address's file.
var odds = []struct {
	name string
	make func(path string) error
	// ours tells that it is debris: its address is leased again. Of what is not, a
	// record's DEL removes text alone.
	ours, removed bool
}{
	{"empty", content(""), true, true},
	{"blanks", content(" \r\n\n"), true, true},
	{"zeros", content(strings.Repeat("\x00", 10)), true, true},
	{"an id and zeros", content("c1\r\neth0\x00\x00"), true, true},
	{"two megabytes of zeros", content(strings.Repeat("\x00", 2<<20)), true, true},
	{"two megabytes of text", content(strings.Repeat("x", 2<<20)), true, true},
	{"bytes", content("\xff\xfe\x01c9"), true, true},
	{"a pipe", func(p string) error { return unix.Mkfifo(p, 0o600) }, true, true},
	{"a link", func(p string) error { return os.Symlink("10.1.0.3", p) }, true, true},
	{"a link to nothing", func(p string) error { return os.Symlink("none", p) }, true, true},
	{"a link to itself", func(p string) error { return os.Symlink(p, p) }, true, true},
	{"a socket", func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o600, 0) }, true, true},
	{"a person's words", content("the router's, leave it alone\n"), false, true},
	{"another's reservation", content("c9\r\neth0"), false, false},
	{"a folder", func(p string) error { return os.Mkdir(p, 0o700) }, false, false},
	{"a folder with something in it", func(p string) error { return os.MkdirAll(filepath.Join(p, "in"), 0o700) }, false, false},
}

func content(text string) func(string) error {
	return func(p string) error { return os.WriteFile(p, []byte(text), 0o600) }
}

// damaged is a range with two addresses: one is c3's, and something odd stands in
// the other's place.
func damaged(t *testing.T, odd func(path string) error) (h HostLocal, dir, path string) {
	t.Helper()
	h, dir = serve(t, `"subnet":"10.1.0.0/29","rangeStart":"10.1.0.2","rangeEnd":"10.1.0.3"`, "")
	files{"10.1.0.3": "c3\r\neth0", "last_reserved_ip.0": "10.1.0.3"}.write(t, dir)
	path = filepath.Join(dir, "10.1.0.2")
	if err := odd(path); err != nil {
		t.Fatal(err)
	}
	return h, dir, path
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestDebris: what a crash or a broken disk left in the place of an address's file
// holds nobody, for each verb in the same way; nothing behind it is touched, and
// nobody waits for it.
func TestDebris(t *testing.T) {
	kept := delegates.Kept{All: []delegates.Attachment{call("c3").Attachment, call("c9").Attachment}, Recorded: func(delegates.Attachment) bool { return false }}
	for _, tt := range odds {
		for _, verb := range []struct {
			name string
			do   func(t *testing.T, h HostLocal) error
			gone bool
		}{
			{"DEL by its record", func(t *testing.T, h HostLocal) error {
				c := call("c1")
				c.Made = delegates.Made{Known: true, Reserved: result("10.1.0.2")}
				return h.Del(t.Context(), c)
			}, tt.removed},
			{"DEL without a record", func(t *testing.T, h HostLocal) error { return h.Del(t.Context(), call("c1")) }, tt.ours},
			{"GC", func(t *testing.T, h HostLocal) error {
				return h.GC(t.Context(), delegates.Call{Attachment: delegates.Attachment{Network: "net1"}}, kept)
			}, tt.ours},
		} {
			t.Run(tt.name+", "+verb.name, func(t *testing.T) {
				h, dir, path := damaged(t, tt.make)
				if err := verb.do(t, h); err != nil {
					t.Fatal(err)
				}
				if there(path) == verb.gone {
					t.Errorf("gone is %t, want %t", !verb.gone, verb.gone)
				}
				if got := read(t, dir)["10.1.0.3"]; got != "c3\r\neth0" {
					t.Errorf("another's reservation is %q", got)
				}
			})
		}
		t.Run(tt.name+", ADD and STATUS", func(t *testing.T) {
			h, _, path := damaged(t, tt.make)
			status := (&memo{}).status(h, 0)
			_, err := h.Add(t.Context(), call("c1"))
			if (err == nil) != tt.ours || (status == "") != tt.ours {
				t.Errorf("ADD: %v, STATUS: %s", err, status)
			}
			if r, _, what, _ := look(path); tt.ours && (what != held || r != of(call("c1").Attachment)) {
				t.Errorf("it holds %q", r)
			}
			const told = "a folder stands in the place of 10.1.0.2"
			if strings.HasPrefix(tt.name, "a folder") && (!strings.Contains(err.Error(), told) || !strings.Contains(status, told)) {
				t.Errorf("ADD: %v, STATUS: %s", err, status)
			}
		})
		t.Run(tt.name+", leases", func(t *testing.T) {
			h, _, _ := damaged(t, tt.make)
			all, err := h.Leases("net1")
			ids := []string{}
			for _, l := range all {
				ids = append(ids, l.ContainerID)
			}
			want := []string{"c3"}
			if tt.name == "another's reservation" {
				want = []string{"c3", "c9"}
			}
			slices.Sort(ids)
			if diff := cmp.Diff(want, ids); diff != "" || err != nil {
				t.Errorf("%v (-want +got)\n%s", err, diff)
			}
		})
	}
}

// TestDebrisOfWhoLives: where a record or an interface tells that somebody lives at
// an address, their file was damaged: nobody else gets it, whatever the verb, and
// it is theirs again. Where they are just coming or going, or nobody can tell,
// nothing is touched.
func TestDebrisOfWhoLives(t *testing.T) {
	for _, tt := range []struct {
		name    string
		leases  []Lease
		err     error
		mended  bool
		refused string // of ADD
	}{
		{"attached", []Lease{leaseOf("web", "10.1.0.2", true)}, nil, true, "2 of 2 in use"},
		{"coming or going", []Lease{leaseOf("web", "10.1.0.2", false)}, nil, false, "2 of 2 in use"},
		{"nobody can tell", nil, errors.New("broken"), false, "2 of 2 in use"},
	} {
		for _, odd := range odds {
			if !odd.ours {
				continue
			}
			for verb, do := range map[string]func(h HostLocal) error{
				"ADD": func(h HostLocal) error { _, err := h.Add(t.Context(), call("c1")); return err },
				"DEL": func(h HostLocal) error { return h.Del(t.Context(), call("c1")) },
				"DEL by a record of old": func(h HostLocal) error {
					c := call("c1")
					c.Made = delegates.Made{Known: true, Reserved: result("10.1.0.2")}
					return h.Del(t.Context(), c)
				},
				"GC": func(h HostLocal) error {
					k := delegates.Kept{All: []delegates.Attachment{call("c3").Attachment, call("web").Attachment}, Recorded: func(delegates.Attachment) bool { return false }}
					return h.GC(t.Context(), delegates.Call{Attachment: delegates.Attachment{Network: "net1"}}, k)
				},
				"STATUS": func(h HostLocal) error {
					if got := (&memo{}).status(h, 0); got != "" {
						return errors.New(got)
					}
					return nil
				},
			} {
				t.Run(tt.name+", "+odd.name+", "+verb, func(t *testing.T) {
					h, _, path := damaged(t, odd.make)
					h.Recorded = func() ([]Lease, error) { return tt.leases, tt.err }
					err := do(h)
					want := ""
					if verb == "ADD" || verb == "STATUS" {
						want = tt.refused
					}
					if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
						t.Errorf("error %v, want %s", err, want)
					}
					r, _, what, _ := look(path)
					if mended := what == held && r.ContainerID == "web"; !there(path) || mended != (tt.mended && verb != "STATUS") {
						t.Errorf("it is %q, %d", r, what)
					}
				})
			}
		}
	}
}

// TestLockThatIsAFolder: nobody can take it, so nothing is reserved, and what is
// can be given back; debris may be somebody's who comes just now.
func TestLockThatIsAFolder(t *testing.T) {
	h, dir := serve(t, pool, "")
	files{"10.1.0.2": "c1\r\neth0", "10.1.0.3": "c2\r\neth0", "10.1.0.4": ""}.write(t, dir)
	lock := filepath.Join(dir, lockName)
	if err := os.Mkdir(lock, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := h.Add(t.Context(), call("c1"))
	if want := "open " + lock + ": is a directory"; err == nil || err.Error() != want {
		t.Errorf("ADD: %v, want %s", err, want)
	}
	if err := h.Del(t.Context(), call("c1")); err != nil {
		t.Errorf("DEL: %v", err)
	}
	none := delegates.Kept{Recorded: func(delegates.Attachment) bool { return false }}
	if err := h.GC(t.Context(), delegates.Call{Attachment: delegates.Attachment{Network: "net1"}}, none); err != nil {
		t.Errorf("GC: %v", err)
	}
	if diff := cmp.Diff(files{"10.1.0.4": ""}, read(t, dir)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestReservationOfAnother: a file that was damaged so that it names somebody who
// does not live keeps its address for whoever lives there, and names them again.
func TestReservationOfAnother(t *testing.T) {
	web := leaseOf("web", "10.1.0.2", true)
	for name, do := range map[string]func(h HostLocal) error{
		"GC": func(h HostLocal) error {
			k := delegates.Kept{All: []delegates.Attachment{call("c3").Attachment, web.Attachment}, Recorded: func(delegates.Attachment) bool { return false }}
			return h.GC(t.Context(), delegates.Call{Attachment: delegates.Attachment{Network: "net1"}}, k)
		},
		"ADD of one who finds no other address": func(h HostLocal) error {
			if got := (&memo{}).status(h, 0); !strings.Contains(got, "2 of 2 in use") {
				t.Errorf("STATUS: %s", got)
			}
			if _, err := h.Add(t.Context(), call("c1")); !errors.Is(err, ErrExhausted) {
				t.Errorf("ADD: %v", err)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, dir, _ := damaged(t, content("we"))
			h.Recorded = func() ([]Lease, error) { return []Lease{web}, nil }
			h = earlier(t, h, "b1", &looks{people: people{live: []string{"c3"}}})
			if err := do(h); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(files{"10.1.0.2": "web\r\neth0", "10.1.0.3": "c3\r\neth0", "last_reserved_ip.0": "10.1.0.3"}, read(t, dir)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestReservationOfItself: who is known by others too is not somebody else at its
// own address: GC gives it back when the attachment is not to be kept.
func TestReservationOfItself(t *testing.T) {
	for _, file := range []string{"web\r\neth0", "web"} {
		h, dir := serve(t, pool, "")
		files{"10.1.0.2": file}.write(t, dir)
		h.Recorded = func() ([]Lease, error) { return []Lease{leaseOf("web", "10.1.0.2", true)}, nil }
		none := delegates.Kept{Recorded: func(delegates.Attachment) bool { return false }}
		if err := h.GC(t.Context(), delegates.Call{Attachment: delegates.Attachment{Network: "net1"}}, none); err != nil {
			t.Error(err)
		}
		if left := read(t, dir); len(left) > 0 {
			t.Errorf("left of %q: %v", file, left)
		}
	}
}
