package cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrOpen marks a state directory that somebody else than root, and than us,
// could put files into or swap for another.
var ErrOpen = errors.New("state directory is not ours alone")

// modeOwn is the mode of a state directory that we made: then the folders above
// were looked at.
const modeOwn = unix.S_IFDIR | 0o700

// Trusted is an ErrOpen where others than root and we may write to the state
// directory, or to a folder above it that has no sticky bit. It costs one stat of
// a state directory that is as we make them; the folders above are looked at
// where it is not, or is yet to be made.
func (d Dir) Trusted() error {
	state := filepath.Dir(d.Path)
	var st unix.Stat_t
	err := unix.Stat(state, &st)
	switch {
	case err == nil && st.Mode == modeOwn && own(st.Uid):
		return nil
	case err == nil:
		if why := open(st, 0); why != "" {
			return fmt.Errorf("%w: %w", ErrOpen, &os.PathError{Op: "trust", Path: state, Err: errors.New(why)})
		}
	}
	for dir := filepath.Dir(state); ; dir = filepath.Dir(dir) {
		why := ""
		if unix.Stat(dir, &st) == nil {
			why = open(st, unix.S_ISVTX)
		}
		if why != "" {
			return fmt.Errorf("%w: %w", ErrOpen, &os.PathError{Op: "trust", Path: dir, Err: errors.New(why)})
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// unmapped is who owns what has no owner in a user namespace
// (/proc/sys/kernel/overflowuid): mostly root outside.
const unmapped = 65534

func own(uid uint32) bool { return uid == 0 || int(uid) == unix.Geteuid() || uid == unmapped }

// open tells why a folder is others' too; "" where it is not. A bit of its mode
// may excuse that others write to it. Root's group is root's.
func open(st unix.Stat_t, excuse uint32) string {
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return "" // whoever makes a file there is told
	case !own(st.Uid):
		return fmt.Sprintf("it is owned by user %d", st.Uid)
	case st.Mode&excuse != 0:
		return ""
	case st.Mode&0o002 != 0, st.Mode&0o020 != 0 && st.Gid != 0:
		return fmt.Sprintf("mode %04o lets others write to it", st.Mode&0o7777)
	}
	return ""
}
