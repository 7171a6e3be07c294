//go:build (amd64 || arm64) && !race

package netlink

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// canReap tells that a child can be cloned here.
const canReap = true

// Reap sends the request from a child process, and tells whether there is one.
// The child is no Go program any more: it lets go of everything but the socket,
// sends, and exits when the kernel is through with the request. It holds no
// lock: POSIX locks are not inherited, and the descriptors of flocks are
// closed. Signals are blocked so that no handler of ours runs in it.
func Reap(fd int, request []byte) bool {
	// Request, address and stack are in a page that is never given back: the
	// child may read it after we have gone on.
	page, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil || len(request)+len(toKernel) > len(page)/2 {
		return false
	}
	n := copy(page, request)
	copy(page[n:], toKernel[:])
	var before uint64 // sigset_t of the kernel: 64 signals
	all := ^uint64(0)
	if sigmask(&all, &before) != 0 {
		return false
	}
	pid := spawn(uintptr(fd), page, uintptr(n))
	_ = sigmask(&before, nil)
	return pid > 0
}

// toKernel is the struct sockaddr_nl of the kernel (netlink(7)).
var toKernel = [unix.SizeofSockaddrNetlink]byte{unix.AF_NETLINK}

func sigmask(set, old *uint64) syscall.Errno {
	_, _, e := syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
	return e
}
