package cache

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
)

// TestMend: a record with a hole is kept as it was, its good lines take its
// place, and it knows from then on that some are missing.
func TestMend(t *testing.T) {
	b := written(t)
	all := lines(b)
	for k := 1; k < len(all)-1; k++ {
		d, j := begin(t)
		_ = j.Close()
		broken := bytes.Clone(b)
		broken[bytes.Index(b, all[k])+1] ^= 1
		if err := os.WriteFile(d.File(web), broken, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := d.Read(web)
		if err != nil || !r.Damaged {
			t.Fatalf("line %d: damaged %t, %v", k, r.Damaged, err)
		}
		want := r.view()
		kept, err := d.Mend(&r)
		if was, errKept := os.ReadFile(kept); err != nil || errKept != nil || !bytes.Equal(was, broken) {
			t.Fatalf("line %d: %v, kept %d of %d bytes, %v", k, err, len(was), len(broken), errKept)
		}
		mended, err := d.Read(web)
		if diff := cmp.Diff(want, mended.view()); diff != "" || err != nil || mended.Damaged || mended.Made("boot-1").Known {
			t.Fatalf("line %d: %v, damaged %t, known %t (-want +got)\n%s", k, err, mended.Damaged, mended.Made("boot-1").Known, diff)
		}
		j, err = d.Open(r, web, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(j.Told(), j.Close()); err != nil {
			t.Fatal(err)
		}
		if after, err := d.Read(web); err != nil || !after.Told || after.Damaged {
			t.Errorf("line %d: told %t, damaged %t, %v", k, after.Told, after.Damaged, err)
		}
	}
}

// TestUnknownOfAHole: what a record with a hole or a torn tail does not tell of
// may have been done: a plugin's DEL is run.
func TestUnknownOfAHole(t *testing.T) {
	b := written(t)
	first := bytes.IndexByte(b, '\n') + 1
	for name, tt := range map[string]struct {
		b    []byte
		runs bool
	}{
		"whole":      {b[:first], false},
		"torn tail":  {b[:first+9], true},
		"a hole":     {append(append(bytes.Clone(b[:first]), "hole\n"...), sealed(`{"v":1,"kind":"told"}`)...), true},
		"was mended": {append(bytes.Clone(b[:first]), sealed(`{"v":1,"kind":"mended"}`)...), true},
	} {
		r := Replay(tt.b)
		if runs := r.Made("boot-1").To("ipam"); r.State != Interrupted || runs != tt.runs {
			t.Errorf("%s: %s, DEL is run: %t, want %t", name, r.State, runs, tt.runs)
		}
	}
}

// TestAnothersRecord: a record is one under its own name alone.
func TestAnothersRecord(t *testing.T) {
	d, _ := begin(t)
	other := delegates.Attachment{Network: "net", ContainerID: "c2", IfName: "eth0"}
	for _, name := range []string{d.File(other), filepath.Join(d.Path, "net", "copy")} {
		if err := os.Link(d.File(web), name); err != nil {
			t.Fatal(err)
		}
	}
	r, err := d.Read(other)
	if r.State != Unreadable || r.Network != "" || fmt.Sprint(err) != "it is the record of another attachment: net/c1:eth0" {
		t.Errorf("%+v, %v", r, err)
	}
	all, err := d.Of("net")
	strays := map[string]bool{}
	for _, s := range all {
		if s.State == Unreadable {
			strays[filepath.Base(s.Path)] = d.Stray(s)
		}
	}
	if diff := cmp.Diff(map[string]bool{"c2:eth0": false, "copy": true}, strays); diff != "" || err != nil || len(all) != 3 {
		t.Errorf("%d records, %v (-want +got)\n%s", len(all), err, diff)
	}
}

// TestNewerWithoutAnIntent: what a later version wrote in words of its own is no
// garbage.
func TestNewerWithoutAnIntent(t *testing.T) {
	if r := Replay(sealed(`{"v":2,"kind":"attachment"}`)); r.State != Unreadable || !r.Newer {
		t.Errorf("%s, newer %t", r.State, r.Newer)
	}
	if r := Replay(sealed(`{"v":1,"kind":"told"}`)); r.Newer {
		t.Error("this version's lines are newer")
	}
}

// TestLinks: no folder below the state directory is taken from behind a symbolic
// link; the state directory itself may be.
func TestLinks(t *testing.T) {
	for _, link := range []string{"", "attachments", "attachments/net", "networks", "quarantine"} {
		t.Run(link, func(t *testing.T) {
			state, outside := filepath.Join(t.TempDir(), "state"), t.TempDir()
			d := Dir{Path: filepath.Join(state, "attachments")}
			path := filepath.Join(state, link)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.Symlink(outside, path)); err != nil {
				t.Fatal(err)
			}
			j, errBegin := d.Begin(intent, time.Now())
			if errBegin == nil {
				_ = j.Close()
			}
			_, errRead := d.Read(web)
			_, errList := d.List()
			errMark := d.Mark("net")
			errQuarantine := error(nil)
			if errBegin == nil {
				_, errQuarantine = d.Quarantine(d.File(web), "why")
			}
			refused := map[string]bool{
				"begin": errors.Is(errBegin, unix.ELOOP), "read": errors.Is(errRead, ErrPlace), "list": errors.Is(errList, unix.ELOOP),
				"mark": errors.Is(errMark, unix.ELOOP), "quarantine": errors.Is(errQuarantine, unix.ELOOP), "place": errors.Is(d.Place("net"), ErrPlace),
			}
			records := strings.HasPrefix(link, "attachments")
			want := map[string]bool{
				"begin": records, "read": records, "list": link == "attachments", "mark": link == "networks", "quarantine": link == "quarantine", "place": records,
			}
			if diff := cmp.Diff(want, refused); diff != "" {
				t.Errorf("refused (-want +got)\n%s", diff)
			}
			if written, err := os.ReadDir(outside); err != nil || (len(written) > 0) != (link == "") {
				t.Errorf("outside has %v, %v", written, err)
			}
			if records && (!errors.Is(d.Unmark("net"), nil) || d.Empty("net") || d.Recorded(web)) {
				t.Error("what is behind the link counts")
			}
		})
	}
}

// TestQuarantineKeepsTheNewest, whatever they are.
func TestQuarantineKeepsTheNewest(t *testing.T) {
	d, j := begin(t)
	_ = j.Remove()
	var kept []string
	for i := range maxQuarantined + 3 {
		if err := os.MkdirAll(filepath.Join(d.File(web), "folder", fmt.Sprint(i)), 0o700); err != nil {
			t.Fatal(err)
		}
		to, err := d.Quarantine(d.File(web), "why")
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, to)
	}
	for i, path := range kept {
		_, err := os.Stat(path)
		_, errNote := os.Stat(path + ".why")
		if there := i >= 3; (err == nil) != there || (errNote == nil) != there {
			t.Errorf("%d: %v, its note %v", i, err, errNote)
		}
	}
}

// TestTrusted: who else could put something in the state directory, or another
// one in its place.
func TestTrusted(t *testing.T) {
	for _, tt := range []struct {
		name         string
		above, state os.FileMode // 0 where the state directory is not there
		owner, group int
		want         string
	}{
		{"as we make it", 0o755, 0o700, 0, 0, ""},
		{"missing", 0o755, 0, 0, 0, ""},
		{"all may write to it", 0o755, 0o702, 0, 0, "trust DIR/above/state: mode 0702 lets others write to it"},
		{"a group may", 0o755, 0o720, 0, 1000, "trust DIR/above/state: mode 0720 lets others write to it"},
		{"sticky", 0o755, 0o777 | os.ModeSticky, 0, 0, ""},
		{"sticky, and planted", 0o755, 0o777 | os.ModeSticky, 0, 0, "trust DIR/above/state/networks: it is owned by user 4711"},
		{"another's", 0o755, 0o700, 4711, 0, "trust DIR/above/state: it is owned by user 4711"},
		{"as we make it, and all may write above", 0o777, 0o700, 0, 0, "trust DIR/above: mode 0777 lets others write to it"},
		{"as we make it, and sticky above", 0o777 | os.ModeSticky, 0o700, 0, 0, ""},
		{"of another mode, and all may write above", 0o777, 0o750, 0, 0, "trust DIR/above: mode 0777 lets others write to it"},
		{"missing, and all may write above", 0o777, 0, 0, 0, "trust DIR/above: mode 0777 lets others write to it"},
		{"missing, and sticky above", 0o777 | os.ModeSticky, 0, 0, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			state := filepath.Join(dir, "above", "state")
			err := os.Mkdir(filepath.Dir(state), 0o700)
			if tt.state != 0 {
				err = errors.Join(err, os.Mkdir(state, 0o700), os.Chmod(state, tt.state), os.Chown(state, tt.owner, tt.group))
			}
			if tt.name == "sticky, and planted" {
				err = errors.Join(err, os.Mkdir(filepath.Join(state, "networks"), 0o700), os.Chown(filepath.Join(state, "networks"), 4711, 0))
			}
			if err := errors.Join(err, os.Chmod(filepath.Dir(state), tt.above)); err != nil {
				t.Skipf("%v: run make test as root", err)
			}
			got := ""
			if err := (Dir{Path: filepath.Join(state, "attachments")}).Trusted(); err != nil {
				got = strings.TrimPrefix(strings.ReplaceAll(err.Error(), dir, "DIR"), ErrOpen.Error()+": ")
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestTrustedBehindLinks: a link is as safe as where it stands, what it leads to,
// and who may change it.
func TestTrustedBehindLinks(t *testing.T) {
	for _, tt := range []struct {
		name          string
		stands, leads os.FileMode
		owner         int
		above         bool // the link is a folder above the state directory
		want          string
	}{
		{"the state directory", 0o755, 0o755, 0, false, ""},
		{"all may write where it stands", 0o777, 0o755, 0, false, "trust DIR/stands: mode 0777 lets others write to it"},
		{"all may write where it leads", 0o755, 0o777, 0, false, "trust DIR/leads: mode 0777 lets others write to it"},
		{"another's, among those of many", 0o777 | os.ModeSticky, 0o755, 4711, false, "trust DIR/stands/link: it is owned by user 4711"},
		{"a folder above", 0o755, 0o755, 0, true, ""},
		{"a folder above, and all may write where it leads", 0o755, 0o777, 0, true, "trust DIR/leads: mode 0777 lets others write to it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			stands, leads, link := filepath.Join(dir, "stands"), filepath.Join(dir, "leads"), filepath.Join(dir, "stands", "link")
			err := errors.Join(os.Mkdir(stands, 0o700), os.MkdirAll(filepath.Join(leads, "real", "state"), 0o700), os.Symlink(filepath.Join(leads, "real"), link),
				os.Lchown(link, tt.owner, 0), os.Chmod(stands, tt.stands), os.Chmod(leads, tt.leads))
			if err != nil {
				t.Skipf("%v: run make test as root", err)
			}
			state := link
			if tt.above {
				state = filepath.Join(link, "state")
			}
			got := ""
			if err := (Dir{Path: filepath.Join(state, "attachments")}).Trusted(); err != nil {
				got = strings.TrimPrefix(strings.ReplaceAll(err.Error(), dir, "DIR"), ErrOpen.Error()+": ")
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
