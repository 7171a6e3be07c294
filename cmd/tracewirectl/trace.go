package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace/read"
)

func (c *command) trace() *cobra.Command {
	var last int
	var s spools
	cmd := &cobra.Command{
		Use:   "trace [ATTACHMENT | TRACE_ID]",
		Short: "Draws operations as waterfalls, from the spool",
		Long: `trace draws the last operation on this node, or on one attachment, as a
waterfall: one line for each span, with a bar that is to scale with the whole.
What else is of its trace is drawn with it, as the plugin's DEL of a repair.

TRACE_ID is the id of a trace or its first digits, at least four of them; it
draws every operation of that trace. An attachment of that name goes first.

A CHECK that tracewirectl had run, for check or audit, is not a last operation
but with --all; the last line tells how many newer ones were left out.`,
		Example: `  tracewirectl trace
  tracewirectl trace default/web-0 --last 3
  tracewirectl trace 10.22.0.5
  tracewirectl trace 4eb491f3aa000cc2ad650e7b79685ef2 -o json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.completeAttachments,
		RunE: func(cmd *cobra.Command, args []string) error {
			if last < 1 {
				return fmt.Errorf("--last is at least 1, not %d", last)
			}
			p, err := c.places()
			if err != nil {
				return err
			}
			s.dirs = p.spool
			ops, err := s.choose(args, last, cmd.Flags().Changed("last"))
			if err != nil {
				return err
			}
			s.resolve(ops)
			if s.torn > 0 {
				c.complain(fmt.Errorf("%s of the spool cannot be read", count(s.torn, "line")))
			}
			if err := c.draw(cmd.OutOrStdout(), ops); err != nil || c.asJSON() {
				return err
			}
			return c.tellHeld(cmd.OutOrStdout(), s.held)
		},
	}
	cmd.Flags().BoolVar(&s.all, "all", false, "Draws the CHECKs that tracewirectl had run, too")
	cmd.Flags().IntVar(&last, "last", 1, "Draws the last `N` operations, oldest first, each with its whole trace")
	return cmd
}

// draw writes the operations, oldest first.
func (c *command) draw(w io.Writer, ops []read.Operation) error {
	if c.asJSON() {
		return printJSON(w, ops)
	}
	for i, o := range ops {
		if i > 0 {
			if _, err := io.WriteString(w, "\n"); err != nil {
				return err
			}
		}
		o.Root.Start = o.Root.Start.In(c.zone)
		if err := read.Waterfall(w, o, c.width(), c.coloured()); err != nil {
			return err
		}
	}
	return nil
}

// spools is the spools of this node, read as one.
type spools struct {
	dirs []string
	all  bool // the operator's own CHECKs too
	held int  // of those that were left out
	torn int  // lines that could not be read, in the pass that met most
}

// newest hands on operations, from each spool's newest back, until each
// returns false for that spool. A spool that is not there is empty.
func (s *spools) newest(each func(dir int, o read.Operation) bool) error {
	torn := 0
	for i, dir := range s.dirs {
		n, err := read.Newest(dir, func(o read.Operation) bool { return each(i, o) })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		torn += n
	}
	s.torn = max(s.torn, torn)
	return nil
}

// choose is the operations that the command line asks for, oldest first. Of a
// trace that is all of them, unless a number was asked for. What may be a trace
// id may be a container id too: that goes first.
func (s *spools) choose(args []string, last int, counted bool) ([]read.Operation, error) {
	if len(args) == 0 {
		return s.last(last, func(read.Operation) bool { return true })
	}
	if args[0] == "" {
		return nil, errors.New("ATTACHMENT or TRACE_ID is empty")
	}
	fits, err := s.ofAttachment(args[0])
	switch {
	case err == nil:
		return s.last(last, fits)
	case !errors.Is(err, errNothing) || !isTraceID(args[0]):
		return nil, err
	}
	ops, err := s.ofTrace(args[0])
	if counted {
		ops = ops[max(0, len(ops)-last):]
	}
	return ops, err
}

// The digits of a trace id: how many history shows, and how few name one.
const (
	traceDigits = 8
	leastDigits = 4
)

func isTraceID(s string) bool {
	return len(s) >= leastDigits && len(s) <= 32 && strings.Trim(s, "0123456789abcdef") == ""
}

// ofTrace is the operations of the one trace whose id begins so.
func (s *spools) ofTrace(id string) ([]read.Operation, error) {
	ops, err := s.take(math.MaxInt, func(o read.Operation) bool { return strings.HasPrefix(o.Root.TraceID, id) })
	if errors.Is(err, errNothing) {
		return nil, fmt.Errorf("%w: no attachment and no trace %s", errNothing, id)
	}
	var ids []string
	for _, o := range ops {
		if !slices.Contains(ids, o.Root.TraceID) {
			ids = append(ids, o.Root.TraceID)
		}
	}
	if len(ids) > 1 {
		return nil, ambiguous(id, ids)
	}
	return ops, err
}

// last is the last operations that fit, oldest first, without the operator's own
// CHECKs unless all are asked for.
func (s *spools) last(n int, fits func(read.Operation) bool) ([]read.Operation, error) {
	ops, err := s.take(n, func(o read.Operation) bool {
		if !fits(o) {
			return false
		}
		held := !s.all && owned(o.Entry())
		if held {
			s.held++
		}
		return !held
	})
	if errors.Is(err, errNothing) {
		return nil, nothingBut(s.held, err)
	}
	if err != nil {
		return nil, err
	}
	return s.whole(ops)
}

// whole is all operations of the traces of some, oldest first.
func (s *spools) whole(some []read.Operation) ([]read.Operation, error) {
	return s.take(math.MaxInt, func(o read.Operation) bool {
		return slices.ContainsFunc(some, func(x read.Operation) bool { return x.Root.TraceID == o.Root.TraceID })
	})
}

// take is the last operations that fit, oldest first.
func (s *spools) take(last int, fits func(read.Operation) bool) (ops []read.Operation, err error) {
	taken := make([]int, len(s.dirs))
	err = s.newest(func(dir int, o read.Operation) bool {
		if fits(o) {
			ops = append(ops, o)
			taken[dir]++
		}
		return taken[dir] < last
	})
	if err != nil {
		return nil, err
	}
	if len(ops) == 0 {
		return nil, fmt.Errorf("%w: no operation in %s", errNothing, strings.Join(s.dirs, ", "))
	}
	slices.SortStableFunc(ops, func(a, b read.Operation) int {
		return cmp.Or(a.Root.Start.Compare(b.Root.Start), a.Root.End.Compare(b.Root.End))
	})
	return ops[max(0, len(ops)-last):], nil
}

// ofAttachment tells which operations are on the attachments of a name.
func (s *spools) ofAttachment(text string) (func(read.Operation) bool, error) {
	n, err := named(text)
	if err != nil {
		return nil, err
	}
	known := map[delegates.Attachment]*subject{}
	var all []subject
	err = s.newest(func(_ int, o read.Operation) bool {
		if sub := subjectOf(o.Entry()); known[sub.Attachment] != nil {
			known[sub.Attachment].add(sub)
		} else if sub.ContainerID != "" {
			known[sub.Attachment] = &sub
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	for _, sub := range known {
		all = append(all, *sub)
	}
	picked, err := n.pick(all)
	if err != nil {
		return nil, err
	}
	wanted := map[delegates.Attachment]bool{}
	for _, sub := range picked {
		wanted[sub.Attachment] = true
	}
	return func(o read.Operation) bool { return wanted[subjectOf(o.Entry()).Attachment] }, nil
}

// resolve says of each link what it links to, where the spool still has it.
func (s *spools) resolve(ops []read.Operation) {
	targets := map[string]read.Operation{} // by span id; empty until found
	missing := 0
	for _, o := range ops {
		o.Root.Walk(func(_ int, n read.Node) {
			for _, l := range n.Links {
				if _, asked := targets[l.SpanID]; !asked {
					targets[l.SpanID] = read.Operation{}
					missing++
				}
			}
		})
	}
	if missing == 0 {
		return
	}
	_ = s.newest(func(_ int, o read.Operation) bool { // a link without a target is drawn as it is
		if t, asked := targets[o.Root.SpanID]; asked && t.Root.SpanID == "" {
			targets[o.Root.SpanID] = o
			missing--
		}
		return missing > 0
	})
	for i := range ops {
		aim(&ops[i].Root, ops[i].Root, targets)
	}
}

// aim fills the targets of the links of a node and of all below it.
func aim(n *read.Node, root read.Node, targets map[string]read.Operation) {
	for i, l := range n.Links {
		if t := targets[l.SpanID]; t.Root.TraceID == l.TraceID {
			n.Links[i].Target = target(root, t)
		}
	}
	for i := range n.Children {
		aim(&n.Children[i], root, targets)
	}
}

// target is what an operation is for one that links to it: "ADD of
// podnet/1635e8:eth0, 2.50 s before".
func target(from read.Node, to read.Operation) string {
	e := to.Entry()
	text := e.Command
	if a := read.ShortAttachment(e); a != "" {
		text += " of " + a
	}
	if d := from.Start.Sub(e.Time); d > 0 {
		text += ", " + read.Human(d) + " before"
	}
	return text
}
