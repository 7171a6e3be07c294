//go:build !race

package netlink

import "unsafe"

// cloneSender is a child that shares our memory and has a stack of its own
// (reap_amd64.s): 1.3 ms cheaper for a whole DEL than forkSender.
//
//go:noescape
func cloneSender(fd uintptr, stack, request unsafe.Pointer, n uintptr, p *parcel, toLen uintptr) (pid int)

// spawn makes the child, the cheap way or, where that is refused, the other.
func spawn(fd uintptr, page []byte, n uintptr, p *parcel) (pid int) {
	request := unsafe.Pointer(unsafe.SliceData(page))
	stack := unsafe.Pointer(&page[len(page)-16])
	if pid = cloneSender(fd, stack, request, n, p, unsafe.Sizeof(p.to)); pid > 0 {
		return pid
	}
	return forkSender(fd, request, n, p)
}
