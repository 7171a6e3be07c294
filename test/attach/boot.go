//go:build linux

package attach

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bootID is where the kernel tells its boot (random(4)).
const bootID = "/proc/sys/kernel/random/boot_id"

// Boot starts the node anew, as a reboot does: pods, interfaces and settings are
// gone, files stay. Programs that the calling thread runs from now on find that
// boot id; an empty one is the machine's own again.
func (n *Node) Boot(id string) error {
	var errs []error
	for name := range n.pods {
		errs = append(errs, n.RemovePod(name))
	}
	all, err := netlink.LinkList()
	errs = append(errs, err)
	for _, l := range all {
		if l.Attrs().Name == "lo" {
			continue
		}
		if err := netlink.LinkDel(l); !errors.Is(err, unix.ENODEV) { // it went with the pod's end
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, prepare(), n.setBoot(id))...)
}

// setBoot mounts a file over the kernel's, in a mount namespace of the calling
// thread's own.
func (n *Node) setBoot(id string) error {
	if n.booted {
		n.booted = false
		if err := unix.Unmount(bootID, 0); err != nil {
			return err
		}
	}
	if id == "" {
		return nil
	}
	file := filepath.Join(n.Dir, "boot_id")
	if err := errors.Join(os.WriteFile(file, []byte(id+"\n"), 0o644), n.ownMounts()); err != nil {
		return err
	}
	n.booted = true
	return unix.Mount(file, bootID, "", unix.MS_BIND, "")
}

// ownMounts gives the calling thread, which is the test's own, its mounts.
func (n *Node) ownMounts() error {
	if n.mounts {
		return nil
	}
	n.mounts = true
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
}
