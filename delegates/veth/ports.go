package veth

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxPorts is how many ports a bridge can have: BR_MAX_PORTS of the kernel, less
// the one numbered 0.
const MaxPorts = 1<<10 - 1

// getPortList is BRCTL_GET_PORT_LIST (linux/if_bridge.h).
const getPortList = 7

// Ports counts a bridge's ports by the one request that hardly grows with their
// number: 15 us at 500, where a listing of its brif takes 0.3 ms. Gone tells that
// there is no such interface; one that is no bridge answers EOPNOTSUPP.
func Ports(bridge string) (n int, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	var ports [MaxPorts + 1]int32 // indices, by port
	args := struct {
		command uintptr
		into    unsafe.Pointer
		room    uintptr
		_       uintptr
	}{getPortList, unsafe.Pointer(&ports), uintptr(len(ports)), 0}
	request := struct { // struct ifreq (netdevice(7))
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [2]uint64
	}{data: unsafe.Pointer(&args)}
	copy(request.name[:unix.IFNAMSIZ-1], bridge)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCDEVPRIVATE, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return 0, os.NewSyscallError("ports of "+bridge, errno)
	}
	for _, index := range &ports {
		if index != 0 {
			n++
		}
	}
	return n, nil
}
