package chain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace/read"
)

func TestDel(t *testing.T) {
	const (
		all    = "cni.DEL\n  cache.read\n  bridge\n  ipam\n  cache.delete\n"
		noFile = "cni.DEL\n  cache.read\n  bridge\n  ipam\n"
		broken = "cni.DEL\n  cache.read\n    cache.quarantine\n  bridge\n  ipam\n"
	)
	garbage := func(t *testing.T, h host) {
		t.Helper()
		path := h.records.File(web)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, 100), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	folder := func(t *testing.T, h host) {
		t.Helper()
		if err := os.MkdirAll(h.records.File(web), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	damaged := func(t *testing.T, h host) {
		t.Helper()
		h.attach(t)
		b, err := os.ReadFile(h.records.File(web))
		if err != nil {
			t.Fatal(err)
		}
		b[bytes.IndexByte(b, '\n')+10] ^= 1 // in the second line
		if err := os.WriteFile(h.records.File(web), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	attached := func(t *testing.T, h host) { t.Helper(); h.attach(t) }
	for _, tt := range []struct {
		name     string
		kind     kind
		prepare  func(*testing.T, host)
		broken   map[string]error
		tree     string
		said     []string
		left     []string
		state    cache.State
		err      string
		warnings []string
	}{
		{"attached", kind{}, attached, nil, all, []string{"lock", "bridge DEL", "ipam DEL"}, nil, cache.None, "", nil},
		{"attached, with dhcp", kind{early: true}, attached, nil, "cni.DEL\n  cache.read\n  ipam\n  bridge\n  cache.delete\n",
			[]string{"lock", "ipam DEL", "bridge DEL"}, nil, cache.None, "", nil},
		{"without addresses", kind{none: true}, func(*testing.T, host) {}, nil, "cni.DEL\n  cache.read\n  bridge\n", []string{"lock", "bridge DEL"}, nil, cache.None, "", nil},
		{"interrupted", kind{}, func(t *testing.T, h host) { t.Helper(); h.begin(t, intent()) }, nil, all, []string{"lock", "bridge DEL", "ipam DEL"}, nil, cache.None, "", nil},
		{"never attached", kind{}, func(*testing.T, host) {}, nil, noFile, []string{"lock", "bridge DEL", "ipam DEL"}, nil, cache.None, "", nil},
		{"the lock is held", kind{}, attached, map[string]error{"lock": errBroken}, "cni.DEL\n  cache.read [error]\n", []string{"lock"},
			[]string{"interface of net/c1:eth0", "address of net/c1:eth0"}, cache.Attached, "cache.read: broken", nil},
		{"the main step fails", kind{}, attached, map[string]error{"bridge DEL": errBroken}, "cni.DEL\n  cache.read\n  bridge [error]\n  ipam\n",
			[]string{"lock", "bridge DEL", "ipam DEL"}, []string{"interface of net/c1:eth0"}, cache.Deleting, "not everything could be removed: bridge: broken", nil},
		{"ipam fails", kind{}, attached, map[string]error{"ipam DEL": errBroken}, "cni.DEL\n  cache.read\n  bridge\n  ipam [error]\n",
			[]string{"lock", "bridge DEL", "ipam DEL"}, []string{"address of net/c1:eth0"}, cache.Deleting, "not everything could be removed: ipam: broken", nil},
		{"both fail", kind{early: true}, attached, map[string]error{"ipam DEL": errBroken, "bridge DEL": fs.ErrPermission}, "cni.DEL\n  cache.read\n  ipam [error]\n  bridge [error]\n",
			[]string{"lock", "ipam DEL", "bridge DEL"}, []string{"interface of net/c1:eth0", "address of net/c1:eth0"}, cache.Deleting, "not everything could be removed: ipam: broken\nbridge: permission denied", nil},
		{"the configuration has errors", kind{}, attached, map[string]error{"build": errBroken}, all, []string{"lock", "bridge DEL", "ipam DEL"}, nil, cache.None, "",
			[]string{"cni.DEL: configuration has errors: what can be read of it is used: broken"}},
		{"a step panics", kind{}, func(t *testing.T, h host) { t.Helper(); h.attach(t); h.panics = "bridge DEL" }, nil, "cni.DEL\n  cache.read\n  bridge [error]\n  ipam\n",
			[]string{"lock", "bridge DEL", "ipam DEL"}, []string{"interface of net/c1:eth0"}, cache.Deleting, "not everything could be removed: panic: a mistake", []string{"cni.DEL: panic"}},
		{"the record cannot be read", kind{}, garbage, nil, broken, []string{"lock", "bridge DEL", "ipam DEL"}, nil, cache.None, "",
			[]string{"cache.read: record cannot be read: it holds no line that can be read"}},
		{"the record is a folder", kind{}, folder, nil, broken, []string{"lock", "bridge DEL", "ipam DEL"}, nil, cache.None, "",
			[]string{"cache.read: record cannot be read: read RECORDS/net/c1:eth0: is no regular file of at most 67108864 bytes"}},
		{"the record is damaged", kind{}, damaged, nil, broken + "  cache.delete\n", []string{"lock", "bridge DEL", "ipam DEL"}, nil, cache.None, "",
			[]string{"cache.read: record is damaged: what can be read of it is used"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			tt.prepare(t, h)
			for what, err := range tt.broken {
				h.broken[what] = err
			}
			var err error
			op := record(t, "cni.DEL", func(ctx context.Context) { err = h.chain(tt.kind).Del(ctx, call()) })
			if got := text(err); got != tt.err {
				t.Errorf("error %s, want %s", got, tt.err)
			}
			if diff := cmp.Diff(tt.tree, read.Tree(op)); diff != "" {
				t.Errorf("spans (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(tt.said, h.said); diff != "" {
				t.Errorf("calls (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(tt.left, h.left()); diff != "" {
				t.Errorf("left (-want +got)\n%s", diff)
			}
			got := warnings(op)
			for i := range got {
				got[i] = strings.ReplaceAll(got[i], h.records.Path, "RECORDS")
			}
			if diff := cmp.Diff(tt.warnings, got); diff != "" {
				t.Errorf("warnings (-want +got)\n%s", diff)
			}
			if got := h.state(t); got != tt.state {
				t.Errorf("the record is %s, want %s", got, tt.state)
			}
		})
	}
}

// TestDelIsGivenTheRecord: the configuration that ADD used, and what it made.
func TestDelIsGivenTheRecord(t *testing.T) {
	h := newHost(t)
	h.attach(t)
	c := call()
	c.Conf, c.Args, c.NetNS = []byte(`{"name":"net","bridge":"edited"}`), "B=2", ""
	var err error
	op := record(t, "cni.DEL", func(ctx context.Context) { err = h.chain(kind{}).Del(ctx, c) })
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{conf + " A=1"}, h.built); diff != "" {
		t.Errorf("configurations (-want +got)\n%s", diff)
	}
	for _, what := range []string{"bridge DEL", "ipam DEL"} {
		got := h.calls[what]
		if string(got.Conf) != conf || got.Args != "A=1" || !got.Made.Known || !got.Made.ThisBoot || got.Made.Result == nil || got.Made.Reserved == nil || got.Before != nil {
			t.Errorf("%s is given %+v", what, got)
		}
	}
	if diff := cmp.Diff([]string{addSpan[36:52]}, links(op.Root)); diff != "" {
		t.Errorf("links (-want +got)\n%s", diff)
	}
}

// TestDelTwice: a DEL that did not end is taken up again; one that did is done.
func TestDelTwice(t *testing.T) {
	h := newHost(t)
	h.attach(t)
	h.broken["ipam DEL"] = errBroken
	if err := h.chain(kind{}).Del(t.Context(), call()); text(err) != "not everything could be removed: ipam: broken" || !errors.Is(err, ErrLeft) {
		t.Fatalf("error %v", err)
	}
	r, err := h.records.Read(web)
	if err != nil || r.State != cache.Deleting || r.Deleting != delSpan {
		t.Errorf("the record is %s by %s, %v", r.State, r.Deleting, err)
	}
	delete(h.broken, "ipam DEL")
	for range 3 {
		if err := h.chain(kind{}).Del(t.Context(), call()); err != nil {
			t.Error(err)
		}
	}
	if len(h.left()) > 0 || h.state(t) != cache.None {
		t.Errorf("left %v, record %s", h.left(), h.state(t))
	}
}

// TestDelPastItsDeadline: each step has its turn also when another used up the time.
func TestDelPastItsDeadline(t *testing.T) {
	h := newHost(t)
	h.attach(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h.each = func(what string) {
		if what == "bridge DEL" {
			cancel()
		}
	}
	err := h.chain(kind{}).Del(ctx, call())
	if diff := cmp.Diff([]string{"lock", "bridge DEL", "ipam DEL"}, h.said); diff != "" || len(h.left()) > 0 {
		t.Errorf("error %v, left %v; calls (-want +got)\n%s", err, h.left(), diff)
	}
}

// TestDelOfAnInterruptedAdd asks an executed IPAM plugin until it has answered,
// and does not ask one that never ran.
func TestDelOfAnInterruptedAdd(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\necho $CNI_COMMAND >>" + dir + "/said\n[ -e " + dir + "/ready ] && exit 0\n" + `echo '{"code":11,"msg":"later"}'` + "\nexit 1\n"
	if err := os.WriteFile(filepath.Join(dir, "fake"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		lines []func(*cache.Journal) error
		said  string
	}{
		{"it never ran", nil, ""},
		{"it ran", []func(*cache.Journal) error{func(j *cache.Journal) error { return j.Ran("ipam", delegates.Asked, true) }}, "DEL\nDEL\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			h.begin(t, intent(), tt.lines...)
			del := func() error {
				c := h.chain(kind{})
				c.Build = func([]byte, string) (Steps, error) {
					return Steps{Name: "bridge", Main: bridge{h.node}, IPAM: delegates.Plugin{Type: "fake", Step: "ipam"}, Late: true}, nil
				}
				asked := call()
				asked.Path = []string{dir}
				return c.Del(t.Context(), asked)
			}
			if err := del(); (err != nil) != (tt.said != "") {
				t.Errorf("first DEL: %v", err)
			}
			if err := os.WriteFile(filepath.Join(dir, "ready"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if tt.said != "" {
				if err := del(); err != nil {
					t.Errorf("second DEL: %v", err)
				}
			}
			_ = os.Remove(filepath.Join(dir, "ready"))
			said, err := os.ReadFile(filepath.Join(dir, "said"))
			if string(said) != tt.said || err != nil && !errors.Is(err, fs.ErrNotExist) || h.state(t) != cache.None {
				t.Errorf("the plugin was asked %q, record %s, %v", said, h.state(t), err)
			}
		})
	}
}

// TestDelWithoutARecord works with the runtime's configuration and prevResult,
// as far as that can be read.
func TestDelWithoutARecord(t *testing.T) {
	for _, tt := range []struct {
		name, prev string
		want       *types100.Result
	}{
		{"no prevResult", "", nil},
		{"a prevResult", `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}]}`, &types100.Result{CNIVersion: "1.1.0", Interfaces: []*types100.Interface{{Name: "eth0"}}}},
		{"one with entries that are null", `{"cniVersion":"1.1.0","interfaces":[null,{"name":"eth0"}]}`, &types100.Result{CNIVersion: "1.1.0", Interfaces: []*types100.Interface{{Name: "eth0"}}}},
		{"nonsense", `"nonsense"`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			c := call()
			c.Prev = json.RawMessage(tt.prev)
			if err := h.chain(kind{}).Del(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			for _, what := range []string{"bridge DEL", "ipam DEL"} {
				got := h.calls[what]
				if diff := cmp.Diff(tt.want, got.Before); diff != "" {
					t.Errorf("%s (-want +got)\n%s", what, diff)
				}
				if diff := cmp.Diff(delegates.Made{}, got.Made); diff != "" || string(got.Conf) != conf || string(got.Prev) != tt.prev {
					t.Errorf("%s is given %+v", what, got)
				}
			}
			if _, err := os.Lstat(h.records.Path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a folder was made: %v", err)
			}
		})
	}
}

// TestDelThatCanNotWriteItsRecord: what cannot be written down keeps nothing
// from being freed.
func TestDelThatCanNotWriteItsRecord(t *testing.T) {
	for _, tt := range []struct {
		name, err string
		spoil     func(t *testing.T, h host)
		warning   string
		state     cache.State
	}{
		{"a read-only disk", "not everything could be removed: open PATH: read-only file system", func(t *testing.T, h host) {
			t.Helper()
			if err := unix.Mount("", h.records.Path, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
		}, "", cache.Attached},
		{"a full disk", "", fill, "cni.DEL: record cannot be written: write PATH: no space left on device", cache.None},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			if err := errors.Join(os.Mkdir(h.records.Path, 0o700), unix.Mount("tmpfs", h.records.Path, "tmpfs", 0, "size=64k,nr_inodes=64")); err != nil {
				t.Skip("needs root: run make test")
			}
			t.Cleanup(func() { _ = unix.Unmount(h.records.Path, unix.MNT_DETACH) })
			h.attach(t)
			tt.spoil(t, h)
			var err error
			op := record(t, "cni.DEL", func(ctx context.Context) { err = h.chain(kind{}).Del(ctx, call()) })
			path := strings.NewReplacer(h.records.File(web), "PATH")
			if got := path.Replace(text(err)); got != tt.err {
				t.Errorf("error %s, want %s", got, tt.err)
			}
			// Whether the shorter last line has room in the last page depends on digits of times.
			if got := path.Replace(strings.Join(slices.Compact(warnings(op)), "; ")); got != tt.warning {
				t.Errorf("warnings %s, want %s", got, tt.warning)
			}
			if len(h.left()) > 0 || h.state(t) != tt.state {
				t.Errorf("left %v, record %s", h.left(), h.state(t))
			}
		})
	}
}

// fill leaves room for a DEL's last line, and none for its first, neither on the
// disk nor in the record's last page. A line's length depends on the digits of its
// time, which is more where the machine is busy: the page is filled by one line
// that is as long as the others leave it.
func fill(t *testing.T, h host) {
	t.Helper()
	const page, room = 4096, 130 // bytes; the last line has some 90, the first some 170
	r, err := h.records.Read(web)
	if err != nil {
		t.Fatal(err)
	}
	j, err := h.records.Open(r, web, time.Now())
	if err == nil {
		err = j.Begin("", "")
	}
	with, errRead := h.records.Read(web)
	if err := errors.Join(err, errRead); err != nil {
		t.Fatal(err)
	}
	line := with.Size - r.Size
	if err := j.Begin(strings.Repeat("p", int(2*page-with.Size%page-line-room)%page), ""); err != nil {
		t.Fatal(err)
	}
	big, err := os.Create(filepath.Join(h.records.Path, "big"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = big.Write(make([]byte, page))
	}
	if err := errors.Join(big.Close(), j.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestCheck(t *testing.T) {
	one, two := delegates.Finding{Code: "veth.missing", Expected: "a", Found: "b"}, delegates.Finding{Code: "reservation.missing", Expected: "c", Found: "d"}
	for _, tt := range []struct {
		name   string
		kind   kind
		broken map[string]error
		tree   string
		want   delegates.Findings
		err    string
	}{
		{"as it was made", kind{}, nil, "cni.CHECK\n  cache.read\n  bridge\n  ipam\n", nil, ""},
		{"without addresses", kind{none: true}, nil, "cni.CHECK\n  cache.read\n  bridge\n", nil, ""},
		{"findings of one step", kind{}, map[string]error{"bridge CHECK": delegates.Findings{one}}, "cni.CHECK\n  cache.read\n  bridge [error]\n  ipam\n",
			delegates.Findings{one}, "veth.missing: expected a, found b"},
		{"findings of both", kind{}, map[string]error{"bridge CHECK": delegates.Findings{one}, "ipam CHECK": delegates.Findings{two}}, "cni.CHECK\n  cache.read\n  bridge [error]\n  ipam [error]\n",
			delegates.Findings{one, two}, "veth.missing: expected a, found b; reservation.missing: expected c, found d"},
		{"one could not look", kind{}, map[string]error{"bridge CHECK": delegates.Findings{one}, "ipam CHECK": errBroken}, "cni.CHECK\n  cache.read\n  bridge [error]\n  ipam [error]\n",
			nil, "ipam: broken"},
		{"neither could look", kind{}, map[string]error{"bridge CHECK": errBroken, "ipam CHECK": errBroken}, "cni.CHECK\n  cache.read\n  bridge [error]\n  ipam [error]\n",
			nil, "bridge: broken\nipam: broken"},
		{"the configuration has errors", kind{}, map[string]error{"build": errBroken}, "cni.CHECK\n  cache.read\n", nil, "broken"},
		{"the lock is held", kind{}, map[string]error{"lock": errBroken}, "cni.CHECK\n  cache.read [error]\n", nil, "cache.read: broken"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			h.attach(t)
			for what, err := range tt.broken {
				h.broken[what] = err
			}
			var err error
			op := record(t, "cni.CHECK", func(ctx context.Context) { err = h.chain(tt.kind).Check(ctx, call()) })
			if diff := cmp.Diff(tt.tree, read.Tree(op)); diff != "" {
				t.Errorf("spans (-want +got)\n%s", diff)
			}
			var got delegates.Findings
			errors.As(err, &got)
			if diff := cmp.Diff(tt.want, got); diff != "" || text(err) != tt.err {
				t.Errorf("error %v, want %s (-want +got)\n%s", err, tt.err, diff)
			}
			if h.state(t) != cache.Attached || len(h.left()) != 2 {
				t.Errorf("it was touched: record %s, left %v", h.state(t), h.left())
			}
		})
	}
}

// TestCheckIsGiven the record, and without one what the runtime sent.
func TestCheckIsGiven(t *testing.T) {
	h := newHost(t)
	edited := call()
	edited.Conf, edited.Args = []byte(`{"name":"net","bridge":"edited"}`), "B=2"
	for _, what := range []struct {
		name, conf, args string
		known            bool
		links            []string
	}{
		{"no record", `{"name":"net","bridge":"edited"}`, "B=2", false, nil},
		{"a record", conf, "A=1", true, []string{addSpan[36:52]}},
	} {
		t.Run(what.name, func(t *testing.T) {
			if what.known {
				h.attach(t)
			}
			var err error
			op := record(t, "cni.CHECK", func(ctx context.Context) { err = h.chain(kind{}).Check(ctx, edited) })
			if err != nil {
				t.Error(err)
			}
			for _, step := range []string{"bridge CHECK", "ipam CHECK"} {
				c := h.calls[step]
				if string(c.Conf) != what.conf || c.Args != what.args || c.Made.Known != what.known || (c.Made.Result != nil) != what.known {
					t.Errorf("%s is given %+v", step, c)
				}
			}
			if diff := cmp.Diff(what.links, links(op.Root)); diff != "" {
				t.Errorf("links (-want +got)\n%s", diff)
			}
		})
	}
}
