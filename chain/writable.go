package chain

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// writable tells, without writing, what keeps files from being made in a folder,
// or the folder itself where it is missing: a read-only file system, its mode,
// another kind of file in its place, no blocks or inodes left. A quota, and what
// only a write finds, are not seen.
func writable(dir string) error {
	at, err := existing(dir)
	if err == nil {
		err = unix.Access(at, unix.W_OK|unix.X_OK)
	}
	if err == nil {
		err = room(at)
	}
	if err != nil {
		return &fs.PathError{Op: "write", Path: at, Err: err}
	}
	return nil
}

// existing is the folder, or the closest above it that is there.
func existing(dir string) (string, error) {
	for {
		var st unix.Stat_t
		err := unix.Stat(dir, &st)
		switch {
		case err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR:
			return dir, unix.ENOTDIR
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR):
			return dir, err
		case unix.Lstat(dir, &st) == nil: // a link that leads nowhere
			return dir, err
		}
		dir = filepath.Dir(dir)
	}
}

// room is an error where no block or no inode is free. Some file systems have no
// count of theirs.
func room(dir string) error {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return nil
	}
	if st.Blocks > 0 && st.Bfree == 0 || st.Files > 0 && st.Ffree == 0 {
		return unix.ENOSPC
	}
	return nil
}
