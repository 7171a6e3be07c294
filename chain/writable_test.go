package chain

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWritable: what it says is what making a file says, and nothing is made.
func TestWritable(t *testing.T) {
	mount := func(options string) func(dir string) error {
		return func(dir string) error {
			return errors.Join(os.Mkdir(dir+"/a", 0o700), unix.Mount("tmpfs", dir+"/a", "tmpfs", 0, options))
		}
	}
	for _, tt := range []struct {
		name   string
		mounts bool
		make   func(dir string) error
		want   string
	}{
		{"missing, to be made", false, nil, ""},
		{"there", false, func(dir string) error { return os.MkdirAll(dir+"/a/b", 0o700) }, ""},
		{"a link to a folder", false, func(dir string) error {
			return errors.Join(os.MkdirAll(dir+"/c/b", 0o700), os.Symlink("c", dir+"/a"))
		}, ""},
		{"a file in its place", false, func(dir string) error {
			return errors.Join(os.Mkdir(dir+"/a", 0o700), os.WriteFile(dir+"/a/b", nil, 0o600))
		}, "write DIR/a/b: not a directory"},
		{"a file above it", false, func(dir string) error { return os.WriteFile(dir+"/a", nil, 0o600) }, "write DIR/a: not a directory"},
		{"a link that leads nowhere", false, func(dir string) error { return os.Symlink("/none", dir+"/a") }, "write DIR/a: no such file or directory"},
		{"links in a circle", false, func(dir string) error { return os.Symlink("a", dir+"/a") }, "write DIR/a/b: too many levels of symbolic links"},
		{"read-only", true, mount("ro"), "write DIR/a: read-only file system"},
		{"read-only bind mount", true, func(dir string) error {
			return errors.Join(os.MkdirAll(dir+"/a/b", 0o700), unix.Mount(dir+"/a", dir+"/a", "", unix.MS_BIND, ""),
				unix.Mount("", dir+"/a", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		}, "write DIR/a/b: read-only file system"},
		{"room", true, mount("size=64k,nr_inodes=64"), ""},
		{"file systems without a count", true, mount("size=0,nr_inodes=0"), ""},
		{"no inode", true, mount("nr_inodes=1"), "write DIR/a: no space left on device"},
		{"no block", true, func(dir string) error {
			err := mount("size=64k")(dir)
			f, made := os.Create(dir + "/a/big")
			for err == nil && made == nil {
				if _, full := f.Write(make([]byte, 4096)); full != nil {
					return f.Close()
				}
			}
			return errors.Join(err, made)
		}, "write DIR/a: no space left on device"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Cleanup(func() { _ = unix.Unmount(dir+"/a", unix.MNT_DETACH) })
			if tt.make != nil {
				if err := tt.make(dir); tt.mounts && errors.Is(err, unix.EPERM) {
					t.Skip("needs root: run make test")
				} else if err != nil {
					t.Fatal(err)
				}
			}
			before := tree(dir)
			err := writable(dir + "/a/b")
			if got := strings.ReplaceAll(text(err), dir, "DIR"); got != tt.want {
				t.Errorf("error %s, want %s", got, tt.want)
			}
			if after := tree(dir); after != before {
				t.Errorf("there is %s, before %s", after, before)
			}
			made := errors.Join(os.MkdirAll(dir+"/a/b", 0o700), os.WriteFile(dir+"/a/b/c", make([]byte, 4096), 0o600))
			if (made == nil) != (err == nil) {
				t.Errorf("making a file says %v", made)
			}
		})
	}
}

// tree is all names below a folder.
func tree(dir string) string {
	var names []string
	_ = filepath.WalkDir(dir, func(path string, _ os.DirEntry, _ error) error {
		names = append(names, path)
		return nil
	})
	return fmt.Sprint(names)
}
