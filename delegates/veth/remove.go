package veth

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
)

// Remove removes an interface, and with a veth its other end. One that is gone
// is success. The kernel announces the removal after half a millisecond, but
// answers only after 16 to 25 ms, when all processors have forgotten the
// interface: unless wait is asked for, that time is left to a child process,
// and Remove returns on the announcement. reaped tells that it was so.
func (c *Conn) Remove(ctx context.Context, index int, wait bool) (reaped bool, err error) {
	var m batch
	m.Add("remove interface", unix.RTM_DELLINK, 0)
	m.IfInfo(index, 0, 0)
	m.End()
	if wait || !netlink.MayReap() {
		return false, ignoreGone(c.Do(&m.Batch))
	}
	heard, err := netlink.Listen(unix.RTMGRP_LINK, unix.RTM_DELLINK, unix.AF_UNSPEC, index)
	if err != nil {
		return false, ignoreGone(c.Do(&m.Batch))
	}
	defer heard.Close()
	// A socket of the request's own: its answer may come long after we are done with c.
	asked, err := netlink.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		return false, err
	}
	defer asked.Close()
	if !netlink.Reap(asked.Fd(), m.Bytes()) {
		return false, ignoreGone(c.Do(&m.Batch))
	}
	return true, removed(ctx, heard, asked)
}

// removed waits for the announcement or the request's answer, whichever comes first.
func removed(ctx context.Context, heard, asked *netlink.Conn) error {
	ready, err := netlink.Readable(ctx, time.Time{}, heard, asked)
	if err != nil {
		return fmt.Errorf("remove interface: %w", err)
	}
	if ready[0] {
		return nil
	}
	err = errors.New("remove interface: no answer")
	rerr := asked.Receive(func(h unix.NlMsghdr, body []byte) {
		if h.Type == unix.NLMSG_ERROR {
			err = netlink.Answer(h, body)
		}
	})
	if rerr != nil {
		return rerr
	}
	if err != nil {
		return ignoreGone(fmt.Errorf("remove interface: %w", err))
	}
	return nil
}

func ignoreGone(err error) error {
	if Gone(err) {
		return nil
	}
	return err
}
