// Package netlink talks to the kernel over netlink sockets: requests batched
// into one write, look-ups of one object, lists, events of one interface, and a
// child process that waits for a request in our place.
package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/trace/point"
)

// Conn is one netlink socket. It belongs to the network namespace it was
// opened in, whichever thread uses it later. One goroutine uses it at a time.
type Conn struct {
	fd  int
	buf []byte // of answers; on the heap, as a stack that has to grow is copied
}

// maxAnswer is the longest answer in bytes: one interface with its attributes
// has some 1,500.
const maxAnswer = 8 << 10

// Dial opens a Conn of a protocol (NETLINK_ROUTE, NETLINK_NETFILTER) in the
// calling thread's network namespace.
func Dial(protocol int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	// Answers hold no copy of the request; the kernel says what it did not like.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	// Lists are filtered by the kernel, by what the request's header says.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	return &Conn{fd: fd, buf: make([]byte, maxAnswer)}, nil
}

// Close closes the socket.
func (c *Conn) Close() { _ = unix.Close(c.fd) }

// Fd is the socket's descriptor.
func (c *Conn) Fd() int { return c.fd }

// Cookie is the identity of the Conn's network namespace (SO_NETNS_COOKIE,
// Linux 5.14): unlike an inode it is never used again. 0 where the kernel has none.
func (c *Conn) Cookie() uint64 {
	v, err := unix.GetsockoptUint64(c.fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return v
}

// ErrAnswer marks an answer of the kernel that cannot be used.
var ErrAnswer = errors.New("netlink receive")

// Order is the byte order of everything the kernel itself counts.
var Order = binary.NativeEndian

// typeMask takes the flags from an attribute's type (NLA_TYPE_MASK, linux/netlink.h).
const typeMask = 0x3fff

// Batch is requests that are sent in one write. The kernel runs them
// in order and goes on after one that fails: only those share a Batch that are
// harmless after the failure of an earlier one.
type Batch struct {
	b     []byte
	names []string // of each request, for its error
	start int      // of the last request
}

// Add begins a request; what names it in an error. Neither it nor IfInfo and Attr
// are copied to where they are called: that made the program 70 kB larger.
//
//go:noinline
func (m *Batch) Add(what string, kind, flags uint16) {
	m.start = len(m.b)
	m.names = append(m.names, what)
	m.b = append(m.b, make([]byte, unix.SizeofNlMsghdr)...)
	Order.PutUint16(m.b[m.start+4:], kind)
	Order.PutUint16(m.b[m.start+6:], flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	Order.PutUint32(m.b[m.start+8:], uint32(len(m.names)))
}

// End closes the request that Add began.
func (m *Batch) End() { Order.PutUint32(m.b[m.start:], uint32(len(m.b)-m.start)) }

// IfInfo appends a struct ifinfomsg (rtnetlink(7)).
//
//go:noinline
func (m *Batch) IfInfo(index int, flags, change uint32) {
	m.b = append(m.b, 0, 0, 0, 0)
	m.b = Order.AppendUint32(m.b, uint32(index))
	m.b = Order.AppendUint32(m.b, flags)
	m.b = Order.AppendUint32(m.b, change)
}

// Raw appends a request's own header.
func (m *Batch) Raw(b ...byte) { m.b = append(m.b, b...) }

// Attr appends an attribute, padded.
//
//go:noinline
func (m *Batch) Attr(kind uint16, data []byte) {
	m.b = Order.AppendUint16(m.b, uint16(unix.SizeofNlAttr+len(data)))
	m.b = Order.AppendUint16(m.b, kind)
	m.b = append(m.b, data...)
	for len(m.b)%unix.NLMSG_ALIGNTO != 0 {
		m.b = append(m.b, 0)
	}
}

// Bool appends an attribute of one byte, 0 or 1.
func (m *Batch) Bool(kind uint16, on bool) {
	v := []byte{0}
	if on {
		v[0] = 1
	}
	m.Attr(kind, v)
}

// U32 appends an attribute of 32 bits in the machine's order.
func (m *Batch) U32(kind uint16, v uint32) { m.Attr(kind, Order.AppendUint32(nil, v)) }

// Str appends a text that ends in NUL.
func (m *Batch) Str(kind uint16, s string) { m.Attr(kind, append([]byte(s), 0)) }

// Nest opens an attribute that holds others, and returns what closes it.
func (m *Batch) Nest(kind uint16) (closeNest func()) {
	at := len(m.b)
	m.Attr(kind|unix.NLA_F_NESTED, nil)
	return func() { Order.PutUint16(m.b[at:], uint16(len(m.b)-at)) }
}

// Do sends the batch and waits for every answer. The error names each request
// that failed.
func (c *Conn) Do(m *Batch) error {
	point.Pass(point.Before, m.name(1))
	err := c.do(m)
	point.Pass(point.After, m.name(1))
	return err
}

func (c *Conn) do(m *Batch) error {
	if err := unix.Sendto(c.fd, m.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink send: %w", err)
	}
	var errs []error
	for answered := 0; answered < len(m.names); {
		err := c.Receive(func(h unix.NlMsghdr, body []byte) {
			if h.Type != unix.NLMSG_ERROR {
				return
			}
			answered++
			if err := Answer(h, body); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", m.name(h.Seq), err))
			}
		})
		if err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

// Ask sends a look-up of one object, with changes behind it or none, and
// returns the answer's body, nil when the kernel has none.
func (c *Conn) Ask(m *Batch) (body []byte, err error) {
	// An answer is the object, then the acknowledgement.
	if err := unix.Sendto(c.fd, m.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("netlink send: %w", err)
	}
	for answered := 0; answered < len(m.names); {
		rerr := c.Receive(func(h unix.NlMsghdr, b []byte) {
			if h.Type == unix.NLMSG_ERROR {
				answered++
				if err == nil {
					err = Answer(h, b)
				}
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

// Receive reads one datagram and hands each message to each.
func (c *Conn) Receive(each func(h unix.NlMsghdr, body []byte)) error {
	n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("netlink receive: %w", err)
	}
	return Messages(c.buf[:n], each)
}

// Messages hands each message of a datagram to each.
func Messages(b []byte, each func(h unix.NlMsghdr, body []byte)) error {
	for len(b) >= unix.SizeofNlMsghdr {
		h := unix.NlMsghdr{Len: Order.Uint32(b), Type: Order.Uint16(b[4:]), Flags: Order.Uint16(b[6:]), Seq: Order.Uint32(b[8:]), Pid: Order.Uint32(b[12:])}
		if h.Len < unix.SizeofNlMsghdr || int(h.Len) > len(b) {
			return fmt.Errorf("%w: message cut short", ErrAnswer)
		}
		each(h, b[unix.SizeofNlMsghdr:h.Len])
		b = b[min(len(b), int(h.Len+3)&^3):]
	}
	return nil
}

// Answer is the error that an acknowledgement carries, with the kernel's own
// words where it has some (NLMSGERR_ATTR_MSG, linux/netlink.h).
func Answer(h unix.NlMsghdr, body []byte) error {
	e := -int32(Uint32(body))
	if e == 0 {
		return nil
	}
	err := unix.Errno(e)
	if h.Flags&unix.NLM_F_ACK_TLVS == 0 || len(body) < 4+unix.SizeofNlMsghdr {
		return err
	}
	words := ""
	Walk(body[4+unix.SizeofNlMsghdr:], func(kind uint16, data []byte) {
		if kind == unix.NLMSGERR_ATTR_MSG {
			words = String(data)
		}
	})
	if words == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, words)
}

// Walk hands each attribute to each.
func Walk(b []byte, each func(kind uint16, data []byte)) {
	WalkRaw(b, func(kind uint16, data []byte) { each(kind&typeMask, data) })
}

// WalkRaw is Walk with the flags in an attribute's type (NLA_F_NESTED).
func WalkRaw(b []byte, each func(kind uint16, data []byte)) {
	for len(b) >= unix.SizeofNlAttr {
		n := int(Order.Uint16(b))
		if n < unix.SizeofNlAttr || n > len(b) {
			return
		}
		each(Order.Uint16(b[2:]), b[unix.SizeofNlAttr:n])
		b = b[min(len(b), (n+3)&^3):]
	}
}

// Byte is the first byte, 0 where there is none.
func Byte(b []byte) byte {
	if len(b) < 1 {
		return 0
	}
	return b[0]
}

// Uint32 is 32 bits in the machine's order, 0 where there are less.
func Uint32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return Order.Uint32(b)
}

// String is a text that may end in NUL.
func String(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// name is the request's that an answer belongs to.
func (m *Batch) name(seq uint32) string {
	if seq == 0 || int(seq) > len(m.names) {
		return "unknown request"
	}
	return m.names[seq-1]
}

// Bytes is the requests as they are sent.
func (m *Batch) Bytes() []byte { return m.b }

// Len is the number of requests.
func (m *Batch) Len() int { return len(m.names) }

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
