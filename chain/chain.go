// Package chain runs the steps of one attachment in order, keeps its record,
// and takes back what failed.
package chain

import (
	"context"
	"errors"
	"fmt"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

var (
	// ErrAttached marks an ADD of an attachment that exists.
	ErrAttached = errors.New("attachment exists")
	// ErrNoAddress marks an IPAM plugin that answered without an address.
	ErrNoAddress = errors.New("IPAM gave no address")
	// ErrVersion marks a result that the version asked for cannot hold.
	ErrVersion = errors.New("result cannot be given in the version asked for")
	// ErrLeft marks a DEL after which something that it should have removed is
	// still there: to be tried again.
	ErrLeft = errors.New("not everything could be removed")
	// ErrUnrecorded marks an attachment that cannot be put right: no record of this
	// boot tells how it was made.
	ErrUnrecorded = errors.New(EnvRestore + ": no record of this boot tells how it was made")
	// ErrUndone marks an undo that did not end: the record stays, for DEL.
	ErrUndone = errors.New("undo incomplete")
)

// undoTime bounds what a failed ADD takes back, which goes on past its deadline.
const undoTime = 10 * time.Second

// Step is a delegate and the name of its span.
type Step struct {
	Name string
	delegates.Delegate
}

// Steps is what makes one attachment, each bound to its configuration.
type Steps struct {
	Name      string             // of the main step, "bridge"
	Main      delegates.Delegate // nil in mode delegate, where the first of Delegates makes the interface
	IPAM      delegates.Delegate // nil on a network without addresses
	Leases    string             // IPAM's type, "host-local"
	Delegates []Step             // plugins that run after our own steps, in order
	// Vacant is an error when the pod has an interface of the attachment's name. It
	// is nil where Main looks for itself.
	Vacant func(delegates.Attachment) error
	// Short tells whether IPAM's ADD failed because it had no address to give; nil
	// where that cannot be told.
	Short func(error) bool
	// Late tells that IPAM answers only once the interface exists.
	Late bool
	// Early tells that IPAM's DEL needs the interface, which goes first otherwise.
	Early bool
	// Shares tells that the configuration asks for what the network's attachments
	// share.
	Shares bool
	// Last removes what the network's attachments shared.
	Last func(context.Context) error
	// Writes is the folders that ADD makes files in.
	Writes []string
}

// executes tells whether other plugins' executables are among the steps.
func (s Steps) executes() bool { return s.Late || len(s.Delegates) > 0 }

// Chain is one operation on one attachment.
type Chain struct {
	Records cache.Dir
	Boot    string    // boot id of this kernel
	Start   time.Time // of the operation
	// Operation is what others know it by.
	Operation cache.Operation
	// Lock waits for the attachment's lock. Unless unlock is called it is held until
	// the process ends.
	Lock func(context.Context, delegates.Attachment) (unlock func(), err error)
	// Network waits for a network's lock, beside others or alone.
	Network func(ctx context.Context, network string, shared bool) (unlock func(), err error)
	// Build reads the steps' configuration. The Steps are usable also beside an
	// error: DEL goes on with them.
	Build func(conf []byte, args string) (Steps, error)
	// Alive tells whether what a record stands for is there: its namespace, and
	// the host end.
	Alive func(context.Context, cache.Record) (bool, error)

	// Tell tells of the operation that wrote a record last and was killed before it
	// told of itself.
	Tell func(context.Context, cache.Record)
	// Sandbox is what executed plugins are told on DEL of the pod's namespace: the
	// path, "" where the one that ADD was given is gone; and whether it has no
	// interface of the attachment's name.
	Sandbox func(r cache.Record, a delegates.Attachment, path string) (netns string, absent bool)

	// Holders finds out who holds addresses of a network in this boot.
	Holders func(ctx context.Context, network string) (cache.Holders, error)

	// Still is an error where the namespace that ADD was given is not there any more.
	// It is asked after other plugins ran, which take their time; nil where nobody asks.
	Still func() error
	// Accept tells whether the runtime can be answered with a result.
	Accept func(*types100.Result) error

	back    func(context.Context) error // takes back an ADD that succeeded; nil where none did
	journal *cache.Journal              // nil until there is a record
	leave   func(context.Context) error // removes what the network's attachments shared; nil when that is done, or nothing is
	late    time.Time                   // until when steps have a turn that come after the operation's time is over
	grace   time.Duration               // how long that is; 0 is undoTime
	barren  bool                        // IPAM failed before it made anything
	taken   bool                        // the main step did, as the interface is there already
	peopled bool                        // the runtime names attachments of the network, with a record or without
}

// Add makes an attachment. What it made is taken back when it fails.
func (c *Chain) Add(ctx context.Context, in cache.Intent, call delegates.Call) (*types100.Result, error) {
	steps, err := c.Build(call.Conf, call.Args)
	if err != nil {
		return nil, err
	}
	if err := c.Records.Trusted(); err != nil {
		return nil, err
	}
	old, err := c.read(ctx, call.Attachment, c.vacant)
	if err != nil {
		return nil, err
	}
	if err := c.clear(ctx, old, call); err != nil {
		return nil, err
	}
	err = row(ctx, "cache.intent", func(context.Context) (err error) {
		c.journal, err = c.Records.Begin(in, c.Start)
		return err
	})
	if err != nil {
		return nil, err
	}
	call.Journal = c.journal
	call.Shared = func(ctx context.Context) (func(), error) { return c.share(ctx, call.Network) }
	var r *types100.Result
	err = Guard(ctx, func() (err error) { r, err = c.wire(ctx, steps, call); return err })
	if err != nil {
		return nil, errors.Join(err, c.undo(ctx, steps, call))
	}
	c.back = func(ctx context.Context) error { return c.undo(ctx, steps, call) }
	return r, nil
}

// Undo takes back an ADD that succeeded: whoever asked for it was not told.
func (c *Chain) Undo(ctx context.Context) error { return c.back(ctx) }

// row runs one row of a table in a span of its own.
func row(ctx context.Context, name string, do func(context.Context) error) error {
	return trace.Rows(ctx, nil, trace.Row{Name: name, Do: do})
}

// read takes the attachment's lock and replays its record, in a span; then
// looks at it, where look is not nil. A record that cannot be read is moved
// out of the way, and counts as none: what it stood for is found without it.
func (c *Chain) read(ctx context.Context, a delegates.Attachment, look func(context.Context, cache.Record) error) (r cache.Record, err error) {
	err = row(ctx, "cache.read", func(ctx context.Context) error {
		asked := time.Now()
		if _, err := c.Lock(ctx, a); err != nil {
			return err
		}
		trace.Set(ctx, trace.KeyLockWait.Float64(trace.Milliseconds(time.Since(asked))))
		r = c.replay(ctx, a)
		trace.Set(ctx, trace.KeyRecord.String(string(r.State)), trace.KeyRecordSize.Int64(r.Size))
		if look == nil {
			return nil
		}
		return look(ctx, r)
	})
	return r, err
}

// replay reads the record. What stands in its place and cannot be read is moved
// out of the way, and counts as none; a damaged one is kept as evidence, and what
// can be read of it counts. Where neither can be done the file goes with the
// attachment, or is what is left of it.
func (c *Chain) replay(ctx context.Context, a delegates.Attachment) cache.Record {
	r, err := c.Records.Read(a)
	switch {
	case r.State == cache.None:
		_ = c.without(ctx, err)
	case r.State == cache.Unreadable && !r.Newer:
		if c.quarantine(ctx, c.Records.File(a), err) == nil {
			r = cache.Record{State: cache.None}
		}
	case r.Damaged:
		kept, _ := c.isolate(ctx, func() (string, error) { return c.Records.Mend(&r) })
		trace.Warn(ctx, "record is damaged: what can be read of it is used", kept, trace.KeyRecordSize.Int64(r.Size))
	}
	return r
}

// quarantine moves what cannot be read, and why, out of the way.
func (c *Chain) quarantine(ctx context.Context, path string, why error) error {
	if why == nil {
		why = errNoLine
	}
	kept, err := c.isolate(ctx, func() (string, error) { return c.Records.Quarantine(path, why.Error()) })
	trace.Warn(ctx, "record cannot be read", kept, trace.KeyError.String(why.Error()))
	return err
}

var errNoLine = errors.New("it holds no line that can be read")

// isolate runs what brings a file into quarantine in a span of its own, and tells
// where it is kept, or why it is not.
func (c *Chain) isolate(ctx context.Context, do func() (string, error)) (kept trace.KeyValue, err error) {
	err = row(ctx, "cache.quarantine", func(ctx context.Context) error {
		path, err := do()
		if kept = trace.KeyQuarantine.String(path); err != nil {
			kept = trace.KeyQuarantine.String(err.Error())
		}
		trace.Set(ctx, kept)
		return err
	})
	return kept, err
}

// vacant is an error when the attachment exists (CNI spec 1.1.0, section 2:
// a second ADD of one is the runtime's mistake).
func (c *Chain) vacant(ctx context.Context, r cache.Record) error {
	if r.State != cache.Attached || r.Boot != c.Boot {
		return nil
	}
	alive, err := c.Alive(ctx, r)
	if err != nil || !alive {
		return err
	}
	return fmt.Errorf("%w: %s, since %s", ErrAttached, r.Attachment, r.Began.UTC().Format(time.RFC3339))
}

// clear takes back what an earlier ADD of this attachment left, and links to it.
func (c *Chain) clear(ctx context.Context, old cache.Record, call delegates.Call) error {
	if old.State == cache.None {
		return nil
	}
	call.Prev, call.Before = nil, nil // they are of this ADD
	trace.Link(ctx, trace.ParseContext(old.Span))
	trace.Warn(ctx, "an earlier ADD of this attachment is taken back", trace.KeyRecord.String(string(old.State)))
	err := trace.Run(ctx, "undo", func(ctx context.Context) error { return c.removeNow(ctx, old, call) })
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLeft, err)
	}
	return nil
}

// wire runs the steps forward and commits the record.
func (c *Chain) wire(ctx context.Context, s Steps, call delegates.Call) (r *types100.Result, err error) {
	r = call.Before
	var rows []trace.Row
	if s.IPAM != nil && s.Late {
		call.Lease = func(ctx context.Context) (*types100.Result, error) { return c.lease(ctx, s, call) }
	} else if s.IPAM != nil {
		rows = append(rows, trace.Row{Name: "ipam", Do: func(ctx context.Context) (err error) {
			call.IPAM, err = c.lease(ctx, s, call)
			return err
		}})
	}
	if s.Main != nil {
		rows = append(rows, trace.Row{Name: s.Name, Do: func(ctx context.Context) (err error) {
			r, err = s.Main.Add(ctx, call)
			c.taken = errors.As(err, &delegates.Taken{})
			return err
		}})
	}
	if s.Vacant != nil && r == nil {
		if err := s.Vacant(call.Attachment); err != nil { // its DEL would remove another's
			return nil, err
		}
	}
	for _, d := range s.Delegates {
		rows = append(rows, trace.Row{Name: d.Name, Do: func(ctx context.Context) (err error) { r, err = c.delegate(ctx, d, call, r); return err }})
	}
	rows = append(rows, trace.Row{Name: "cache.commit", Do: func(context.Context) error { return c.commit(s, r) }})
	err = trace.Rows(ctx, nil, rows...)
	return r, err
}

// delegate runs a delegate on the result so far, which its answer replaces, and
// writes that down: a DEL of what comes after it needs the names.
func (c *Chain) delegate(ctx context.Context, d Step, call delegates.Call, before *types100.Result) (*types100.Result, error) {
	if before != call.Before {
		call.Prev = nil // the runtime's is of the plugins before us
	}
	call.Before = before
	r, err := d.Add(ctx, call)
	if err != nil {
		return nil, err
	}
	return r, c.journal.Plan(r)
}

// lease asks for addresses and writes them down.
func (c *Chain) lease(ctx context.Context, s Steps, call delegates.Call) (*types100.Result, error) {
	r, err := s.IPAM.Add(ctx, call)
	if s.short(err) {
		r, err = c.reclaim(ctx, s, call)
	}
	if err != nil {
		c.barren = errors.As(err, &delegates.NothingMade{})
		return nil, err
	}
	if len(r.IPs) == 0 {
		return nil, fmt.Errorf("%w: %s", ErrNoAddress, s.Leases)
	}
	return r, c.journal.Reserved(r)
}

func (c *Chain) commit(s Steps, r *types100.Result) error {
	if s.executes() && c.Still != nil {
		if err := c.Still(); err != nil {
			return err
		}
	}
	if err := c.Accept(r); err != nil {
		return fmt.Errorf("%w: %w", ErrVersion, err)
	}
	return c.journal.Result(r)
}

// share takes the network's lock beside other ADDs and marks the network. The
// record is there already, so the last DEL, which holds the lock alone, either
// sees it or is through with what it removes.
func (c *Chain) share(ctx context.Context, network string) (unlock func(), err error) {
	if unlock, err = c.Network(ctx, network, true); err != nil {
		return nil, err
	}
	if err := c.Records.Mark(network); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// Close ends what an operation has of its record, once spool and log have the
// operation: a record that nothing is left of goes, another one knows that its
// operation was told.
func (c *Chain) Close(ctx context.Context) error {
	switch {
	case c.journal == nil:
		return nil
	case c.journal.Over():
		return c.forget(ctx)
	}
	_ = c.journal.Told() // its next reader looks for the operation in the spool
	return nil
}
