package chain

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
	"github.com/tracewire/tracewire/trace/read"
)

const undone = `  undo
    bridge
    ipam
    cache.delete
`

func TestAdd(t *testing.T) {
	both := []string{"interface of net/c1:eth0", "address of net/c1:eth0"}
	for _, tt := range []struct {
		name  string
		kind  kind
		spoil func(host)
		tree  string
		said  []string
		left  []string
		state cache.State
		err   string
		is    error
	}{
		{"addresses first", kind{}, nil, `cni.ADD
  cache.read
  cache.intent
  ipam
  bridge
    veth.create
    route.add
  cache.commit
`, []string{"lock", "ipam ADD", "bridge ADD"}, both, cache.Attached, "", nil},
		{"addresses when the interface exists", kind{late: true}, nil, `cni.ADD
  cache.read
  cache.intent
  bridge
    veth.create
    route.add
  cache.commit
`, []string{"lock", "ipam ADD", "bridge ADD"}, both, cache.Attached, "", nil},
		{"without addresses", kind{none: true}, nil, `cni.ADD
  cache.read
  cache.intent
  bridge
    veth.create
    route.add
  cache.commit
`, []string{"lock", "bridge ADD"}, both[:1], cache.Attached, "", nil},
		{"the configuration has errors", kind{}, func(h host) { h.broken["build"] = errBroken }, "cni.ADD\n", nil, nil, cache.None, "broken", errBroken},
		{"the lock is held", kind{}, func(h host) { h.broken["lock"] = errBroken }, `cni.ADD
  cache.read [error]
`, []string{"lock"}, nil, cache.None, "cache.read: broken", errBroken},
		{"ipam fails", kind{}, func(h host) { h.broken["ipam ADD"] = errBroken }, `cni.ADD
  cache.read
  cache.intent
  ipam [error]
` + undone, []string{"lock", "ipam ADD", "bridge DEL", "ipam DEL"}, nil, cache.None, "ipam: broken", errBroken},
		{"ipam fails before it made anything", kind{}, func(h host) { h.broken["ipam ADD"] = delegates.NothingMade{Err: errBroken} }, `cni.ADD
  cache.read
  cache.intent
  ipam [error]
  undo
    bridge
    cache.delete
`, []string{"lock", "ipam ADD", "bridge DEL"}, nil, cache.None, "ipam: broken", errBroken},
		{"ipam has no address", kind{}, func(h host) { h.empty = true }, `cni.ADD
  cache.read
  cache.intent
  ipam [error]
` + undone, []string{"lock", "ipam ADD", "bridge DEL", "ipam DEL"}, nil, cache.None, "ipam: IPAM gave no address: fake", ErrNoAddress},
		{"a late ipam fails", kind{late: true}, func(h host) { h.broken["ipam ADD"] = errBroken }, `cni.ADD
  cache.read
  cache.intent
  bridge [error]
    veth.create [error]
` + undone, []string{"lock", "ipam ADD", "bridge DEL", "ipam DEL"}, nil, cache.None, "bridge: veth.create: broken", errBroken},
		{"a late ipam has no address", kind{late: true}, func(h host) { h.empty = true }, `cni.ADD
  cache.read
  cache.intent
  bridge [error]
    veth.create [error]
` + undone, []string{"lock", "ipam ADD", "bridge DEL", "ipam DEL"}, nil, cache.None, "bridge: veth.create: IPAM gave no address: fake", ErrNoAddress},
		{"dhcp has its DEL first", kind{late: true, early: true}, func(h host) { h.broken["bridge ADD"] = errBroken }, `cni.ADD
  cache.read
  cache.intent
  bridge [error]
    veth.create
    route.add [error]
  undo
    ipam
    bridge
    cache.delete
`, []string{"lock", "ipam ADD", "bridge ADD", "ipam DEL", "bridge DEL"}, nil, cache.None, "bridge: route.add: broken", errBroken},
		{"the main step fails", kind{}, func(h host) { h.broken["bridge ADD"] = errBroken }, `cni.ADD
  cache.read
  cache.intent
  ipam
  bridge [error]
    veth.create
    route.add [error]
` + undone, []string{"lock", "ipam ADD", "bridge ADD", "bridge DEL", "ipam DEL"}, nil, cache.None, "bridge: route.add: broken", errBroken},
		{"the answer cannot be given", kind{}, func(h host) { h.after = func(*types100.Result) error { return errBroken } }, `cni.ADD
  cache.read
  cache.intent
  ipam
  bridge
    veth.create
    route.add
  cache.commit [error]
` + undone, []string{"lock", "ipam ADD", "bridge ADD", "bridge DEL", "ipam DEL"}, nil, cache.None, "cache.commit: result cannot be given in the version asked for: broken", ErrVersion},
		{"undo does not end", kind{}, func(h host) { h.broken["bridge ADD"] = errBroken; h.broken["bridge DEL"] = fs.ErrPermission }, `cni.ADD
  cache.read
  cache.intent
  ipam
  bridge [error]
    veth.create
    route.add [error]
  undo [error]
    bridge [error]
    ipam
`, []string{"lock", "ipam ADD", "bridge ADD", "bridge DEL", "ipam DEL"}, both[:1], cache.Interrupted, "bridge: route.add: broken\nundo incomplete: bridge: permission denied", ErrUndone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			if tt.spoil != nil {
				tt.spoil(h)
			}
			var r *types100.Result
			var err error
			op := record(t, "cni.ADD", func(ctx context.Context) { r, err = h.chain(tt.kind).Add(ctx, intent(), call()) })
			if got := text(err); got != tt.err || tt.is != nil && !errors.Is(err, tt.is) || (r == nil) != (err != nil) {
				t.Errorf("error %s\nwant  %s", got, tt.err)
			}
			if diff := cmp.Diff(tt.tree, read.Tree(op)); diff != "" {
				t.Errorf("spans (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(tt.said, h.said); diff != "" {
				t.Errorf("calls (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(tt.left, h.left()); diff != "" {
				t.Errorf("left (-want +got)\n%s", diff)
			}
			if h.state(t) != tt.state {
				t.Errorf("the record is %s, want %s", h.state(t), tt.state)
			}
			if got := warnings(op); len(got) > 0 {
				t.Errorf("warnings %v", got)
			}
		})
	}
}

// TestAddWithoutARecord: nothing is made that is not written down first.
func TestAddWithoutARecord(t *testing.T) {
	h := newHost(t)
	if err := os.WriteFile(h.records.Path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := h.chain(kind{}).Add(t.Context(), intent(), call())
	if got, want := text(err), "cache.intent: create "+h.records.File(web)+": not a directory"; got != want {
		t.Errorf("error %s, want %s", got, want)
	}
	if diff := cmp.Diff([]string{"lock"}, h.said); diff != "" {
		t.Errorf("calls (-want +got)\n%s", diff)
	}
}

// TestAddPanics: a mistake of a step is an error, and what was made is taken back.
func TestAddPanics(t *testing.T) {
	for _, what := range []string{"ipam ADD", "bridge ADD"} {
		t.Run(what, func(t *testing.T) {
			h := newHost(t)
			h.panics = what
			var err error
			op := record(t, "cni.ADD", func(ctx context.Context) { _, err = h.chain(kind{}).Add(ctx, intent(), call()) })
			if !errors.Is(err, ErrPanic) || err.Error() != "panic: a mistake" {
				t.Errorf("error %v", err)
			}
			if diff := cmp.Diff([]string{"cni.ADD: panic"}, warnings(op)); diff != "" {
				t.Errorf("warnings (-want +got)\n%s", diff)
			}
			if stack := op.Root.Events[0].Attributes.Text("exception.stacktrace"); !strings.Contains(stack, "node_test.go") {
				t.Errorf("the stack does not show where: %s", stack)
			}
			if !strings.HasSuffix(read.Tree(op), undone) || len(h.left()) > 0 || h.state(t) != cache.None {
				t.Errorf("left %v, record %s\n%s", h.left(), h.state(t), read.Tree(op))
			}
		})
	}
}

// TestAddFolds: each step is given what the one before it answered, and the
// record has it all.
func TestAddFolds(t *testing.T) {
	for name, k := range map[string]kind{"first": {}, "late": {late: true}} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			got, err := h.chain(k).Add(t.Context(), intent(), call())
			if err != nil {
				t.Fatal(err)
			}
			want := `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/c1"}],"ips":[{"address":"10.1.0.2/24"}]}`
			if diff := cmp.Diff(want, asJSON(t, got)); diff != "" {
				t.Errorf("answer (-want +got)\n%s", diff)
			}
			r, err := h.records.Read(web)
			if err != nil {
				t.Fatal(err)
			}
			phases := []string{}
			for _, p := range r.Phases() {
				phases = append(phases, p.Name)
			}
			if diff := cmp.Diff([]string{"veth.create", "route.add"}, phases); diff != "" {
				t.Errorf("phases (-want +got)\n%s", diff)
			}
			for what, x := range map[string]struct{ want, got string }{
				"result":   {want, asJSON(t, r.Result.Get())},
				"reserved": {`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}]}`, asJSON(t, r.Reserved.Get())},
				"plan":     {`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/c1"}]}`, asJSON(t, r.Plan.Get())},
			} {
				if diff := cmp.Diff(x.want, x.got); diff != "" {
					t.Errorf("%s (-want +got)\n%s", what, diff)
				}
			}
			if diff := cmp.Diff(intent(), r.Intent); diff != "" {
				t.Errorf("intent (-want +got)\n%s", diff)
			}
			if c := h.calls["bridge ADD"]; (c.Lease != nil) != k.late || (c.IPAM != nil) == k.late || c.Journal == nil {
				t.Errorf("the main step is given %+v", c)
			}
		})
	}
}

func asJSON(t *testing.T, r *types100.Result) string {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	if b, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestAddAgain: of an attachment that lives nothing is touched; any other is
// taken back first, with the configuration that its ADD used.
func TestAddAgain(t *testing.T) {
	const first = `{"name":"net","bridge":"first"}`
	old := func(boot string) cache.Intent {
		in := intent()
		in.Conf, in.Args, in.Boot = []byte(first), "A=0", boot
		return in
	}
	result := func(j *cache.Journal) error {
		return j.Result(&types100.Result{CNIVersion: "1.1.0", Interfaces: []*types100.Interface{{Name: "eth0"}}})
	}
	dead := func(host) func(cache.Record) (bool, error) {
		return func(cache.Record) (bool, error) { return false, nil }
	}
	const took = `cni.ADD
  cache.read
  undo
    bridge
    ipam
    cache.delete
  cache.intent
  ipam
  bridge
    veth.create
    route.add
  cache.commit
`
	for _, tt := range []struct {
		name  string
		in    cache.Intent
		lines []func(*cache.Journal) error
		alive func(host) func(cache.Record) (bool, error)
		took  bool
		err   string
		is    error
	}{
		{"alive", old(thisBoot), []func(*cache.Journal) error{result}, nil, false, "cache.read: attachment exists: net/c1:eth0, since WHEN", ErrAttached},
		{"it cannot be told", old(thisBoot), []func(*cache.Journal) error{result}, func(host) func(cache.Record) (bool, error) {
			return func(cache.Record) (bool, error) { return false, errBroken }
		}, false, "cache.read: broken", errBroken},
		{"dead", old(thisBoot), []func(*cache.Journal) error{result}, dead, true, "", nil},
		{"of an earlier boot", old("boot-1"), []func(*cache.Journal) error{result}, nil, true, "", nil},
		{"interrupted", old(thisBoot), nil, nil, true, "", nil},
		{"a DEL did not end", old(thisBoot), []func(*cache.Journal) error{result, func(j *cache.Journal) error { return j.Deleting(cache.Operation{Name: "cni.DEL", Span: delSpan}) }}, nil, true, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			h.begin(t, tt.in, tt.lines...)
			h.addresses[web.String()], h.interfaces[web.String()] = "10.1.0.9", first
			if tt.alive != nil {
				h.alive = tt.alive(h)
			}
			before, err := h.records.Read(web)
			if err != nil {
				t.Fatal(err)
			}
			op := record(t, "cni.ADD", func(ctx context.Context) { _, err = h.chain(kind{}).Add(ctx, intent(), call()) })
			if got := strings.ReplaceAll(text(err), before.Began.UTC().Format(time.RFC3339), "WHEN"); got != tt.err || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("error %s, want %s", got, tt.err)
			}
			if !tt.took {
				if h.state(t) != cache.Attached || !slices.Equal(h.said, []string{"lock"}) || h.interfaces[web.String()] != first {
					t.Errorf("it was touched: %v", h.said)
				}
				return
			}
			if diff := cmp.Diff(took, read.Tree(op)); diff != "" {
				t.Errorf("spans (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff([]string{"lock", "bridge DEL", "ipam DEL", "ipam ADD", "bridge ADD"}, h.said); diff != "" {
				t.Errorf("calls (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff([]string{conf + " A=1", first + " A=0"}, h.built); diff != "" {
				t.Errorf("configurations (-want +got)\n%s", diff)
			}
			for _, what := range []string{"bridge DEL", "ipam DEL"} {
				c := h.calls[what]
				if string(c.Conf) != first || c.Args != "A=0" || !c.Made.Known || c.Made.ThisBoot != (tt.in.Boot == thisBoot) || c.Made.Cookie != 7 || c.Journal == nil || c.Lease != nil {
					t.Errorf("%s is given %+v", what, c)
				}
			}
			if h.interfaces[web.String()] != conf || h.state(t) != cache.Attached {
				t.Errorf("record %s, interface made with %s", h.state(t), h.interfaces[web.String()])
			}
			if diff := cmp.Diff([]string{addSpan[36:52]}, links(op.Root)); diff != "" {
				t.Errorf("links (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff([]string{"cni.ADD: an earlier ADD of this attachment is taken back"}, warnings(op)); diff != "" {
				t.Errorf("warnings (-want +got)\n%s", diff)
			}
		})
	}
}

// links is the ids of the spans that a span links to.
func links(n read.Node) (ids []string) {
	for _, l := range n.Links {
		ids = append(ids, l.SpanID)
	}
	return ids
}

// TestAddAfterWhatCanNotBeTakenBack: the earlier record stays, for DEL.
func TestAddAfterWhatCanNotBeTakenBack(t *testing.T) {
	h := newHost(t)
	h.begin(t, intent())
	h.broken["ipam DEL"] = errBroken
	var err error
	op := record(t, "cni.ADD", func(ctx context.Context) { _, err = h.chain(kind{}).Add(ctx, intent(), call()) })
	if got := text(err); got != "not everything could be removed: ipam: broken" || !errors.Is(err, ErrLeft) {
		t.Errorf("error %s", got)
	}
	if diff := cmp.Diff("cni.ADD\n  cache.read\n  undo [error]\n    bridge\n    ipam [error]\n", read.Tree(op)); diff != "" {
		t.Errorf("spans (-want +got)\n%s", diff)
	}
	if h.state(t) != cache.Deleting {
		t.Errorf("the record is %s", h.state(t))
	}
}

// TestUndoOutlivesTheDeadline: an ADD that ran out of time is taken back all the same.
func TestUndoOutlivesTheDeadline(t *testing.T) {
	h := newHost(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h.each = func(what string) {
		if what == "ipam ADD" {
			cancel()
		}
	}
	_, err := h.chain(kind{}).Add(ctx, intent(), call())
	if got := text(err); got != "bridge: context canceled" {
		t.Errorf("error %s", got)
	}
	if diff := cmp.Diff([]string{"lock", "ipam ADD", "bridge DEL", "ipam DEL"}, h.said); diff != "" {
		t.Errorf("calls (-want +got)\n%s", diff)
	}
	if len(h.left()) > 0 || h.state(t) != cache.None {
		t.Errorf("left %v, record %s", h.left(), h.state(t))
	}
}

// TestUndoKnowsThePlan: what the failed step planned is what DEL is given.
func TestUndoKnowsThePlan(t *testing.T) {
	h := newHost(t)
	h.broken["bridge ADD"] = errBroken
	if _, err := h.chain(kind{}).Add(t.Context(), intent(), call()); err == nil {
		t.Fatal("no error")
	}
	m := h.calls["bridge DEL"].Made
	if !m.Known || !m.ThisBoot || m.Cookie != 7 || m.Result == nil || len(m.Result.Interfaces) != 1 || m.Reserved == nil || len(m.Reserved.IPs) != 1 {
		t.Errorf("%+v", m)
	}
}

// TestClose: once it is told, an operation that left nothing takes its record
// along, and another one's record knows that it was told.
func TestClose(t *testing.T) {
	h := newHost(t)
	c := h.chain(kind{})
	if err := c.Close(t.Context()); err != nil {
		t.Errorf("of no operation: %v", err)
	}
	if _, err := c.Add(t.Context(), intent(), call()); err != nil {
		t.Fatal(err)
	}
	is := func(when string, state cache.State, told bool) {
		t.Helper()
		if r, err := h.records.Read(web); err != nil || r.Told != told || r.State != state {
			t.Errorf("%s: %s, told %t, %v", when, r.State, r.Told, err)
		}
	}
	is("after ADD", cache.Attached, false)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	is("ADD is told", cache.Attached, true)
	h.broken["bridge DEL"] = errBroken
	d := h.chain(kind{})
	if err := d.Del(t.Context(), call()); text(err) != "not everything could be removed: bridge: broken" {
		t.Errorf("of a DEL: %v", err)
	}
	is("after a DEL that failed", cache.Deleting, false)
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
	is("it is told", cache.Deleting, true)
	delete(h.broken, "bridge DEL")
	d = h.chain(kind{})
	if err := d.Del(t.Context(), call()); err != nil {
		t.Error(err)
	}
	is("after DEL", cache.Ended, false)
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
	is("DEL is told", cache.None, false)
}

func TestLockWaitAndRecordAreAttributes(t *testing.T) {
	h := newHost(t)
	h.attach(t)
	var err error
	op := record(t, "cni.DEL", func(ctx context.Context) { err = h.chain(kind{}).Del(ctx, call()) })
	if err != nil {
		t.Fatal(err)
	}
	a := op.Root.Children[0].Attributes
	if wait, ok := a.Value(trace.KeyLockWait).(float64); !ok || wait < 0 || a.Text(trace.KeyRecord) != "attached" || a.Int(trace.KeyRecordSize) == 0 {
		t.Errorf("%+v", a)
	}
}

func TestGuard(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func() error
		want string
	}{
		{"no error", func() error { return nil }, ""},
		{"an error", func() error { return errBroken }, "broken"},
		{"a panic", func() error { panic(errBroken) }, "panic: broken"},
		{"a mistake of the runtime's kind", func() error { var none *Chain; return none.Close(t.Context()) }, "panic: runtime error: invalid memory address or nil pointer dereference"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := Guard(t.Context(), tt.do)
			if got := text(err); got != tt.want || errors.Is(err, ErrPanic) != strings.HasPrefix(tt.want, "panic") {
				t.Errorf("error %s, want %s", got, tt.want)
			}
		})
	}
}
