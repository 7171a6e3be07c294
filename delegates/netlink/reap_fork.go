//go:build (amd64 || arm64) && !race

package netlink

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forkSender is a child by plain clone(2), as fork(2) makes one: it has a copy
// of our memory, which costs page tables, and goes on in this very function.
// After the clone it makes only raw system calls.
//
//go:nosplit
//go:norace
//go:noinline
func forkSender(fd uintptr, request unsafe.Pointer, n uintptr, p *parcel) (pid int) {
	got, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return -1
	}
	if got != 0 {
		return int(got)
	}
	if fd > 0 {
		syscall.RawSyscall(unix.SYS_CLOSE_RANGE, 0, fd-1, 0)
	}
	syscall.RawSyscall(unix.SYS_CLOSE_RANGE, fd+1, 1<<31-1, 0)
	syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	syscall.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(request), n, 0, uintptr(unsafe.Pointer(&p.to)), unsafe.Sizeof(p.to))
	syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&p.linger)), 0, 0)
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}
