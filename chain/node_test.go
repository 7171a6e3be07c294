package chain

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
	"github.com/tracewire/tracewire/trace/read"
)

const (
	conf     = `{"name":"net","bridge":"b0"}`
	addSpan  = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	delSpan  = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b8-01"
	thisBoot = "boot-2"
)

var (
	web       = delegates.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"}
	errBroken = errors.New("broken")
	errShort  = errors.New("no address")
)

// node is what the steps of a test make things on, and what they were called for.
type node struct {
	addresses  map[string]string // address of an attachment
	interfaces map[string]string // interface of an attachment: the configuration it was made with
	said       []string          // "ipam ADD", in order

	broken map[string]error // what fails, after it did half of its work: "bridge ADD"
	panics string           // what panics, as above
	empty  bool             // IPAM answers without an address
	room   int              // how many addresses IPAM has, where it is not 0
	marked []string         // containers that something of this kernel is proven to be of
	absent bool             // the pod has no interface of the attachment's name

	kept  []delegates.Attachment           // what the last GC had to leave alone
	calls map[string]delegates.Call        // the last of each: "bridge DEL"
	each  func(what string)                // called as each is, where it is not nil
	built []string                         // configurations that steps were built from
	after func(*types100.Result) error     // Accept
	alive func(cache.Record) (bool, error) // Alive
}

func newNode() *node {
	return &node{addresses: map[string]string{}, interfaces: map[string]string{}, broken: map[string]error{}, calls: map[string]delegates.Call{}}
}

// left is what is made on the node.
func (n *node) left() []string {
	var out []string
	for a := range maps.Keys(n.interfaces) {
		out = append(out, "interface of "+a)
	}
	for a := range maps.Keys(n.addresses) {
		out = append(out, "address of "+a)
	}
	return out
}

// call takes down that a step is called, and is its error.
func (n *node) call(what string, c delegates.Call) error {
	n.said = append(n.said, what)
	n.calls[what] = c
	if n.each != nil {
		n.each(what)
	}
	if n.panics == what {
		panic("a mistake")
	}
	return n.broken[what]
}

// collect takes down that a step is called, and for what is kept.
func (n *node) collect(what string, c delegates.Call, k delegates.Kept) error {
	n.kept = k.All
	return n.call(what, c)
}

// ipam is a step that leases one address.
type ipam struct{ *node }

func (i ipam) Add(_ context.Context, c delegates.Call) (*types100.Result, error) {
	if i.room > 0 && len(i.addresses) >= i.room {
		return nil, errors.Join(i.call("ipam ADD", c), errShort)
	}
	i.addresses[c.String()] = "10.1.0.2"
	if err := i.call("ipam ADD", c); err != nil {
		if errors.As(err, &delegates.NothingMade{}) {
			delete(i.addresses, c.String())
		}
		return nil, err
	}
	r := &types100.Result{CNIVersion: "1.1.0"}
	if !i.empty {
		r.IPs = []*types100.IPConfig{{Address: net.IPNet{IP: net.IPv4(10, 1, 0, 2).To4(), Mask: net.CIDRMask(24, 32)}}}
	}
	return r, nil
}

func (i ipam) Del(_ context.Context, c delegates.Call) error {
	if err := i.call("ipam DEL", c); err != nil {
		return err
	}
	delete(i.addresses, c.String())
	return nil
}

func (i ipam) Check(_ context.Context, c delegates.Call) error { return i.call("ipam CHECK", c) }

func (i ipam) GC(_ context.Context, c delegates.Call, k delegates.Kept) error {
	return i.collect("ipam GC", c, k)
}

func (i ipam) Status(_ context.Context, c delegates.Call) error { return i.call("ipam STATUS", c) }

// bridge is a step of two phases that makes an interface, and asks for the
// addresses between them where it has to.
type bridge struct{ *node }

func (b bridge) Add(ctx context.Context, c delegates.Call) (r *types100.Result, err error) {
	r = &types100.Result{CNIVersion: "1.1.0", Interfaces: []*types100.Interface{{Name: c.IfName, Sandbox: c.NetNS}}}
	addresses := c.IPAM
	err = trace.Rows(ctx, c.Watcher(),
		trace.Row{Name: "veth.create", Do: func(ctx context.Context) error {
			if err := c.Journal.Plan(r); err != nil {
				return err
			}
			b.interfaces[c.String()] = string(c.Conf)
			if c.Lease == nil {
				return nil
			}
			addresses, err = c.Lease(ctx)
			return err
		}},
		trace.Row{Name: "route.add", Do: func(context.Context) error { return b.call("bridge ADD", c) }})
	if addresses != nil {
		r.IPs = addresses.IPs
	}
	return r, err
}

func (b bridge) Del(_ context.Context, c delegates.Call) error {
	if err := b.call("bridge DEL", c); err != nil {
		return err
	}
	delete(b.interfaces, c.String())
	return nil
}

func (b bridge) Check(_ context.Context, c delegates.Call) error { return b.call("bridge CHECK", c) }

func (b bridge) GC(_ context.Context, c delegates.Call, k delegates.Kept) error {
	return b.collect("bridge GC", c, k)
}

func (b bridge) Status(_ context.Context, c delegates.Call) error { return b.call("bridge STATUS", c) }

// extra is a delegate that adds an interface of its name to the result.
type extra struct {
	*node
	name string
}

func (e extra) Add(_ context.Context, c delegates.Call) (*types100.Result, error) {
	e.interfaces[c.String()+" by "+e.name] = string(c.Conf)
	if err := e.call(e.name+" ADD", c); err != nil {
		return nil, err
	}
	r := &types100.Result{CNIVersion: "1.1.0"}
	if c.Before != nil {
		r.Interfaces, r.IPs = slices.Clone(c.Before.Interfaces), c.Before.IPs
	}
	r.Interfaces = append(r.Interfaces, &types100.Interface{Name: e.name})
	return r, nil
}

func (e extra) Del(_ context.Context, c delegates.Call) error {
	if err := e.call(e.name+" DEL", c); err != nil {
		return err
	}
	delete(e.interfaces, c.String()+" by "+e.name)
	return nil
}

func (e extra) GC(_ context.Context, c delegates.Call, k delegates.Kept) error {
	return e.collect(e.name+" GC", c, k)
}

func (e extra) Check(_ context.Context, c delegates.Call) error { return e.call(e.name+" CHECK", c) }

func (e extra) Status(_ context.Context, c delegates.Call) error { return e.call(e.name+" STATUS", c) }

// host is a node and the records of its attachments.
type host struct {
	*node
	records cache.Dir
}

func newHost(t *testing.T) host {
	t.Helper()
	return host{newNode(), cache.Dir{Path: filepath.Join(t.TempDir(), "attachments")}}
}

// kind is a kind of IPAM: none, one that answers first, one that answers when
// the interface exists, and one whose DEL needs the interface, too.
// after is delegates by name, and alone tells that the first of them makes the
// interface.
type kind struct {
	none, late, early, alone bool
	after                    []string
}

// chain is one operation's.
func (h host) chain(k kind) *Chain {
	return &Chain{
		Records: h.records, Boot: thisBoot, Start: time.Now(), Operation: cache.Operation{Name: "cni.DEL", Span: delSpan},
		Lock: func(ctx context.Context, a delegates.Attachment) (func(), error) {
			if ctx.Err() == nil { // else it only looks
				h.said = append(h.said, "lock")
			}
			return func() {}, cmp.Or(h.broken["lock of "+a.ContainerID], h.broken["lock"])
		},
		Network: func(context.Context, string, bool) (func(), error) { return func() {}, nil },
		Build: func(conf []byte, args string) (Steps, error) {
			h.built = append(h.built, strings.TrimSpace(string(conf)+" "+args))
			s := Steps{Name: "bridge", Main: bridge{h.node}, Leases: "fake", Late: k.late, Early: k.early, Short: func(err error) bool { return errors.Is(err, errShort) }}
			if !k.none {
				s.IPAM = ipam{h.node}
			}
			for _, name := range k.after {
				s.Delegates = append(s.Delegates, Step{"delegate " + name, extra{h.node, name}})
			}
			if k.alone {
				s.Main, s.Vacant = nil, func(delegates.Attachment) error { return h.broken["vacant"] }
			}
			return s, h.broken["build"]
		},
		Alive: func(_ context.Context, r cache.Record) (bool, error) {
			if h.alive == nil {
				return true, nil
			}
			return h.alive(r)
		},
		Holders: func(_ context.Context, network string) (cache.Holders, error) {
			records, err := h.records.Of(network)
			marked := func(a delegates.Attachment) bool { return slices.Contains(h.marked, a.ContainerID) }
			return cache.Holders{Dir: h.records, Boot: thisBoot, Records: records, Marked: marked}, errors.Join(err, h.broken["holders"])
		},
		Tell:    func(context.Context, cache.Record) {},
		Sandbox: func(_ cache.Record, _ delegates.Attachment, path string) (string, bool) { return path, h.absent },
		Accept: func(r *types100.Result) error {
			if h.after == nil {
				return nil
			}
			return h.after(r)
		},
	}
}

func intent() cache.Intent {
	return cache.Intent{Attachment: web, Conf: []byte(conf), Args: "A=1", NetNS: "/run/netns/c1", Cookie: 7, Boot: thisBoot, Span: addSpan}
}

func call() delegates.Call {
	return delegates.Call{Attachment: web, Conf: []byte(conf), Args: "A=1", NetNS: "/run/netns/c1"}
}

// state is what the attachment's record tells. One that nothing is left of is
// gone, as it is with the end of the operation.
func (h host) state(t *testing.T) cache.State {
	t.Helper()
	r, err := h.records.Read(web)
	if r.State == cache.Ended {
		r.State, err = cache.None, os.Remove(h.records.File(web))
	}
	if err != nil {
		t.Fatal(err)
	}
	return r.State
}

// begin begins a record as a process that was killed left it.
func (h host) begin(t *testing.T, in cache.Intent, lines ...func(*cache.Journal) error) {
	t.Helper()
	j, err := h.records.Begin(in, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		err = errors.Join(err, l(j))
	}
	if err := errors.Join(err, j.Close()); err != nil {
		t.Fatal(err)
	}
}

// attach makes an attachment, which the test then finds.
func (h host) attach(t *testing.T) {
	t.Helper()
	c := h.chain(kind{})
	if _, err := c.Add(t.Context(), intent(), call()); err != nil {
		t.Fatal(err)
	}
	if err := c.journal.Close(); err != nil { // as the end of its process does
		t.Fatal(err)
	}
	h.forget()
}

// forget forgets what was done so far, and keeps what was made.
func (h host) forget() { h.said, h.built, h.calls = nil, nil, map[string]delegates.Call{} }

// record runs do in a root span and returns the operation.
func record(t *testing.T, name string, do func(context.Context)) read.Operation {
	t.Helper()
	r := trace.NewRecorder(time.Now())
	ctx, root := r.Tracer(trace.Scope).Start(t.Context(), name)
	do(ctx)
	root.End()
	dir := t.TempDir()
	if err := (trace.Spool{Dir: dir, MaxBytes: 1 << 30}).Write(r, nil); err != nil {
		t.Fatal(err)
	}
	var ops []read.Operation
	if _, err := read.Spool(dir, func(o read.Operation) bool { ops = append(ops, o); return true }); err != nil || len(ops) != 1 {
		t.Fatalf("%d operations: %v", len(ops), err)
	}
	return ops[0]
}

// warnings is the names of the operation's events other than exceptions, and
// what they tell.
func warnings(o read.Operation) (out []string) {
	o.Root.Walk(func(_ int, n read.Node) {
		for _, e := range n.Events {
			if e.Name == "exception" {
				continue
			}
			what := n.Name + ": " + e.Name
			if text := e.Attributes.Text(trace.KeyError); text != "" {
				what += ": " + text
			}
			out = append(out, what)
		}
	})
	return out
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
