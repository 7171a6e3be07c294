package audit

import (
	"context"
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/ipam"
)

// look is one audit at work: what was read so far, by what it is looked up by.
// Of libcni's entries, which may be many more than all else, only hashes are kept.
type look struct {
	node   Node
	told   Told
	counts Counts
	nets   *networks

	records   map[delegates.Attachment]*record
	byID      map[string][]*record
	byAddress map[netip.Addr][]*record // nil until it is asked for
	isolated  []cache.Isolated
	broken    []cache.Stored // records that cannot be read

	kernel *veth.Survey
	named  map[string]*end // host ends by name
	marked map[delegates.Attachment]*end
	byMark map[string]*end // host ends by the container that their alias names

	rules    map[string][]*rule // by mark
	ports    map[string]*ports  // by mark
	rulesNow *rulesNow          // nil until they are asked for
	holders  map[string]bool    // who has an address that is reserved for it, at the end
	hostsNow hashes             // names of host ends that libcni tells of, at the end

	ids, damaged hashes          // container ids of libcni's entries; names of files that claim by their names
	bare         map[string]bool // of reservations without an interface name, how such a file's name begins: whether there is one
	sandboxes    map[string]Sandbox

	suspects []suspect
	doubles  map[double]bool
	misses   map[string]bool // what could not be read and was told of, by its text
}

// double is an address that two have.
type double struct {
	network string
	address netip.Addr
}

// hashes is a set of texts.
type hashes struct {
	seed maphash.Seed
	set  map[uint64]struct{}
}

func newHashes() hashes { return hashes{maphash.MakeSeed(), map[uint64]struct{}{}} }

func (h hashes) add(text string) { h.set[maphash.String(h.seed, text)] = struct{}{} }

func (h hashes) has(text string) bool {
	_, ok := h.set[maphash.String(h.seed, text)]
	return ok
}

// record is what counts of one.
type record struct {
	delegates.Attachment
	dir       cache.Dir
	path      string
	config    *config
	state     cache.State
	began     time.Time
	args      string // CNI_ARGS of ADD
	earlier   bool
	cookie    uint64
	netns     string
	addresses []netip.Addr // in a store of host-local's
	made      []netip.Addr // all
	hosts     []string     // names of host ends
	told      bool         // it is itself wrong, and what it explains goes with it
	lives     bool         // told, and processes are in the namespace that ADD was given
}

// store is a network's folder of reservations.
type store struct {
	dir, network string
	ours         bool // a record or a conflist of ours names it
	serving      map[string]ipam.HostLocal
	held         map[netip.Addr]ipam.Held // nil until it is read
	holders      map[string]bool          // of the reservations, by container
	strange      []ipam.Held              // that are no reservation, or a second one of an address
}

// serves tells whether an address is of one of its ranges.
func (s *store) serves(a netip.Addr) bool {
	for _, h := range s.serving {
		if h.Serves(a) {
			return true
		}
	}
	return false
}

// end is an interface of the host that leads to a pod.
type end struct {
	veth.Link
	owner  delegates.Attachment // by its alias
	hashed bool                 // the alias is ours, and names nobody: the name was too long
	bridge string               // it is a port of
	known  bool                 // somebody tells of it, or an address of its pod is reserved
}

func newLook(n Node, told Told) *look {
	l := &look{
		node: n, told: told, nets: newNetworks(), records: map[delegates.Attachment]*record{}, byID: map[string][]*record{},
		named: map[string]*end{}, marked: map[delegates.Attachment]*end{}, byMark: map[string]*end{}, rules: map[string][]*rule{}, ports: map[string]*ports{},
		ids: newHashes(), damaged: newHashes(), bare: map[string]bool{}, sandboxes: map[string]Sandbox{}, doubles: map[double]bool{}, misses: map[string]bool{},
	}
	for _, s := range n.Sandboxes {
		l.sandboxes[s.ID] = s
	}
	return l
}

// readConflists takes in the node's lists.
func (l *look) readConflists(context.Context) {
	for _, e := range l.node.Conflists {
		l.nets.learn(configOf(e.Doc, e.Network))
	}
	l.nets.learnPorts(l.node.Conflists)
}

// paths is where records say that pods' namespaces are.
func (l *look) paths() (out []string) {
	for _, r := range l.records {
		if r.netns != "" {
			out = append(out, r.netns)
		}
	}
	return out
}

// readKernel surveys the namespaces, and finds the host's ends of pairs.
func (l *look) readKernel(context.Context) {
	var errs []error
	l.kernel, errs = veth.Take(l.paths())
	for _, err := range errs {
		l.unread(Kernel, "", err)
	}
	l.counts.Interfaces, l.counts.Namespaces = len(l.kernel.Links), len(l.kernel.Spaces)
	names := map[int]string{}
	for _, i := range l.kernel.Links {
		names[i.Index] = i.Name
	}
	for _, i := range l.kernel.Links {
		if i.Kind != "veth" {
			continue
		}
		e := &end{Link: i, bridge: names[i.Master]}
		e.owner, e.hashed = veth.OwnerOf(i.Alias)
		l.named[i.Name] = e
		if e.owner.Network != "" && !l.kernel.Dying(i) {
			l.marked[e.owner], l.byMark[e.owner.ContainerID] = e, e
		}
	}
}

// endAt is the host's end of a pair whose other end was at a place at the first
// look; nil where there is none.
func (l *look) endAt(p veth.Place) *end {
	i, _ := l.kernel.HostEnd(p)
	return l.named[i.Name]
}

// twice takes down that an address is told of, and tells whether it was before.
func (l *look) twice(network string, address netip.Addr) (before bool) {
	key := double{network, address}
	before, l.doubles[key] = l.doubles[key], true
	return before
}

// sandbox tells what the runtime says of a container.
func (l *look) sandbox(id string) (there bool, says string) {
	s, there := l.sandboxes[id]
	switch {
	case l.node.Sandboxes == nil:
		return false, "not asked"
	case !there:
		return false, "no sandbox " + id
	case s.Ready:
		return true, "sandbox " + id + " is ready"
	}
	return true, "sandbox " + id + " is not ready"
}
