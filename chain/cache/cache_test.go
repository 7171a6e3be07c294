package cache

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
)

var (
	web    = delegates.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"}
	intent = Intent{
		Attachment: web, Conf: json.RawMessage(`{"name":"net","bridge":"b<0>"}`), Args: "IgnoreUnknown=1;K8S_POD_NAME=\"web\"\n",
		NetNS: "/run/netns/c1", Inode: 4026531840, Cookie: 1<<63 + 5, Boot: "boot-1", Runtime: "/usr/bin/containerd", Span: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	}
)

// named is a result that is told from others by an interface's name.
func named(name string) *types100.Result {
	return &types100.Result{CNIVersion: "1.1.0", Interfaces: []*types100.Interface{{Name: name, Mac: "0a:58:0a:01:00:02", Sandbox: "/run/netns/c1"}}}
}

// view is all that a record tells its readers. Times, which differ, are left out.
type view struct {
	Intent
	State                  State
	Reserved, Plan, Result string // the interface's name
	Steps                  map[string]delegates.Ran
	Told                   bool
	Deleting               string
	Phases                 []string // in the order they began; an open one ends in " ..."
}

func (r *Record) view() view {
	v := view{Intent: r.Intent, State: r.State, Steps: r.Steps, Told: r.Told, Deleting: r.Deleting}
	for _, x := range []struct {
		to *string
		r  Result
	}{{&v.Reserved, r.Reserved}, {&v.Plan, r.Plan}, {&v.Result, r.Result}} {
		if got := x.r.Get(); got != nil && len(got.Interfaces) > 0 {
			*x.to = got.Interfaces[0].Name
		}
	}
	for _, p := range r.Phases() {
		if p.End == 0 {
			p.Name += " ..."
		}
		v.Phases = append(v.Phases, p.Name)
	}
	return v
}

// begin begins a journal in a folder of its own, opened no longer than the test runs.
func begin(t testing.TB) (Dir, *Journal) {
	t.Helper()
	d := Dir{Path: filepath.Join(t.TempDir(), "attachments")}
	j, err := d.Begin(intent, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return d, j
}

// step is one thing that is written down.
type step struct {
	name string
	do   func(*Journal) error
	then func(*view) // what it changes
}

// asked tells that IPAM's plugin was run.
func asked() map[string]delegates.Ran { return map[string]delegates.Ran{"ipam": delegates.Asked} }

// asks writes down that IPAM is asked.
func asks(j *Journal, durable bool) func() error {
	return func() error { return j.Ran("ipam", delegates.Asked, durable) }
}

func phase(v *view, name string) { v.Phases = append(v.Phases, name) }

// add is the lines of an ADD whose addresses come from an executed plugin, in
// the middle of another phase.
var add = []step{
	{"begin veth.create", func(j *Journal) error { return j.Begin("veth.create", "") }, func(v *view) { phase(v, "veth.create ...") }},
	{"plan", func(j *Journal) error { return j.Plan(named("plan")) }, func(v *view) { v.Plan = "plan" }},
	{"asked", func(j *Journal) error { return j.Ran("ipam", delegates.Asked, true) }, func(v *view) { v.Steps = asked() }},
	{"begin exec", func(j *Journal) error { return j.Begin("exec", "") }, func(v *view) { phase(v, "exec ...") }},
	{"reserved", func(j *Journal) error { return errors.Join(j.End("exec"), j.Reserved(named("reserved"))) }, func(v *view) { v.Phases[1], v.Reserved = "exec", "reserved" }},
	{"a later plan", func(j *Journal) error { return j.Plan(named("plan2")) }, func(v *view) { v.Plan = "plan2" }},
	{"begin route.add", func(j *Journal) error { return errors.Join(j.End("veth.create"), j.Begin("route.add", "")) }, func(v *view) { v.Phases[0] = "veth.create"; phase(v, "route.add ...") }},
	{"result", func(j *Journal) error { return errors.Join(j.End("route.add"), j.Result(named("result"))) }, func(v *view) { v.Phases[2], v.Result, v.State = "route.add", "result", Attached }},
	{"told", func(j *Journal) error { return j.Told() }, func(v *view) { v.Told = true }},
}

var del = []step{
	{"deleting", func(j *Journal) error { return j.Deleting(Operation{Name: "cni.DEL", Span: "00-del"}) }, func(v *view) { v.Deleting, v.State, v.Phases, v.Told = "00-del", Deleting, nil, false }},
	{"begin of DEL's", func(j *Journal) error { return j.Begin("veth.remove", "") }, func(v *view) { phase(v, "veth.remove ...") }},
}

// TestJournal: what was written so far is read back after each line, as after
// a kill, and the writer sees the same.
func TestJournal(t *testing.T) {
	d, j := begin(t)
	want := view{Intent: intent, State: Interrupted}
	for _, l := range append([]step{{"intent", func(*Journal) error { return nil }, func(*view) {}}}, append(add, del...)...) {
		if err := l.do(j); err != nil {
			t.Fatalf("%s: %v", l.name, err)
		}
		l.then(&want)
		r, err := d.Read(web)
		if err != nil || r.Damaged {
			t.Fatalf("%s: %v, damaged %t", l.name, err, r.Damaged)
		}
		if diff := cmp.Diff(want, r.view()); diff != "" {
			t.Errorf("%s: read (-want +got)\n%s", l.name, diff)
		}
		if diff := cmp.Diff(want, j.Record().view()); diff != "" {
			t.Errorf("%s: written (-want +got)\n%s", l.name, diff)
		}
		if since := time.Since(r.Began); since < 0 || since > time.Minute {
			t.Errorf("%s: began %s ago", l.name, since)
		}
	}
	if err := j.Remove(); err != nil {
		t.Error(err)
	}
	if r, err := d.Read(web); err != nil || r.State != None {
		t.Errorf("after the removal: %s, %v", r.State, err)
	}
}

func TestPhasesOfOneName(t *testing.T) {
	_, j := begin(t)
	for _, do := range []func() error{
		func() error { return j.Begin("a", "") }, func() error { return j.Begin("a", "") }, func() error { return j.Begin("b", "") },
		func() error { return j.End("a") }, func() error { return j.End("never began") }, j.Told,
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"a ...", "a", "b ..."}, j.Record().view().Phases); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, p := range j.Record().Phases() {
		if p.Begin <= 0 || p.End != 0 && p.End < p.Begin || p.End > time.Minute {
			t.Errorf("%+v", p)
		}
	}
}

func TestMade(t *testing.T) {
	write := func(names ...string) func(*Journal) error {
		return func(j *Journal) (err error) {
			for _, l := range append(add, del...) {
				for _, n := range names {
					if l.name == n {
						err = errors.Join(err, l.do(j))
					}
				}
			}
			return err
		}
	}
	interrupted := delegates.Made{Known: true, ThisBoot: true, Cookie: intent.Cookie}
	for _, tt := range []struct {
		name, boot string
		do         func(*Journal) error
		want       delegates.Made
	}{
		{"interrupted", "boot-1", write(), interrupted},
		{"of an earlier boot", "boot-2", write(), delegates.Made{Known: true, Cookie: intent.Cookie}},
		{"planned", "boot-1", write("plan"), delegates.Made{Known: true, ThisBoot: true, Cookie: intent.Cookie, Result: named("plan")}},
		{"asked for addresses", "boot-1", write("asked"), delegates.Made{Known: true, ThisBoot: true, Cookie: intent.Cookie, Steps: asked()}},
		{"asked, and a DEL did not end", "boot-1", write("asked", "deleting"), delegates.Made{Known: true, ThisBoot: true, Cookie: intent.Cookie, Steps: asked()}},
		{"reserved", "boot-1", write("reserved"), delegates.Made{Known: true, ThisBoot: true, Cookie: intent.Cookie, Reserved: named("reserved")}},
		{"attached", "boot-1", write("plan", "asked", "reserved", "result"), delegates.Made{Known: true, ThisBoot: true, Cookie: intent.Cookie, Steps: asked(), Reserved: named("reserved"), Result: named("result")}},
		{"deleting", "boot-1", write("asked", "reserved", "result", "deleting"), delegates.Made{Known: true, ThisBoot: true, Cookie: intent.Cookie, Steps: asked(), Reserved: named("reserved"), Result: named("result")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, j := begin(t)
			if err := tt.do(j); err != nil {
				t.Fatal(err)
			}
			r, err := d.Read(web)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, r.Made(tt.boot)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	for _, s := range []State{None, Unreadable} {
		if diff := cmp.Diff(delegates.Made{}, (&Record{State: s}).Made("boot-1")); diff != "" {
			t.Errorf("%s (-want +got)\n%s", s, diff)
		}
	}
}

func TestBeginTwice(t *testing.T) {
	d, _ := begin(t)
	before, err := os.ReadFile(d.File(web))
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Begin(intent, time.Now())
	if want := "create " + d.File(web) + ": file exists"; !errors.Is(err, fs.ErrExist) || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if after, _ := os.ReadFile(d.File(web)); !bytes.Equal(before, after) {
		t.Error("the journal was touched")
	}
}

func TestBeginWithoutAConfiguration(t *testing.T) {
	d := Dir{Path: t.TempDir()}
	in := intent
	in.Conf = json.RawMessage(`{"name":`)
	_, err := d.Begin(in, time.Now())
	if got, want := fmt.Sprint(err), d.File(web)+": conf: unexpected end of JSON input"; got != want {
		t.Errorf("error %s, want %s", got, want)
	}
	if _, err := os.Lstat(d.File(web)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the journal is left: %v", err)
	}
}

func TestModes(t *testing.T) {
	d, _ := begin(t)
	path := d.File(web)
	for p, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): fs.ModeDir | 0o700, d.Path: fs.ModeDir | 0o700} {
		if st, err := os.Lstat(p); err != nil || st.Mode() != want {
			t.Errorf("%s: %v, %v, want mode %s", p, st.Mode(), err, want)
		}
	}
}

func TestPath(t *testing.T) {
	long := strings.Repeat("x", 300)
	all := []delegates.Attachment{
		{Network: "a-b", ContainerID: "c", IfName: "e"}, {Network: "a", ContainerID: "b-c", IfName: "e"},
		{Network: "a", ContainerID: "b", IfName: "c-e"}, {Network: "a", ContainerID: "b-c-e"}, {Network: "a", ContainerID: "b_c", IfName: "e"},
		{Network: "a.b", ContainerID: "c", IfName: "e"}, {Network: "a", ContainerID: ".b.c", IfName: "e"},
		{Network: "A-b", ContainerID: "c", IfName: "e"}, {Network: "a", ContainerID: "B-c", IfName: "e"},
		{Network: long, ContainerID: "c", IfName: "e"}, {Network: long + "y", ContainerID: "c", IfName: "e"}, {Network: long[:255], ContainerID: "c", IfName: "e"},
		{Network: "a", ContainerID: long, IfName: "e"}, {Network: "a", ContainerID: long, IfName: "f"}, {Network: "a", ContainerID: long + "y", IfName: "e"},
		{Network: "a", ContainerID: long[:253], IfName: "e"}, {Network: "a", ContainerID: long[:254], IfName: "e"},
	}
	seen := map[string]delegates.Attachment{}
	for _, a := range all {
		path := Dir{Path: "/d"}.File(a)
		if other, taken := seen[path]; taken {
			t.Errorf("%s and %s share %s", a, other, path)
		}
		seen[path] = a
		parts := strings.Split(path, "/")
		if len(parts) != 4 || len(parts[2]) > 255 || len(parts[3]) > 255 {
			t.Errorf("%s is at %s", a, path)
		}
	}
	if got := (Dir{Path: "/d"}).File(web); got != "/d/net/c1:eth0" {
		t.Errorf("%s is at %s", web, got)
	}
}

func TestLongNamesAreKept(t *testing.T) {
	d := Dir{Path: t.TempDir()}
	in := intent
	in.ContainerID = strings.Repeat("c", 1000)
	j, err := d.Begin(in, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = j.Close() }()
	if r, err := d.Read(in.Attachment); err != nil || r.ContainerID != in.ContainerID {
		t.Errorf("read %d letters: %v", len(r.ContainerID), err)
	}
}

// TestNoRecordFile: what is at the record's path and is no file of records.
func TestNoRecordFile(t *testing.T) {
	const noFile = "read PATH: is no regular file of at most 67108864 bytes"
	for _, tt := range []struct {
		name        string
		make        func(path string) error
		state       State
		read, begin string
	}{
		{"nothing", func(string) error { return nil }, None, "", ""},
		{"a symbolic link", func(p string) error {
			if err := os.WriteFile(p+".elsewhere", nil, 0o600); err != nil {
				return err
			}
			return os.Symlink(p+".elsewhere", p)
		}, Unreadable, "open PATH: too many levels of symbolic links", "create PATH: file exists"},
		{"a link to nothing", func(p string) error { return os.Symlink(p+".none", p) }, Unreadable, "open PATH: too many levels of symbolic links", "create PATH: file exists"},
		{"a folder", func(p string) error { return os.Mkdir(p, 0o700) }, Unreadable, noFile, "create PATH: file exists"},
		{"a pipe", func(p string) error { return unix.Mkfifo(p, 0o600) }, Unreadable, noFile, "create PATH: file exists"},
		{"a file in the folder's place", func(p string) error {
			return errors.Join(os.Remove(filepath.Dir(p)), os.WriteFile(filepath.Dir(p), nil, 0o600))
		}, None, "records have no place: open FOLDER: not a directory", "create PATH: not a directory"},
		{"a socket", func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o600, 0) }, Unreadable, "open PATH: no such device or address", "create PATH: file exists"},
		{"a link in the folder's place", func(p string) error {
			return errors.Join(os.Remove(filepath.Dir(p)), os.Symlink(t.TempDir(), filepath.Dir(p)))
		}, None, "records have no place: open FOLDER: too many levels of symbolic links", "create PATH: too many levels of symbolic links"},
		{"a file that is longer than any record", func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Truncate(p, maxRecord+1)) }, Unreadable, noFile, "create PATH: file exists"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := Dir{Path: t.TempDir()}
			path := d.File(web)
			if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), tt.make(path)); err != nil {
				t.Fatal(err)
			}
			said := func(err error) string {
				if err == nil {
					return ""
				}
				return strings.NewReplacer(path, "PATH", filepath.Dir(path), "FOLDER").Replace(err.Error())
			}
			r, err := d.Read(web)
			if r.State != tt.state || said(err) != tt.read {
				t.Errorf("read: %s, %v, want %s and %q", r.State, err, tt.state, tt.read)
			}
			j, err := d.Begin(intent, time.Now())
			if said(err) != tt.begin {
				t.Errorf("begin: %v, want %q", err, tt.begin)
			}
			if err == nil {
				_ = j.Close()
			}
		})
	}
}

func TestOpenRefusesASymbolicLink(t *testing.T) {
	d, j := begin(t)
	path := d.File(web)
	if err := errors.Join(j.Told(), os.Rename(path, path+".moved"), os.Symlink(path+".moved", path)); err != nil {
		t.Fatal(err)
	}
	_, err := d.Open(*j.Record(), web, time.Now())
	if got, want := fmt.Sprint(err), "open "+path+": too many levels of symbolic links"; got != want {
		t.Errorf("error %s, want %s", got, want)
	}
}

func TestRemoveOfWhatIsGone(t *testing.T) {
	d, j := begin(t)
	if err := os.Remove(d.File(web)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.Told(), j.Remove()); err != nil {
		t.Error(err)
	}
}

// TestFullDisk: a short write is undone, so that the journal is whole, and the
// next one that fits is read back.
func TestFullDisk(t *testing.T) {
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=64k,nr_inodes=64"); err != nil {
		t.Skip("needs root: run make test")
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	d := Dir{Path: root}
	j, err := d.Begin(intent, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	big, err := os.Create(filepath.Join(root, "big"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = big.Write(make([]byte, 4096))
	}
	_ = big.Close()
	before, err := os.ReadFile(d.File(web))
	if err != nil {
		t.Fatal(err)
	}
	long := named(strings.Repeat("x", 8192)) // what is left of the journal's page is less
	if got, want := fmt.Sprint(j.Plan(long)), "write "+d.File(web)+": no space left on device"; got != want {
		t.Errorf("error %s, want %s", got, want)
	}
	if after, _ := os.ReadFile(d.File(web)); !bytes.Equal(before, after) {
		t.Errorf("%d bytes became %d", len(before), len(after))
	}
	other := intent
	other.ContainerID = "c2"
	other.Args = strings.Repeat("x", 8192)
	if _, err := d.Begin(other, time.Now()); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("begin: %v", err)
	}
	if _, err := os.Lstat(d.File(other.Attachment)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a record without an intent is left: %v", err)
	}
	if err := errors.Join(os.Remove(big.Name()), j.Result(long)); err != nil {
		t.Fatal(err)
	}
	r, err := d.Read(web)
	want := view{Intent: intent, State: Attached, Result: long.Interfaces[0].Name}
	if diff := cmp.Diff(want, r.view()); diff != "" || err != nil || r.Damaged {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if err := errors.Join(j.Close(), unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	_, err = d.Open(r, web, time.Now())
	if got, want := fmt.Sprint(err), "open "+d.File(web)+": read-only file system"; got != want {
		t.Errorf("error %s, want %s", got, want)
	}
}

// TestSync: what makes the record outlive a power cut opens the folders that
// its name stands in, for that alone.
func TestSync(t *testing.T) {
	for _, tt := range []struct {
		sync                  string
		asked, kernel, result int // times by then
	}{{"auto", 1, 1, 1}, {"always", 1, 2, 3}, {"never", 0, 0, 0}} {
		t.Run(tt.sync, func(t *testing.T) {
			d := Dir{Path: filepath.Join(t.TempDir(), "state", "attachments"), Sync: tt.sync}
			j, err := d.Begin(intent, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = j.Close() }()
			state := filepath.Dir(d.Path)
			synced := map[string]func() int{}
			for _, dir := range []string{filepath.Dir(d.File(web)), d.Path, state} {
				synced[dir] = opened(t, dir)
			}
			for _, x := range []struct {
				name string
				do   func() error
				want int
			}{
				{"told", j.Told, 0},
				{"asked", asks(j, true), tt.asked},
				{"asked of kernel state", asks(j, false), tt.kernel},
				{"freed", func() error { return j.Ran("ipam", delegates.Freed, true) }, tt.kernel},
				{"result", func() error { return j.Result(named("x")) }, tt.result},
			} {
				if err := x.do(); err != nil {
					t.Fatal(err)
				}
				for dir, count := range synced {
					if got := count(); got != x.want {
						t.Errorf("%s: %s was synced %d times, want %d", x.name, dir, got, x.want)
					}
				}
			}
		})
	}
}

// opened counts how often the folder itself was opened since.
func opened(t *testing.T, dir string) func() int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Skipf("needs inotify: %v", err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_OPEN|unix.IN_ONLYDIR); err != nil {
		t.Fatal(err)
	}
	total := 0
	return func() int {
		buf := make([]byte, 64<<10)
		for n, _ := unix.Read(fd, buf); n >= unix.SizeofInotifyEvent; {
			size := unix.SizeofInotifyEvent + int(buf[12]) // of the name: nothing for the folder itself
			if size == unix.SizeofInotifyEvent {
				total++
			}
			copy(buf, buf[size:n])
			n -= size
		}
		return total
	}
}

// TestSyncFails: a folder that is gone cannot be synced, and no plugin may run.
func TestSyncFails(t *testing.T) {
	d, j := begin(t)
	folder := filepath.Dir(d.File(web))
	if err := os.Rename(folder, folder+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := asks(j, true)(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func TestQuarantine(t *testing.T) {
	long := web
	long.ContainerID = strings.Repeat("c", 1000)
	for name, a := range map[string]delegates.Attachment{"a name": web, "a long one": long} {
		t.Run(name, func(t *testing.T) {
			d := Dir{Path: filepath.Join(t.TempDir(), "attachments")}
			if err := errors.Join(os.MkdirAll(filepath.Dir(d.File(a)), 0o700), os.WriteFile(d.File(a), []byte("garbage"), 0o600)); err != nil {
				t.Fatal(err)
			}
			to, err := d.Quarantine(d.File(a), "it is garbage")
			if err != nil {
				t.Fatal(err)
			}
			if filepath.Dir(to) != filepath.Join(filepath.Dir(d.Path), "quarantine") {
				t.Errorf("it is at %s", to)
			}
			for path, want := range map[string]string{to: "garbage", to + ".why": d.File(a) + ": it is garbage\n"} {
				if b, err := os.ReadFile(path); err != nil || string(b) != want {
					t.Errorf("%s holds %q: %v", path, b, err)
				}
			}
			if r, err := d.Read(a); err != nil || r.State != None {
				t.Errorf("the record is %s, %v", r.State, err)
			}
			if _, err := d.Quarantine(d.File(a), "again"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestBootID(t *testing.T) {
	if b := BootID(); len(b) != 36 || b != BootID() {
		t.Errorf("boot id %q", b)
	}
}
