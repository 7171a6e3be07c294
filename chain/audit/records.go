package audit

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
)

// readRecords indexes the records, and suspects those that cannot be read.
func (l *look) readRecords(ctx context.Context) {
	for _, dir := range l.node.dirs() {
		for r, err := range dir.All() {
			switch {
			case err != nil:
				l.unread(Records, dir.Path, err)
			case r.Err != nil:
				l.unread(Records, r.Path, r.Err)
			case r.State == cache.Unreadable:
				l.counts.Records++
				l.broken = append(l.broken, r)
			default:
				l.counts.Records++
				l.index(dir, r)
			}
			if ctx.Err() != nil {
				return
			}
		}
		isolated, err := dir.Isolated()
		l.unread(Quarantine, dir.Path, err)
		l.isolated = append(l.isolated, isolated...)
	}
}

// index keeps what counts of a record.
func (l *look) index(dir cache.Dir, r cache.Stored) {
	c := l.nets.recorded(r)
	out := &record{
		Attachment: r.Attachment, dir: dir, path: r.Path, config: c, state: r.State, began: r.Began, args: r.Args, earlier: r.Earlier(l.node.Boot),
		cookie: r.Cookie, netns: r.NetNS, addresses: reserved(r, c), hosts: hosts(result(r)), made: delegates.Addresses(result(r)),
	}
	l.records[r.Attachment] = out
	l.byID[r.ContainerID] = append(l.byID[r.ContainerID], out)
}

// result is the most that a record knows of what was made; nil where that is
// nothing.
func result(r cache.Stored) *types100.Result {
	if made := r.Result.Get(); made != nil {
		return made
	}
	return r.Plan.Get()
}

// reserved is the addresses that a record holds in a store of host-local's.
func reserved(r cache.Stored, c *config) (out []netip.Addr) {
	if got := r.Reserved.Get(); got != nil {
		return delegates.Addresses(got)
	}
	for _, a := range delegates.Addresses(result(r)) {
		if c.leases.Serves(a) {
			out = append(out, a)
		}
	}
	return out
}

// hosts is the names of interfaces outside of the pod.
func hosts(made *types100.Result) (out []string) {
	if made == nil {
		return nil
	}
	for _, i := range made.Interfaces {
		if i != nil && i.Sandbox == "" {
			out = append(out, i.Name)
		}
	}
	return out
}

// judgeRecords suspects the records whose attachments do not exist.
func (l *look) judgeRecords(ctx context.Context) {
	for _, r := range l.records {
		f, ok := l.judge(r, l.kernel)
		if !ok {
			continue
		}
		r.told, r.lives = true, l.lives(r)
		l.suspect(ctx, suspect{
			Finding: f, id: r.ContainerID, stamps: []string{fmt.Sprint(r.began.UnixNano())},
			still: func(f *Finding) bool { return l.stillRecord(r, f) },
			holds: func(now *veth.Survey) bool {
				again, ok := l.judge(r, now)
				return ok && again.Kind == f.Kind
			},
		})
	}
}

// judge is what is wrong with a record, by what the kernel has.
func (l *look) judge(r *record, kernel *veth.Survey) (f Finding, ok bool) {
	f = Finding{Network: r.Network, Attachment: &r.Attachment, Path: r.path, Since: r.began}
	f.says(Records, fmt.Sprintf("%s in %s", r.state, r.path))
	switch {
	case r.earlier:
		f.Kind = EarlierBoot
		f.says(Kernel, "this boot is "+l.node.Boot)
	case r.state != cache.Attached:
		f.Kind = InterruptedOperation
		f.says(Kernel, "no plugin is at work for it")
	default:
		var source Source
		var says string
		if f.Kind, source, says = r.dead(kernel); f.Kind == "" {
			return f, false
		}
		f.says(source, says)
	}
	l.alsoSay(&f, r.Attachment)
	return f, true
}

// dead tells why an attachment of this boot does not exist: the kind is "" where
// it does, or where one cannot look.
func (r *record) dead(kernel *veth.Survey) (k Kind, s Source, says string) {
	there, known := kernel.Namespaces[r.netns]
	switch {
	case !known && veth.Missing(r.netns):
		return StaleRecord, Namespaces, "no network namespace is at " + r.netns
	case !known:
		return "", "", ""
	case r.cookie != 0 && there.Cookie != 0 && r.cookie != there.Cookie:
		return NamespaceChanged, Namespaces, fmt.Sprintf("%s leads to the one with the cookie %d, ADD's had %d", r.netns, there.Cookie, r.cookie)
	case r.config.mode == "delegate", len(r.hosts) == 0, kernel.Marked(r.String()), r.hasAddress(kernel, there):
		return "", "", ""
	}
	return StaleRecord, Kernel, "it has no host end"
}

// hasAddress tells that an interface of a namespace has one of the attachment's
// addresses: its host end lost its alias, or is where the host does not see it.
func (r *record) hasAddress(kernel *veth.Survey, in veth.Space) bool {
	return slices.ContainsFunc(r.made, func(a netip.Addr) bool {
		return slices.ContainsFunc(kernel.Addresses[a], func(p veth.Place) bool { return in.Cookie != 0 && kernel.Spaces[p.Space].Cookie == in.Cookie })
	})
}

// lives tells that processes are in the namespace that ADD was given, though its
// path does not lead there: in another mount namespace than the runtime's it leads
// nowhere. Where not all processes are seen they may be, unless the runtime was
// asked and does not know the container.
func (l *look) lives(r *record) bool {
	if there, known := l.kernel.Namespaces[r.netns]; known && there.Cookie == r.cookie {
		return false // and something else is wrong
	}
	sandbox, _ := l.sandbox(r.ContainerID)
	unseen := !l.kernel.Everyone && (l.node.Sandboxes == nil || sandbox)
	if space, there := l.kernel.WithCookie(r.cookie); there {
		return space.Inhabited || unseen
	}
	return unseen && l.marked[r.Attachment] != nil
}

// stillRecord reads the record again, and tells how it would be removed.
func (l *look) stillRecord(r *record, f *Finding) bool {
	now, same := r.again()
	if !same {
		return false
	}
	switch dead := f.Kind == StaleRecord || f.Kind == NamespaceChanged; {
	case dead && r.lives:
		*f = f.reported("processes are in the namespace that ADD was given, or may be, wherever its path leads")
	case f.Kind == InterruptedOperation && r.state == cache.Interrupted && l.ended(r):
		*f = l.cutOff(r, *f)
	case f.Kind == InterruptedOperation && r.state == cache.Interrupted && l.peopled(r):
		*f = f.reported("processes are in its namespace: the pod may live, and its record be cut off")
	default:
		*f = f.mendedBy(Repair{Action: Del, Attachment: r.Attachment, Conf: string(now.Conf), Args: now.Args, NetNS: r.netnsOf(f.Kind), Path: r.path, Stamp: cache.Stamp(r.path)})
	}
	return true
}

// peopled tells that processes are seen in the namespace that ADD was given.
func (l *look) peopled(r *record) bool {
	space, there := l.kernel.WithCookie(r.cookie)
	return there && space.Inhabited
}

// netnsOf is the namespace that a DEL is given: of an operation that did not end
// the pod may go on.
func (r *record) netnsOf(k Kind) string {
	if k == InterruptedOperation && r.there() {
		return r.netns
	}
	return ""
}

// ended tells that an ADD ended well whose record says that it did not: libcni
// keeps its result, and the namespace is there.
func (l *look) ended(r *record) bool {
	if r.earlier || !r.there() {
		return false
	}
	_, lives := livingEntry(l.node.entryPath(r.Attachment), r.Attachment)
	return lives
}

// cutOff says what becomes of a record that lost its end.
func (l *look) cutOff(r *record, f Finding) Finding {
	if _, ok := lostIn(l.node.entryPath(r.Attachment), r.Attachment); ok && l.marked[r.Attachment] != nil {
		return f.mendedBy(Repair{Action: QuarantineRecord, Attachment: r.Attachment, Path: r.path, Stamp: cache.Stamp(r.path)})
	}
	return f.reported("its record is cut off: libcni has the result of its ADD, and it may live")
}

// there tells that the namespace that ADD was given is where it was.
func (r *record) there() bool {
	p, err := veth.Open(r.netns)
	if err != nil {
		return false
	}
	defer p.Close()
	return r.cookie == 0 || p.Cookie == r.cookie
}

// judgeBroken suspects the records that cannot be read.
func (l *look) judgeBroken(ctx context.Context) {
	for _, r := range l.broken {
		l.brokenRecord(ctx, r)
	}
}

// brokenRecord suspects one that cannot be read. One of a newer schema is none.
func (l *look) brokenRecord(ctx context.Context, r cache.Stored) {
	if r.Newer {
		return
	}
	st, err := os.Lstat(r.Path)
	if err != nil {
		return // it went
	}
	f := Finding{Kind: BrokenRecord, Network: r.Network, Attachment: &r.Attachment, Path: r.Path, Since: st.ModTime()}
	f.says(Records, fmt.Sprintf("%d bytes cannot be read as a record", st.Size()))
	l.alsoSay(&f, r.Attachment)
	stamp := cache.Stamp(r.Path)
	f = f.mendedBy(Repair{Action: QuarantineRecord, Attachment: r.Attachment, Path: r.Path, Stamp: stamp})
	if conf := l.nets.confOf(r.Network); conf != "" && l.over(r.Attachment) {
		f = f.mendedBy(Repair{Action: Del, Attachment: r.Attachment, Conf: conf, Path: r.Path, Stamp: stamp})
	}
	l.suspect(ctx, suspect{Finding: f, id: r.ContainerID, stamps: []string{stamp}, still: func(*Finding) bool { return cache.Stamp(r.Path) == stamp }})
}

// over tells that nothing of an attachment lives, as far as can be told without
// its record: DEL ends all of it.
func (l *look) over(a delegates.Attachment) bool {
	there, _ := l.sandbox(a.ContainerID)
	if l.kernel.Blind || l.kernel.Partial || there || l.marked[a] != nil {
		return false
	}
	if path := l.node.entryPath(a); path != "" {
		if f, err := cache.ReadFile(path); err != nil || f.Broken == nil && !gone(f) {
			return false
		}
	}
	for _, s := range l.nets.named(a.Network).stores {
		for address, h := range l.heldIn(s) {
			if h.Holder.ContainerID == a.ContainerID && len(l.kernel.Addresses[address]) > 0 {
				return false
			}
		}
	}
	return true
}

// alsoSay adds what quarantine, libcni and the runtime tell of an attachment.
func (l *look) alsoSay(f *Finding, a delegates.Attachment) {
	for _, q := range l.isolated {
		if q.Attachment == a {
			f.says(Quarantine, fmt.Sprintf("a record of it since %s: %s", q.Since.Format(time.DateTime), q.Why))
		}
	}
	f.says(Libcni, l.entrySays(a))
	_, says := l.sandbox(a.ContainerID)
	f.says(Runtime, says)
}
