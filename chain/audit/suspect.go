package audit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
)

// suspect is what seems to be wrong. The sources were not read at one moment, and
// operations go on meanwhile: it is a finding if it is still so at the end.
type suspect struct {
	Finding
	id     string                  // of the container it is about; empty where it is about none
	stamps []string                // see identify
	still  func(*Finding) bool     // the thing itself is there as it was; it may add what it reads
	holds  func(*veth.Survey) bool // and the kernel tells the same; nil where that was not asked
}

// maxSuspects bounds how many are kept for the end: more are looked at again
// before it.
const maxSuspects = 10_000

// patience bounds the wait for operations that were at work.
const patience = 2 * time.Second

// suspect keeps one.
func (l *look) suspect(ctx context.Context, s suspect) {
	if l.node.Network != "" && s.Network != l.node.Network {
		return
	}
	if l.suspects = append(l.suspects, s); len(l.suspects) >= maxSuspects {
		l.again(ctx)
	}
}

// again looks once more at everything suspected so far. What an operation had
// half made or half removed at the first look has been finished by now: those
// that were at work are waited for. Then the thing is looked at, the operations,
// the kernel, the operations and the thing once more. An operation that began or
// ended in between is seen by one of them, whatever the order of its steps.
func (l *look) again(ctx context.Context) {
	if len(l.suspects) == 0 {
		return
	}
	settle(ctx)
	l.rulesNow, l.holders, l.hostsNow = nil, nil, hashes{}
	all := slices.DeleteFunc(l.suspects, func(s suspect) bool { return !s.still(&s.Finding) })
	all = idle(all, delegates.Busy())
	if slices.ContainsFunc(all, func(s suspect) bool { return s.holds != nil }) {
		now, errs := veth.Take(l.paths())
		for _, err := range errs {
			l.unread(Kernel, "", err)
		}
		all = slices.DeleteFunc(all, func(s suspect) bool { return s.holds != nil && (now.Blind || !s.holds(now)) })
	}
	busy := delegates.Busy()
	for _, s := range idle(all, busy) {
		if s.still(&s.Finding) && ctx.Err() == nil {
			s.beside(busy)
			l.tell(s.identify(s.stamps...))
		}
	}
	clear(l.suspects)
	l.suspects = l.suspects[:0]
}

// hangs is the age at which a GC has hung: it keeps nothing from being told any
// more. A repair has to wait for the locks that it holds.
const hangs = time.Minute

// hung tells that a plugin is a GC that hangs.
func hung(r delegates.Running) bool { return r.ContainerID == "" && r.Age() >= hangs }

// beside adds to a suspect which GCs hang.
func (s *suspect) beside(busy []delegates.Running) {
	for _, r := range busy {
		if hung(r) {
			s.says(Processes, fmt.Sprintf("a GC has been at work for %s, process %d", r.Age().Round(time.Second), r.Process))
		}
	}
}

// idle is those of whose container no plugin is at work. A GC may be at work for
// any, unless it hangs.
func idle(all []suspect, at []delegates.Running) []suspect {
	busy := ids(at)
	return slices.DeleteFunc(all, func(s suspect) bool { return busy[""] || s.id != "" && busy[s.id] })
}

// ids is the containers that plugins are at work for; "" stands for any.
func ids(all []delegates.Running) map[string]bool {
	out := map[string]bool{}
	for _, r := range all {
		if !hung(r) {
			out[r.ContainerID] = true
		}
	}
	return out
}

// settle waits for the plugins that are at work, but not for long.
func settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, r := range delegates.Busy() {
		for !hung(r) && !r.Over() && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

func (l *look) tell(f Finding) {
	if f.Attachment != nil {
		f.Pod = l.pod(*f.Attachment)
	}
	l.counts.Findings++
	if l.told.Finding != nil {
		l.told.Finding(f)
	}
}

// pod is whose an attachment is, by what its ADD was told; "" where that is not
// known.
func (l *look) pod(a delegates.Attachment) string {
	r := l.records[a]
	if r == nil {
		return ""
	}
	args, _ := conflist.ParseArgs(r.args) // what can be read of them
	return strings.Trim(args["K8S_POD_NAMESPACE"]+"/"+args["K8S_POD_NAME"], "/")
}

// unread tells of a source that could not be looked at, once, whichever look met
// it.
func (l *look) unread(s Source, path string, err error) {
	if err == nil {
		return
	}
	u := Unread{s, path, err}
	if text := u.Error(); !l.misses[text] && l.told.Unread != nil {
		l.misses[text] = true
		l.told.Unread(u)
	}
}
