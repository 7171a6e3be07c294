//go:build linux

package attach

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/tracewire/tracewire/trace"
	"github.com/tracewire/tracewire/trace/read"
)

// Operations is what the spool has, oldest first, but for CHECKs that Ctl ran.
func (n *Node) Operations() (ops []read.Operation, err error) {
	torn, err := read.Spool(filepath.Join(n.Dir, "state", "spool"), func(o read.Operation) bool {
		if !n.aside[o.Root.SpanID] {
			ops = append(ops, o)
		}
		return true
	})
	if err == nil && torn > 0 {
		err = fmt.Errorf("%d lines of the spool cannot be read", torn)
	}
	return ops, err
}

// Spans tells each operation that the spool has as indented text: the names of
// its spans in the order they began, what failed, warnings, and the operations
// it links to.
func (n *Node) Spans() (string, error) {
	ops, err := n.Operations()
	names := map[string]string{}
	var b strings.Builder
	for _, o := range ops {
		names[o.Root.SpanID] = o.Root.Name
		o.Root.Walk(func(depth int, s read.Node) {
			indent := strings.Repeat("  ", depth)
			fmt.Fprintf(&b, "%s%s%s\n", indent, s.Name, remarks(s.Span, names))
			for _, e := range s.Events {
				if e.Name != "exception" {
					fmt.Fprintf(&b, "%s  * %s\n", indent, e.Name)
				}
			}
		})
	}
	return n.Normal(b.String()), err
}

// remarks is what a reader is to know of a span beside its name.
func remarks(s read.Span, names map[string]string) (text string) {
	switch kind := s.Attributes.Text(trace.KeyErrorType); {
	case s.Failed && kind != "":
		text = " [error: " + kind + "]"
	case s.Failed:
		text = " [error]"
	}
	if state := s.Attributes.Text(trace.KeyNetNSState); state != "" {
		text += " [netns: " + state + "]"
	}
	for _, l := range s.Links {
		text += " [link: " + names[l.SpanID] + "]"
	}
	return text
}
