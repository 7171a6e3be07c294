package ipam

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// State is what a file in a store is.
type State int

// The states.
const (
	Reserved State = iota // for Holder
	Debris                // of a crash or a broken disk: nobody is named, or it is no file
	Strange               // no reservation of anybody's: another name, a text that names nobody, a folder
)

// Held is one file of a store but its lock and its cursors.
type Held struct {
	Path    string
	Address netip.Addr // the zero one where the name is none
	Holder  Reservation
	State   State
	Changed time.Time // mtime
	Stamp   string    // another file of that name, or one that was written since, has another
}

// Stores lists the networks' folders in a data directory. One that is not there
// has none.
func Stores(dataDir string) (dirs []string, err error) {
	entries, err := os.ReadDir(dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, filepath.Join(dataDir, e.Name()))
		}
	}
	return dirs, err
}

// Store is a network's folder of reservations.
func (h HostLocal) Store(network string) (string, error) { return folder(h.DataDir, network) }

// Serves tells whether an address is of a range set.
func (h HostLocal) Serves(a netip.Addr) bool {
	return slices.ContainsFunc(h.Sets, func(s Set) bool { return s.index(a) >= 0 })
}

// In is the files of a store, one after the other, without its lock. One that
// goes meanwhile is left out, a store that is not there has none. A file that
// cannot be read is an error, with its path.
func In(dir string) iter.Seq2[Held, error] {
	return func(yield func(Held, error) bool) {
		d, err := os.Open(dir)
		if noStore(err) {
			return
		}
		if err != nil {
			yield(Held{Path: dir}, err)
			return
		}
		names, err := d.Readdirnames(-1)
		_ = d.Close()
		if err != nil && !yield(Held{Path: dir}, err) {
			return
		}
		slices.Sort(names)
		for _, name := range names {
			if name == lockName || strings.HasPrefix(name, cursorPrefix) {
				continue
			}
			h, err := Look(filepath.Join(dir, name))
			if !errors.Is(err, fs.ErrNotExist) && !yield(h, err) {
				return
			}
		}
	}
}

// Look reads one file of a store.
func Look(path string) (Held, error) {
	h := Held{Path: path, State: Strange}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return h, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	h.Changed, h.Stamp = time.Unix(st.Mtim.Unix()), stampIn(&st).String()
	name := filepath.Base(path)
	if a, err := netip.ParseAddr(name); err == nil && a.Zone() == "" {
		h.Address = a.Unmap()
	}
	r, _, what, err := look(path)
	switch {
	case err != nil || !h.Address.IsValid():
	case what == held:
		h.Holder, h.State = r, Reserved
	case what == debris:
		h.State = Debris
	}
	return h, err
}

// String is the stamp for who keeps it.
func (s stamp) String() string { return fmt.Sprintf("%d:%d:%d", s.Device, s.Inode, s.Changed) }

// Discard removes, under the store's lock, a reservation file that is still the one
// with the stamp, in the state. One that is gone, or another by now, is
// success. used is asked under the lock whether an interface has the address: then
// nothing is done.
func Discard(ctx context.Context, h Held, used func() (bool, error)) error {
	s, err := openStore(ctx, filepath.Dir(h.Path), Reservation{})
	if noStore(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer s.unlock()
	now, err := Look(h.Path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (now.Stamp != h.Stamp || now.State != h.State) {
		return nil
	}
	if err != nil {
		return err
	}
	if there, err := used(); there || err != nil {
		return err
	}
	return remove(h.Path)
}

// Restore reserves an address again for who lives and has it. Where a file is
// there by now nothing is done. lives is asked under the store's lock.
func Restore(ctx context.Context, dir string, a netip.Addr, who delegates.Attachment, lives func() (bool, error)) error {
	s, err := makeStore(ctx, dir, of(who))
	if err != nil {
		return err
	}
	defer s.unlock()
	if there, err := lives(); !there || err != nil {
		return err
	}
	made, err := s.reserve(ctx, a, broken)
	if made && err == nil {
		trace.Warn(ctx, "a live attachment had no reservation: it has one again", address(a), trace.KeyID.String(who.ContainerID))
	}
	return err
}
