package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	api "go.opentelemetry.io/otel/trace"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

const thisBoot = "eb72e3a8-5fc5-4b2a-bbff-e7a979960c99"

// Container ids as runtimes make them. Two begin alike.
var (
	web = strings.Repeat("1635e8a1b2c3d4e5", 4)
	db  = strings.Repeat("1635f00000000000", 4)
	old = strings.Repeat("99aabbccddeeff00", 4)

	coredns = strings.Repeat("c0de1234abcd5678", 4)
)

// noon is when the tests' operations begin; now is an hour later.
var (
	noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now  = noon.Add(time.Hour)
)

// node is what a plugin left behind, in folders of the test's own.
type node struct {
	t       *testing.T
	conf    string
	state   string
	log     string
	columns string // COLUMNS; without it all is written as into a pipe
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{t: t, columns: "100", conf: filepath.Join(dir, "net.d"), state: filepath.Join(dir, "state"), log: filepath.Join(dir, "log", "tracewire.jsonl")}
	n.file(filepath.Join(n.conf, "10-podnet.conflist"), fmt.Sprintf(
		`{"cniVersion":"1.1.0","name":"podnet","plugins":[{"type":"tracewire","tracewire":{"stateDir":%q,"log":{"path":%q}}},{"type":"portmap"}]}`, n.state, n.log))
	return n
}

func (n *node) file(path, text string) {
	n.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		n.t.Fatal(err)
	}
}

// run runs a command line in this process.
func (n *node) run(args ...string) (code int, out, complaint string) {
	n.t.Helper()
	var o strings.Builder
	code, complaint = n.runTo(n.t.Context(), &o, args...)
	return code, o.String(), complaint
}

func (n *node) runTo(ctx context.Context, out io.Writer, args ...string) (code int, complaint string) {
	n.t.Helper()
	var e strings.Builder
	c := &command{
		out: out, err: &e, now: func() time.Time { return now }, zone: time.UTC, boot: thisBoot,
		getenv: func(key string) string { return map[string]string{"NETCONFPATH": n.conf, "COLUMNS": n.columns}[key] },
	}
	code = c.run(ctx, args)
	return code, strings.ReplaceAll(e.String(), filepath.Dir(n.state), "DIR")
}

// operation is one as the plugin would run it.
type operation struct {
	command, id, pod string // pod is NAMESPACE/NAME
	trace            byte   // each byte of its trace id
	after, took      time.Duration
	addresses        []string
	code             int64 // of the error it ends with, 0 for none
	link             api.SpanContext
	mended, repair   string // of a FIX
	runtime          string // that called the plugin, "" as of an older plugin's
}

// operate writes an operation to spool and log, and returns its root span.
func (n *node) operate(o operation) api.SpanContext {
	n.t.Helper()
	start := noon.Add(o.after)
	at := func(share int) api.SpanEventOption {
		return api.WithTimestamp(start.Add(o.took * time.Duration(share) / 10))
	}
	parent := api.NewSpanContext(api.SpanContextConfig{TraceID: traceID(o.trace), SpanID: api.SpanID{1}, TraceFlags: 1, Remote: true})
	r := trace.NewRecorder(start)
	tracer := r.Tracer(trace.Scope)
	ctx, root := tracer.Start(api.ContextWithRemoteSpanContext(n.t.Context(), parent), "cni."+o.command, at(0), api.WithAttributes(o.attributes()...))
	_, child := tracer.Start(ctx, "bridge", at(2))
	trace.Link(ctx, o.link)
	if o.code != 0 {
		for _, s := range []api.Span{root, child} {
			s.SetStatus(codes.Error, "bridge: no such thing")
		}
		root.SetAttributes(trace.KeyErrorCode.Int64(o.code), trace.KeyErrorType.String("a code"))
	}
	child.End(at(7))
	root.End(at(10))
	spool := trace.Spool{Dir: filepath.Join(n.state, "spool"), MaxBytes: 1 << 30}
	if !(trace.Sink{Spool: spool, Log: trace.Log{Path: n.log, Level: "debug"}}).Write(r) {
		n.t.Fatal("the spool did not take the operation")
	}
	return root.SpanContext()
}

func traceID(b byte) (id api.TraceID) {
	for i := range id {
		id[i] = b
	}
	return id
}

func (o operation) attributes() []attribute.KeyValue {
	kv := []attribute.KeyValue{trace.KeyCommand.String(o.command), trace.KeyName.String("podnet")}
	if o.id != "" {
		kv = append(kv, trace.KeyID.String(o.id), trace.KeyIfName.String("eth0"))
	}
	if o.mended != "" {
		kv = append(kv, trace.KeyFinding.String(o.mended), trace.KeyRepair.String(o.repair))
	}
	if namespace, name, ok := strings.Cut(o.pod, "/"); ok {
		kv = append(kv, trace.KeyPodNamespace.String(namespace), trace.KeyPod.String(name))
	}
	if o.runtime != "" {
		kv = append(kv, trace.KeyRuntime.String(o.runtime))
	}
	if o.addresses != nil {
		kv = append(kv, trace.KeyAddresses.StringSlice(o.addresses))
	}
	return kv
}

// morning is a node's usual past: two pods, one of them gone, a failure, and an
// address that went from one to the other.
func (n *node) morning() {
	n.t.Helper()
	add := n.operate(operation{command: "ADD", id: old, pod: "default/old-0", trace: 0xa1, took: 4 * time.Millisecond, addresses: []string{"10.22.0.5/16"}})
	n.operate(operation{command: "DEL", id: old, trace: 0xa2, after: 10 * time.Minute, took: 2 * time.Millisecond, link: add})
	n.operate(operation{command: "ADD", id: web, pod: "default/web-5d4b9c7f6-x2x9k", trace: 0xa3, after: 20 * time.Minute, took: 5 * time.Millisecond,
		addresses: []string{"10.22.0.5/16", "fd00::5/64"}})
	n.operate(operation{command: "ADD", id: db, pod: "default/db-0", trace: 0xa4, after: 30 * time.Minute, took: time.Millisecond, code: 100})
}

// attach writes a record as an ADD leaves it, attached or interrupted before
// its result.
func (n *node) attach(id, pod, netns string, cookie uint64, attached bool, r *types100.Result) {
	n.t.Helper()
	namespace, name, _ := strings.Cut(pod, "/")
	j, err := cache.Dir{Path: filepath.Join(n.state, "attachments")}.Begin(cache.Intent{
		Attachment: delegates.Attachment{Network: "podnet", ContainerID: id, IfName: "eth0"},
		Args:       "K8S_POD_NAMESPACE=" + namespace + ";K8S_POD_NAME=" + name,
		Conf:       []byte(`{}`), NetNS: netns, Cookie: cookie, Boot: thisBoot, Runtime: "/usr/bin/containerd",
	}, time.Now())
	if err != nil {
		n.t.Fatal(err)
	}
	errs := []error{j.Plan(r), j.Begin("veth.create", ""), j.End("veth.create"), j.Begin("route.add", "")}
	if attached {
		errs = append(errs, j.End("route.add"), j.Result(r), j.Told())
	}
	if err := errors.Join(errs...); err != nil {
		n.t.Fatal(err)
	}
}

// result is what ADD answers for these addresses.
func result(t *testing.T, addresses ...string) *types100.Result {
	t.Helper()
	r := &types100.Result{CNIVersion: "1.1.0", Interfaces: []*types100.Interface{
		{Name: "twtest0", Mac: "0a:56:0c:fd:04:c2", Mtu: 1500},
		{Name: "vethtw00000001", Mac: "0a:57:de:c2:12:48", Mtu: 1500},
		{Name: "eth0", Mac: "0a:58:0a:16:00:05", Mtu: 1500, Sandbox: "/run/netns/p"},
	}}
	pod := 2
	for _, a := range addresses {
		ip, network, err := net.ParseCIDR(a)
		if err != nil {
			t.Fatal(err)
		}
		r.IPs = append(r.IPs, &types100.IPConfig{Interface: &pod, Address: net.IPNet{IP: ip, Mask: network.Mask}})
	}
	_, all, err := net.ParseCIDR("0.0.0.0/0")
	if err != nil {
		t.Fatal(err)
	}
	r.Routes = []*types.Route{{Dst: *all, GW: net.IPv4(10, 22, 0, 1)}}
	return r
}
