package veth

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Conn is one rtnetlink socket. It belongs to the network namespace it was
// opened in, whichever thread uses it later. One goroutine uses it at a time.
type Conn struct {
	fd  int
	buf []byte // of answers; on the heap, as a stack that has to grow is copied
}

// maxAnswer is the longest answer in bytes: one interface with its attributes
// has some 1,500.
const maxAnswer = 8 << 10

// Dial opens a Conn in the calling thread's network namespace.
func Dial() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("rtnetlink socket: %w", err)
	}
	// Answers hold no copy of the request; the kernel says what it did not like.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return &Conn{fd: fd, buf: make([]byte, maxAnswer)}, nil
}

// Close closes the socket.
func (c *Conn) Close() { _ = unix.Close(c.fd) }

// Cookie is the identity of the Conn's network namespace (SO_NETNS_COOKIE,
// Linux 5.14): unlike an inode it is never used again. 0 where the kernel has none.
func (c *Conn) Cookie() uint64 {
	v, err := unix.GetsockoptUint64(c.fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return v
}

var order = binary.NativeEndian

// Of linux/netlink.h, linux/rtnetlink.h and linux/veth.h.
const (
	typeMask      = 0x3fff // NLA_TYPE_MASK
	skipStats     = 1 << 3 // RTEXT_FILTER_SKIP_STATS
	infoPeer      = 1      // VETH_INFO_PEER
	nodad         = 0x02   // IFA_F_NODAD
	infoSlaveKind = 4      // IFLA_INFO_SLAVE_KIND
	infoSlaveData = 5      // IFLA_INFO_SLAVE_DATA
)

// Batch is rtnetlink requests that are sent in one write. The kernel runs them
// in order and goes on after one that fails: only those share a Batch that are
// harmless after the failure of an earlier one.
type Batch struct {
	b     []byte
	names []string // of each request, for its error
	start int      // of the last request
}

// add begins a request; what names it in an error.
func (m *Batch) add(what string, kind, flags uint16) {
	m.start = len(m.b)
	m.names = append(m.names, what)
	m.b = append(m.b, make([]byte, unix.SizeofNlMsghdr)...)
	order.PutUint16(m.b[m.start+4:], kind)
	order.PutUint16(m.b[m.start+6:], flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	order.PutUint32(m.b[m.start+8:], uint32(len(m.names)))
}

// end closes the request that add began.
func (m *Batch) end() { order.PutUint32(m.b[m.start:], uint32(len(m.b)-m.start)) }

func (m *Batch) ifinfo(index int, flags, change uint32) {
	m.b = append(m.b, 0, 0, 0, 0)
	m.b = order.AppendUint32(m.b, uint32(index))
	m.b = order.AppendUint32(m.b, flags)
	m.b = order.AppendUint32(m.b, change)
}

func (m *Batch) attr(kind uint16, data []byte) {
	m.b = order.AppendUint16(m.b, uint16(unix.SizeofNlAttr+len(data)))
	m.b = order.AppendUint16(m.b, kind)
	m.b = append(m.b, data...)
	for len(m.b)%unix.NLMSG_ALIGNTO != 0 {
		m.b = append(m.b, 0)
	}
}

func (m *Batch) u8(kind uint16, on bool) {
	v := []byte{0}
	if on {
		v[0] = 1
	}
	m.attr(kind, v)
}

func (m *Batch) u32(kind uint16, v uint32) { m.attr(kind, order.AppendUint32(nil, v)) }
func (m *Batch) str(kind uint16, s string) { m.attr(kind, append([]byte(s), 0)) }

// nest opens an attribute that holds others, and returns what closes it.
func (m *Batch) nest(kind uint16) (closeNest func()) {
	at := len(m.b)
	m.attr(kind|unix.NLA_F_NESTED, nil)
	return func() { order.PutUint16(m.b[at:], uint16(len(m.b)-at)) }
}

// Do sends the batch and waits for every answer. The error names each request
// that failed.
func (c *Conn) Do(m *Batch) error {
	if err := unix.Sendto(c.fd, m.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("rtnetlink send: %w", err)
	}
	var errs []error
	for answered := 0; answered < len(m.names); {
		err := c.receive(func(h unix.NlMsghdr, body []byte) {
			if h.Type != unix.NLMSG_ERROR {
				return
			}
			answered++
			if err := answer(h, body); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", m.names[h.Seq-1], err))
			}
		})
		if err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

// ask sends a look-up of one object and returns the answer's body, nil when
// the kernel has none.
func (c *Conn) ask(m *Batch) (body []byte, err error) {
	// An answer is the object, then the acknowledgement.
	if err := unix.Sendto(c.fd, m.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("rtnetlink send: %w", err)
	}
	for done := false; !done; {
		rerr := c.receive(func(h unix.NlMsghdr, b []byte) {
			if h.Type == unix.NLMSG_ERROR {
				done, err = true, answer(h, b)
			} else if body == nil {
				body = append([]byte{}, b...)
			}
		})
		if rerr != nil {
			return nil, rerr
		}
	}
	return body, err
}

// receive reads one datagram and hands each message to each.
func (c *Conn) receive(each func(h unix.NlMsghdr, body []byte)) error {
	n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("rtnetlink receive: %w", err)
	}
	for b := c.buf[:n]; len(b) >= unix.SizeofNlMsghdr; {
		h := *(*unix.NlMsghdr)(unsafe.Pointer(&b[0]))
		if h.Len < unix.SizeofNlMsghdr || int(h.Len) > len(b) {
			return errors.New("rtnetlink receive: message cut short")
		}
		each(h, b[unix.SizeofNlMsghdr:h.Len])
		b = b[min(len(b), int(h.Len+3)&^3):]
	}
	return nil
}

// answer is the error that an acknowledgement carries, with the kernel's own
// words where it has some (NLMSGERR_ATTR_MSG, linux/netlink.h).
func answer(h unix.NlMsghdr, body []byte) error {
	e := -int32(order.Uint32(body))
	if e == 0 {
		return nil
	}
	err := unix.Errno(e)
	if h.Flags&unix.NLM_F_ACK_TLVS == 0 || len(body) < 4+unix.SizeofNlMsghdr {
		return err
	}
	words := ""
	walk(body[4+unix.SizeofNlMsghdr:], func(kind uint16, data []byte) {
		if kind == unix.NLMSGERR_ATTR_MSG {
			words = cstring(data)
		}
	})
	if words == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, words)
}

// walk hands each attribute to each.
func walk(b []byte, each func(kind uint16, data []byte)) {
	for len(b) >= unix.SizeofNlAttr {
		n := int(order.Uint16(b))
		if n < unix.SizeofNlAttr || n > len(b) {
			return
		}
		each(order.Uint16(b[2:])&typeMask, b[unix.SizeofNlAttr:n])
		b = b[min(len(b), (n+3)&^3):]
	}
}

func cstring(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// Index looks an interface up by name without waiting for the kernel's RTNL
// lock (netdevice(7), SIOCGIFINDEX): 5 us. Gone tells that there is none.
func (c *Conn) Index(name string) (int, error) {
	r, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(c.fd, unix.SIOCGIFINDEX, r)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return int(r.Uint32()), nil
}

// Gone tells that an error means that no such interface is there.
func Gone(err error) bool { return errors.Is(err, unix.ENODEV) }
