// Package audit finds what a node holds and what leaks: it compares the records
// of attachments with libcni's cache, the reservations of addresses, the kernel
// and the runtime's sandboxes. An audit changes nothing, waits for no lock, and
// asks nobody who is not this node's kernel and disk. A Planner tells what of it is
// to be mended, and Node.Mend does that, under the plugin's locks.
package audit

import (
	"context"
	"runtime"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
)

// Node is where an audit looks, and what others were asked for it.
type Node struct {
	Boot      string           // id of this boot; empty where it is not known: then every record is of it
	StateDirs []string         // of our networks: "/var/lib/cni/tracewire"
	CacheDirs []string         // libcni's: cache.LibcniDirs
	DataDirs  []string         // host-local's, whose stores are looked at whoever names them: ipam.DefaultDataDir
	Conflists []conflist.Entry // of the node: conflist.Folder
	Network   string           // the one to look at; "" for all

	// Sandboxes is the runtime's; nil where it was not asked. An empty list that is
	// not nil tells that it has none.
	Sandboxes []Sandbox
	// Checked is what CHECK found, for who ran it.
	Checked []Checked
}

// Sandbox is one of the runtime's.
type Sandbox struct {
	ID    string // the container id that CNI is given
	Ready bool
}

// Checked is what CHECK found of one attachment.
type Checked struct {
	delegates.Attachment
	Findings delegates.Findings
	Err      error // why it could not look, of an attachment that lives
}

// Told is what an audit hands on, as it finds it. Either may be nil.
type Told struct {
	Finding func(Finding)
	Unread  func(Unread)
}

// Counts is how much was looked at.
type Counts struct {
	Records      int `json:"records"`
	Entries      int `json:"libcniEntries"`
	Reservations int `json:"reservations"`
	Interfaces   int `json:"interfaces"` // of the host
	Namespaces   int `json:"namespaces"`
	Checked      int `json:"checked"` // attachments whose CHECK was run
	Findings     int `json:"findings"`
}

// Audit looks at the node once. Its error is ctx's: what cannot be read is told
// as Unread. What vanishes while it looks is no finding. The calling thread's
// network namespace is the host's.
func (n Node) Audit(ctx context.Context, told Told) (Counts, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l := newLook(n, told)
	for _, step := range steps {
		if ctx.Err() == nil && (!step.sees || !l.kernel.Blind) {
			step.do(l, ctx)
		}
	}
	return l.counts, ctx.Err()
}

// steps is what an audit does, in order. One that sees depends on what the kernel
// has: without that, all would seem to be gone.
var steps = [...]struct {
	do   func(*look, context.Context)
	sees bool
}{
	{(*look).readConflists, false}, {(*look).readRecords, false}, {(*look).readKernel, false}, {(*look).judgeRecords, true},
	{(*look).readStores, false}, {(*look).readRules, false}, {(*look).readEntries, false},
	{(*look).judgeBroken, false},
	{(*look).judgeStores, true}, {(*look).judgeEnds, true}, {(*look).judgeAddresses, true}, {(*look).judgeRules, true}, {(*look).judgePorts, true},
	{(*look).judgeChecked, false}, {(*look).again, false},
}

// dirs is the folders of records.
func (n Node) dirs() (out []cache.Dir) {
	for _, state := range n.StateDirs {
		out = append(out, cache.In(state))
	}
	return out
}
