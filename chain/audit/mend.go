package audit

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/chain/lock"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/masquerade"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/ipam"
)

// ErrPlugin marks a repair that the plugin makes: it is run as a runtime runs it.
var ErrPlugin = errors.New("the plugin is to be run")

// ErrLeft marks a repair of what went, or changed, since it was planned: it is left
// alone.
var ErrLeft = errors.New("it went or changed meanwhile: left alone")

// mends is how each repair is made.
var mends = map[Action]func(Node, context.Context, Repair) error{
	Del:               Node.byPlugin,
	EndEntry:          Node.byPlugin,
	Restore:           Node.byPlugin,
	RemoveReservation: Node.removeReservation,
	Reserve:           Node.reserve,
	QuarantineRecord:  Node.quarantine,
	RemoveEntry:       Node.removeEntry,
	WriteRecord:       Node.writeRecord,
	RemoveRule:        Node.removeRule,
	RemoveTable:       Node.removeTable,
}

// byPlugin leaves a repair to the plugin, if what it is about is as it was. A DEL
// without a Stamp is of what nobody knew: who is known by now came back, and lives.
func (n Node) byPlugin(ctx context.Context, r Repair) error {
	switch {
	case r.Plugin() == portmapType:
		return n.portsByPlugin(ctx, r)
	case r.Stamp != "" && cache.Stamp(r.Path) != r.Stamp, r.Stamp == "" && r.Action == Del && n.knows(r.Attachment):
		return ErrLeft
	}
	return ErrPlugin
}

// Mend makes one repair that a Planner found due, under the plugin's own locks.
// What it is about is looked at again under them: what went meanwhile, or changed,
// is left alone: ErrLeft, or where a store's lock was taken for it no error. What
// the plugin has to do is ErrPlugin. No other
// lock of a state directory may be held by this process.
func (n Node) Mend(ctx context.Context, r Repair) error {
	mend, known := mends[r.Action]
	if !known {
		return fmt.Errorf("unknown repair %q", r.Action)
	}
	return mend(n, ctx, r)
}

// used tells whether an interface of any namespace has an address. Some are found
// by paths alone: those that no process is in, and no pair leads to.
func used(a netip.Addr, paths []string) (bool, error) {
	k, errs := veth.Take(paths)
	return len(k.Addresses[a]) > 0, errors.Join(errs...)
}

// removeReservation removes a file that names nobody, or that names an attachment
// whose record has other addresses.
func (n Node) removeReservation(ctx context.Context, r Repair) error {
	h := ipam.Held{Path: r.Path, Stamp: r.Stamp, State: ipam.Debris}
	if r.Attachment.ContainerID != "" {
		h.State = ipam.Reserved
	}
	return ipam.Discard(ctx, h, func() (bool, error) {
		if h.State == ipam.Reserved && !n.beside(r) {
			return true, nil
		}
		return used(r.Address, n.paths())
	})
}

// beside tells that a record says of an attachment that it has other addresses
// than this one.
func (n Node) beside(r Repair) bool {
	return slices.ContainsFunc(n.dirs(), func(d cache.Dir) bool {
		now, err := d.Read(r.Attachment)
		return err == nil && now.State == cache.Attached && !slices.Contains(delegates.Addresses(now.Result.Get()), r.Address)
	})
}

// paths is where records say that pods' namespaces are.
func (n Node) paths() (out []string) {
	for _, d := range n.dirs() {
		for r, err := range d.All() {
			if err == nil && r.Err == nil && r.NetNS != "" {
				out = append(out, r.NetNS)
			}
		}
	}
	return out
}

// reserve reserves an address again, if the attachment is still there and has it.
func (n Node) reserve(ctx context.Context, r Repair) error {
	return ipam.Restore(ctx, r.Path, r.Address, r.Attachment, func() (bool, error) {
		paths, tells := n.tells(r)
		if !tells {
			return false, nil
		}
		return used(r.Address, paths)
	})
}

// tells tells that a record, or an entry of libcni's whose namespace is there,
// still is of the attachment, and where that is.
func (n Node) tells(r Repair) (paths []string, ok bool) {
	for _, d := range n.dirs() {
		if now, err := d.Read(r.Attachment); err == nil && now.State == cache.Attached {
			return []string{now.NetNS}, true
		}
	}
	f, lives := livingEntry(n.entryPath(r.Attachment), r.Attachment)
	return f.NetNS, lives
}

// quarantine moves a record away that still cannot be read.
func (n Node) quarantine(ctx context.Context, r Repair) error {
	all := n.dirs()
	i := slices.IndexFunc(all, func(d cache.Dir) bool { return d.Path == filepath.Dir(filepath.Dir(r.Path)) })
	if i < 0 {
		return fmt.Errorf("%s: no state directory has it", r.Path)
	}
	err := locked(ctx, all[i], r.Attachment.String(), func() error {
		if cache.Stamp(r.Path) != r.Stamp {
			return ErrLeft
		}
		_, err := all[i].Quarantine(r.Path, "an audit could not read it")
		return err
	})
	if entry := n.entryPath(r.Attachment); err == nil && entry != "" {
		err = n.writeRecord(ctx, Repair{Attachment: r.Attachment, Path: entry, Stamp: cache.Stamp(entry)})
	}
	return err
}

// locked does something under a lock of a state directory.
func locked(ctx context.Context, d cache.Dir, key string, do func() error) error {
	locks, err := lock.OpenRanges(filepath.Join(filepath.Dir(d.Path), "lock"))
	if err != nil {
		return err
	}
	defer func() { _ = locks.Close() }()
	unlock, err := locks.Lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	return do()
}

// removeEntry removes a file of libcni's, unless it can be read by now, or its
// attachment lives.
func (n Node) removeEntry(_ context.Context, r Repair) error {
	f, err := cache.ReadFile(r.Path)
	if err != nil || f.Broken == nil && !gone(f) {
		return ErrLeft // or can no longer be told
	}
	known := slices.ContainsFunc(n.Sandboxes, func(s Sandbox) bool { return s.ID == r.Attachment.ContainerID })
	recorded := f.Network != "" && slices.ContainsFunc(n.dirs(), func(d cache.Dir) bool { return d.Recorded(f.Attachment) })
	if known || recorded || cache.Stamp(r.Path) != r.Stamp {
		return ErrLeft
	}
	return cache.RemoveFile(r.Path, r.Stamp)
}

// removeTable removes a network's table, unless an attachment of it has a record
// by now. No ADD makes a rule of the network meanwhile.
func (n Node) removeTable(ctx context.Context, r Repair) error {
	network := r.Attachment.Network
	remove := func() error {
		if slices.ContainsFunc(n.dirs(), func(d cache.Dir) bool { return !d.Empty(network) }) {
			return nil
		}
		return masquerade.RemoveTables(ctx, true, r.Path)
	}
	for _, d := range n.dirs() {
		alone := remove
		if _, err := os.Stat(filepath.Dir(d.Path)); err == nil {
			remove = func() error { return locked(ctx, d, network, alone) }
		}
	}
	return remove()
}

func (n Node) removeRule(ctx context.Context, r Repair) error {
	return masquerade.RemoveRule(ctx, r.Path)
}
