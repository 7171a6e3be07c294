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
// directory, or to a folder above it, that has no sticky bit. It costs one stat of
// a state directory that is as we make them; what is in it, and the folders above,
// are looked at where it is not, or is yet to be made.
func (d Dir) Trusted() error {
	state := filepath.Dir(d.Path)
	var st unix.Stat_t
	err := unix.Stat(state, &st)
	if err == nil && st.Mode == modeOwn && own(st.Uid) {
		return nil
	}
	var errs []error
	for _, name := range []string{"attachments", "networks", "quarantine", "lock"} {
		if unix.Lstat(filepath.Join(state, name), &st) == nil && !own(st.Uid) { // made before we could
			errs = append(errs, untrusted(filepath.Join(state, name), st))
		}
	}
	for dir := state; ; dir = filepath.Dir(dir) {
		if unix.Stat(dir, &st) == nil {
			errs = append(errs, untrusted(dir, st))
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", ErrOpen, err)
	}
	return nil
}

// unmapped is who owns what has no owner in a user namespace
// (/proc/sys/kernel/overflowuid): mostly root outside.
const unmapped = 65534

func own(uid uint32) bool { return uid == 0 || int(uid) == unix.Geteuid() || uid == unmapped }

// untrusted tells why a folder is others' too; nil where it is not. Root's group
// is root's.
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
