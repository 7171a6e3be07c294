package netlink

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// dumpTurns bounds how often a list is asked for again when the kernel says
// that it changed meanwhile (NLM_F_DUMP_INTR).
const dumpTurns = 5

var errInterrupted = fmt.Errorf("%w: the list changed while it was read", ErrAnswer)

// Dump asks for a list and hands each entry's body to each, whole lists only:
// an interrupted one is begun anew with restart.
func (c *Conn) Dump(m *Batch, restart func(), each func(body []byte)) (err error) {
	Order.PutUint16(m.b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	for range dumpTurns {
		restart()
		if err = c.dumpOnce(m, each); !errors.Is(err, errInterrupted) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", m.names[0], err)
	}
	return nil
}

func (c *Conn) dumpOnce(m *Batch, each func(body []byte)) (err error) {
	if err := unix.Sendto(c.fd, m.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink send: %w", err)
	}
	for done := false; !done; {
		rerr := c.Receive(func(h unix.NlMsghdr, body []byte) {
			if h.Flags&unix.NLM_F_DUMP_INTR != 0 {
				err = errInterrupted
			}
			switch h.Type {
			case unix.NLMSG_DONE:
				done = true
				if len(body) >= 4 && int32(Order.Uint32(body)) < 0 {
					err = unix.Errno(-int32(Order.Uint32(body)))
				}
			case unix.NLMSG_ERROR:
				done, err = true, Answer(h, body)
			default:
				each(body)
			}
		})
		if rerr != nil {
			return rerr
		}
	}
	return err
}
