package chain

import (
	"context"
	"fmt"
	"slices"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
)

// old is an attachment that a boot left attached, with an address.
func (h host) old(t *testing.T, id, boot string) {
	t.Helper()
	in := intent()
	in.ContainerID, in.Boot = id, boot
	h.begin(t, in, func(j *cache.Journal) error { return j.Result(&types100.Result{}) })
	h.addresses[in.String()] = "10.1.0.9"
}

// TestAddTakesBackWhatAnEarlierBootLeft: an ADD that IPAM has no address for
// ends attachments that have but a record of an earlier boot, some at a time.
func TestAddTakesBackWhatAnEarlierBootLeft(t *testing.T) {
	many := []string{}
	for i := range 20 {
		many = append(many, fmt.Sprintf("old%02d", i))
	}
	for _, tt := range []struct {
		name   string
		set    func(h host)
		old    []string // of the boot before
		this   []string // of this one
		room   int
		err    string
		gone   int // of old
		warned []string
	}{
		{name: "there is an address", old: []string{"a"}, room: 2},
		{name: "there is none", old: []string{"a"}, this: []string{"b"}, room: 2, gone: 1},
		{name: "no record is of an earlier boot", this: []string{"b"}, room: 1, err: "ipam: no address"},
		{name: "of many, a turn's", old: many, room: 20, gone: turn},
		{name: "of many, as many turns as it takes", old: many, room: 5, gone: 2 * turn},
		{name: "somebody knows it to live", set: func(h host) { h.marked = []string{"a"} }, old: []string{"a"}, room: 1, err: "ipam: no address"},
		{name: "its DEL fails", set: func(h host) { h.broken["bridge DEL"] = errBroken }, old: []string{"a"}, room: 1,
			warned: []string{"ipam: an attachment of an earlier boot cannot be taken back: net/a:eth0: attachment.remove: bridge: broken"}},
		{name: "nobody can look", set: func(h host) { h.broken["holders"] = errBroken }, old: []string{"a"}, room: 1, err: "ipam: no address",
			warned: []string{"ipam: records of an earlier boot cannot be told: broken"}},
		{name: "IPAM fails of something else", set: func(h host) { h.broken["ipam ADD"] = errBroken }, old: []string{"a"}, err: "ipam: broken"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			for _, id := range tt.old {
				h.old(t, id, "boot-1")
			}
			for _, id := range tt.this {
				h.old(t, id, thisBoot)
			}
			h.room = tt.room
			if tt.set != nil {
				tt.set(h)
			}
			c := h.chain(kind{})
			var err error
			op := record(t, "cni.ADD", func(ctx context.Context) { _, err = c.Add(ctx, intent(), call()) })
			if text(err) != tt.err {
				t.Errorf("error %q, want %q", text(err), tt.err)
			}
			left := h.recorded(t)
			gone := 0
			for _, id := range tt.old {
				if !slices.Contains(left, id) {
					gone++
				}
			}
			if gone != tt.gone {
				t.Errorf("%d are gone, want %d", gone, tt.gone)
			}
			if r, _ := h.records.Read(web); err == nil && r.State != cache.Attached {
				t.Errorf("its own record is %s", r.State)
			}
			if diff := cmp.Diff(tt.warned, warnings(op)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestAddSparesWhoCameBack: the record is read again under its lock.
func TestAddSparesWhoCameBack(t *testing.T) {
	h := newHost(t)
	h.old(t, "a", "boot-1")
	h.room = 1
	c := h.chain(kind{})
	lock := c.Lock
	c.Lock = func(ctx context.Context, a delegates.Attachment) (func(), error) {
		if a.ContainerID == "a" { // its ADD was faster
			in := intent()
			in.Attachment = a
			r, _ := h.records.Read(a)
			if j, err := h.records.Open(r, a, c.Start); err == nil {
				_ = j.Remove()
			}
			h.begin(t, in)
		}
		return lock(ctx, a)
	}
	if _, err := c.Add(t.Context(), intent(), call()); text(err) != "ipam: no address" {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"a"}, h.recorded(t)[:1]); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
