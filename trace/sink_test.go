package trace

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
)

func TestSink(t *testing.T) {
	dir := t.TempDir()
	spool, log := filepath.Join(dir, "spool"), filepath.Join(dir, "log.jsonl")
	for _, tt := range []struct {
		name   string
		sink   Sink
		loss   int64
		want   bool
		exists []string
	}{
		{"both", Sink{Spool: Spool{Dir: spool, MaxBytes: 1 << 20}, Log: Log{Path: log, Level: "info"}}, 0, true, []string{spool, log}},
		{"both are off", Sink{Spool: Spool{Dir: filepath.Join(dir, "none")}, Log: Log{Path: filepath.Join(dir, "none"), Level: "off"}}, 0, true, nil},
		{"the log cannot be written", Sink{Spool: Spool{Dir: spool, MaxBytes: 1 << 20}, Log: Log{Path: dir, Level: "info"}}, 1, true, []string{spool}},
		{"the spool cannot be written", Sink{Spool: Spool{Dir: log, MaxBytes: 1 << 20}, Log: Log{Path: log, Level: "info"}}, 1, false, []string{log}},
		{"neither can be written, which is one loss", Sink{Spool: Spool{Dir: log, MaxBytes: 1 << 20}, Log: Log{Path: dir, Level: "info"}}, 1, false, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.loss > 0 {
				sandbox(t)
			}
			wantLosses(t, tt.loss, func() {
				if got := tt.sink.Write(recorded(t, false)); got != tt.want {
					t.Errorf("the spool has it: %t, want %t", got, tt.want)
				}
			})
			for _, path := range tt.exists {
				if _, err := os.Stat(path); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestResource(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("OTEL_SERVICE_NAME", "kubelet")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "a=b")
	common := []attribute.KeyValue{
		attribute.String("service.name", "tracewire"), attribute.String("service.version", "0.1.0"), attribute.String("service.instance.id", "boot-1"), attribute.String("host.name", host),
	}
	for _, tt := range []struct {
		name string
		env  map[string]string
		node string
	}{
		{"no node", map[string]string{"OTEL_SERVICE_NAME": "kubelet", "OTEL_RESOURCE_ATTRIBUTES": "a=b"}, ""},
		{"node", map[string]string{"NODE_NAME": "node1"}, "node1"},
		{"the first of two counts", map[string]string{"NODE_NAME": "node1", "K8S_NODE_NAME": "node2"}, "node2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := attribute.NewSet(common...)
			if tt.node != "" {
				want = attribute.NewSet(append(common[:4:4], attribute.String("k8s.node.name", tt.node))...)
			}
			got := Resource("0.1.0", "boot-1", func(k string) string { return tt.env[k] })
			if diff := cmp.Diff(want.ToSlice(), sorted(got), cmp.Comparer(func(a, b attribute.KeyValue) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func sorted(kv []attribute.KeyValue) []attribute.KeyValue {
	s := attribute.NewSet(kv...)
	return s.ToSlice()
}
