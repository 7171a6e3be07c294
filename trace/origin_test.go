package trace

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tracewire/tracewire/proc"
)

// TestFrom: which span an operation comes from, of all that may be named.
func TestFrom(t *testing.T) {
	const other = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unsampled, quarter := parent[:53]+"00", strings.Repeat("x", 250)
	long := "a=" + quarter + ",b=" + quarter + ",c=" + quarter + ",d=" + quarter
	for _, tt := range []struct {
		name          string
		env, pod      map[string]string
		leftover      bool
		parent, stale string
		state         string
	}{
		{name: "nobody names one"},
		{name: "the environment", env: map[string]string{EnvParent: parent, EnvState: "a=1"}, parent: parent, state: "a=1"},
		{name: "not sampled", env: map[string]string{EnvParent: unsampled}, parent: unsampled},
		{name: "a state of 1 kB", env: map[string]string{EnvParent: parent, EnvState: long}, parent: parent, state: long},
		{name: "all zeros", env: map[string]string{EnvParent: "00-" + strings.Repeat("0", 32) + "-" + strings.Repeat("0", 16) + "-01"}},
		{name: "version ff", env: map[string]string{EnvParent: "ff" + parent[2:]}},
		{name: "upper case", env: map[string]string{EnvParent: strings.ToUpper(parent)}},
		{name: "a daemon's leftover", env: map[string]string{EnvParent: parent, EnvState: "a=1"}, leftover: true, stale: parent},
		{name: "the pod", pod: map[string]string{AnnotationParent: other, AnnotationState: "b=2"}, parent: other, state: "b=2"},
		{name: "both: the call is nearer", env: map[string]string{EnvParent: parent}, pod: map[string]string{AnnotationParent: other, AnnotationState: "b=2"}, parent: parent},
		{name: "a leftover and the pod", env: map[string]string{EnvParent: parent}, pod: map[string]string{AnnotationParent: other}, leftover: true, parent: other, stale: parent},
		{name: "one that is malformed and the pod", env: map[string]string{EnvParent: "00-x"}, pod: map[string]string{AnnotationParent: other}, parent: other},
		{name: "the pod's is malformed", pod: map[string]string{AnnotationParent: "true"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			get := func(m map[string]string) func(string) string { return func(k string) string { return m[k] } }
			o := From(get(tt.env), get(tt.pod), func(string) bool { return tt.leftover })
			if Format(o.Parent) != tt.parent || Format(o.Stale) != tt.stale || o.Parent.TraceState().String() != tt.state {
				t.Errorf("parent %s, state %q, stale %s", Format(o.Parent), o.Parent.TraceState(), Format(o.Stale))
			}
			_, root := NewRecorder(time.Now()).Begin("cni.ADD", time.Now(), o)
			if root.Parent() != tt.parent || (len(root.s.links) == 1) != (tt.stale != "") {
				t.Errorf("the root's parent is %s, its links %v", root.Parent(), root.s.links)
			}
			if sampled := root.s.context.IsSampled(); sampled == (tt.parent == unsampled) {
				t.Errorf("sampled %t", sampled)
			}
		})
	}
}

// TestLeftover: a command that was run for this call has the value in its own
// environment as well; only who runs for long has it from elsewhere.
func TestLeftover(t *testing.T) {
	child := exec.Command("/bin/cat")
	child.Env = []string{"A=1", EnvParent + "=" + parent}
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = in.Close(), child.Wait() })
	if Leftover(child.Process.Pid, parent) {
		t.Error("a young process's value is stale")
	}
	if was := proc.Of(child.Process.Pid); old(was, was.Began+stale) || !old(was, was.Began+stale+1) {
		t.Error("a command may take a minute, and no longer")
	}
	if Leftover(1, parent) || Leftover(-1, parent) || Leftover(os.Getpid(), parent) {
		t.Error("a process without the value left it")
	}
}
