package audit

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/chain/lock"
	"github.com/tracewire/tracewire/delegates/masquerade"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/ipam"
)

// ErrDel marks a repair that the plugin makes: it is run as a runtime runs it.
var ErrDel = errors.New("the plugin's DEL is to be run")

// mends is how the other repairs are made.
var mends = map[Action]func(Node, context.Context, Repair) error{
	Del:               func(Node, context.Context, Repair) error { return ErrDel },
	RemoveReservation: Node.removeReservation,
	Reserve:           Node.reserve,
	QuarantineRecord:  Node.quarantine,
	RemoveEntry:       Node.removeEntry,
	RemoveRule:        Node.removeRule,
}

// Mend makes one repair that a Planner found due, under the plugin's own locks.
// What it is about is looked at again under them: what went meanwhile, or changed,
// is left alone, without an error. No other lock of a state directory may be held
// by this process.
func (n Node) Mend(ctx context.Context, r Repair) error {
	mend, known := mends[r.Action]
	if !known {
		return fmt.Errorf("unknown repair %q", r.Action)
	}
	return mend(n, ctx, r)
}

// used tells whether an interface of any namespace has an address.
func used(a netip.Addr) (bool, error) {
	k, errs := veth.Take(nil)
	return len(k.Addresses[a]) > 0, errors.Join(errs...)
}

func (n Node) removeReservation(ctx context.Context, r Repair) error {
	return ipam.Discard(ctx, ipam.Held{Path: r.Path, Stamp: r.Stamp}, func() (bool, error) { return used(r.Address) })
}

// reserve reserves an address again, if the attachment is still there and has it.
func (n Node) reserve(ctx context.Context, r Repair) error {
	return ipam.Restore(ctx, r.Path, r.Address, r.Attachment, func() (bool, error) {
		if !n.tells(r) {
			return false, nil
		}
		return used(r.Address)
	})
}

// tells tells that a record, or an entry of libcni's whose namespace is there,
// still is of the attachment.
func (n Node) tells(r Repair) bool {
	for _, d := range n.dirs() {
		if now, err := d.Read(r.Attachment); err == nil && now.State == cache.Attached {
			return true
		}
	}
	f, err := cache.ReadFile(n.entryPath(r.Attachment))
	return err == nil && f.Attachment == r.Attachment && !gone(f)
}

// quarantine moves a record away that still cannot be read.
func (n Node) quarantine(ctx context.Context, r Repair) error {
	all := n.dirs()
	i := slices.IndexFunc(all, func(d cache.Dir) bool { return d.Path == filepath.Dir(filepath.Dir(r.Path)) })
	if i < 0 {
		return fmt.Errorf("%s: no state directory has it", r.Path)
	}
	locks, err := lock.OpenRanges(filepath.Join(filepath.Dir(all[i].Path), "lock"))
	if err != nil {
		return err
	}
	defer func() { _ = locks.Close() }()
	unlock, err := locks.Lock(ctx, r.Attachment.String())
	if err != nil {
		return err
	}
	defer unlock()
	if cache.Stamp(r.Path) != r.Stamp {
		return nil
	}
	_, err = all[i].Quarantine(r.Path, "an audit could not read it")
	return err
}

// removeEntry removes a file of libcni's, unless somebody speaks for it by now.
func (n Node) removeEntry(_ context.Context, r Repair) error {
	f, err := cache.ReadFile(r.Path)
	if err != nil || f.Broken == nil && !gone(f) {
		return nil //nolint:nilerr // it went, or can no longer be told
	}
	known := slices.ContainsFunc(n.Sandboxes, func(s Sandbox) bool { return s.ID == r.Attachment.ContainerID })
	recorded := f.Network != "" && slices.ContainsFunc(n.dirs(), func(d cache.Dir) bool { return d.Recorded(f.Attachment) })
	if known || recorded {
		return nil
	}
	return cache.RemoveFile(r.Path, r.Stamp)
}

func (n Node) removeRule(ctx context.Context, r Repair) error {
	return masquerade.RemoveRule(ctx, r.Path)
}
