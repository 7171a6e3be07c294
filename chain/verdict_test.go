package chain

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// verdictFile is one whose folder nobody has made.
func verdictFile(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "net-1", "status")
}

// settle is a whole STATUS: what a step keeps, whether it warns, how it ends.
func settle(path string, kept int, warn bool, failure string) News {
	v := ReadVerdict(path)
	n := notes{v, "ipam"}
	if kept != 0 {
		n.Keep(kept)
	}
	if warn {
		n.Tell()
	}
	return v.Settle(failure, "trace of "+failure)
}

// TestVerdict: what is news, and what is written down.
func TestVerdict(t *testing.T) {
	path := verdictFile(t)
	for i, step := range []struct {
		kept    int
		warn    bool
		failure string
		want    News
		file    string
	}{
		{0, false, "", Nothing, ""}, // nothing to keep: no file
		{5, false, "", Nothing, `{"steps":{"ipam":5}}`},
		{5, false, "", Nothing, `{"steps":{"ipam":5}}`},
		{6, true, "", Warning, `{"steps":{"ipam":6}}`},
		{6, false, "", Nothing, `{"steps":{"ipam":6}}`},
		{7, false, "no room: 5 of 5", Change, `{"reason":"no room # of #","trace":"trace of no room: 5 of 5","steps":{"ipam":7}}`},
		{7, false, "no room: 6 of 6", Nothing, `{"reason":"no room # of #","trace":"trace of no room: 5 of 5","steps":{"ipam":7}}`},
		{8, true, "no room: 6 of 6", Warning, `{"reason":"no room # of #","trace":"trace of no room: 5 of 5","steps":{"ipam":8}}`},
		{8, false, "no bridge", Change, `{"reason":"no bridge","trace":"trace of no bridge","steps":{"ipam":8}}`},
		{0, false, "no bridge", Nothing, `{"reason":"no bridge","trace":"trace of no bridge","steps":{"ipam":8}}`}, // a step that was not asked
		{9, true, "", Change, `{"steps":{"ipam":9}}`},
	} {
		if got := settle(path, step.kept, step.warn, step.failure); got != step.want {
			t.Errorf("step %d: news %d, want %d", i, got, step.want)
		}
		b, _ := os.ReadFile(path)
		if diff := cmp.Diff(step.file, string(b)); diff != "" {
			t.Errorf("step %d: file (-want +got)\n%s", i, diff)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestVerdictIsNotWrittenAgain: a STATUS that found the same touches nothing.
func TestVerdictIsNotWrittenAgain(t *testing.T) {
	path := verdictFile(t)
	settle(path, 5, false, "no room")
	var before, after unix.Stat_t
	if err := unix.Stat(path, &before); err != nil {
		t.Fatal(err)
	}
	settle(path, 5, false, "no room")
	if err := unix.Stat(path, &after); err != nil || before.Ino != after.Ino || before.Ctim != after.Ctim {
		t.Errorf("%+v, before %+v, %v", after, before, err)
	}
}

func TestVerdictTrace(t *testing.T) {
	path := verdictFile(t)
	if got := ReadVerdict(path).Trace("no room: 5", "own"); got != "own" {
		t.Errorf("the first: %s", got)
	}
	settle(path, 0, false, "no room: 5")
	v := ReadVerdict(path)
	if got := v.Trace("no room: 6", "own"); got != "trace of no room: 5" {
		t.Errorf("the same: %s", got)
	}
	if got := v.Trace("no bridge", "own"); got != "own" {
		t.Errorf("another: %s", got)
	}
}

// TestVerdictOfStrangeFiles: what is no verdict of ours counts as none, and is
// written over; where that cannot be there is never any news.
func TestVerdictOfStrangeFiles(t *testing.T) {
	for _, tt := range []struct {
		name   string
		make   func(path string) error
		silent bool
	}{
		{"garbage", func(path string) error { return os.WriteFile(path, []byte("{\x00garbage"), 0o600) }, false},
		{"empty", func(path string) error { return os.WriteFile(path, nil, 0o600) }, false},
		{"another document", func(path string) error { return os.WriteFile(path, []byte(`["x"]`), 0o600) }, false},
		{"steps of another type", func(path string) error { return os.WriteFile(path, []byte(`{"steps":{"ipam":"x"}}`), 0o600) }, false},
		{"huge", func(path string) error {
			return errors.Join(os.WriteFile(path, []byte(`{"reason":"no room"}`), 0o600), os.Truncate(path, 1<<40))
		}, false},
		{"a FIFO", func(path string) error { return unix.Mkfifo(path, 0o600) }, false},
		{"a link", func(path string) error {
			return errors.Join(os.WriteFile(path+".other", []byte("mine"), 0o600), os.Symlink(path+".other", path))
		}, false},
		{"a link that leads nowhere", func(path string) error { return os.Symlink("/none", path) }, false},
		{"what a kill left", func(path string) error { return os.WriteFile(path+".new", []byte("half"), 0o600) }, false},
		{"a link where it is written aside", func(path string) error {
			return errors.Join(os.WriteFile(path+".other", []byte("mine"), 0o600), os.Symlink(path+".other", path+".new"))
		}, false},
		{"a folder", func(path string) error { return os.MkdirAll(filepath.Join(path, "x"), 0o700) }, true},
		{"a folder where it is written aside", func(path string) error { return os.MkdirAll(filepath.Join(path+".new", "x"), 0o700) }, true},
		{"a file in its folder's place", func(path string) error {
			return errors.Join(os.Remove(filepath.Dir(path)), os.WriteFile(filepath.Dir(path), nil, 0o600))
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := verdictFile(t)
			if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), tt.make(path)); err != nil {
				t.Fatal(err)
			}
			want := []News{Change, Nothing, Change}
			if tt.silent {
				want = []News{Nothing, Nothing, Nothing}
			}
			got := []News{settle(path, 5, false, "no room"), settle(path, 5, false, "no room"), settle(path, 5, false, "")}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("news (-want +got)\n%s", diff)
			}
			if b, err := os.ReadFile(path + ".other"); err == nil && string(b) != "mine" {
				t.Errorf("what the link leads to has %q", b)
			}
		})
	}
}

// TestVerdictAtTheSameTime: of many that find the same one tells it, and the
// file is whole at every moment.
func TestVerdictAtTheSameTime(t *testing.T) {
	path := verdictFile(t)
	const turns, many = 20, 16
	for turn := range turns {
		failure := strings.Repeat("x", turn%2) // good and bad in turns
		var wg sync.WaitGroup
		news := make([]News, many)
		ready := make([]*Verdict, many)
		for i := range many {
			ready[i] = ReadVerdict(path)
			notes{ready[i], "ipam"}.Keep(fmt.Sprint(turn, strings.Repeat("y", 5000)))
		}
		for i, v := range ready {
			wg.Go(func() { news[i] = v.Settle(failure, "t") })
		}
		wg.Wait()
		changes := 0
		for _, n := range news {
			if n == Change {
				changes++
			}
		}
		if want := min(turn, 1); changes != want { // a first good one is no change
			t.Errorf("turn %d: told %d times, want %d", turn, changes, want)
		}
		if v := ReadVerdict(path); v.was.Reason != failure || v.was.Steps["ipam"] == nil {
			t.Errorf("turn %d: the file has %.80s", turn, v.read)
		}
	}
}

func TestShape(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "",
		"5 of 5 in use for 75 s":         "# of # in use for # s",
		"10.1.0.1-10.1.0.6: full":        "# # # # # # # # full",
		"lease 7f3a9c of web-0 is gone":  "lease # of web # is gone",
		"at 2026-03-01T14:05:00Z: late":  "at # # # # # late",
		"größer als 5":                   "größer als #",
		strings.Repeat("a", maxReason+1): strings.Repeat("a", maxReason),
		"\xff\x005\xff":                  "#",
	} {
		if got := shape(text); got != want {
			t.Errorf("%.40q: %.80q, want %.80q", text, got, want)
		}
	}
}

// TestRunDir: no two of network, state directory and store share a folder, and
// its name fits.
func TestRunDir(t *testing.T) {
	seen := map[string]bool{}
	long := strings.Repeat("n", 255)
	for _, of := range [][3]string{{"net", "/s", "/i"}, {"net", "/s/i", ""}, {"net", "/s", "/j"}, {"net2", "/s", "/i"}, {long, "/s", "/i"}, {long[1:], "/s", "/i"},
		{"../net", "/s", "/i"}, {"..", "/s", "/i"}, {"/net", "/s", "/i"}, {"a\x00", "/s", "/i"}} {
		dir := RunDir(of[0], of[1], of[2])
		if seen[dir] || filepath.Dir(dir) != "/run/tracewire" || len(filepath.Base(dir)) > 255 {
			t.Errorf("%.20q: %s", of, dir)
		}
		seen[dir] = true
	}
}

// FuzzVerdict: whatever the file has, a STATUS replaces it by a verdict that the
// next one reads as it was meant, and is silent then.
func FuzzVerdict(f *testing.F) {
	for _, text := range []string{
		``, `{}`, `null`, `[]`, `{"reason":"no room","trace":"t","steps":{"ipam":{"since":5}}}`, `{"steps":{"ipam":null,"x":"y"}}`, `{"steps":[]}`, `{"reason":5}`,
		"\x00\x00\x00\x00", `{"reason":"half`, "{\"reason\":\"\xff\"}", `{"reason":"a","reason":"b"}{}`,
	} {
		f.Add([]byte(text), "no room: 5 of 5 addresses of /x")
		f.Add([]byte(text), "")
	}
	path := filepath.Join(f.TempDir(), "run", "status")
	f.Fuzz(func(t *testing.T, text []byte, failure string) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text, 0o600)); err != nil {
			t.Fatal(err)
		}
		ReadVerdict(path).Settle(failure, "t1")
		again := ReadVerdict(path)
		if news := again.Settle(failure, "t2"); news != Nothing {
			t.Errorf("%q, then %q: news %d", text, failure, news)
		}
		if again.was.Reason != again.is.Reason {
			t.Errorf("%q became %q", again.was.Reason, again.is.Reason)
		}
	})
}
