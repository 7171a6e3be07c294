//go:build !race

package netlink

import "unsafe"

// spawn makes the child.
func spawn(fd uintptr, page []byte, n uintptr, p *parcel) (pid int) {
	return forkSender(fd, unsafe.Pointer(unsafe.SliceData(page)), n, p)
}
