//go:build (amd64 || arm64) && !race

package netlink

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/proc"
	"github.com/tracewire/tracewire/test/netns"
)

func request(kind, flags uint16, index int, attrs func(*Batch)) *Batch {
	m := &Batch{}
	m.Add("request", kind, flags)
	m.IfInfo(index, 0, 0)
	attrs(m)
	m.End()
	return m
}

// bridge makes one and returns its index.
func bridge(t *testing.T, c *Conn) int {
	t.Helper()
	err := c.Do(request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, 0, func(m *Batch) {
		m.Str(unix.IFLA_IFNAME, "br0")
		done := m.Nest(unix.IFLA_LINKINFO)
		m.Str(unix.IFLA_INFO_KIND, "bridge")
		done()
	}))
	if err != nil {
		t.Fatal(err)
	}
	index, err := c.Index("br0")
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// TestChildren: each kind of child sends the request, again and again, and the
// kernel's answer or announcement comes to the parent.
func TestChildren(t *testing.T) {
	for _, tt := range []struct {
		name string
		send func(fd int, request []byte) bool
	}{
		{"the usual", Reap},
		{"one that lingers", func(fd int, request []byte) bool { return ReapLinger(fd, request, time.Millisecond) }},
		{"by fork", func(fd int, request []byte) bool {
			var before uint64
			all := ^uint64(0)
			_ = sigmask(&all, &before)
			p := &parcel{linger: unix.Timespec{Nsec: 1000}}
			p.to.Family = unix.AF_NETLINK
			pid := forkSender(uintptr(fd), unsafe.Pointer(unsafe.SliceData(request)), uintptr(len(request)), p)
			_ = sigmask(&before, nil)
			return pid > 0
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			netns.Enter(t)
			c, err := Dial(unix.NETLINK_ROUTE)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for range 50 {
				index := bridge(t, c)
				heard, err := Listen(unix.RTMGRP_LINK, unix.RTM_DELLINK, unix.AF_UNSPEC, index)
				if err != nil {
					t.Fatal(err)
				}
				if !tt.send(c.Fd(), request(unix.RTM_DELLINK, 0, index, func(*Batch) {}).Bytes()) {
					t.Fatal("no child")
				}
				if ready, err := Readable(t.Context(), time.Now().Add(5*time.Second), heard); err != nil || !ready[0] {
					t.Fatalf("not announced: %v, %v", ready, err)
				}
				heard.Close()
				if _, err := c.Index("br0"); !Gone(err) {
					t.Fatal(err)
				}
				if err := c.Receive(func(h unix.NlMsghdr, body []byte) { err = Answer(h, body) }); err != nil {
					t.Fatal(err)
				}
				if err != nil {
					t.Fatalf("the kernel answered %v", err)
				}
				if _, err := unix.Wait4(-1, nil, unix.WALL, nil); err != nil && !errors.Is(err, unix.ECHILD) {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestWhatAChildKeeps: while it is at work it has the socket, and nothing else
// of ours: a runtime's pipe ends with us, and so does a lock, which it does not
// take from us either. It is of a session of its own.
func TestWhatAChildKeeps(t *testing.T) {
	netns.Enter(t)
	c, err := Dial(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	pipe, locked := inherited(t)
	pid := clone(c.Fd(), request(unix.RTM_DELLINK, 0, 4711, func(*Batch) {}).Bytes(), time.Hour)
	if pid <= 0 {
		t.Fatal("no child")
	}
	defer func() { _ = unix.Kill(pid, unix.SIGKILL); _, _ = unix.Wait4(pid, nil, 0, nil) }()
	var answer error
	if err := c.Receive(func(h unix.NlMsghdr, body []byte) { answer = Answer(h, body) }); err != nil || !Gone(answer) {
		t.Fatalf("%v, the kernel answered %v", err, answer)
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil || len(fds) != 1 || fds[0].Name() != fmt.Sprint(c.Fd()) {
		t.Errorf("it has %v, %v", fds, err)
	}
	if session, err := unix.Getsid(pid); err != nil || session != pid {
		t.Errorf("session %d, %v", session, err)
	}
	if holder := locker(t, locked); holder != os.Getpid() {
		t.Errorf("our lock is held by %d", holder)
	}
	_ = unix.Close(pipe[1])
	poll := []unix.PollFd{{Fd: int32(pipe[0]), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, 0); n != 1 || poll[0].Revents&unix.POLLHUP == 0 {
		t.Errorf("the pipe is still open: %d, %v, %#x", n, err, poll[0].Revents)
	}
	_ = unix.Close(locked)
	if child := proc.Of(pid); child.Name != self() || child.State == "Z" || child.Parent != os.Getpid() {
		t.Errorf("the child is gone already: %+v", child)
	}
}

// inherited is descriptors that an exec would keep, as a plugin's standard output
// is: a pipe, and a file that we hold a POSIX lock on.
func inherited(t *testing.T) (pipe [2]int, locked int) {
	t.Helper()
	err := unix.Pipe2(pipe[:], 0)
	if err == nil {
		locked, err = unix.Open(t.TempDir()+"/lock", unix.O_CREAT|unix.O_RDWR, 0o600)
	}
	if err == nil {
		err = unix.FcntlFlock(uintptr(locked), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Len: 1})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(pipe[0]) })
	return pipe, locked
}

// locker is the process that holds a lock in the way of another open file.
func locker(t *testing.T, fd int) int {
	t.Helper()
	other, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	l := &unix.Flock_t{Type: unix.F_WRLCK, Len: 1}
	if err := unix.FcntlFlock(uintptr(other), unix.F_OFD_GETLK, l); err != nil {
		t.Fatal(err)
	}
	return int(l.Pid)
}
