package ipam

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// Patience is what Status makes of a range set without a free address.
type Patience struct {
	Grace time.Duration // it is an error after that time
	Never bool          // it never is
}

// A range set is nearly full at nearly per cent in use, which is told once: again
// only after it has been below relaxed per cent.
const (
	nearly  = 90
	relaxed = 80
)

// margin is how long a folder must have been as it is before it was listed for
// the list to count as complete. What changes it later in the same tick of its
// clock, 2 s on some file systems, leaves no trace.
const margin = 2 * time.Second

// stamp is what changes with a folder's content: its identity, and the time of
// its last change in nanoseconds. That is the ctime: the mtime can be set, and
// is by who restores a folder from a copy. It is compared and never read as a
// time, since clocks step. The zero stamp is of no folder.
type stamp struct {
	Device  uint64 `json:"device"`
	Inode   uint64 `json:"inode"`
	Changed int64  `json:"changed"`
}

// tally is how many addresses are in use, from one Status to the next. Times are
// since the kernel started.
type tally struct {
	Folder stamp         `json:"folder"`
	List   stamp         `json:"list"`   // of the file that lists what is of an earlier boot
	Seen   time.Duration `json:"seen"`   // since when the folder has that stamp
	Listed time.Duration `json:"listed"` // when it was listed
	Sets   []use         `json:"sets"`
}

// use is how much of one range set is in use.
type use struct {
	Ranges string        `json:"ranges"`
	Used   uint64        `json:"used"`             // reservation files that ADD does not give back
	Debris string        `json:"debris,omitempty"` // one of them that holds nobody, when there is a file for each address
	Folder string        `json:"folder,omitempty"` // one of them that is a folder, likewise
	Full   time.Duration `json:"full,omitempty"`   // since when it is exhausted, 0 when it is not
	Told   bool          `json:"told,omitempty"`   // it was told that it is nearly full

	total uint64
}

// Status is ErrExhausted, with the figures, when a range set has had no free
// address for longer than h.Patience, or what keeps Add from its lock and cursors. Without ranges, which may come with each
// ADD, there is nothing to tell. Nor is there where the folder cannot be listed:
// ADD need not list it.
func (h HostLocal) Status(ctx context.Context, c delegates.Call) error {
	dir, err := folder(h.DataDir, c.Network)
	if err == nil {
		err = h.usable(dir)
	}
	if err != nil || len(h.Sets) == 0 {
		return err
	}
	var last tally
	c.Notes.Recall(&last)
	now, err := h.count(ctx, c, dir, last)
	if err != nil {
		trace.Warn(ctx, "reservations cannot be counted", trace.KeyError.String(err.Error()))
		return nil
	}
	var warn []use
	for i := range now.Sets {
		if u := &now.Sets[i]; u.follow(last.of(u.Ranges), c.Uptime) {
			warn = append(warn, *u)
		}
	}
	c.Notes.Keep(now)
	if err := h.Patience.verdict(now.Sets, dir, c.Uptime); err != nil {
		return err // with all figures
	}
	for _, u := range warn {
		c.Notes.Tell()
		trace.Warn(ctx, "range set is nearly full", trace.KeyRanges.String(u.Ranges), trace.KeyUsed.Int64(whole(u.Used)), trace.KeyTotal.Int64(whole(u.total)))
	}
	return nil
}

// whole is a number as an attribute can hold it.
func whole(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// Folder is where a network's reservations are, which ADD writes to.
func (h HostLocal) Folder(network string) (string, error) { return folder(h.DataDir, network) }

// count takes the figures of the last tally, or lists the folder where they may
// no longer be right.
func (h HostLocal) count(ctx context.Context, c delegates.Call, dir string, last tally) (tally, error) {
	at, err := stampOf(dir)
	if err != nil {
		return tally{}, err
	}
	now := tally{Folder: at, List: h.Earlier.stamp(), Seen: c.Uptime, Listed: c.Uptime, Sets: h.uses()}
	if at == last.Folder {
		now.Seen = last.Seen
	}
	if last.holds(now, dir) {
		now.Listed = last.Listed
		for i, u := range last.Sets {
			now.Sets[i].Used, now.Sets[i].Debris, now.Sets[i].Folder = u.Used, u.Debris, u.Folder
		}
		return now, nil
	}
	if at == (stamp{}) {
		return now, nil
	}
	taken, err := taken(dir)
	s := store{dir: dir, recorded: h.once()}
	var free map[netip.Addr]bool
	for i, set := range h.Sets {
		u := &now.Sets[i]
		all := u.count(set, taken, free)
		if free == nil && u.atLeast(relaxed) { // below, nobody asks for more
			free = h.Earlier.free(ctx, dir, c.Network)
			maps.DeleteFunc(free, func(a netip.Addr, _ bool) bool { _, lives, _ := s.tenant(a, Reservation{}); return lives })
			all = u.count(set, taken, free)
		}
		if u.Used >= u.total {
			u.Debris, u.Folder = s.odd(all)
		}
	}
	return now, err
}

// uses is the range sets before anything is counted.
func (h HostLocal) uses() []use {
	all := make([]use, len(h.Sets))
	for i, s := range h.Sets {
		all[i] = use{Ranges: s.String(), total: s.size()}
	}
	return all
}

// stampOf is zero where there is no folder.
func stampOf(dir string) (stamp, error) {
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	if noStore(err) || err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return stamp{}, nil
	}
	if err != nil {
		return stamp{}, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	return stampIn(&st), nil
}

func stampIn(st *unix.Stat_t) stamp { return stamp{st.Dev, st.Ino, st.Ctim.Nano()} }

// holds tells that a listing would count now what the tally counted: the folder
// has not changed since, nor had for a while before. Who fills an empty file
// changes that file alone.
func (t tally) holds(now tally, dir string) bool {
	if t.Folder != now.Folder || t.List != now.List || t.Listed-t.Seen < margin || len(t.Sets) != len(now.Sets) {
		return false
	}
	for i, u := range t.Sets {
		if u.Ranges != now.Sets[i].Ranges || u.Debris != "" && !broken(filepath.Join(dir, u.Debris)) {
			return false
		}
	}
	return true
}

// of is a range set's use; the zero use when it was not counted.
func (t tally) of(ranges string) use {
	i := slices.IndexFunc(t.Sets, func(u use) bool { return u.Ranges == ranges })
	if i < 0 {
		return use{}
	}
	return t.Sets[i]
}

// count counts the set's addresses that have a file and are not free all the
// same, and returns them.
func (u *use) count(set Set, taken, free map[netip.Addr]bool) []netip.Addr {
	all := slices.DeleteFunc(set.of(taken), func(a netip.Addr) bool { return free[a] })
	u.Used = uint64(len(all))
	return all
}

// odd looks at the files of a set that has one for each address: debris of nobody,
// which ADD takes over, or of an ADD that writes it just now, without a look at
// host-local's lock, and the next Status looks at it again; or else a folder.
func (s *store) odd(all []netip.Addr) (ownerless, folder string) {
	for _, a := range all {
		_, _, what, err := look(s.path(a))
		switch {
		case err != nil:
		case what == directory:
			folder = a.String()
		case what == debris:
			if _, lives, err := s.tenant(a, Reservation{}); !lives && err == nil {
				return a.String(), ""
			}
		}
	}
	return "", folder
}

// of is the set's addresses among those that have a file.
func (s Set) of(taken map[netip.Addr]bool) (all []netip.Addr) {
	for a := range taken {
		if s.index(a) >= 0 && !s.gateway(a) {
			all = append(all, a)
		}
	}
	return all
}

func (u use) exhausted() bool { return u.Used >= u.total && u.Debris == "" }

// follow carries on since when the set is exhausted, and tells whether it is
// nearly full and that has not been told.
func (u *use) follow(last use, uptime time.Duration) (tell bool) {
	if u.exhausted() {
		if u.Full = last.Full; u.Full <= 0 || u.Full > uptime {
			u.Full = uptime
		}
	}
	u.Told = u.atLeast(nearly) || last.Told && u.atLeast(relaxed)
	return u.Told && !last.Told
}

func (u use) atLeast(percent float64) bool {
	return float64(u.Used) >= float64(u.total)*percent/100
}

// verdict is an error when one set has been exhausted for too long; its text
// has the figures of all.
func (p Patience) verdict(sets []use, dir string, uptime time.Duration) error {
	over := func(u use) bool { return u.exhausted() && uptime-u.Full >= p.Grace }
	if p.Never || !slices.ContainsFunc(sets, over) {
		return nil
	}
	texts := make([]string, len(sets))
	for i, u := range sets {
		texts[i] = fmt.Sprintf("range set %s: %s", u.Ranges, inUse(u.Used, u.total, u.Folder))
		if u.exhausted() {
			texts[i] += p.since(uptime - u.Full)
		}
	}
	return fmt.Errorf("%w: %s, in %s", ErrExhausted, strings.Join(texts, ", "), dir)
}

// since tells how long a set has been exhausted, and what that makes of the grace.
func (p Patience) since(full time.Duration) string {
	if left := p.Grace - full; left > 0 {
		return fmt.Sprintf(" for %d s (statusGrace ends in %d s)", full/time.Second, left/time.Second)
	}
	return fmt.Sprintf(" for %d s (statusGrace of %d s is over)", full/time.Second, p.Grace/time.Second)
}
