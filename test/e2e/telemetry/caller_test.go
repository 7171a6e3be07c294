//go:build linux

package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"
	"go.opentelemetry.io/otel"
	api "go.opentelemetry.io/otel/trace"

	"github.com/tracewire/tracewire/test/netns"
)

// What became of an operation, as the caller saw it.
const (
	fine        = "ok"
	failed      = "error"
	interrupted = "interrupted" // it was killed
)

// ask is an operation that the caller asked for, and what it saw of it. The list
// of them is what everything else is compared with.
type ask struct {
	verb, network, id string
	trace, span       string // the caller's, around it
	outcome           string
	code              uint // of the error
	links             []*ask
}

func (a *ask) String() string {
	return fmt.Sprintf("%s of %s in %s (%s), trace %s", a.verb, a.id, a.network, a.outcome, a.trace)
}

// caller is a runtime with spans of its own.
type caller struct {
	t      *testing.T // the act's
	tracer api.Tracer
	cni    *libcni.CNIConfig
	killed *libcni.CNIConfig // runs the binary with points
	lists  map[string]*libcni.NetworkConfigList
	points map[string]int // a network's verbs and their points, "lan ADD after veth.create"

	mu    sync.Mutex
	asks  []*ask
	adds  map[string]*ask // of containers, the last one that began an attachment
	pods  map[string]ns.NetNS
	fresh func() ns.NetNS // makes one that lives as long as the test
}

// lists are the caller's networks: one that is large enough, one with a single
// address.
var lists = []string{
	`{"cniVersion": "1.1.0", "name": "lan", "plugins": [{"type": "tracewire", "bridge": "tw0", "isGateway": true,
		"capabilities": {"ips": true},
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]},
		"delegates": [{"type": "witness"}]}]}`,
	`{"cniVersion": "1.1.0", "name": "small", "plugins": [{"type": "tracewire", "bridge": "tw1",
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.78.0.0/24", "rangeStart": "10.78.0.5", "rangeEnd": "10.78.0.5"}]]},
		"tracewire": {"statusGrace": "0s"}}]}`,
}

// newCaller makes the test process a runtime.
func newCaller(t *testing.T) *caller {
	t.Helper()
	spans, err := tracing(t.Context(), "caller")
	if err != nil {
		t.Fatal(err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { t.Error(err) }))
	bin := t.TempDir()
	if err := os.Symlink(self(t), filepath.Join(bin, witness)); err != nil {
		t.Fatal(err)
	}
	exec := &killing{invoke.DefaultExec{RawExec: &invoke.RawExec{}}}
	path := func(ours string) *libcni.CNIConfig {
		return libcni.NewCNIConfig([]string{ours, bin, os.Getenv("TRACEWIRE_REFERENCE")}, exec)
	}
	c := &caller{
		t: t, tracer: spans.Tracer("caller"), cni: path(os.Getenv("TRACEWIRE_BIN")), killed: path(os.Getenv("TRACEWIRE_BIN") + "/test"),
		lists: map[string]*libcni.NetworkConfigList{}, points: map[string]int{}, adds: map[string]*ask{}, pods: map[string]ns.NetNS{}, fresh: func() ns.NetNS { return netns.New(t) }}
	for _, text := range lists {
		list, err := libcni.NetworkConfFromBytes([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		c.lists[list.Name] = list
	}
	return c
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// killing is libcni's own way to run a plugin, with the variables that ctx adds.
type killing struct{ invoke.DefaultExec }

type moreEnv struct{}

func (k *killing) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	more, _ := ctx.Value(moreEnv{}).([]string)
	return k.DefaultExec.ExecPlugin(ctx, path, stdin, append(env, more...))
}

// call is how one operation is asked for.
type call struct {
	verb, network, id string
	ips               []string
	valid             []string // of GC: containers that live
	at                string   // the point it is killed at, "after veth.create"; "" for none
	points            string   // a file for the names of all points, "" for none
	links             []*ask
	want              string // outcome, fine if it is ""
}

// verbs is how libcni is asked for each.
var verbs = map[string]func(context.Context, *libcni.CNIConfig, *libcni.NetworkConfigList, *libcni.RuntimeConf, []types.GCAttachment) error{
	"ADD": func(ctx context.Context, c *libcni.CNIConfig, l *libcni.NetworkConfigList, r *libcni.RuntimeConf, _ []types.GCAttachment) error {
		_, err := c.AddNetworkList(ctx, l, r)
		return err
	},
	"CHECK": func(ctx context.Context, c *libcni.CNIConfig, l *libcni.NetworkConfigList, r *libcni.RuntimeConf, _ []types.GCAttachment) error {
		return c.CheckNetworkList(ctx, l, r)
	},
	"DEL": func(ctx context.Context, c *libcni.CNIConfig, l *libcni.NetworkConfigList, r *libcni.RuntimeConf, _ []types.GCAttachment) error {
		return c.DelNetworkList(ctx, l, r)
	},
	"GC": func(ctx context.Context, c *libcni.CNIConfig, l *libcni.NetworkConfigList, _ *libcni.RuntimeConf, valid []types.GCAttachment) error {
		return c.GCNetworkList(ctx, l, &libcni.GCArgs{ValidAttachments: valid})
	},
}

// ask asks for an operation below a span of its own, the first of its trace, and
// fails the test where it does not end as it should.
func (c *caller) ask(k call) *ask {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ctx, span := c.tracer.Start(ctx, "run "+k.verb)
	a := &ask{verb: k.verb, network: k.network, id: k.id, links: k.links, trace: span.SpanContext().TraceID().String(), span: span.SpanContext().SpanID().String()}
	err := c.do(ctx, k)
	span.End()
	a.outcome = outcome(err)
	var answer *types.Error
	if errors.As(err, &answer) {
		a.code = answer.Code
	}
	if want := cmp.Or(k.want, fine); a.outcome != want {
		c.t.Errorf("%v, want %s: %v", a, want, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asks = append(c.asks, a)
	if k.verb == "ADD" {
		c.adds[k.id] = a
	}
	return a
}

// outcome tells a plugin that was killed, before it answered or after, from one
// that failed.
func outcome(err error) string {
	var answer *types.Error
	switch {
	case err == nil:
		return fine
	case strings.Contains(err.Error(), "signal: killed") || errors.As(err, &answer) && answer.Code == 0 && answer.Msg == "":
		return interrupted
	}
	return failed
}

func (c *caller) do(ctx context.Context, k call) error {
	cni := c.cni
	if k.at != "" || k.points != "" {
		n, known := c.points[k.network+" "+k.verb+" "+k.at]
		if !known && k.at != "" {
			return fmt.Errorf("no point %q among %v", k.at, slices.Sorted(maps.Keys(c.points)))
		}
		cni, ctx = c.killed, context.WithValue(ctx, moreEnv{}, []string{fmt.Sprint("TRACEWIRE_KILL_AT=", n), "TRACEWIRE_POINTS=" + k.points})
	}
	var valid []types.GCAttachment
	for _, id := range k.valid {
		valid = append(valid, types.GCAttachment{ContainerID: id, IfName: "eth0"})
	}
	return verbs[k.verb](ctx, cni, c.lists[k.network], c.runtime(k), valid)
}

func (c *caller) runtime(k call) *libcni.RuntimeConf {
	r := &libcni.RuntimeConf{ContainerID: k.id, IfName: "eth0", NetNS: c.pod(k.id),
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", k.id}}}
	if k.ips != nil {
		r.CapabilityArgs = map[string]any{"ips": k.ips}
	}
	return r
}

// pod is the path of a container's network namespace.
func (c *caller) pod(id string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pods[id] == nil {
		c.pods[id] = c.fresh()
	}
	return c.pods[id].Path()
}

// learn makes an attachment by the binary with points, and learns their names.
func (c *caller) learn(network, id string) {
	c.t.Helper()
	for _, verb := range []string{"ADD", "DEL"} {
		path := filepath.Join(c.t.TempDir(), verb)
		c.ask(call{verb: verb, network: network, id: id, points: path})
		names, err := os.ReadFile(path)
		if err != nil {
			c.t.Fatal(err)
		}
		for i, name := range strings.Split(strings.TrimSpace(string(names)), "\n") {
			if key := network + " " + verb + " " + name; c.points[key] == 0 {
				c.points[key] = i + 1
			}
		}
	}
}

// also notes operations that libcni asked for on its own, below the same span.
func (c *caller) also(under *ask, asks ...ask) {
	for _, a := range asks {
		a.trace, a.span, a.network, a.outcome = under.trace, under.span, under.network, fine
		c.asks = append(c.asks, &a)
	}
}
