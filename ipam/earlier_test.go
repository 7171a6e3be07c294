package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/delegates"
)

// people is Holders by container id.
type people struct {
	live, left []string
	strangers  bool
}

func (p people) Lives(a delegates.Attachment, _ netip.Addr) bool {
	return slices.Contains(p.live, a.ContainerID)
}
func (p people) Left(a delegates.Attachment) bool { return slices.Contains(p.left, a.ContainerID) }
func (p people) Strangers() bool                  { return p.strangers }

// looks is how often somebody looked for them.
type looks struct {
	people
	err  error
	n    int
	when func() // called at each look
}

func (l *looks) look(context.Context) (Holders, error) {
	l.n++
	if l.when != nil {
		l.when()
	}
	return l.people, l.err
}

// earlier has a HostLocal tell boots apart: this one's id is boot.
func earlier(t *testing.T, h HostLocal, boot string, l *looks) HostLocal {
	t.Helper()
	h.Earlier = Earlier{Dir: filepath.Join(h.DataDir, "run"), Boot: boot, Look: l.look}
	return h
}

// add is the address of an ADD, or its error.
func add(t *testing.T, h HostLocal, id string) string {
	t.Helper()
	r, err := h.Add(t.Context(), call(id))
	if err != nil {
		return err.Error()
	}
	return r.IPs[0].Address.IP.String()
}

const (
	pool          = `"subnet":"10.1.0.0/29"` // of five: 2 to 6
	exhaustedText = "no addresses available in range set 10.1.0.1-10.1.0.6: 5 of 5 in use"
)

// TestEarlierBoot: what no one who lives holds is given back once addresses run
// out, and nothing else.
func TestEarlierBoot(t *testing.T) {
	full := merged(names("10.1.0.%d", 2, 6, "old\r\neth0"), files{"last_reserved_ip.0": "10.1.0.6"})
	for _, tt := range []struct {
		name   string
		before files
		people people
		want   []string // of ADDs, one after the other
		after  files    // what is there then, but for the cursor
	}{
		{"all of them", full, people{}, []string{"10.1.0.2", "10.1.0.3"},
			files{"10.1.0.2": "n0\r\neth0", "10.1.0.3": "n1\r\neth0"}},
		{"with empty files", merged(full, files{"10.1.0.4": ""}), people{}, []string{"10.1.0.4", "10.1.0.5", "10.1.0.6", "10.1.0.2"},
			files{"10.1.0.2": "n3\r\neth0", "10.1.0.4": "n0\r\neth0", "10.1.0.5": "n1\r\neth0", "10.1.0.6": "n2\r\neth0"}},
		{"of an old host-local", merged(full, files{"10.1.0.4": "old"}), people{}, []string{"10.1.0.2"}, files{"10.1.0.2": "n0\r\neth0"}},
		{"but for who lives", merged(full, files{"10.1.0.4": "web\r\neth0", "10.1.0.5": "web"}), people{live: []string{"web"}}, []string{"10.1.0.2", "10.1.0.3", "10.1.0.6", exhaustedText},
			files{"10.1.0.2": "n0\r\neth0", "10.1.0.3": "n1\r\neth0", "10.1.0.4": "web\r\neth0", "10.1.0.5": "web", "10.1.0.6": "n2\r\neth0"}},
		{"but for who has a record, whose DEL it is", merged(full, files{"10.1.0.2": "web\r\neth0"}), people{left: []string{"web"}}, []string{"10.1.0.3"},
			files{"10.1.0.2": "web\r\neth0", "10.1.0.3": "n0\r\neth0"}},
		{"while strangers live there", full, people{strangers: true}, []string{exhaustedText}, names("10.1.0.%d", 2, 6, "old\r\neth0")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, dir := serve(t, pool, "")
			h = earlier(t, h, "boot-2", &looks{people: tt.people})
			tt.before.write(t, dir)
			for name := range tt.before { // what a clock said then is nothing
				at := time.Now().Add(24 * time.Hour)
				if err := os.Chtimes(filepath.Join(dir, name), at, at); err != nil {
					t.Fatal(err)
				}
			}
			for i, want := range tt.want {
				if got := add(t, h, fmt.Sprint("n", i)); got != want {
					t.Errorf("ADD %d: got %s, want %s", i, got, want)
				}
			}
			got := read(t, dir)
			delete(got, "last_reserved_ip.0")
			if diff := cmp.Diff(tt.after, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestEarlierBootRequested: an address asked for is had back (calico#11358).
func TestEarlierBootRequested(t *testing.T) {
	for _, tt := range []struct {
		people people
		want   string
	}{
		{people{}, "10.1.0.4"},
		{people{live: []string{"old"}}, "requested address is taken: 10.1.0.4 is held by container old eth0"},
	} {
		h, dir := serve(t, pool, "IP=10.1.0.4")
		h = earlier(t, h, "boot-2", &looks{people: tt.people})
		files{"10.1.0.4": "old\r\neth0"}.write(t, dir)
		if got := add(t, h, "n"); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

// TestEarlierBootOfThisOne: what is reserved after the list was taken is never
// given back, whoever made it and whatever its times say: a clock that is set, a
// runtime that is started again, an address that went to the same id again.
func TestEarlierBootOfThisOne(t *testing.T) {
	h, dir := serve(t, pool, "")
	l := &looks{}
	h = earlier(t, h, "boot-2", l)
	names("10.1.0.%d", 2, 3, "old\r\neth0").write(t, dir)
	if got := add(t, h, "n"); got != "10.1.0.4" {
		t.Fatal(got)
	}
	if err := os.Remove(filepath.Join(dir, "10.1.0.2")); err != nil { // its DEL, and ADD again
		t.Fatal(err)
	}
	files{"10.1.0.2": "old\r\neth0", "10.1.0.5": "other\r\neth0", "10.1.0.6": "other\r\neth0"}.write(t, dir)
	for _, day := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		for a := 2; a <= 6; a++ {
			if a == 3 { // a change of the file: then it is not the one that was listed
				continue
			}
			at := time.Now().Add(day)
			if err := os.Chtimes(filepath.Join(dir, fmt.Sprint("10.1.0.", a)), at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, want := range []string{"10.1.0.3", exhaustedText, exhaustedText} {
		if got := add(t, h, "m"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	want := files{"10.1.0.2": "old\r\neth0", "10.1.0.3": "m\r\neth0", "10.1.0.4": "n\r\neth0", "10.1.0.5": "other\r\neth0", "10.1.0.6": "other\r\neth0"}
	got := read(t, dir)
	delete(got, "last_reserved_ip.0")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestEarlierBootLooksAgain: who turns out to live after the list was taken keeps
// what is on it, and stays on it.
func TestEarlierBootLooksAgain(t *testing.T) {
	h, dir := serve(t, pool, "")
	l := &looks{}
	h = earlier(t, h, "boot-2", l)
	merged(names("10.1.0.%d", 2, 4, "web\r\neth0"), files{"10.1.0.5": "old\r\neth0"}).write(t, dir)
	for _, step := range []struct {
		live []string
		want string
	}{
		{nil, "10.1.0.6"},
		{[]string{"web"}, "10.1.0.5"},
		{[]string{"web"}, exhaustedText},
		{nil, "10.1.0.2"},
	} {
		l.live = step.live
		if got := add(t, h, "n"); got != step.want {
			t.Errorf("got %s, want %s", got, step.want)
		}
	}
}

// TestEarlierBootLooksOnce: once the list is there an ADD that has a free
// address looks for nobody, and reads no list.
func TestEarlierBootLooksOnce(t *testing.T) {
	h, dir := serve(t, `"subnet":"10.1.0.0/24"`, "")
	l := &looks{}
	h = earlier(t, h, "boot-2", l)
	files{"10.1.0.2": "old\r\neth0"}.write(t, dir)
	for i := range 3 {
		add(t, h, fmt.Sprint("c", i))
	}
	if l.n != 1 {
		t.Errorf("looked %d times, want 1", l.n)
	}
	list := func() string {
		all, _ := filepath.Glob(filepath.Join(h.Earlier.Dir, "*"))
		return strings.ReplaceAll(fmt.Sprint(all), h.Earlier.Dir+"/", "")
	}
	if got := list(); got != "[earlier-boot-2]" {
		t.Errorf("there are %s", got)
	}
	h = earlier(t, h, "boot-3", l) // /run was kept
	add(t, h, "c3")
	if got := list(); l.n != 2 || got != "[earlier-boot-3]" {
		t.Errorf("after the next boot: looked %d times, there are %s", l.n, got)
	}
}

// TestEarlierBootCannotBeTold: no ADD fails for want of the list, and none is
// given back either.
func TestEarlierBootCannotBeTold(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(*HostLocal, *looks)
	}{
		{"no boot id", func(h *HostLocal, _ *looks) { h.Earlier.Boot = "" }},
		{"a boot id that is no name", func(h *HostLocal, _ *looks) { h.Earlier.Boot = "../x" }},
		{"nobody can look", func(_ *HostLocal, l *looks) { l.err = errors.New("broken") }},
		{"a file in the folder's place", func(h *HostLocal, _ *looks) {
			h.Earlier.Dir = filepath.Join(h.DataDir, "file", "x")
			_ = os.WriteFile(filepath.Join(h.DataDir, "file"), nil, 0o600)
		}},
		{"a list that cannot be read", func(h *HostLocal, _ *looks) {
			_ = os.MkdirAll(h.Earlier.Dir, 0o755)
			_ = os.WriteFile(h.Earlier.path(), []byte("[{"), 0o600)
		}},
		{"nobody knows of boots", func(h *HostLocal, _ *looks) { h.Earlier = Earlier{} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, dir := serve(t, pool, "")
			l := &looks{}
			h = earlier(t, h, "boot-2", l)
			tt.set(&h, l)
			before := names("10.1.0.%d", 2, 5, "old\r\neth0")
			before.write(t, dir)
			if got := add(t, h, "n"); got != "10.1.0.6" {
				t.Errorf("got %s", got)
			}
			if got := add(t, h, "m"); !strings.HasPrefix(got, exhaustedText) || strings.Contains(got, "cannot be given back") == (h.Earlier.Look == nil) {
				t.Errorf("got %s", got)
			}
			got := read(t, dir)
			delete(got, "last_reserved_ip.0")
			if diff := cmp.Diff(merged(before, files{"10.1.0.6": "n\r\neth0"}), got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if got := (&memo{}).status(h, time.Second); !strings.Contains(got, "5 of 5 in use") {
				t.Errorf("STATUS says %q", got)
			}
		})
	}
}

// TestEarlierBootStatus: STATUS counts as free what ADD gives back, also while
// there is no list, and makes none.
func TestEarlierBootStatus(t *testing.T) {
	full := names("10.1.0.%d", 2, 6, "old\r\neth0")
	for _, tt := range []struct {
		name   string
		before files
		people people
		want   string
	}{
		{"all are free", full, people{}, ""},
		{"one is", merged(full, files{"10.1.0.2": "web\r\neth0", "10.1.0.3": "web\r\neth0", "10.1.0.4": "web\r\neth0", "10.1.0.5": "web\r\neth0"}), people{live: []string{"web"}}, ""},
		{"none is", full, people{live: []string{"old"}}, "no addresses available: range set 10.1.0.1-10.1.0.6: 5 of 5 in use for 0 s (statusGrace of 0 s is over), in DATA/net1"},
		{"records of an earlier boot", full, people{left: []string{"old"}}, ""},
		{"strangers", full, people{strangers: true}, "no addresses available: range set 10.1.0.1-10.1.0.6: 5 of 5 in use for 0 s (statusGrace of 0 s is over), in DATA/net1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, dir := serve(t, pool, "")
			h = earlier(t, h, "boot-2", &looks{people: tt.people})
			tt.before.write(t, dir)
			m := &memo{}
			if got := m.status(h, time.Second); got != tt.want {
				t.Errorf("error %s\nwant  %s", got, tt.want)
			}
			if _, err := os.Lstat(h.Earlier.Dir); err == nil {
				t.Error("STATUS made the list's folder")
			}
			s := &store{dir: dir, network: "net1"}
			if err := h.Earlier.ensure(t.Context(), s); err != nil { // as ADD does
				t.Fatal(err)
			}
			if got := m.status(h, 2*time.Second); strings.Replace(got, "for 1 s", "for 0 s", 1) != tt.want {
				t.Errorf("with a list: error %s\nwant  %s", got, tt.want)
			}
		})
	}
}

// TestEarlierBootStatusSeesTheList: a tally is of the list that was there.
func TestEarlierBootStatusSeesTheList(t *testing.T) {
	h, dir := serve(t, pool, "")
	l := &looks{err: errors.New("broken")}
	h = earlier(t, h, "boot-2", l)
	names("10.1.0.%d", 2, 6, "old\r\neth0").write(t, dir)
	m := &memo{}
	for at := 1; at <= 6; at += 5 {
		if got := m.status(h, time.Duration(at)*time.Second); got == "" {
			t.Error("nobody can look, and addresses are free")
		}
	}
	l.err = nil
	if err := h.Earlier.ensure(t.Context(), &store{dir: dir, network: "net1"}); err != nil {
		t.Fatal(err)
	}
	if got := m.status(h, 7*time.Second); got != "" {
		t.Error(got)
	}
}

// TestEarlierBootWhileAddsRun: many ADDs at once, each of which might take the
// list, with an address left for each. Who is being added has a record before
// it reserves; nothing of it is ever given back.
func TestEarlierBootWhileAddsRun(t *testing.T) {
	h, dir := serve(t, `"subnet":"10.1.0.0/27"`, "") // of 29
	names("10.1.0.%d", 2, 21, "old\r\neth0").write(t, dir)
	var mu sync.Mutex
	l := &looks{}
	h = earlier(t, h, "boot-2", l)
	h.Earlier.Look = func(context.Context) (Holders, error) {
		mu.Lock()
		defer mu.Unlock()
		return people{live: slices.Clone(l.live)}, nil
	}
	got := map[string]string{}
	var wg sync.WaitGroup
	for i := range 29 {
		wg.Go(func() {
			id := fmt.Sprint("c", i)
			mu.Lock()
			l.live = append(l.live, id)
			mu.Unlock()
			a := add(t, h, id)
			mu.Lock()
			defer mu.Unlock()
			if other := got[a]; other != "" {
				t.Errorf("%s has %s, %s has it", id, a, other)
			}
			got[a] = id
		})
	}
	wg.Wait()
	if left := read(t, dir); len(left) != 30 || len(got) != 29 {
		t.Errorf("%d files, %d addresses", len(left), len(got))
	}
}

// TestEarlierBootBesideTheReference: both sides work in one folder full of an
// earlier boot's reservations; what the reference reserves after the list is its.
func TestEarlierBootBesideTheReference(t *testing.T) {
	_, theirs, dir := sides(t, `"ranges":[[{"subnet":"10.1.0.0/23"}],[{"subnet":"fd00::/64"}]]`)
	h, err := parse(fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net1","ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.1.0.0/23"}],[{"subnet":"fd00::/64"}]]}}`, filepath.Dir(dir)), "")
	if err != nil {
		t.Fatal(err)
	}
	h = earlier(t, h, "boot-2", &looks{})
	ours := side{"ours", func(id string) ([]string, error) {
		r, err := h.Add(t.Context(), call(id))
		if err != nil {
			return nil, err
		}
		return leased(r), nil
	}, func(id string) error { return h.Del(t.Context(), call(id)) }}
	merged(names("10.1.0.%d", 2, 254, "old\r\neth0"), names("10.1.1.%d", 0, 99, "old\r\neth0")).write(t, dir)
	if err := errors.Join(h.Earlier.ensure(t.Context(), &store{dir: dir, network: "net1"})); err != nil {
		t.Fatal(err)
	}
	l := ledger{holds: map[string]string{}}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 60 {
				s := [...]side{ours, theirs}[w%2]
				id := fmt.Sprintf("c%d-%d", w, i)
				ips, err := s.add(id)
				if err != nil && s.name == "theirs" && strings.Contains(err.Error(), "no IP addresses available") {
					continue // the reference alone gives nothing back
				}
				if err != nil {
					t.Errorf("%s: %v", s.name, err)
				}
				l.enter(t, id, ips)
			}
		})
	}
	wg.Wait()
	got := read(t, dir)
	for name, content := range got {
		if strings.HasPrefix(content, "old") || strings.HasPrefix(name, "last") {
			delete(got, name)
		}
	}
	if diff := cmp.Diff(files(l.holds), got); diff != "" {
		t.Errorf("(-answered +reserved)\n%s", diff)
	}
}

// BenchmarkTakeList is the first ADD's share of a boot with a thousand
// reservations, without the look for who lives.
func BenchmarkTakeList(b *testing.B) {
	dir := b.TempDir()
	for i := range 1000 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("10.1.%d.%d", i/250, i%250)), []byte("old\r\neth0"), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	e := Earlier{Boot: "b", Look: (&looks{}).look}
	for b.Loop() {
		e.Dir = b.TempDir()
		if err := e.ensure(b.Context(), &store{dir: dir, network: "net1"}); err != nil {
			b.Fatal(err)
		}
	}
}
