package read

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"github.com/tracewire/tracewire/trace"
)

// Node is a span and the spans below it, by the time they began.
type Node struct {
	Span
	Children []Node `json:"children,omitempty"`
}

// Walk hands on the node and all below it, depth first. The node itself has depth 0.
func (n Node) Walk(each func(depth int, n Node)) { n.walk(0, each) }

func (n Node) walk(depth int, each func(int, Node)) {
	each(depth, n)
	for _, c := range n.Children {
		c.walk(depth+1, each)
	}
}

// Operation is one root span, of a CNI command for the most part, and all that
// was done for it.
type Operation struct{ Root Node }

// Operations puts spans into trees. A span whose parent is not among them is a
// root: its parent is the runtime's, or it has none. Of two spans with one id
// the first counts. A circle of parents has no root and is left out.
func Operations(spans []Span) (ops []Operation) {
	known := map[string]bool{}
	below := map[string][]Span{}
	var own []Span
	for _, s := range spans {
		if !known[s.SpanID] {
			known[s.SpanID] = true
			own = append(own, s)
		}
	}
	for _, s := range own {
		if known[s.ParentID] {
			below[s.ParentID] = append(below[s.ParentID], s)
		}
	}
	for _, s := range own {
		if !known[s.ParentID] {
			ops = append(ops, Operation{Root: grow(s, below)})
		}
	}
	return ops
}

// grow is the tree of a span. Each span has one parent, so it ends.
func grow(s Span, below map[string][]Span) Node {
	n := Node{Span: s}
	children := below[s.SpanID]
	slices.SortStableFunc(children, func(a, b Span) int { return a.Start.Compare(b.Start) })
	for _, c := range children {
		n.Children = append(n.Children, grow(c, below))
	}
	return n
}

// Entry is what the operation's line in the log tells: command, attachment, outcome.
func (o Operation) Entry() Entry {
	r := o.Root
	a := r.Attributes
	e := Entry{
		Time: r.Start, Command: a.Text(trace.KeyCommand),
		Network: a.Text(trace.KeyName), ContainerID: a.Text(trace.KeyID), IfName: a.Text(trace.KeyIfName),
		PodNamespace: a.Text(trace.KeyPodNamespace), Pod: a.Text(trace.KeyPod), PodUID: a.Text(trace.KeyPodUID),
		Addresses: prefixes(a.Texts(trace.KeyAddresses)),
		Duration:  r.Duration(), Outcome: OK, TraceID: r.TraceID,
		Runtime: a.Text(trace.KeyRuntime), Kind: a.Text(trace.KeyFinding), Repair: a.Text(trace.KeyRepair),
	}
	if e.Command == "" {
		e.Command = strings.TrimPrefix(r.Name, operationPrefix)
	}
	if r.Failed {
		e.Outcome, e.Error = Failed, r.Message
		e.ErrorCode, e.ErrorType = uint(max(0, a.Int(trace.KeyErrorCode))), a.Text(trace.KeyErrorType)
	}
	return e
}

// prefixes reads addresses with prefix length. What is none is left out.
func prefixes(texts []string) (out []netip.Prefix) {
	for _, t := range texts {
		if p, err := netip.ParsePrefix(t); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// Find is the operation's span of that id, and false where it has none.
func (o Operation) Find(spanID string) (found Span, ok bool) {
	o.Root.Walk(func(_ int, n Node) {
		if n.SpanID == spanID {
			found, ok = n.Span, true
		}
	})
	return found, ok
}

// Tree is the names of the operation's spans as indented text, two blanks a
// level. A span that failed ends in " [error]".
func Tree(o Operation) string {
	var b strings.Builder
	o.Root.Walk(func(depth int, n Node) {
		b.WriteString(strings.Repeat("  ", depth) + n.Name)
		if n.Failed {
			b.WriteString(" [error]")
		}
		b.WriteByte('\n')
	})
	return b.String()
}

// MarshalJSON writes what the operation was, then its spans as a tree.
func (o Operation) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Entry
		Resource Attributes `json:"resource,omitempty"`
		Root     Node       `json:"root"`
	}{o.Entry(), o.Root.Resource, o.Root})
}
