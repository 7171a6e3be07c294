package chain

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/trace/read"
)

// TestDelegates: delegates run after our own steps, each on the result so far;
// what fails is taken back backward, the failed one too.
func TestDelegates(t *testing.T) {
	two := kind{after: []string{"tuning", "portmap"}}
	for _, tt := range []struct {
		name  string
		kind  kind
		spoil func(host)
		tree  string
		said  []string
		names []string // of the result's interfaces
		state cache.State
		err   string
	}{
		{"after our own", two, nil, `cni.ADD
  cache.read
  cache.intent
  ipam
  bridge
    veth.create
    route.add
  delegate tuning
  delegate portmap
  cache.commit
`, []string{"lock", "ipam ADD", "bridge ADD", "tuning ADD", "portmap ADD"}, []string{"eth0", "tuning", "portmap"}, cache.Attached, ""},
		{"in our place", kind{none: true, alone: true, after: []string{"macvlan", "tuning"}}, nil, `cni.ADD
  cache.read
  cache.intent
  delegate macvlan
  delegate tuning
  cache.commit
`, []string{"lock", "macvlan ADD", "tuning ADD"}, []string{"macvlan", "tuning"}, cache.Attached, ""},
		{"the interface is there", kind{none: true, alone: true, after: []string{"macvlan"}}, func(h host) { h.broken["vacant"] = errBroken }, `cni.ADD
  cache.read
  cache.intent
  undo
    delegate macvlan
    cache.delete
`, []string{"lock", "macvlan DEL"}, nil, cache.None, "broken"},
		{"the second fails", two, func(h host) { h.broken["portmap ADD"] = errBroken }, `cni.ADD
  cache.read
  cache.intent
  ipam
  bridge
    veth.create
    route.add
  delegate tuning
  delegate portmap [error]
  undo
    delegate portmap
    delegate tuning
    bridge
    ipam
    cache.delete
`, []string{"lock", "ipam ADD", "bridge ADD", "tuning ADD", "portmap ADD", "portmap DEL", "tuning DEL", "bridge DEL", "ipam DEL"}, nil, cache.None, "delegate portmap: broken"},
		{"one panics", two, func(h host) { h.panics = "tuning ADD" }, `cni.ADD
  cache.read
  cache.intent
  ipam
  bridge
    veth.create
    route.add
  delegate tuning [error]
  undo
    delegate portmap
    delegate tuning
    bridge
    ipam
    cache.delete
`, []string{"lock", "ipam ADD", "bridge ADD", "tuning ADD", "portmap DEL", "tuning DEL", "bridge DEL", "ipam DEL"}, nil, cache.None, "panic: a mistake"},
		{"its DEL fails too", two, func(h host) { h.broken["tuning ADD"], h.broken["tuning DEL"] = errBroken, errBroken }, `cni.ADD
  cache.read
  cache.intent
  ipam
  bridge
    veth.create
    route.add
  delegate tuning [error]
  undo [error]
    delegate portmap
    delegate tuning [error]
    bridge
    ipam
`, []string{"lock", "ipam ADD", "bridge ADD", "tuning ADD", "portmap DEL", "tuning DEL", "bridge DEL", "ipam DEL"}, nil, cache.Interrupted, "delegate tuning: broken\nundo incomplete: delegate tuning: broken"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			if tt.spoil != nil {
				tt.spoil(h)
			}
			var r *types100.Result
			var err error
			op := record(t, "cni.ADD", func(ctx context.Context) { r, err = h.chain(tt.kind).Add(ctx, intent(), call()) })
			if text(err) != tt.err {
				t.Errorf("error %s\nwant  %s", text(err), tt.err)
			}
			if diff := cmp.Diff(tt.tree, read.Tree(op)); diff != "" {
				t.Errorf("spans (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(tt.said, h.said); diff != "" {
				t.Errorf("calls (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(tt.names, names(r)); diff != "" {
				t.Errorf("interfaces (-want +got)\n%s", diff)
			}
			if h.state(t) != tt.state {
				t.Errorf("the record is %s, want %s", h.state(t), tt.state)
			}
		})
	}
}

// names is the names of a result's interfaces.
func names(r *types100.Result) (out []string) {
	if r == nil {
		return nil
	}
	for _, i := range r.Interfaces {
		out = append(out, i.Name)
	}
	return out
}

// TestDelegatesAreGiven: on ADD the result so far; on DEL and CHECK the
// runtime's prevResult, and the record's result beside it.
func TestDelegatesAreGiven(t *testing.T) {
	two := kind{after: []string{"tuning", "portmap"}}
	h := newHost(t)
	c := h.chain(two)
	if _, err := c.Add(t.Context(), intent(), call()); err != nil {
		t.Fatal(err)
	}
	for what, want := range map[string][]string{"tuning ADD": {"eth0"}, "portmap ADD": {"eth0", "tuning"}} {
		if diff := cmp.Diff(want, names(h.calls[what].Before)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", what, diff)
		}
	}
	if err := c.journal.Close(); err != nil {
		t.Fatal(err)
	}
	h.forget()
	prev := json.RawMessage(`{"cniVersion":"1.1.0","interfaces":[{"name":"later"}]}`)
	for _, verb := range []string{"CHECK", "DEL"} {
		asked := call()
		asked.Prev, h.absent = prev, true
		err := h.chain(two).Check(t.Context(), asked)
		if verb == "DEL" {
			err = h.chain(two).Del(t.Context(), asked)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"tuning ", "portmap "} {
			got := h.calls[name+verb]
			if diff := cmp.Diff([]string{"eth0", "tuning", "portmap"}, names(got.Made.Result)); diff != "" || string(got.Prev) != string(prev) {
				t.Errorf("%s%s: prevResult %s, record (-want +got)\n%s", name, verb, got.Prev, diff)
			}
			if got.Absent != (verb == "DEL") {
				t.Errorf("%s%s: absent %t", name, verb, got.Absent)
			}
		}
	}
	if diff := cmp.Diff([]string{"lock", "bridge CHECK", "ipam CHECK", "tuning CHECK", "portmap CHECK"}, h.said[:5]); diff != "" {
		t.Errorf("CHECK (-want +got)\n%s", diff)
	}
}

// TestDelegateOfAChain: behind other plugins the first delegate starts from
// their result, and the undo of a later one has ours.
func TestDelegateOfAChain(t *testing.T) {
	h := newHost(t)
	h.broken["second ADD"] = errBroken
	asked := call()
	asked.Prev = json.RawMessage(`{"cniVersion":"1.1.0","interfaces":[{"name":"theirs"}]}`)
	asked.Before = &types100.Result{Interfaces: []*types100.Interface{{Name: "theirs"}}}
	_, err := h.chain(kind{none: true, alone: true, after: []string{"first", "second"}}).Add(t.Context(), intent(), asked)
	if !errors.Is(err, errBroken) {
		t.Error(err)
	}
	if got := h.calls["first ADD"]; string(got.Prev) != string(asked.Prev) || names(got.Before)[0] != "theirs" {
		t.Errorf("the first has %s, %v", got.Prev, names(got.Before))
	}
	for _, what := range []string{"second ADD", "second DEL", "first DEL"} {
		got := h.calls[what]
		have := got.Before
		if what != "second ADD" {
			have = got.Made.Result
		}
		if diff := cmp.Diff([]string{"theirs", "first"}, names(have)); diff != "" || len(got.Prev) > 0 {
			t.Errorf("%s: prevResult %s (-want +got)\n%s", what, got.Prev, diff)
		}
	}
}

// TestDelegateThatCanNotBeRemoved keeps nobody else from being cleaned, and is
// asked again.
func TestDelegateThatCanNotBeRemoved(t *testing.T) {
	two := kind{after: []string{"tuning", "portmap"}}
	h := newHost(t)
	c := h.chain(two)
	if _, err := c.Add(t.Context(), intent(), call()); err != nil {
		t.Fatal(err)
	}
	_ = c.journal.Close()
	h.broken["portmap DEL"] = errBroken
	if err := h.chain(two).Del(t.Context(), call()); !errors.Is(err, ErrLeft) || !errors.Is(err, errBroken) {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff([]string{"interface of net/c1:eth0 by portmap"}, h.left()); diff != "" || h.state(t) != cache.Deleting {
		t.Errorf("record %s, left (-want +got)\n%s", h.state(t), diff)
	}
	delete(h.broken, "portmap DEL")
	if err := h.chain(two).Del(t.Context(), call()); err != nil || len(h.left()) > 0 || h.state(t) != cache.None {
		t.Errorf("error %v, left %q, record %s", err, h.left(), h.state(t))
	}
}

// TestDelegateOfADeadAttachment: the DEL of what an earlier ADD of the id left is
// not given this ADD's prevResult, which names another's addresses.
func TestDelegateOfADeadAttachment(t *testing.T) {
	one := kind{none: true, alone: true, after: []string{"firewall"}}
	h := newHost(t)
	asked := call()
	asked.Prev = json.RawMessage(`{"cniVersion":"1.1.0","interfaces":[{"name":"first"}]}`)
	asked.Before = &types100.Result{Interfaces: []*types100.Interface{{Name: "first"}}}
	c := h.chain(one)
	if _, err := c.Add(t.Context(), intent(), asked); err != nil {
		t.Fatal(err)
	}
	_ = c.journal.Close()
	h.forget()
	h.alive = func(cache.Record) (bool, error) { return false, nil }
	asked.Prev = json.RawMessage(`{"cniVersion":"1.1.0","interfaces":[{"name":"second"}]}`)
	asked.Before = &types100.Result{Interfaces: []*types100.Interface{{Name: "second"}}}
	if _, err := h.chain(one).Add(t.Context(), intent(), asked); err != nil {
		t.Fatal(err)
	}
	if got := h.calls["firewall DEL"]; len(got.Prev) > 0 || got.Before != nil || names(got.Made.Result)[0] != "first" {
		t.Errorf("DEL was given %s, record %v", got.Prev, names(got.Made.Result))
	}
	if got := h.calls["firewall ADD"]; names(got.Before)[0] != "second" {
		t.Errorf("ADD was given %v", names(got.Before))
	}
}

// TestGCThatFailedIsToldOnce: the record of what a GC could not remove knows that
// the GC tells of itself.
func TestGCThatFailedIsToldOnce(t *testing.T) {
	h := newHost(t)
	h.attach(t)
	h.broken["bridge DEL"] = errBroken
	c := h.chain(kind{})
	c.Operation = cache.Operation{Name: "cni.GC", Span: delSpan}
	if err := c.GC(t.Context(), call(), nil, ours); !errors.Is(err, ErrLeft) {
		t.Error(err)
	}
	r, err := h.records.Read(web)
	if _, untold := r.Untold(); err != nil || untold {
		t.Errorf("%s, untold %t, %v", r.State, untold, err)
	}
	h.begin(t, cache.Intent{Attachment: named("c2"), Boot: thisBoot, Span: addSpan}, func(j *cache.Journal) error {
		return j.Deleting(cache.Operation{Name: "cni.GC", Span: delSpan})
	})
	r, err = h.records.Read(named("c2"))
	if past, untold := r.Untold(); err != nil || !untold || past.Name != "cni.GC" || past.Span != delSpan {
		t.Errorf("a GC that was killed: %+v, %t, %v", past, untold, err)
	}
}
