//go:build (amd64 || arm64) && !race

package netlink

import (
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/trace/point"
)

// canReap tells that a child can be cloned here.
const canReap = true

// Reap sends the request from a child process, and tells whether there is one:
// none is made where earlier ones are left as zombies.
// The child is no Go program any more: it lets go of everything but the socket,
// sends, and exits when the kernel is through with the request. It holds no
// lock: POSIX locks are not inherited, and the descriptors of flocks are
// closed. Signals are blocked so that no handler of ours runs in it.
func Reap(fd int, request []byte) bool { return ReapLinger(fd, request, 0) }

// ReapLinger is Reap with a child that holds the socket open for a while after
// the kernel is through: where it is the last close of the socket that waits,
// the caller closes it within that time, and the child's close is the last.
func ReapLinger(fd int, request []byte, linger time.Duration) bool {
	m, err := recall()
	if err != nil {
		return false
	}
	defer m.close()
	before := m.fate()
	if before == zombie {
		return false
	}
	pid := clone(fd, request, linger)
	if pid > 0 && before == gone {
		m.keep(pid)
	}
	return pid > 0
}

// clone makes the child; pid is 0 where there is none.
func clone(fd int, request []byte, linger time.Duration) (pid int) {
	// Request, parcel and stack are in a page that is never given back: the
	// child may read it after we have gone on.
	page, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil || len(request)+2*int(unsafe.Sizeof(parcel{})) > len(page)/2 {
		return 0
	}
	n := copy(page, request)
	p := (*parcel)(unsafe.Pointer(&page[(n+7)&^7]))
	p.to.Family = unix.AF_NETLINK
	p.linger = unix.NsecToTimespec(linger.Nanoseconds())
	point.Pass(point.Before, "child")
	runtime.LockOSThread() // the signal mask is the thread's
	defer runtime.UnlockOSThread()
	var before uint64 // sigset_t of the kernel: 64 signals
	all := ^uint64(0)
	if sigmask(&all, &before) != 0 {
		return 0
	}
	pid = spawn(uintptr(fd), page, uintptr(n), p)
	_ = sigmask(&before, nil)
	point.Pass(point.While, "child")
	return max(0, pid)
}

// parcel is what the child needs beside the request.
type parcel struct {
	to     unix.RawSockaddrNetlink // the kernel
	linger unix.Timespec           // before it exits
}

func sigmask(set, old *uint64) syscall.Errno {
	_, _, e := syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
	return e
}
