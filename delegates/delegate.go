// Package delegates holds the contract every step of an attachment keeps, and
// the one door through which other plugins' executables are run.
package delegates

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/trace"
)

// Attachment names one interface of one container on one network. It is the
// key of a record, of a lock and of everything an ADD makes.
type Attachment struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

// String is network/containerID:ifname. Neither a network's name nor a
// container id may hold a slash or a colon (CNI spec, section 2), so no two
// attachments share one.
func (a Attachment) String() string {
	return a.Network + "/" + a.ContainerID + ":" + a.IfName
}

// Call is what one step is given.
type Call struct {
	Attachment
	Conf []byte          // the complete network configuration, JSON, the one ADD used
	Prev json.RawMessage // prevResult as the runtime sent it; empty when there is none
	// Before is Prev, read; nil when absent or not readable. On ADD it is the result
	// so far, nil for the first step.
	Before *types100.Result
	NetNS  string // CNI_NETNS, a path; empty when there is none
	// Absent tells, on DEL, that NetNS is none, or has no interface of that name.
	Absent bool
	Args   string   // CNI_ARGS as given
	Path   []string // CNI_PATH, split
	// Operation is the traceparent of the root span, which executables carry.
	Operation string

	// IPAM is the addresses' answer on ADD and CHECK, whose owner is the ipam
	// step. It is nil on a network without IPAM.
	IPAM *types100.Result
	// Lease asks for the addresses in the middle of the step, when they can only
	// be had once the interface exists. It is nil when IPAM already has them.
	Lease func(context.Context) (*types100.Result, error)
	// Made is what the attachment's record tells. It is the zero Made on the
	// first ADD and where no record was found.
	Made Made
	// Shared takes the network's lock beside other ADDs, while something is made
	// that goes with the network's last attachment. It is never nil on ADD.
	Shared func(context.Context) (unlock func(), err error)
	// Journal is where ADD writes down what it makes. It is never nil on ADD.
	Journal Journal
	// Notes is what the step's last Status left. It is never nil on STATUS.
	Notes Notes
	// Restore asks CHECK to put right what it finds, where that takes nothing from the
	// pod but what ADD did not give it.
	Restore bool
	// Uptime is the time since the kernel started, on STATUS (CLOCK_BOOTTIME): no
	// step of a clock is in it.
	Uptime time.Duration
}

// Watcher is the journal as what watches phases; nil where there is none.
func (c Call) Watcher() trace.Watcher {
	if c.Journal == nil {
		return nil
	}
	return c.Journal
}

// Made is what an attachment's record says that its ADD made.
type Made struct {
	Known    bool   // a record was found
	ThisBoot bool   // it was written since this kernel started
	Cookie   uint64 // SO_NETNS_COOKIE of the pod's network namespace, 0 when not known
	// Result is what ADD answered, else what it planned; nil before the plan.
	Result *types100.Result
	// Reserved is what IPAM gave; nil when the record ends before that line.
	Reserved *types100.Result
	// Steps is what became of each executed plugin, by its step's name; one that is
	// not in it never ran.
	Steps map[string]Ran
}

// Ran is how far an executed plugin came.
type Ran int

// What became of a plugin, in order.
const (
	Asked   Ran = iota + 1 // its ADD was run, whether it answered or not
	Freeing                // its DEL was begun
	Freed                  // its DEL succeeded
)

// To tells whether a plugin's DEL is to be run: it is when its ADD was, or
// when nothing is known of that.
func (m Made) To(step string) bool {
	return !m.Known || m.Steps[step] == Asked || m.Steps[step] == Freeing
}

// Journal is the part of an attachment's record that a step writes.
type Journal interface {
	// Reserved writes down the addresses, after they are reserved.
	Reserved(*types100.Result) error
	// Plan writes down names, MACs, addresses and routes, before the kernel is
	// touched. A later plan replaces an earlier one.
	Plan(*types100.Result) error
	// Ran writes down that a step's executable is about to be run, or was. Where
	// what it makes may outlive this kernel, the record is made to do so too.
	Ran(step string, how Ran, durable bool) error
	// Begin and End write down the phases.
	trace.Watcher
}

// Notes is what one step's Status leaves for the next one of this boot.
type Notes interface {
	// Recall reads what was kept last into a variable, which keeps its value where
	// there is nothing.
	Recall(variable any)
	// Keep replaces it by a value that can be written as JSON.
	Keep(value any)
	// Tell has the warnings of this Status written to the log, also where its
	// outcome is the last one's.
	Tell()
}

// Delegate is one step of an attachment: it adds to the result, and takes
// back what it added.
type Delegate interface {
	// Add returns the result with the step's own part. It undoes nothing when it
	// fails: the caller calls Del.
	Add(context.Context, Call) (*types100.Result, error)
	// Del removes all that Add made or may have made. What is already gone is
	// success.
	Del(context.Context, Call) error
	// Check compares what Add made with what is there.
	Check(context.Context, Call) error
	// GC removes what Adds made for attachments of the network that are not kept.
	// The Call names the network alone.
	GC(context.Context, Call, Kept) error
	// Status is an error when the next Add would fail. It makes nothing, and is
	// asked every few seconds.
	Status(context.Context, Call) error
}

// NothingMade is the error of an Add that failed before it made anything: its
// Del need not be called, and might only wait for what Add waited for.
type NothingMade struct{ Err error }

// Error implements error.
func (n NothingMade) Error() string { return n.Err.Error() }

// Unwrap is the cause.
func (n NothingMade) Unwrap() error { return n.Err }

// Taken is the error of an Add that made nothing, because the pod has an
// interface of that name. It may be this attachment's own, its record lost: the
// step's Del would remove it.
type Taken struct{ Err error }

// Error implements error.
func (t Taken) Error() string { return t.Err.Error() }

// Unwrap is the cause.
func (t Taken) Unwrap() error { return t.Err }

// Finding is one difference that CHECK found.
type Finding struct {
	Code     string `json:"code"` // a reason code of chain/codes: "veth.missing"
	Expected string `json:"expected"`
	Found    string `json:"found"`
}

// Restored tells of a finding that was put right, or of why it could not be.
func Restored(ctx context.Context, f Finding, err error) {
	reason := trace.KeyReason.String(f.Code)
	if err != nil {
		trace.Warn(ctx, "could not be put right: expected "+f.Expected+", found "+f.Found, reason, trace.KeyError.String(err.Error()))
		return
	}
	trace.Warn(ctx, "put right: expected "+f.Expected+", found "+f.Found, reason)
}

// Findings is the error of a Check that looked and found differences.
type Findings []Finding

// Error lists them, in the order found.
func (f Findings) Error() string {
	s := ""
	for i, x := range f {
		if i > 0 {
			s += "; "
		}
		s += fmt.Sprintf("%s: expected %s, found %s", x.Code, x.Expected, x.Found)
	}
	return s
}
