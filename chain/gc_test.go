package chain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace/read"
)

const ours = "/usr/bin/containerd"

func named(id string) delegates.Attachment {
	return delegates.Attachment{Network: "net", ContainerID: id, IfName: "eth0"}
}

// attachments makes attachments of containers c1 to c<n>, of ours where another
// runtime is not named.
func (h host) attachments(t *testing.T, n int, runtimes ...string) {
	t.Helper()
	for i := range n {
		in, asked := intent(), call()
		in.Attachment = named(fmt.Sprintf("c%d", i+1))
		asked.Attachment, in.Runtime = in.Attachment, ours
		if i < len(runtimes) {
			in.Runtime = runtimes[i]
		}
		c := h.chain(kind{})
		if _, err := c.Add(t.Context(), in, asked); err != nil {
			t.Fatal(err)
		}
		_ = c.journal.Close()
	}
	h.forget()
}

// recorded is the files of records.
func (h host) recorded(t *testing.T) (names []string) {
	t.Helper()
	all, err := h.records.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		names = append(names, r.ContainerID)
	}
	return names
}

func TestGC(t *testing.T) {
	for _, tt := range []struct {
		name     string
		runtimes []string
		spoil    func(*testing.T, host)
		valid    []delegates.Attachment
		said     []string
		kept     []delegates.Attachment
		records  []string
		warnings []string
		err      string
	}{
		{"none is valid", nil, nil, nil,
			[]string{"lock", "bridge DEL", "ipam DEL", "lock", "bridge DEL", "ipam DEL", "bridge GC", "ipam GC"}, nil, nil, nil, ""},
		{"one is valid", nil, nil, []delegates.Attachment{named("c2")},
			[]string{"lock", "bridge DEL", "ipam DEL", "bridge GC", "ipam GC"}, []delegates.Attachment{named("c2")}, []string{"c2"}, nil, ""},
		{"all are valid", nil, nil, []delegates.Attachment{named("c2"), named("c1")},
			[]string{"bridge GC", "ipam GC"}, []delegates.Attachment{named("c2"), named("c1")}, []string{"c1", "c2"}, nil, ""},
		{"another interface of the container is valid", nil, nil, []delegates.Attachment{named("c2"), {Network: "net", ContainerID: "c1", IfName: "net1"}},
			[]string{"lock", "bridge DEL", "ipam DEL", "bridge GC", "ipam GC"}, []delegates.Attachment{named("c2"), {Network: "net", ContainerID: "c1", IfName: "net1"}}, []string{"c2"}, nil, ""},
		{"a living one of another runtime", []string{"/usr/bin/crio"}, nil, nil,
			[]string{"lock", "lock", "bridge DEL", "ipam DEL", "bridge GC", "ipam GC"}, []delegates.Attachment{named("c1")}, []string{"c1"},
			[]string{"attachment.remove: attachment lives and is another runtime's: it is spared"}, ""},
		{"a dead one of another runtime", []string{"/usr/bin/crio"}, func(_ *testing.T, h host) { h.alive = func(cache.Record) (bool, error) { return false, nil } }, nil,
			[]string{"lock", "bridge DEL", "ipam DEL", "lock", "bridge DEL", "ipam DEL", "bridge GC", "ipam GC"}, nil, nil, nil, ""},
		{"one whose runtime is not known", []string{""}, nil, nil,
			[]string{"lock", "bridge DEL", "ipam DEL", "lock", "bridge DEL", "ipam DEL", "bridge GC", "ipam GC"}, nil, nil, nil, ""},
		{"one that can not be removed", nil, func(_ *testing.T, h host) { h.broken["bridge DEL"] = errBroken }, []delegates.Attachment{named("c2")},
			[]string{"lock", "bridge DEL", "ipam DEL", "bridge GC", "ipam GC"}, []delegates.Attachment{named("c2"), named("c1")}, []string{"c1", "c2"}, nil,
			"not everything could be removed: net/c1:eth0: attachment.remove: bridge: broken"},
		{"one that is locked", nil, func(_ *testing.T, h host) { h.broken["lock"] = errBroken }, []delegates.Attachment{named("c2")},
			[]string{"lock", "bridge GC", "ipam GC"}, []delegates.Attachment{named("c2"), named("c1")}, []string{"c1", "c2"}, nil,
			"not everything could be removed: net/c1:eth0: attachment.remove: broken"},
		{"a step that fails", nil, func(_ *testing.T, h host) { h.broken["bridge GC"] = errBroken }, []delegates.Attachment{named("c1"), named("c2")},
			[]string{"bridge GC", "ipam GC"}, []delegates.Attachment{named("c1"), named("c2")}, []string{"c1", "c2"}, nil,
			"not everything could be removed: bridge: broken"},
		{"a step that panics", nil, func(_ *testing.T, h host) { h.panics = "bridge GC" }, []delegates.Attachment{named("c1"), named("c2")},
			[]string{"bridge GC", "ipam GC"}, []delegates.Attachment{named("c1"), named("c2")}, []string{"c1", "c2"}, []string{"cni.GC: panic"},
			"not everything could be removed: panic: a mistake"},
		{"the configuration has errors", nil, func(_ *testing.T, h host) { h.broken["build"] = errBroken }, []delegates.Attachment{named("c1"), named("c2")},
			[]string{"bridge GC", "ipam GC"}, []delegates.Attachment{named("c1"), named("c2")}, []string{"c1", "c2"},
			[]string{"cni.GC: configuration has errors: what can be read of it is used: broken"}, ""},
		{"a record that cannot be read", nil, spoilRecord, []delegates.Attachment{named("c2")},
			[]string{"lock", "bridge DEL", "ipam DEL", "bridge GC", "ipam GC"}, []delegates.Attachment{named("c2")}, []string{"c2"},
			[]string{"attachment.remove: record cannot be read: it holds no line that can be read"}, ""},
		{"a record that cannot be read, of a valid one", nil, spoilRecord, []delegates.Attachment{named("c1"), named("c2")},
			[]string{"bridge GC", "ipam GC"}, []delegates.Attachment{named("c1"), named("c2")}, []string{"c1", "c2"}, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			h.attachments(t, 2, tt.runtimes...)
			if tt.spoil != nil {
				tt.spoil(t, h)
			}
			var err error
			op := record(t, "cni.GC", func(ctx context.Context) {
				err = h.chain(kind{}).GC(ctx, delegates.Call{Attachment: delegates.Attachment{Network: "net"}, Conf: []byte(conf)}, tt.valid, ours)
			})
			if text(err) != tt.err || err != nil && !errors.Is(err, ErrLeft) {
				t.Errorf("error %s\nwant  %s", text(err), tt.err)
			}
			for _, x := range []struct {
				what      string
				want, got any
			}{{"calls", tt.said, h.said}, {"kept", tt.kept, h.kept}, {"records", tt.records, h.recorded(t)}, {"warnings", tt.warnings, warnings(op)}} {
				if diff := cmp.Diff(x.want, x.got); diff != "" {
					t.Errorf("%s (-want +got)\n%s", x.what, diff)
				}
			}
		})
	}
}

func spoilRecord(t *testing.T, h host) {
	t.Helper()
	if err := os.WriteFile(h.records.File(web), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestGCTells what it removed: a span each, linked to its ADD.
func TestGCTells(t *testing.T) {
	h := newHost(t)
	h.attachments(t, 2)
	op := record(t, "cni.GC", func(ctx context.Context) {
		_ = h.chain(kind{}).GC(ctx, delegates.Call{Attachment: delegates.Attachment{Network: "net"}, Conf: []byte(conf)}, []delegates.Attachment{named("c2")}, ours)
	})
	if diff := cmp.Diff(`cni.GC
  cache.list
  attachment.remove
    bridge
    ipam
    cache.delete
  bridge
  ipam
`, read.Tree(op)); diff != "" {
		t.Errorf("spans (-want +got)\n%s", diff)
	}
	if got := links(op.Root.Children[1]); len(got) != 1 || got[0] != "00f067aa0ba902b7" {
		t.Errorf("links %v", got)
	}
	if got := h.calls["bridge DEL"]; got.ContainerID != "c1" || got.NetNS != "/run/netns/c1" || !got.Made.Known {
		t.Errorf("DEL was given %+v", got)
	}
}

// TestGCOfTheLast removes what the network's attachments shared, also where no
// record was found.
func TestGCOfTheLast(t *testing.T) {
	for _, n := range []int{0, 2} {
		h := newHost(t)
		h.attachments(t, n)
		if err := os.MkdirAll(filepath.Dir(h.records.Path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := h.records.Mark("net"); err != nil {
			t.Fatal(err)
		}
		c := h.chain(kind{})
		build := c.Build
		last := 0
		c.Build = func(conf []byte, args string) (Steps, error) {
			s, err := build(conf, args)
			s.Last = func(context.Context) error { last++; return nil }
			return s, err
		}
		err := c.GC(t.Context(), delegates.Call{Attachment: delegates.Attachment{Network: "net"}, Conf: []byte(conf)}, nil, ours)
		if err != nil || last != 1 || h.records.Marked("net") {
			t.Errorf("%d attachments: %v, last %d times", n, err, last)
		}
	}
}

// stuck is a plugin that never answers on DEL of some containers, nor on GC.
type stuck struct {
	extra
	of []string
}

func (s stuck) Del(ctx context.Context, c delegates.Call) error {
	if slices.Contains(s.of, c.ContainerID) {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.extra.Del(ctx, c)
}

func (s stuck) GC(ctx context.Context, _ delegates.Call, _ delegates.Kept) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestGCOfPluginsThatHang: one that hangs has its share of the time, not the others'
// too: those go all the same, and the whole ends in time.
func TestGCOfPluginsThatHang(t *testing.T) {
	for _, tt := range []struct {
		name string
		n    int
		of   []string
	}{
		{"the first of three", 3, []string{"c1"}},
		{"the first two of three", 3, []string{"c1", "c2"}},
		{"a third of many", 40, []string{"c10", "c11", "c12", "c13", "c14", "c15", "c16", "c17", "c18", "c19", "c1", "c20", "c2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t)
				h.attachments(t, tt.n)
				c := h.chain(kind{})
				build := c.Build
				c.Build = func(conf []byte, args string) (Steps, error) {
					s, err := build(conf, args)
					s.Delegates = []Step{{"delegate a", stuck{extra{h.node, "a"}, tt.of}}, {"delegate b", stuck{extra{h.node, "b"}, tt.of}}}
					return s, err
				}
				const all = 2 * time.Second
				ctx, cancel := context.WithTimeout(t.Context(), all)
				defer cancel()
				began := time.Now()
				err := c.GC(ctx, delegates.Call{Attachment: delegates.Attachment{Network: "net"}, Conf: []byte(conf)}, nil, ours)
				if !errors.Is(err, ErrLeft) {
					t.Error(err)
				}
				if diff := cmp.Diff(tt.of, h.recorded(t)); diff != "" {
					t.Errorf("records (-want +got)\n%s", diff)
				}
				if len(h.interfaces) > 0 || !slices.Contains(h.said, "bridge GC") {
					t.Errorf("left %v, GC of the main step: %t", h.left(), slices.Contains(h.said, "bridge GC"))
				}
				if d := time.Since(began); d > all+undoTime {
					t.Errorf("it took %s", d)
				}
			})
		})
	}
}

// TestGCTakesWhatIsLockedLast: who waits for a lock keeps nobody from their turn.
func TestGCTakesWhatIsLockedLast(t *testing.T) {
	h := newHost(t)
	h.attachments(t, 3)
	h.broken["lock of c1"] = errBroken
	_ = h.chain(kind{}).GC(t.Context(), delegates.Call{Attachment: delegates.Attachment{Network: "net"}, Conf: []byte(conf)}, nil, ours)
	if diff := cmp.Diff([]string{"lock", "bridge DEL", "ipam DEL", "lock", "bridge DEL", "ipam DEL", "lock", "bridge GC", "ipam GC"}, h.said); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
