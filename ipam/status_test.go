package ipam

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
)

// memo is delegates.Notes in memory, as JSON as in the file.
type memo struct {
	kept []byte
	told int
}

func (m *memo) Recall(variable any) { _ = json.Unmarshal(m.kept, variable) }

func (m *memo) Keep(value any) {
	var err error
	if m.kept, err = json.Marshal(value); err != nil {
		panic(err)
	}
}

func (m *memo) Tell() { m.told++ }

// tally is what is kept.
func (m *memo) tally(t *testing.T) (kept tally) {
	t.Helper()
	if err := json.Unmarshal(m.kept, &kept); err != nil {
		t.Fatal(err)
	}
	return kept
}

// status asks at a time since the kernel started.
func (m *memo) status(h HostLocal, at time.Duration) string {
	err := h.Status(context.Background(), delegates.Call{Attachment: delegates.Attachment{Network: "net1"}, Notes: m, Uptime: at})
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), h.DataDir, "DATA")
}

func names(format string, from, to int, content string) files {
	f := files{}
	for i := from; i <= to; i++ {
		f[fmt.Sprintf(format, i)] = content
	}
	return f
}

// TestStatus: the first look, at once.
func TestStatus(t *testing.T) {
	const you = "c2\r\neth0"
	small, dual := `"subnet":"10.1.0.0/29"`, `"ranges":[[{"subnet":"10.1.0.0/29"}],[{"subnet":"fd00::/64"}]]`
	for _, tt := range []struct {
		name, keys string
		before     files
		want       string
		told       int
	}{
		{"nothing reserved yet", small, nil, "", 0},
		{"one left", small, names("10.1.0.%d", 2, 5, you), "", 0},
		{"none left", small, names("10.1.0.%d", 2, 6, you),
			"no addresses available: range set 10.1.0.1-10.1.0.6: 5 of 5 in use for 0 s (statusGrace of 0 s is over), in DATA/net1", 0},
		{"the gateway's file takes no address", small, names("10.1.0.%d", 1, 5, you), "", 0},
		{"files of other networks, and foreign ones", small, files{"10.2.0.2": you, "fd00::2": you, "010.1.0.2": you, "10.1.0.2.tmp": you, "last_reserved_ip.0": "10.1.0.6", "lock": "", "10.1.0.7": you, "10.1.0.0": you}, "", 0},
		{"an empty file is free", small, merged(names("10.1.0.%d", 2, 5, you), files{"10.1.0.6": ""}), "", 1},
		{"one family of two", dual, names("10.1.0.%d", 2, 6, you),
			"no addresses available: range set 10.1.0.1-10.1.0.6: 5 of 5 in use for 0 s (statusGrace of 0 s is over), range set fd00::1-fd00::ffff:ffff:ffff:ffff: 0 of 18446744073709551615 in use, in DATA/net1", 0},
		{"a part of a subnet", `"subnet":"10.1.0.0/24","rangeStart":"10.1.0.10","rangeEnd":"10.1.0.11"`, names("10.1.0.%d", 10, 11, you),
			"no addresses available: range set 10.1.0.10-10.1.0.11: 2 of 2 in use for 0 s (statusGrace of 0 s is over), in DATA/net1", 0},
		{"two ranges of one set", `"ranges":[[{"subnet":"10.1.0.0/30"},{"subnet":"10.2.0.0/30"}]]`, files{"10.1.0.2": you}, "", 0},
		{"two ranges of one set, full", `"ranges":[[{"subnet":"10.1.0.0/30"},{"subnet":"10.2.0.0/30"}]]`, files{"10.1.0.2": you, "10.2.0.2": you},
			"no addresses available: range set 10.1.0.1-10.1.0.2,10.2.0.1-10.2.0.2: 2 of 2 in use for 0 s (statusGrace of 0 s is over), in DATA/net1", 0},
		{"nearly full", `"subnet":"10.1.0.0/24"`, names("10.1.0.%d", 2, 230, you), "", 1},
		{"not yet nearly full", `"subnet":"10.1.0.0/24"`, names("10.1.0.%d", 2, 228, you), "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, dir := serve(t, tt.keys, "")
			if tt.before != nil {
				tt.before.write(t, dir)
			}
			m := &memo{}
			if got := m.status(h, time.Second); got != tt.want {
				t.Errorf("error %s\nwant  %s", got, tt.want)
			}
			if m.told != tt.told {
				t.Errorf("warned %d times, want %d", m.told, tt.told)
			}
			if _, err := os.Lstat(dir); tt.before == nil && err == nil {
				t.Error("a folder was made")
			}
		})
	}
}

func merged(all ...files) files {
	out := files{}
	for _, f := range all {
		for k, v := range f {
			out[k] = v
		}
	}
	return out
}

// TestStatusAgreesWithAdd: what Status counts as free is what Add gives.
func TestStatusAgreesWithAdd(t *testing.T) {
	for _, keys := range []string{
		`"subnet":"10.1.0.0/29"`, `"subnet":"10.1.0.0/30"`, `"subnet":"10.1.0.0/28","rangeStart":"10.1.0.3","rangeEnd":"10.1.0.9","gateway":"10.1.0.5"`,
		`"ranges":[[{"subnet":"10.1.0.0/28","rangeEnd":"10.1.0.5","gateway":"10.1.0.8"},{"subnet":"10.1.0.0/28","rangeStart":"10.1.0.7"}]]`, `"subnet":"fd00::/125"`,
	} {
		h, _ := serve(t, keys, "")
		given := uint64(0)
		for ; given < 100; given++ {
			if got := (&memo{}).status(h, time.Second); got != "" {
				break
			}
			if _, err := h.Add(t.Context(), call(fmt.Sprint("c", given))); err != nil {
				t.Fatalf("%s: after %d: %v", keys, given, err)
			}
		}
		if _, err := h.Add(t.Context(), call("last")); err == nil || given != h.Sets[0].size() {
			t.Errorf("%s: %d given, a size of %d, then %v", keys, given, h.Sets[0].size(), err)
		}
	}
}

func TestSize(t *testing.T) {
	for keys, want := range map[string]uint64{
		`"subnet":"10.0.0.0/8"`: 1<<24 - 3,
		`"subnet":"0.0.0.0/0"`:  1<<32 - 3,
		`"subnet":"fd00::/64"`:  math.MaxUint64, // 1<<64 - 2
		`"subnet":"fd00::/65"`:  1<<63 - 2,
		`"subnet":"fd00::/16"`:  math.MaxUint64,
		`"subnet":"::/0"`:       math.MaxUint64,
		`"ranges":[[{"subnet":"fd00::/65"},{"subnet":"fd01::/65"}]]`:                                                                                             math.MaxUint64 - 3,
		`"ranges":[[{"subnet":"fd00::/64"},{"subnet":"fd01::/64"}]]`:                                                                                             math.MaxUint64,
		`"subnet":"fd00::/64","rangeStart":"fd00::ffff:ffff:ffff:fffe","rangeEnd":"fd00::ffff:ffff:ffff:ffff"`:                                                   2,
		`"subnet":"fd00::/48","rangeStart":"fd00::ffff:ffff:ffff:ffff","rangeEnd":"fd00::1:0:0:0:0"`:                                                             2,
		`"subnet":"10.1.0.0/24","rangeStart":"10.1.0.9","rangeEnd":"10.1.0.9","gateway":"10.1.0.9"`:                                                              0,
		`"ranges":[[{"subnet":"10.1.0.0/28","rangeEnd":"10.1.0.5","gateway":"10.1.0.8"},{"subnet":"10.1.0.0/28","rangeStart":"10.1.0.7","gateway":"10.1.0.8"}]]`: 12,
		`"subnet":"10.1.0.0/28","rangeEnd":"10.1.0.5","gateway":"10.1.0.8"`:                                                                                      5,
	} {
		h, _ := serve(t, keys, "")
		if got := h.Sets[0].size(); got != want {
			t.Errorf("%s: %d, want %d", keys, got, want)
		}
	}
}

// TestStatusGrace: an error only after the set has been exhausted for all of it.
func TestStatusGrace(t *testing.T) {
	h, dir := serve(t, `"subnet":"10.1.0.0/30"`, "")
	h.Patience.Grace = time.Minute
	files{"10.1.0.2": "c2"}.write(t, dir)
	over := func(s, since int) string {
		return fmt.Sprintf("no addresses available: range set 10.1.0.1-10.1.0.2: 1 of 1 in use for %d s (statusGrace of 60 s is over), in DATA/net1", s-since)
	}
	m := &memo{}
	for _, step := range []struct {
		at   int
		do   func()
		want string
	}{
		{100, nil, ""},
		{159, nil, ""},
		{160, nil, over(160, 100)},
		{175, nil, over(175, 100)},
		{176, func() { _ = os.Remove(filepath.Join(dir, "10.1.0.2")) }, ""},
		{177, func() { files{"10.1.0.2": "c3"}.write(t, dir) }, ""},
		{236, nil, ""},
		{237, nil, over(237, 177)},
		{5, nil, ""}, // a file that is not of this boot
		{66, nil, over(66, 5)},
	} {
		if step.do != nil {
			step.do()
		}
		if got := m.status(h, time.Duration(step.at)*time.Second); got != step.want {
			t.Errorf("at %d: error %s\nwant  %s", step.at, got, step.want)
		}
	}
	if m.told != 2 { // it was not full between
		t.Errorf("warned %d times", m.told)
	}
	h.Patience = Patience{Never: true}
	if got := m.status(h, time.Hour); got != "" {
		t.Errorf("never: %s", got)
	}
}

// TestStatusGraceOfTwo: each set has its own; the text has what is left.
func TestStatusGraceOfTwo(t *testing.T) {
	h, dir := serve(t, `"ranges":[[{"subnet":"10.1.0.0/30"}],[{"subnet":"fd00::/126"}]]`, "")
	h.Patience.Grace = time.Minute
	m := &memo{}
	files{"10.1.0.2": "c2"}.write(t, dir)
	m.status(h, 100*time.Second)
	files{"fd00::2": "c2", "fd00::3": "c3"}.write(t, dir)
	m.status(h, 150*time.Second)
	want := "no addresses available: range set 10.1.0.1-10.1.0.2: 1 of 1 in use for 60 s (statusGrace of 60 s is over), " +
		"range set fd00::1-fd00::3: 2 of 2 in use for 10 s (statusGrace ends in 50 s), in DATA/net1"
	if got := m.status(h, 160*time.Second); got != want {
		t.Errorf("error %s\nwant  %s", got, want)
	}
}

// TestStatusWarnsOnce: at 90 per cent, and again only after it was below 80.
func TestStatusWarnsOnce(t *testing.T) {
	h, dir := serve(t, `"subnet":"10.1.0.0/24","rangeStart":"10.1.0.10","rangeEnd":"10.1.0.29"`, "")
	m := &memo{}
	for i, step := range []struct{ used, told int }{{17, 0}, {18, 1}, {19, 1}, {17, 1}, {18, 1}, {16, 1}, {18, 1}, {15, 1}, {17, 1}, {18, 2}} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		names("10.1.0.%d", 10, 9+step.used, "c2").write(t, dir)
		if got := m.status(h, time.Duration(i+1)*time.Hour); got != "" || m.told != step.told {
			t.Errorf("step %d: warned %d times, want %d; error %s", i, m.told, step.told, got)
		}
	}
}

// listed tells whether a Status listed the folder.
func (m *memo) listed(t *testing.T, h HostLocal, at time.Duration) bool {
	t.Helper()
	if got := m.status(h, at); got != "" {
		t.Errorf("at %s: %s", at, got)
	}
	return m.tally(t).Listed == at
}

// TestStatusListsWhatChanged: a folder is listed when it has changed, and once
// more after a while, for what changed it in the same tick of its clock.
func TestStatusListsWhatChanged(t *testing.T) {
	h, dir := serve(t, `"subnet":"10.1.0.0/24"`, "")
	names("10.1.0.%d", 2, 9, "c2").write(t, dir)
	m := &memo{}
	for _, step := range []struct {
		at     int
		do     func()
		listed bool
		used   uint64
	}{
		{10, nil, true, 8},
		{11, nil, true, 8}, // the margin is not over
		{12, nil, true, 8}, // it is now
		{13, nil, false, 8},
		{999, nil, false, 8},
		{1000, func() { files{"10.1.0.20": "c3"}.write(t, dir) }, true, 9},
		{1001, nil, true, 9},
		{1005, nil, true, 9},
		{1010, nil, false, 9},
		{1011, func() { _ = os.Remove(filepath.Join(dir, "10.1.0.20")) }, true, 8},
		{1020, nil, true, 8},
		{1021, func() { h.Sets[0].Ranges[0].End = h.Sets[0].Ranges[0].End.Prev() }, true, 8}, // another configuration
		{1022, nil, false, 8},
		{1023, func() { // as from a copy
			at := stat(t, dir).Mtim
			if err := os.Rename(dir, dir+".old"); err != nil {
				t.Fatal(err)
			}
			files{"10.1.0.2": "c3"}.write(t, dir)
			if err := unix.UtimesNanoAt(unix.AT_FDCWD, dir, []unix.Timespec{at, at}, 0); err != nil {
				t.Fatal(err)
			}
		}, true, 1},
	} {
		if step.do != nil {
			step.do()
		}
		got := m.listed(t, h, time.Duration(step.at)*time.Second)
		if used := m.tally(t).Sets[0].Used; got != step.listed || used != step.used {
			t.Errorf("at %d: listed %t, %d in use; want %t, %d", step.at, got, used, step.listed, step.used)
		}
	}
}

func stat(t *testing.T, path string) (st unix.Stat_t) {
	t.Helper()
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// TestStatusInOneTick: an ADD after the listing, which left the folder's times as
// they were, is counted by the next look.
func TestStatusInOneTick(t *testing.T) {
	h, dir := serve(t, `"subnet":"10.1.0.0/30"`, "")
	files{}.write(t, dir)
	m := &memo{}
	m.status(h, 10*time.Second)
	files{"10.1.0.2": "c2"}.write(t, dir)
	st := stat(t, dir)
	stale := m.tally(t)
	stale.Folder.Changed = st.Ctim.Nano()
	m.Keep(stale)
	if got := m.status(h, 15*time.Second); got == "" {
		t.Error("the address that was given in the same tick is not counted")
	}
}

// TestStatusOfDebris: who takes over an empty file changes the file alone.
func TestStatusOfDebris(t *testing.T) {
	h, dir := serve(t, `"subnet":"10.1.0.0/29"`, "")
	merged(names("10.1.0.%d", 2, 5, "c2"), files{"10.1.0.6": ""}).write(t, dir)
	m := &memo{}
	for _, at := range []time.Duration{1, 5, 9} {
		if got := m.status(h, at*time.Second); got != "" {
			t.Fatal(got)
		}
	}
	if _, err := h.Add(t.Context(), call("c1")); err != nil {
		t.Fatal(err)
	}
	if got := m.status(h, 20*time.Second); !strings.Contains(got, "5 of 5 in use") {
		t.Errorf("error %s", got)
	}
}

// TestStatusOfStrangeStores: what cannot be counted is no verdict.
func TestStatusOfStrangeStores(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(dir string) error
		want string
	}{
		{"a file in its place", func(dir string) error { return os.WriteFile(dir, nil, 0o600) }, ""},
		{"a link that leads nowhere", func(dir string) error { return os.Symlink("/none", dir) }, ""},
		{"a folder of another name behind a link", func(dir string) error {
			files{"10.1.0.2": "c2"}.write(t, dir+".real")
			return os.Symlink(dir+".real", dir)
		}, "1 of 1 in use"},
		{"a folder as reservation", func(dir string) error { return os.MkdirAll(filepath.Join(dir, "10.1.0.2"), 0o700) }, "1 of 1 in use (a folder stands in the place of 10.1.0.2)"},
		{"a folder as lock", func(dir string) error { return os.MkdirAll(filepath.Join(dir, "lock"), 0o700) }, "open DATA/net1/lock: is a directory"},
		{"a FIFO as reservation", func(dir string) error {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return err
			}
			return unix.Mkfifo(filepath.Join(dir, "10.1.0.2"), 0o600)
		}, ""},
		{"a thousand foreign files", func(dir string) error {
			names("foreign-%d", 1, 1000, "").write(t, dir)
			return nil
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, dir := serve(t, `"subnet":"10.1.0.0/30"`, "")
			if err := tt.make(dir); err != nil {
				t.Fatal(err)
			}
			got := (&memo{}).status(h, time.Second)
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("error %s, want %s", got, tt.want)
			}
		})
	}
	h := HostLocal{DataDir: t.TempDir()}
	if got := (&memo{}).status(h, time.Second); got != "" {
		t.Errorf("without ranges: %s", got)
	}
}
