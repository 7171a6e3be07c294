package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain"
	"github.com/tracewire/tracewire/ipam"
	"github.com/tracewire/tracewire/trace"
)

func (o *operation) status(ctx context.Context, a *skel.CmdArgs) error {
	o.chain = o.assemble(nil)
	build := o.chain.Build
	o.chain.Build = func(conf []byte, args string) (chain.Steps, error) {
		s, err := build(conf, args)
		err = without(err, ipam.ErrNoRanges) // they may come with each ADD
		err = errors.Join(err, o.writes(&s))
		return s, err
	}
	call := o.call(ctx, a)
	call.Uptime = uptime()
	return o.chain.Status(ctx, call, o.verdict)
}

// writes adds what only STATUS asks of the steps: the folders that an ADD writes
// to, and how long an exhausted range set is borne.
func (o *operation) writes(s *chain.Steps) error {
	s.Writes = []string{filepath.Join(o.chain.Records.Path, o.net.Name)}
	leases, ok := s.IPAM.(ipam.HostLocal)
	if !ok {
		return nil
	}
	t := o.net.Tracewire
	leases.Patience = ipam.Patience{Grace: t.StatusGrace, Never: t.StatusOnExhaustion == "never"}
	s.IPAM = leases
	store, err := leases.Folder(o.net.Name)
	s.Writes = append(s.Writes, store)
	return err
}

// without is an error without what a room joined to it.
func without(err, what error) error {
	if errors.Is(what, err) {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var rest []error
	for _, e := range joined.Unwrap() {
		rest = append(rest, without(e, what))
	}
	return errors.Join(rest...)
}

// uptime is the time since the kernel started, sleep included.
func uptime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // fails for an unknown clock only
	return time.Duration(ts.Nano())
}

// verdictFile is where the last STATUS of this network and these folders left
// its verdict.
func (o *operation) verdictFile() string { return filepath.Join(o.runDir(), "status") }

// heard is where the operation goes when it is over. A STATUS that has nothing
// new to say goes nowhere, and one that only warns into the log alone.
func (o *operation) heard(failed *types.Error) trace.Sink {
	s := o.sink()
	if o.verdict == nil {
		return s
	}
	trace.Count(trace.PolledPath)
	if errors.Is(o.err, context.Canceled) { // it was told to stop, and found nothing
		return trace.Sink{Log: trace.Log{Level: "off"}}
	}
	switch o.verdict.Settle(reason(failed), o.root.TraceID()) {
	case chain.Change:
		return s
	case chain.Warning:
		s.Spool.MaxBytes = 0
		if s.Log.Level == "info" || s.Log.Level == "debug" {
			s.Log.Level = "warn"
		}
		return s
	}
	return trace.Sink{Log: trace.Log{Level: "off"}}
}

// traceOf is the id of the trace in which an error is to be found: a STATUS that
// fails as the last one did has no span of its own.
func (o *operation) traceOf(failed *types.Error) string {
	if o.verdict == nil {
		return o.root.TraceID()
	}
	return o.verdict.Trace(reason(failed), o.root.TraceID())
}

// reason is what tells a failure from another; empty for none.
func reason(failed *types.Error) string {
	if failed == nil {
		return ""
	}
	return nameOf(failed.Code) + ": " + failed.Msg
}
