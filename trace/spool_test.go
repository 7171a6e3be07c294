package trace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/otel/attribute"
	"golang.org/x/sys/unix"
)

// files is a folder's files and their sizes.
func files(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int64{}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = info.Size()
	}
	return out
}

// minute is the path of this minute's segment. It waits out a minute that is
// about to end.
func minute(t *testing.T, dir string) string {
	t.Helper()
	for Segment(time.Now()) != Segment(time.Now().Add(2*time.Second)) {
		<-time.After(50 * time.Millisecond)
	}
	return filepath.Join(dir, Segment(time.Now())+SegmentSuffix)
}

func TestSegment(t *testing.T) {
	for _, tt := range []struct {
		at   time.Time
		want string
	}{
		{time.Date(2026, 11, 29, 20, 56, 59, 999, time.UTC), "20261129T2056Z"},
		{time.Date(2026, 11, 29, 20, 56, 0, 0, time.FixedZone("", 5400)), "20261129T1926Z"},
	} {
		if got := Segment(tt.at); got != tt.want {
			t.Errorf("%s is in %s, want %s", tt.at, got, tt.want)
		}
	}
}

// TestSpool: one line an operation, and a segment that a reader can tell from
// others by its first bytes.
func TestSpool(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state", "spool")
	path := minute(t, dir)
	res := []attribute.KeyValue{attribute.String("service.name", "tracewire")}
	for range 2 {
		if err := (Spool{Dir: dir, MaxBytes: 1 << 20}).Write(recorded(t, true), res); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.Collect(bytes.Lines(b))
	if len(lines) != 2 {
		t.Fatalf("%d lines", len(lines))
	}
	segment := strings.TrimSuffix(filepath.Base(path), SegmentSuffix)
	for _, line := range lines {
		if want := `{"resourceSpans":[{"resource":{"attributes":[{"key":"tracewire.segment","value":{"stringValue":"` + segment + `"}}`; !bytes.HasPrefix(line, []byte(want)) {
			t.Errorf("begins with %.120s", line)
		}
		td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]any{"tracewire.segment": segment, "service.name": "tracewire"}, td.ResourceSpans().At(0).Resource().Attributes().AsRaw()); diff != "" {
			t.Errorf("resource (-want +got)\n%s", diff)
		}
	}
	for p, want := range map[string]os.FileMode{path: 0o640, dir: fs.ModeDir | 0o700, filepath.Dir(dir): fs.ModeDir | 0o700} {
		if st, err := os.Stat(p); err != nil || st.Mode() != want {
			t.Errorf("%s: %v, mode %s", p, err, st.Mode())
		}
	}
}

func TestSpoolOff(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spool")
	if err := (Spool{Dir: dir}).Write(recorded(t, true), nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder was made: %v", err)
	}
}

// losses is how many losses were counted while do ran. They are counted in one
// file of the host, so that the number is right only where tests have it alone.
func losses(t *testing.T, do func()) (n int64, known bool) {
	t.Helper()
	size := func() int64 {
		if st, err := os.Stat(DroppedPath); err == nil {
			return st.Size()
		}
		return 0
	}
	before := size()
	do()
	return size() - before, os.Getenv("TRACEWIRE_SANDBOX") == "1"
}

func wantLosses(t *testing.T, want int64, do func()) {
	t.Helper()
	if n, known := losses(t, do); known && n != want {
		t.Errorf("%d losses were counted, want %d", n, want)
	}
}

// sandbox skips a test that would count losses on this host.
func sandbox(t *testing.T) {
	t.Helper()
	if os.Getenv("TRACEWIRE_SANDBOX") != "1" && os.Geteuid() == 0 {
		t.Skip("needs folders of its own: run make test")
	}
}

// TestBudget: who creates a segment drops the oldest ones, and counts them.
func TestBudget(t *testing.T) {
	line := int64(len(recorded(t, false).OTLP([]attribute.KeyValue{keySegment.String(Segment(time.Now()))})))
	for _, tt := range []struct {
		name   string
		budget int64
		before map[string]int64
		gone   []string
	}{
		{"room for all", line + 300, map[string]int64{"20260101T0000Z.jsonl": 100, "20260101T0001Z.jsonl": 200}, nil},
		{"the oldest goes", line + 299, map[string]int64{"20260101T0000Z.jsonl": 100, "20260101T0001Z.jsonl": 200}, []string{"20260101T0000Z.jsonl"}},
		{"as many as must", line + 199, map[string]int64{"20260101T0000Z.jsonl": 100, "20260101T0001Z.jsonl": 200, "20251231T2359Z.jsonl": 1}, []string{"20251231T2359Z.jsonl", "20260101T0000Z.jsonl", "20260101T0001Z.jsonl"}},
		{"the one that is written stays", 1, map[string]int64{"20260101T0000Z.jsonl": 0}, []string{"20260101T0000Z.jsonl"}},
		{"one of a clock that was ahead goes first", line + 250, map[string]int64{"20260101T0000Z.jsonl": 200, "99990101T0000Z.jsonl": 100}, []string{"99990101T0000Z.jsonl"}},
		{"a later name that is no minute stays", 1, map[string]int64{"notes.jsonl": 100}, nil},
		{"the next minute's stays", 1, map[string]int64{Segment(time.Now().Add(time.Minute)) + SegmentSuffix: 100}, nil},
		{"what is no segment stays", 1, map[string]int64{"checkpoint": 100, ".jsonl.tmp": 100}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if len(tt.gone) > 0 {
				sandbox(t)
			}
			dir := t.TempDir()
			path := minute(t, dir)
			want := map[string]int64{filepath.Base(path): line}
			for name, size := range tt.before {
				if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600); err != nil {
					t.Fatal(err)
				}
				if !slices.Contains(tt.gone, name) {
					want[name] = size
				}
			}
			wantLosses(t, int64(len(tt.gone)), func() {
				if err := (Spool{Dir: dir, MaxBytes: tt.budget}).Write(recorded(t, false), nil); err != nil {
					t.Fatal(err)
				}
			})
			if diff := cmp.Diff(want, files(t, dir)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestBudgetIsTheCreators: who only appends looks at no other segment.
func TestBudgetIsTheCreators(t *testing.T) {
	dir := t.TempDir()
	path := minute(t, dir)
	want := map[string]int64{filepath.Base(path): 0, "20260101T0000Z.jsonl": 100}
	for name, size := range want {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := (Spool{Dir: dir, MaxBytes: 1}).Write(recorded(t, false), nil); err != nil {
		t.Fatal(err)
	}
	got := files(t, dir)
	if got[filepath.Base(path)] == 0 {
		t.Error("nothing was written")
	}
	got[filepath.Base(path)] = 0
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestSegmentThatGoes: a reader that holds the exclusive lock is about to
// remove the segment. Nobody waits for it, and nothing is written into it.
func TestSegmentThatGoes(t *testing.T) {
	dir := t.TempDir()
	path := minute(t, dir)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	err = Spool{Dir: dir, MaxBytes: 1 << 20}.Write(recorded(t, false), nil)
	if got, want := fmt.Sprint(err), "append "+path+": file was removed meanwhile"; got != want {
		t.Errorf("error %s, want %s", got, want)
	}
	if st, err := f.Stat(); err != nil || st.Size() != 0 {
		t.Errorf("%d bytes, %v", st.Size(), err)
	}
}

// TestRemovedWhileOpen: no line that was written is in a segment that a reader
// removed without having seen it.
func TestRemovedWhileOpen(t *testing.T) {
	dir := t.TempDir()
	var writers sync.WaitGroup
	var mu sync.Mutex
	written, lost := 0, 0
	for range 4 {
		writers.Go(func() {
			for range 50 {
				err := Spool{Dir: dir, MaxBytes: 1 << 30}.Write(operation(t, func(context.Context) {}), nil)
				mu.Lock()
				switch {
				case err == nil:
					written++
				case errors.Is(err, errUnlinked):
					lost++ // three times in a row; it is told
				default:
					t.Error(err)
				}
				mu.Unlock()
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	seen := 0
	for going := true; going; {
		select {
		case <-done:
			going = false // and once more
		default:
		}
		for _, name := range names(dir) {
			seen += remove(t, filepath.Join(dir, name))
		}
	}
	if seen != written || written+lost != 200 {
		t.Errorf("%d lines seen, %d written, %d told as lost", seen, written, lost)
	}
}

// names is the names in a folder that others remove from.
func names(dir string) (out []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// remove removes a segment as a reader does, and counts its lines.
func remove(t *testing.T, path string) int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return 0
	}
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range bytes.Lines(b) {
		if len(line) > 1 {
			n++
		}
	}
	return n
}

// TestNoFileOfLines: what stands in the way of spool or log is an error, and a
// loss that is counted; the operation's result is not touched by it.
func TestNoFileOfLines(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(dir, path string) error
		want string
	}{
		{"a file in the folder's place", func(dir, _ string) error { return errors.Join(os.Remove(dir), os.WriteFile(dir, nil, 0o600)) }, "open PATH: not a directory"},
		{"a folder in the file's place", func(_, path string) error { return os.Mkdir(path, 0o700) }, "open PATH: is a directory"},
		{"a symbolic link", func(dir, path string) error { return os.Symlink(filepath.Join(dir, "..", "elsewhere"), path) }, "open PATH: too many levels of symbolic links"},
		{"a pipe that nobody reads", func(_, path string) error { return unix.Mkfifo(path, 0o600) }, "open PATH: no such device or address"},
		{"a file above the folder", func(dir, _ string) error { return errors.Join(os.Remove(dir), os.Symlink("/dev/null/none", dir)) }, "open PATH: not a directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sandbox(t)
			dir := filepath.Join(t.TempDir(), "folder")
			path := minute(t, dir)
			if err := errors.Join(os.Mkdir(dir, 0o700), tt.make(dir, path)); err != nil {
				t.Fatal(err)
			}
			r := recorded(t, false)
			spool, log := Spool{Dir: dir, MaxBytes: 1 << 20}, Log{Path: path, Level: "info"}
			for what, err := range map[string]error{"spool": spool.Write(r, nil), "log": log.Write(r)} {
				if got := strings.ReplaceAll(errText(err), path, "PATH"); got != tt.want {
					t.Errorf("%s: error %s, want %s", what, got, tt.want)
				}
			}
			wantLosses(t, 1, func() {
				if (Sink{Spool: spool, Log: log}).Write(r) {
					t.Error("the spool is said to have it")
				}
			})
			if _, err := os.Lstat(filepath.Join(dir, "..", "elsewhere")); !errors.Is(err, fs.ErrNotExist) {
				t.Error("the link was followed")
			}
		})
	}
}

// TestFullDisk: a line that is torn spoils no other.
func TestFullDisk(t *testing.T) {
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=64k,nr_inodes=64"); err != nil {
		t.Skip("needs root: run make test")
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	spool := Spool{Dir: filepath.Join(root, "spool"), MaxBytes: 1 << 20}
	path := minute(t, spool.Dir)
	r := operation(t, func(ctx context.Context) { Set(ctx, attribute.String("long", strings.Repeat("x", maxValue))) })
	if err := spool.Write(r, nil); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
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
	if got, want := errText(spool.Write(r, nil)), "write "+path+": no space left on device"; got != want {
		t.Errorf("error %s, want %s", got, want)
	}
	if err := os.Truncate(big.Name(), 8192); err != nil {
		t.Fatal(err)
	}
	if err := spool.Write(r, nil); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || !bytes.HasPrefix(b, before) {
		t.Errorf("what was there is changed: %v", err)
	}
	good := 0
	for line := range bytes.Lines(b) {
		if td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line); err == nil && td.SpanCount() == 1 {
			good++
		}
	}
	if good != 2 {
		t.Errorf("%d of 2 operations can be read", good)
	}
}

func TestDropped(t *testing.T) {
	sandbox(t)
	wantLosses(t, 3, func() {
		for range 3 {
			Count(DroppedPath)
		}
	})
}
