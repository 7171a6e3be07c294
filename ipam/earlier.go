package ipam

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// Earlier tells reservations of an earlier boot from those of this one. The
// first Add of a boot lists what is reserved and nobody's who lives; what is on
// that list, and still as it was, is given back where addresses run out. No
// clock is asked: they step. The zero Earlier knows of no earlier boot.
type Earlier struct {
	Dir  string // where the list is kept, made when missing: it goes with the boot, or its name tells the boot
	Boot string // id of this boot; empty where it is not known, and then nothing is given back
	// Look finds out who holds addresses in this boot.
	Look func(context.Context) (Holders, error)
}

// Holders is who holds addresses of a network in this boot. An IfName of "", as
// in a reservation of an old host-local, is any interface of the container.
type Holders interface {
	// Lives tells that an attachment may hold an address.
	Lives(a delegates.Attachment, address netip.Addr) bool
	// Strangers tells that somebody lives there whose addresses nobody can tell.
	Strangers() bool
	// Left tells that an attachment's record is of an earlier boot: what it stands
	// for goes with the record.
	Left(a delegates.Attachment) bool
}

// listName begins the list's name; the boot's id follows.
const listName = "earlier-"

var errNoBoot = errors.New("the boot has no id")

// left is a reservation of an earlier boot, and the file as it was: another
// one's of the same address and content has another stamp.
type left struct {
	Address netip.Addr `json:"address"`
	ID      string     `json:"id"`
	IfName  string     `json:"ifName,omitempty"`
	File    stamp      `json:"file"`
}

func (l left) attachment(network string) delegates.Attachment {
	return delegates.Attachment{Network: network, ContainerID: l.ID, IfName: l.IfName}
}

func (e Earlier) path() string { return filepath.Join(e.Dir, listName+e.Boot) }

func (e Earlier) known() bool {
	return e.Look != nil && e.Boot != "" && !strings.ContainsAny(e.Boot, "/\x00")
}

// ensure takes the list if this boot has none. Once there is one that costs one
// access(2).
func (e Earlier) ensure(ctx context.Context, s *store) error {
	switch {
	case e.Look == nil:
		return nil
	case !e.known():
		return errNoBoot
	case unix.Access(e.path(), unix.F_OK) == nil:
		return nil
	}
	return e.replace(func() ([]left, error) { return e.take(ctx, s.dir, s.network) })
}

// take is what is reserved by nobody who lives. Reservations are read before
// their holders are looked for: who reserves has a record before.
func (e Earlier) take(ctx context.Context, dir, network string) (list []left, err error) {
	names, err := taken(dir)
	if err != nil {
		return nil, err
	}
	for a := range names {
		r, at, ok, err := examine(filepath.Join(dir, a.String()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if ok {
			list = append(list, left{a, r.ContainerID, r.IfName, at})
		}
	}
	if len(list) == 0 {
		return nil, nil
	}
	holders, err := e.Look(ctx)
	if err != nil {
		return nil, err
	}
	if holders.Strangers() {
		trace.Warn(ctx, "pods live that neither a record nor libcni tells of: no reservation counts as an earlier boot's")
		return nil, nil
	}
	dead := list[:0]
	for _, l := range list {
		if !holders.Lives(l.attachment(network), l.Address) {
			dead = append(dead, l)
		}
	}
	return dead, nil
}

// replace writes the list aside, whose content is asked for only where that is
// possible, renames it, and removes those of other boots. Who calls it has the
// folder of reservations locked.
func (e Earlier) replace(content func() ([]left, error)) error {
	if err := os.MkdirAll(e.Dir, 0o755); err != nil {
		return err
	}
	aside := e.path() + ".new"
	_ = os.Remove(aside)
	f, err := os.OpenFile(aside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	list, err := content()
	if err == nil {
		err = json.NewEncoder(f).Encode(list)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(aside, e.path())
	}
	if err != nil {
		return errors.Join(err, remove(aside))
	}
	e.removeOthers()
	return nil
}

// removeOthers removes the lists of other boots, where /run has outlived them.
func (e Earlier) removeOthers() {
	all, _ := filepath.Glob(filepath.Join(e.Dir, listName+"*"))
	for _, path := range all {
		if path != e.path() {
			_ = os.Remove(path)
		}
	}
}

// list reads the list; fs.ErrNotExist where this boot has none yet.
func (e Earlier) list() (list []left, err error) {
	b, err := os.ReadFile(e.path())
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	return list, err
}

// stamp is the list's; zero where there is none.
func (e Earlier) stamp() stamp {
	var st unix.Stat_t
	if !e.known() || unix.Stat(e.path(), &st) != nil {
		return stamp{}
	}
	return stampIn(&st)
}

// free is the addresses that Add would give back, with those of records of an
// earlier boot, before it gives up. It is never nil, and makes nothing: where
// there is no list yet it is what would be on it.
func (e Earlier) free(ctx context.Context, dir, network string) map[netip.Addr]bool {
	free := map[netip.Addr]bool{}
	if !e.known() {
		return free
	}
	list, err := e.list()
	bare := true
	if errors.Is(err, fs.ErrNotExist) {
		list, err = e.take(ctx, dir, network)
		bare = e.writable()
	}
	if err != nil || len(list) == 0 {
		return free
	}
	holders, err := e.Look(ctx)
	if err != nil {
		return free
	}
	for _, l := range list {
		if a := l.attachment(network); l.still(dir) && !holders.Lives(a, l.Address) && (bare || holders.Left(a)) {
			free[l.Address] = true
		}
	}
	return free
}

// writable tells, without writing, whether a list can be made.
func (e Earlier) writable() bool {
	for dir := e.Dir; ; dir = filepath.Dir(dir) {
		err := unix.Access(dir, unix.W_OK|unix.X_OK)
		if !errors.Is(err, unix.ENOENT) || dir == filepath.Dir(dir) {
			return err == nil
		}
	}
}

// still tells that a reservation is the one that was listed.
func (l left) still(dir string) bool {
	r, at, ok, err := examine(filepath.Join(dir, l.Address.String()))
	return ok && err == nil && at == l.File && r == Reservation{l.ID, l.IfName}
}

// reclaim gives back every reservation of an earlier boot that no record stands
// for, once an Add, and tells how many. Who holds what is looked for again: the
// list may be old.
func (s *store) reclaim(ctx context.Context) (n int, err error) {
	if s.reclaimed || s.earlier.Look == nil {
		return 0, nil
	}
	s.reclaimed = true
	n, err = s.giveBack(ctx)
	if n > 0 {
		s.span.Set(trace.KeyReclaimed.Int(n))
	}
	return n, err
}

func (s *store) giveBack(ctx context.Context) (n int, err error) {
	if err := s.earlier.ensure(ctx, s); err != nil {
		return 0, err
	}
	list, err := s.earlier.list()
	if err != nil || len(list) == 0 {
		return 0, err
	}
	holders, err := s.earlier.Look(ctx)
	if err != nil {
		return 0, err
	}
	var errs []error
	ends, keep := ended{}, list[:0]
	for _, l := range list {
		if !l.still(s.dir) { // another's by now, or nobody's
			continue
		}
		gone, err := s.end(ctx, l, holders)
		if gone {
			n++
			ends.add(Reservation{l.ID, l.IfName}, l.Address)
		} else {
			keep = append(keep, l)
		}
		errs = append(errs, err)
	}
	ends.tell(ctx, trace.ByReclaim, s.network)
	errs = append(errs, s.earlier.replace(func() ([]left, error) { return keep, nil }))
	return n, errors.Join(errs...)
}

// end removes a reservation whose holder is no more, and has no record that would
// give it back.
func (s *store) end(ctx context.Context, l left, holders Holders) (gone bool, err error) {
	a := l.attachment(s.network)
	if !s.mine(a) && (holders.Lives(a, l.Address) || holders.Left(a)) {
		return false, nil
	}
	if theirs, err := s.another(ctx, l.Address, of(a)); theirs || err != nil {
		return false, err
	}
	if err := remove(s.path(l.Address)); err != nil {
		return false, err
	}
	s.span.Event("reservation.reclaim", trace.KeyAddresses.StringSlice([]string{l.Address.String()}), trace.KeyID.String(l.ID))
	return true, nil
}

// mine tells that it is the attachment's own that is being made, whose earlier
// life is over.
func (s *store) mine(a delegates.Attachment) bool {
	return Reservation{a.ContainerID, a.IfName} == s.owner
}
