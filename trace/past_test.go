package trace

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const (
	pastSpan   = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
	pastExec   = "53995c3f42cd8ad8"
	pastParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
)

// TestPast: phases are below what was open when they began; what was open in
// the end was interrupted, and ended with the last that is known.
func TestPast(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	began := time.Unix(1_800_000_000, 0)
	r := Past{
		Name: "cni.ADD", Span: pastSpan, Parent: pastParent, Began: began, Ended: ms(9), Attributes: Given(KeyID.String("c1"), KeyNetNS.String("")),
		Phases: []Phase{{"veth.create", "", ms(1), ms(4)}, {"ipam", "", ms(2), ms(3)}, {"route.add", "", ms(4), 0}, {"exec", pastExec, ms(5), ms(6)}, {"exec", "", ms(9), 0}},
	}.Recorder()
	names := map[string]string{}
	var b strings.Builder
	for _, s := range r.spans {
		names[s.context.SpanID().String()] = s.name
		fmt.Fprintf(&b, "%s below %s, %s to %s, %q\n", s.name, names[s.parent.SpanID().String()], s.start.Sub(began), s.end.Sub(began), s.message)
	}
	want := `cni.ADD below , 0s to 9.000001ms, "interrupted"
veth.create below cni.ADD, 1ms to 4ms, ""
ipam below veth.create, 2ms to 3ms, ""
route.add below cni.ADD, 4ms to 9.000001ms, "interrupted"
exec below route.add, 5ms to 6ms, ""
exec below route.add, 9ms to 9.000001ms, "interrupted"
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if names[pastExec] != "exec" {
		t.Errorf("the span that a delegate knows is %q", names[pastExec])
	}
	root := r.spans[0]
	if Format(root.context) != pastSpan || Format(root.parent) != pastParent || len(root.attrs) != 2 {
		t.Errorf("%+v", root)
	}
}

// TestSpoolHas finds a root span in the segments of its time; a link to it is
// another operation's.
func TestSpoolHas(t *testing.T) {
	s := Spool{Dir: t.TempDir() + "/spool", MaxBytes: 1 << 20}
	began := time.Now()
	has := func(when string, at time.Time, want bool) {
		t.Helper()
		if got, err := s.Has(pastSpan, at); got != want || err != nil {
			t.Errorf("%s: %t, %v", when, got, err)
		}
	}
	has("without a spool", began, false)
	other := Past{Name: "cni.CHECK", Span: pastParent, Link: pastSpan, Began: began}.Recorder()
	if err := s.Write(other, nil); err != nil {
		t.Fatal(err)
	}
	has("a link", began, false)
	if err := s.Write(Past{Name: "cni.ADD", Span: pastSpan, Began: began}.Recorder(), nil); err != nil {
		t.Fatal(err)
	}
	has("itself", began, true)
	has("itself, told some minutes later", began.Add(-5*time.Minute), true)
	has("itself, told just now, of another hour", began.Add(-time.Hour), true)
}

// TestSpoolHasInWindows: what is looked for is found wherever it stands, and
// what is held of a segment does not grow with it.
func TestSpoolHasInWindows(t *testing.T) {
	began := time.Now()
	line := Past{Name: "cni.ADD", Span: pastSpan, Began: began}.Recorder().OTLP(nil)
	s := Spool{Dir: t.TempDir(), MaxBytes: 1 << 20}
	path := filepath.Join(s.Dir, Segment(began)+SegmentSuffix)
	places := []int{0, window, 40 * window}
	for across := 0; across < len(line); across += 16 {
		places = append(places, 2*window-across)
	}
	for _, before := range places {
		if err := os.WriteFile(path, append(bytes.Repeat([]byte{'\n'}, before), line...), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Has(pastSpan, began); !got || err != nil {
			t.Errorf("behind %d bytes: %t, %v", before, got, err)
		}
	}
	if err := os.Truncate(path, 100*window); err != nil {
		t.Fatal(err)
	}
	var earlier, now runtime.MemStats
	runtime.ReadMemStats(&earlier)
	there, err := contains(path, []byte("nowhere"))
	runtime.ReadMemStats(&now)
	if held := now.TotalAlloc - earlier.TotalAlloc; there || err != nil || held > 10*window {
		t.Errorf("%t, %v: %d bytes are held of a file of %d", there, err, held, 100*window)
	}
}

// TestSpoolHasPastWhatBlocks: what is no file, and has a segment's name, is not
// opened.
func TestSpoolHasPastWhatBlocks(t *testing.T) {
	s := Spool{Dir: t.TempDir(), MaxBytes: 1 << 20}
	began := time.Now()
	earlier := filepath.Join(s.Dir, Segment(began.Add(-time.Minute))+SegmentSuffix)
	if err := errors.Join(unix.Mkfifo(earlier, 0o600), s.Write(Past{Name: "cni.ADD", Span: pastSpan, Began: began}.Recorder(), nil)); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Has(pastSpan, began); !got || err != nil {
		t.Errorf("%t, %v", got, err)
	}
}
