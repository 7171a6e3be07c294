package read

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	api "go.opentelemetry.io/otel/trace"

	"github.com/tracewire/tracewire/trace"
)

var begun = time.Date(2026, 3, 1, 14, 5, 0, 123e6, time.UTC)

// record is an operation as the plugin records one: an ADD that fails at route.add.
func record(t *testing.T, attrs ...attribute.KeyValue) *trace.Recorder {
	t.Helper()
	r := trace.NewRecorder(begun)
	tracer := r.Tracer(trace.Scope)
	ctx, root := tracer.Start(t.Context(), "cni.ADD", api.WithTimestamp(begun), api.WithAttributes(attrs...))
	err := trace.Rows(ctx, nil,
		trace.Row{Name: "ipam", Do: func(ctx context.Context) error {
			trace.Set(ctx, trace.KeyLockWait.Float64(0.25))
			trace.Warn(ctx, "address passed over", trace.KeyError.String("its MAC lives"))
			return nil
		}},
		trace.Row{Name: "bridge", Do: func(ctx context.Context) error {
			return trace.Rows(ctx, nil, trace.Row{Name: "route.add", Do: func(context.Context) error { return errors.New("no route") }})
		}},
	)
	root.SetStatus(codes.Error, err.Error())
	root.End(api.WithTimestamp(begun.Add(4380 * time.Microsecond)))
	return r
}

func write(t *testing.T, dir string, r *trace.Recorder) {
	t.Helper()
	s := trace.Spool{Dir: dir, MaxBytes: 1 << 30}
	if err := s.Write(r, []attribute.KeyValue{attribute.String("service.name", "tracewire")}); err != nil {
		t.Fatal(err)
	}
}

// move gives the newest segment the name of an earlier time.
func move(t *testing.T, dir string, at time.Time) {
	t.Helper()
	paths, err := Segments(dir)
	if err == nil {
		err = os.Rename(paths[len(paths)-1], filepath.Join(dir, trace.Segment(at)+trace.SegmentSuffix))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSpoolReadsWhatTheRecorderWrote(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spool")
	write(t, dir, record(t, trace.KeyCommand.String("ADD"), trace.KeyName.String("podnet"), trace.KeyID.String("1635e8"),
		trace.KeyIfName.String("eth0"), trace.KeyAddresses.StringSlice([]string{"10.22.0.5/16"}), trace.KeyErrorCode.Int64(104)))
	var got []Operation
	torn, err := Spool(dir, func(o Operation) bool { got = append(got, o); return true })
	if err != nil || torn != 0 || len(got) != 1 {
		t.Fatalf("got %d operations, %d torn, %v", len(got), torn, err)
	}
	want := "cni.ADD [error]\n  ipam\n  bridge [error]\n    route.add [error]\n"
	if diff := cmp.Diff(want, Tree(got[0])); diff != "" {
		t.Error("tree (-want +got):\n" + diff)
	}
	e := got[0].Entry()
	wantEntry := Entry{
		Time: begun, Command: "ADD", Network: "podnet", ContainerID: "1635e8", IfName: "eth0", Addresses: prefixes([]string{"10.22.0.5/16"}),
		Duration: 4380 * time.Microsecond, Outcome: Failed, Error: "bridge: route.add: no route", ErrorCode: 104, TraceID: got[0].Root.TraceID,
	}
	if diff := cmp.Diff(wantEntry, e, exact); diff != "" {
		t.Error("entry (-want +got):\n" + diff)
	}
	ipam := got[0].Root.Children[0]
	if ipam.Attributes.Value(trace.KeyLockWait) != 0.25 || ipam.Events[0].Name != "address passed over" {
		t.Errorf("got %+v", ipam)
	}
	if name := ipam.Resource.Text("service.name"); name != "tracewire" {
		t.Errorf("resource: got service.name %q", name)
	}
	if s, ok := got[0].Find(ipam.SpanID); !ok || s.Name != "ipam" {
		t.Errorf("Find: got %+v, %t", s, ok)
	}
}

func TestSpoolOrder(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"third", "first", "second"} {
		write(t, dir, record(t, trace.KeyID.String(name)))
		if i < 2 {
			move(t, dir, begun.Add(time.Duration(i*-1)*time.Hour)) // "first" is before "third"
		}
	}
	move(t, dir, begun.Add(-time.Minute))
	put(t, filepath.Join(dir, "20260101T0000Z.json"), "not a segment")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "20260101T0000Z.jsonl"), 0o700),
		os.Symlink("/etc/hostname", filepath.Join(dir, "20260102T0000Z.jsonl"))); err != nil {
		t.Fatal(err)
	}
	type reader func(string, func(Operation) bool) (int, error)
	for _, tt := range []struct {
		name string
		read reader
		most int
		want []string
	}{
		{"oldest first", Spool, 9, []string{"first", "second", "third"}},
		{"newest first", Newest, 9, []string{"third", "second", "first"}},
		{"two oldest", Spool, 2, []string{"first", "second"}},
		{"two newest", Newest, 2, []string{"third", "second"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			torn, err := tt.read(dir, func(o Operation) bool {
				got = append(got, o.Entry().ContainerID)
				return len(got) < tt.most
			})
			if diff := cmp.Diff(tt.want, got); diff != "" || torn != 0 || err != nil {
				t.Errorf("%d torn, %v (-want +got):\n%s", torn, err, diff)
			}
		})
	}
}

func TestSpoolPassesOverTornLines(t *testing.T) {
	line := func(id string) string { return string(record(t, trace.KeyID.String(id)).OTLP(nil)) }
	good := line("a")
	long := strings.Repeat("x", 5<<20)
	for _, tt := range []struct {
		name, text string
		want       []string
		torn       int
	}{
		{"nothing", "", nil, 0},
		{"empty lines", "\n\n" + good + "\n", []string{"a"}, 0},
		{"garbage", "\x00\xff{\n" + good, []string{"a"}, 1},
		{"torn at the end", good + good[:len(good)/2], []string{"a"}, 1},
		{"torn in the middle", good[:len(good)/2] + "\n" + good, []string{"a"}, 1},
		{"without a line feed", strings.TrimSuffix(good, "\n"), []string{"a"}, 0},
		{"several megabytes", line(long[:10]) + `{"resourceSpans":[],"more":"` + long + `"}` + "\n" + good, []string{"xxxxxxxxxx", "a"}, 0},
		{"longer than is held", strings.Repeat("x", maxLine+1) + "\n" + good, []string{"a"}, 1},
		{"another program's", `{"resourceLogs":[]}` + "\n" + good, []string{"a"}, 0},
		{"ids that are none", strings.ReplaceAll(good, `"traceId":"`, `"traceId":"g`) + good, []string{"a"}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "20260301T1405Z.jsonl")
			put(t, path, tt.text)
			var got []string
			torn, err := Segment(path, func(o Operation) bool { got = append(got, o.Entry().ContainerID); return true })
			if diff := cmp.Diff(tt.want, got); diff != "" || torn != tt.torn || err != nil {
				t.Errorf("%d torn, want %d, %v (-want +got):\n%s", torn, tt.torn, err, diff)
			}
		})
	}
}

func TestSegmentThatVanished(t *testing.T) {
	if n, err := Segment(filepath.Join(t.TempDir(), "gone.jsonl"), nil); n != 0 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	if _, err := Spool(filepath.Join(t.TempDir(), "none"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a spool that is not there: got %v", err)
	}
}

func TestDecodeValues(t *testing.T) {
	for _, tt := range []struct {
		name, value string
		want        any
	}{
		{"string", `{"stringValue":"a"}`, "a"},
		{"empty string", `{"stringValue":""}`, ""},
		{"bool", `{"boolValue":false}`, false},
		{"integer as a string", `{"intValue":"-9223372036854775808"}`, int64(-9223372036854775808)},
		{"integer as a number", `{"intValue":12}`, int64(12)},
		{"double", `{"doubleValue":1.5}`, 1.5},
		{"no number", `{"doubleValue":"NaN"}`, "NaN"},
		{"array", `{"arrayValue":{"values":[{"stringValue":"a"},{"intValue":"1"}]}}`, []any{"a", int64(1)}},
		{"list", `{"kvlistValue":{"values":[{"key":"k","value":{"boolValue":true}}]}}`, Attributes{{"k", true}}},
		{"bytes", `{"bytesValue":"AAE="}`, "AAE="},
		{"nothing", `{}`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spans, err := decode([]byte(`{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"` + strings.Repeat("a", 32) +
				`","spanId":"` + strings.Repeat("b", 16) + `","attributes":[{"key":"v","value":` + tt.value + `}]}]}]}]}`))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, spans[0].Attributes.Value("v")); diff != "" {
				t.Error("(-want +got):\n" + diff)
			}
		})
	}
}

func TestOperations(t *testing.T) {
	span := func(name, parent string, at int) Span {
		return Span{Name: name, SpanID: name, ParentID: parent, Start: begun.Add(time.Duration(at))}
	}
	for _, tt := range []struct {
		name  string
		spans []Span
		want  []string
	}{
		{"none", nil, nil},
		{"children by start", []Span{span("c", "r", 3), span("r", "", 0), span("b", "r", 2), span("a", "c", 4)}, []string{"r\n  b\n  c\n    a\n"}},
		{"a remote parent", []Span{span("r", "theirs", 0), span("a", "r", 1)}, []string{"r\n  a\n"}},
		{"two roots", []Span{span("r", "", 0), span("s", "", 1), span("a", "s", 1)}, []string{"r\n", "s\n  a\n"}},
		{"twice the same id", []Span{span("r", "", 0), span("a", "r", 1), span("a", "r", 2), span("b", "a", 3)}, []string{"r\n  a\n    b\n"}},
		{"a circle", []Span{span("a", "b", 0), span("b", "a", 1), span("r", "", 2)}, []string{"r\n"}},
		{"its own parent", []Span{span("a", "a", 0)}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, o := range Operations(tt.spans) {
				got = append(got, Tree(o))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error("(-want +got):\n" + diff)
			}
		})
	}
}
