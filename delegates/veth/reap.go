//go:build (amd64 || arm64) && !race

package veth

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// canReap tells that a child can be cloned here.
const canReap = true

// toKernel is the struct sockaddr_nl of the kernel (netlink(7)).
var toKernel = [12]byte{unix.AF_NETLINK}

// reap sends the request from a child process, and tells whether there is one.
// The child is no Go program any more: after clone(2) it makes only raw system
// calls. Signals are blocked so that no handler of ours runs in it.
func reap(fd int, request []byte) bool {
	var all, before [1]uint64 // sigset_t of the kernel: 64 signals
	all[0] = ^uint64(0)
	if sigmask(unix.SIG_SETMASK, &all[0], &before[0]) != 0 {
		return false
	}
	pid, errno := cloneSender(uintptr(fd), unsafe.Pointer(unsafe.SliceData(request)), uintptr(len(request)))
	sigmask(unix.SIG_SETMASK, &before[0], nil)
	return errno == 0 && pid > 0
}

//go:nosplit
func sigmask(how uintptr, set, old *uint64) syscall.Errno {
	_, _, e := syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, how, uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
	return e
}

// cloneSender clones, and in the child lets go of everything but the socket,
// sends the request and exits. Sending returns when the kernel is through with
// the removal. The child holds no lock: POSIX locks are not inherited, and the
// descriptors of flocks are closed.
//
//go:nosplit
//go:norace
//go:noinline
func cloneSender(fd uintptr, request unsafe.Pointer, n uintptr) (pid uintptr, errno syscall.Errno) {
	pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	if fd > 0 {
		syscall.RawSyscall(unix.SYS_CLOSE_RANGE, 0, fd-1, 0)
	}
	syscall.RawSyscall(unix.SYS_CLOSE_RANGE, fd+1, 1<<31-1, 0)
	syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	syscall.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(request), n, 0, uintptr(unsafe.Pointer(&toKernel)), uintptr(len(toKernel)))
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}
