package trace

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestRoot: the operation's span is a child of the one that the environment
// names, and the parent of what runs in its context.
func TestRoot(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  map[string]string
		of   string // trace id, "" for a new one
	}{
		{"no parent", nil, ""},
		{"a parent", map[string]string{EnvParent: parent, EnvState: "a=1"}, traceID},
		{"a malformed one", map[string]string{EnvParent: "00-x"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := NewRecorder(time.Now())
			ctx, root := r.Begin("cni.ADD", time.Now(), Origin{Parent: Parent(func(k string) string { return tt.env[k] })})
			root.Set(KeyName.String("net"))
			var child map[string]string
			err := Run(ctx, "ipam", func(ctx context.Context) error { child = Environment(ctx); return nil })
			if err != nil {
				t.Fatal(err)
			}
			root.Fail("ipam: broken")
			root.End()
			if got := root.TraceID(); len(got) != 32 || tt.of != "" && got != tt.of {
				t.Errorf("trace %s", got)
			}
			want := map[string]string{EnvParent: Environment(ctx)[EnvParent], EnvState: tt.env[EnvState]}
			if diff := cmp.Diff(want, Environment(ctx)); diff != "" || want[EnvParent] != root.Traceparent() || !strings.HasPrefix(root.Traceparent(), "00-"+root.TraceID()) {
				t.Errorf("%s (-want +got)\n%s", root.Traceparent(), diff)
			}
			if child[EnvParent] == root.Traceparent() || child[EnvParent][:36] != root.Traceparent()[:36] {
				t.Errorf("the child's parent is %s, the root %s", child[EnvParent], root.Traceparent())
			}
			if got := spans(t, r); !strings.Contains(got, "cni.ADD [ipam: broken]\n") || !strings.Contains(got, "  ipam\n") {
				t.Errorf("spans\n%s", got)
			}
		})
	}
}

func TestEnvironmentOfNoSpan(t *testing.T) {
	if diff := cmp.Diff(map[string]string{EnvParent: "", EnvState: ""}, Environment(t.Context())); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
