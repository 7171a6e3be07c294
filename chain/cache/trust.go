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

// modeOwn is the mode of a state directory that we made: nobody else put
// anything into it.
const modeOwn = unix.S_IFDIR | 0o700

// Trusted is an ErrOpen where others than root and we may write to the state
// directory, or to a folder above it, that has no sticky bit: who may write there
// can swap what is below, whatever its own mode. It costs one lstat a folder of
// the path and one stat; what is in the state directory is looked at where it is
// not as we make it.
func (d Dir) Trusted() error {
	state := filepath.Dir(d.Path)
	errs := swappable(state)
	var st unix.Stat_t
	if unix.Stat(state, &st) == nil && st.Mode != modeOwn {
		for _, name := range []string{"attachments", "networks", "quarantine", "lock"} {
			path := filepath.Join(state, name)
			if unix.Lstat(path, &st) == nil && !own(st.Uid) { // made before we could
				errs = append(errs, untrusted(path, st))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", ErrOpen, err)
	}
	return nil
}

// swappable tells what of a path others may put something else in the place of.
// Of a symbolic link both count, where it stands and where it leads.
func swappable(path string) (errs []error) {
	var st unix.Stat_t
	for dir := path; ; dir = filepath.Dir(dir) {
		if unix.Lstat(dir, &st) == nil {
			errs = append(errs, untrusted(dir, st))
			if st.Mode&unix.S_IFMT == unix.S_IFLNK {
				errs = append(errs, behind(dir)...)
			}
		}
		if dir == filepath.Dir(dir) {
			return errs
		}
	}
}

// behind is swappable of what a symbolic link leads to, if anything.
func behind(link string) []error {
	target, err := filepath.EvalSymlinks(link)
	if err != nil {
		return nil
	}
	return swappable(target)
}

// unmapped is who owns what has no owner in a user namespace
// (/proc/sys/kernel/overflowuid): mostly root outside.
const unmapped = 65534

func own(uid uint32) bool { return uid == 0 || int(uid) == unix.Geteuid() || uid == unmapped }

// untrusted tells why a folder is others' too; nil where it is not. Root's group
// is root's, and a symbolic link has no mode.
func untrusted(path string, st unix.Stat_t) error {
	why := ""
	switch {
	case !own(st.Uid):
		why = fmt.Sprintf("it is owned by user %d", st.Uid)
	case st.Mode&unix.S_IFMT != unix.S_IFDIR: // who makes files in it is told
	case st.Mode&unix.S_ISVTX != 0:
	case st.Mode&0o002 != 0, st.Mode&0o020 != 0 && st.Gid != 0:
		why = fmt.Sprintf("mode %04o lets others write to it", st.Mode&0o7777)
	}
	if why == "" {
		return nil
	}
	return &os.PathError{Op: "trust", Path: path, Err: errors.New(why)}
}
