package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
	"github.com/tracewire/tracewire/trace/point"
)

// Transaction is changes that the kernel makes all or none of. It is applied once.
type Transaction struct {
	// If is the generation that the changes were chosen in: when another
	// transaction came between, they are refused with ErrChanged. 0 for whichever.
	If uint32

	m    netlink.Batch
	what []string // of each change, for its error
}

// ErrChanged marks a Transaction that was refused because of its If.
var ErrChanged = errors.New("nf_tables changed meanwhile")

// Create makes a table or a chain. One that is there is unix.EEXIST.
func (t *Transaction) Create(o Object) {
	t.add("create ", o, 0, unix.NLM_F_CREATE|unix.NLM_F_EXCL, Object.describe)
}

// Ensure makes a table or a chain unless it is there. A chain that is there is
// updated, for which Close waits as after a deletion.
func (t *Transaction) Ensure(o Object) {
	t.add("create ", o, 0, unix.NLM_F_CREATE, Object.describe)
}

// Append makes a rule, the last of its chain.
func (t *Transaction) Append(r Rule) {
	t.add("add ", r, 0, unix.NLM_F_CREATE|unix.NLM_F_APPEND, Object.describe)
}

// Delete deletes a table with all that is in it, a chain with its rules, or a
// rule that was read. A chain that rules still lead to is unix.EBUSY.
func (t *Transaction) Delete(o Object) { t.add("delete ", o, 2, 0, Object.identify) }

// Flush deletes the rules of a chain.
func (t *Transaction) Flush(c Chain) { t.Delete(Rule{Chain: c, Comment: "*"}) }

func (t *Transaction) add(verb string, o Object, more, flags uint16, attributes func(Object, *netlink.Batch)) {
	t.what = append(t.what, verb+o.String())
	add(&t.m, "", o.kind()+more, flags, o.table().Family)
	attributes(o, &t.m)
	t.m.End()
}

// Empty tells that there is nothing to change.
func (t *Transaction) Empty() bool { return len(t.what) == 0 }

// Apply makes the changes. The error names the first that the kernel refused:
// those after it may follow from it.
func (c *Conn) Apply(ctx context.Context, t *Transaction) error {
	point.Pass(point.Before, "nf_tables transaction")
	if err := unix.Sendto(c.Fd(), t.bytes(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("nf_tables transaction: %w", err)
	}
	err := c.answers(ctx, t)
	point.Pass(point.After, "nf_tables transaction")
	return err
}

// linger is how long a child holds the socket of a transaction that deletes.
// Within it the caller has to be done with the answer.
const linger = 50 * time.Millisecond

// Remove is Apply for a transaction that deletes. Unless wait is asked for, it
// is sent by a child process that is the last to close the socket, so that
// neither Close nor the end of this process waits (see Conn). reaped tells
// that it was so.
func (c *Conn) Remove(ctx context.Context, t *Transaction, wait bool) (reaped bool, err error) {
	if !wait && netlink.MayReap() && netlink.ReapLinger(c.Fd(), t.bytes(), linger) {
		return true, c.answers(ctx, t)
	}
	return false, c.Apply(ctx, t)
}

// answers waits for the answer to the last change, or for one to the whole.
func (c *Conn) answers(ctx context.Context, t *Transaction) (err error) {
	for done := false; !done; {
		if _, err := netlink.Readable(ctx, time.Time{}, c.Conn); err != nil {
			return fmt.Errorf("nf_tables transaction: %w", err)
		}
		rerr := c.Receive(func(h unix.NlMsghdr, body []byte) {
			if h.Type != unix.NLMSG_ERROR {
				return
			}
			done = done || h.Seq == 0 || int(h.Seq) == len(t.what)
			if e := netlink.Answer(h, body); err == nil {
				err = t.named(h.Seq, e)
			}
		})
		if rerr != nil {
			return rerr
		}
	}
	return err
}

func (t *Transaction) named(seq uint32, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ERESTART):
		return ErrChanged
	case seq == 0 || int(seq) > len(t.what):
		return fmt.Errorf("nf_tables transaction: %w", err)
	}
	return fmt.Errorf("%s: %w", t.what[seq-1], err)
}

// bytes is the transaction as it is sent, between the messages that begin and
// end it. Those have the number 0 and are not acknowledged.
func (t *Transaction) bytes() []byte {
	return slices.Concat(t.frame(unix.NFNL_MSG_BATCH_BEGIN), t.m.Bytes(), t.frame(unix.NFNL_MSG_BATCH_END))
}

// batchGeneration is NFNL_BATCH_GENID (linux/netfilter/nfnetlink.h).
const batchGeneration = 1

func (t *Transaction) frame(kind uint16) []byte {
	var m netlink.Batch
	if t.If != 0 && kind == unix.NFNL_MSG_BATCH_BEGIN {
		u32(&m, batchGeneration, t.If)
	}
	const head = unix.SizeofNlMsghdr + 4 // and struct nfgenmsg
	b := make([]byte, head, head+len(m.Bytes()))
	netlink.Order.PutUint32(b, uint32(cap(b)))
	netlink.Order.PutUint16(b[4:], kind)
	netlink.Order.PutUint16(b[6:], unix.NLM_F_REQUEST)
	binary.BigEndian.PutUint16(b[unix.SizeofNlMsghdr+2:], unix.NFNL_SUBSYS_NFTABLES)
	return append(b, m.Bytes()...)
}

// turns bounds how often Change tries.
const turns = 200

// Change applies a transaction that was chosen from what is there, and chooses
// anew when that changed meanwhile. choose leaves it empty when nothing is to
// be done.
func (c *Conn) Change(ctx context.Context, choose func(*Transaction) error) error {
	for range turns {
		g, err := c.Generation()
		if err != nil {
			return err
		}
		t := &Transaction{If: g}
		if err := choose(t); err != nil || t.Empty() {
			return err
		}
		if err := c.Apply(ctx, t); !errors.Is(err, ErrChanged) {
			return err
		}
	}
	return ErrChanged
}
