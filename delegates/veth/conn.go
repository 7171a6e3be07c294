package veth

import (
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
)

// Conn is an rtnetlink socket (rtnetlink(7)).
type Conn struct{ *netlink.Conn }

// Dial opens a Conn in the calling thread's network namespace.
func Dial() (*Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &Conn{c}, nil
}

// Gone tells that an error means that no such interface is there.
func Gone(err error) bool { return netlink.Gone(err) }

// batch is rtnetlink requests.
type batch struct{ netlink.Batch }

// Of linux/rtnetlink.h, linux/if_link.h and linux/veth.h.
const (
	skipStats     = 1 << 3 // RTEXT_FILTER_SKIP_STATS
	infoSlaveKind = 4      // IFLA_INFO_SLAVE_KIND
	infoSlaveData = 5      // IFLA_INFO_SLAVE_DATA
	infoPeer      = 1      // VETH_INFO_PEER
)
