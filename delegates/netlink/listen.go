package netlink

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Listen opens a socket that hears the groups (RTMGRP_*), and of those only
// messages of the kind about one interface: without the filter each of a
// hundred processes would be woken by the interfaces of all others.
// The family is the first byte after the message's header.
func Listen(groups uint32, kind uint16, family byte, index int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	prog := filter(kind, family, index)
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]})
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups})
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &Conn{fd: fd, buf: make([]byte, maxAnswer)}, nil
}

// filter is a classic BPF program on struct nlmsghdr and struct ifinfomsg or
// ifaddrmsg: the message's type at 4, the family at 16, the index at 20. It
// loads in network byte order, the kernel wrote in its own.
func filter(kind uint16, family byte, index int) []unix.SockFilter {
	var k, i [4]byte
	Order.PutUint16(k[:], kind)
	Order.PutUint32(i[:], uint32(index))
	const eq = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 4},
		{Code: eq, K: uint32(k[0])<<8 | uint32(k[1]), Jf: 5},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 16},
		{Code: eq, K: uint32(family), Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 20},
		{Code: eq, K: uint32(i[0])<<24 | uint32(i[1])<<16 | uint32(i[2])<<8 | uint32(i[3]), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
}

// Readable waits until one of the sockets has something to read, or ctx ends,
// or end comes, where it is not zero.
func Readable(ctx context.Context, end time.Time, conns ...*Conn) ([]bool, error) {
	if d, bounded := ctx.Deadline(); bounded && (end.IsZero() || d.Before(end)) {
		end = d
	}
	fds := make([]unix.PollFd, len(conns))
	for i, c := range conns {
		fds[i] = unix.PollFd{Fd: int32(c.fd), Events: unix.POLLIN}
	}
	for {
		n, err := unix.Ppoll(fds, patience(end), nil)
		if err != nil && err != unix.EINTR {
			return nil, fmt.Errorf("poll: %w", err)
		}
		if n > 0 {
			ready := make([]bool, len(fds))
			for i := range fds {
				ready[i] = fds[i].Revents&unix.POLLIN != 0
			}
			return ready, nil
		}
		if !end.IsZero() && !time.Now().Before(end) {
			return nil, context.DeadlineExceeded
		}
	}
}

// patience is the time until end, nil for no end.
func patience(end time.Time) *unix.Timespec {
	if end.IsZero() {
		return nil
	}
	t := unix.NsecToTimespec(max(0, time.Until(end).Nanoseconds()))
	return &t
}
