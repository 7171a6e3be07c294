package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tracewire/tracewire/chain/audit"
	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/ipam"
	"github.com/tracewire/tracewire/trace/read"
)

// auditing is what audit is asked for.
type auditing struct {
	plugins plugins
	ask     sockets
	network string
	verbose bool
	check   string // when CHECK is run
	watch   bool
	every   time.Duration
	fix     bool
	yes     bool
	grace   time.Duration
}

func (c *command) audit() *cobra.Command {
	var a auditing
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Finds leaked addresses, stale records and what else is left over",
		Long: `audit compares the records of attachments with libcni's cache, the reservations
of addresses, the kernel and, with --cri, the runtime's pods. It changes nothing
without --fix. What each kind of finding means is told in docs/audit.md.

With --fix it shows what would be repaired, and asks, or goes on by --yes.
Repaired is only what two looks found that are at least --grace apart, and every
look between them that looked for it: the first is remembered in audit.json in
the state directory, which is made where tracewire has kept nothing yet and
something is to be remembered. One --fix runs at a time. A repair is the
plugin's DEL, or is made under the plugin's own locks, and leaves a trace and a
line in the log. What is not proven to be ours is only reported.

Exit codes: 0 clean, or all repaired, 1 findings, 2 it could not look at
everything, or a repair failed.`,
		Example: `  tracewirectl audit
  tracewirectl audit --cri /run/containerd/containerd.sock --fix
  tracewirectl audit --network podnet -o json
  tracewirectl audit --watch`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.possible(); err != nil {
				return err
			}
			switch {
			case a.watch:
				return c.watchAudit(cmd.Context(), a)
			case a.fix:
				return c.fix(cmd.Context(), cmd.OutOrStdout(), &a)
			}
			return c.auditOnce(cmd.Context(), cmd.OutOrStdout(), a)
		},
	}
	pluginFlags(cmd, &a.plugins)
	criFlag(cmd, &a.ask)
	networkFlag(cmd, &a.network)
	f := cmd.Flags()
	f.BoolVarP(&a.verbose, "verbose", "v", false, "Shows every finding, and all that is known of it")
	f.StringVar(&a.check, "check", auto, "Runs CHECK for all attachments too, `WHEN`: always, never, or auto, up to "+strconv.Itoa(checkedAnyway)+" attachments; what it finds is drift")
	f.Lookup("check").NoOptDefVal = always
	complete(cmd, "check", cobra.FixedCompletions([]string{always, never, auto}, cobra.ShellCompDirectiveNoFileComp))
	f.BoolVar(&a.watch, "watch", false, "Looks again and again, and shows what changes")
	f.DurationVar(&a.every, "every", 30*time.Second, "Looks again after this `DURATION`, with --watch")
	f.BoolVar(&a.fix, "fix", false, "Repairs what is proven to be left over")
	f.BoolVar(&a.yes, "yes", false, "Does not ask, with --fix")
	f.DurationVar(&a.grace, "grace", audit.Grace, "Repairs only what was found for this `DURATION`, with --fix")
	for _, name := range []string{"every", "grace"} {
		complete(cmd, name, cobra.NoFileCompletions)
	}
	return cmd
}

// When an audit runs CHECK.
const (
	always, never, auto = "always", "never", "auto"

	checkedAnyway = 250 // attachments that are checked where nothing is said; more than most nodes' pods
)

// possible tells that the flags ask for one thing.
func (a auditing) possible() error {
	switch {
	case a.watch && a.fix:
		return errors.New("--watch only shows: it does not go with --fix")
	case a.yes && !a.fix:
		return errors.New("--yes does nothing without --fix")
	case a.every < time.Second:
		return fmt.Errorf("--every is at least 1s, not %s", a.every)
	case !slices.Contains([]string{always, never, auto}, a.check):
		return fmt.Errorf("--check is always, never or auto, not %q", a.check)
	case a.grace < 0:
		return fmt.Errorf("--grace is negative: %s", a.grace)
	}
	return nil
}

// node is where the audit looks, the runtimes asked.
func (c *command) node(ctx context.Context, a auditing) (n audit.Node, err error) {
	at, err := c.places()
	if err != nil {
		return n, err
	}
	lists, err := c.lists()
	if err != nil {
		return n, err
	}
	n = audit.Node{Boot: c.boot, StateDirs: at.state, DataDirs: []string{ipam.DefaultDataDir}, Conflists: lists, Network: a.network}
	n.CacheDirs = cache.LibcniDirs()
	if own := a.plugins.entries(); !slices.Contains(n.CacheDirs, own) {
		n.CacheDirs = append(n.CacheDirs, own)
	}
	runtimes, err := a.ask.ask(ctx)
	for _, r := range runtimes {
		n.Sandboxes = append(n.Sandboxes, r.Sandboxes...)
	}
	if len(runtimes) > 0 && n.Sandboxes == nil {
		n.Sandboxes = []audit.Sandbox{}
	}
	if err == nil && a.check != never {
		n.Checked, err = c.drift(ctx, a, at.state)
	}
	return n, err
}

// drift is what CHECK finds of all attachments that are looked at; nil where it was
// not run.
func (c *command) drift(ctx context.Context, a auditing, states []string) (out []audit.Checked, err error) {
	c.open(&a.plugins)
	most := 0
	if a.check == auto {
		if _, err := a.plugins.exec.FindInPath(conflist.PluginType, a.plugins.dirs); err != nil {
			return nil, nil
		}
		most = checkedAnyway
	}
	all, err := c.living(states, a.network, most)
	if err != nil || most > 0 && len(all) > most {
		return nil, err
	}
	out = make([]audit.Checked, 0, len(all)) // of no attachment: not nil, as CHECK was run
	for i, d := range c.checkTwice(ctx, &a.plugins, all) {
		if a.check == auto && len(d.Findings) == 0 && d.Error != "" { // nobody asked for it
			continue
		}
		one := audit.Checked{Attachment: all[i].Attachment}
		for _, f := range d.Findings {
			one.Findings = append(one.Findings, delegates.Finding{Code: f.Reason, Expected: f.Expected, Found: f.Found})
		}
		if a.check != auto && d.Error != "" {
			one.Err = errors.New(d.Error)
		}
		out = append(out, one)
	}
	return out, nil
}

// checkTwice checks attachments, and those once more of which something was told:
// a DEL may have been half through its list, between two plugins, where nobody is
// seen at work. What is told of one that was ended meanwhile, or of which the second
// CHECK finds something else, is nothing.
func (c *command) checkTwice(ctx context.Context, p *plugins, all []stored) []checked {
	out := c.checkAll(ctx, p, all, unheard())
	var some []stored
	var at []int
	for i, d := range out {
		if d.Error != "" || len(d.Findings) > 0 {
			some, at = append(some, all[i]), append(at, i)
		}
	}
	for i, d := range c.checkAll(ctx, p, some, unheard()) {
		out[at[i]] = some[i].both(out[at[i]], d)
	}
	return out
}

// both is what two CHECKs tell of an attachment.
func (r stored) both(first, second checked) checked {
	now, err := cache.Dir{Path: filepath.Dir(filepath.Dir(r.Path))}.Read(r.Attachment)
	if err == nil && (now.State != r.State || !now.Began.Equal(r.Began)) {
		second.Findings, second.Error = nil, ""
	}
	second.Findings = slices.DeleteFunc(second.Findings, func(f finding) bool {
		return first.Error == "" && !slices.ContainsFunc(first.Findings, func(e finding) bool { return e.Plugin == f.Plugin && e.Reason == f.Reason })
	})
	return second
}

// look looks once. What could not be read is told of, and is in the error.
func (c *command) look(ctx context.Context, n audit.Node, each func(audit.Finding), unread ...func(audit.Unread)) (audit.Counts, error) {
	bar := c.progress("looking", 0)
	found := 0
	var errs []error
	counts, err := n.Audit(ctx, audit.Told{
		Finding: func(f audit.Finding) {
			found++
			bar.say(count(found, "finding"))
			each(f)
		},
		Unread: func(u audit.Unread) {
			errs = append(errs, u)
			for _, tell := range unread {
				tell(u)
			}
		},
	})
	bar.end()
	if err == nil && len(errs) > 0 {
		for _, e := range errs {
			c.complain(e)
		}
		err = fmt.Errorf("could not look at everything: %w", errs[0])
	}
	return counts, err
}

// auditOnce shows what one look finds.
func (c *command) auditOnce(ctx context.Context, w io.Writer, a auditing) error {
	n, err := c.node(ctx, a)
	if err != nil {
		return err
	}
	if c.asJSON() {
		return c.streamAudit(ctx, w, n)
	}
	r := newReport(a.verbose)
	counts, err := c.look(ctx, n, r.add)
	return orFindings(errors.Join(c.printReport(w, r, counts), err), counts.Findings)
}

// orFindings is an error, or that there are findings: where not all went well they
// are not all that there is to say.
func orFindings(err error, n int) error {
	if err == nil && n > 0 {
		return errFindings
	}
	return err
}

// streamAudit writes one document, each finding as it is found.
func (c *command) streamAudit(ctx context.Context, w io.Writer, n audit.Node) error {
	s := streamed{w: w}
	s.write(fmt.Sprintf(`{"version":%d,"findings":[`, audit.Version))
	var unread []audit.Unread
	counts, err := c.look(ctx, n, func(f audit.Finding) { s.add(f) }, func(u audit.Unread) { unread = append(unread, u) })
	s.first = false
	s.write(`],"unread":[`)
	for _, u := range unread {
		s.add(u)
	}
	s.write("\n],\"counts\":")
	s.value(counts)
	s.write("}\n")
	return orFindings(errors.Join(s.err, err), counts.Findings)
}

// streamed is a document that is written as it comes to be known.
type streamed struct {
	w     io.Writer
	first bool // an element of this list was written
	err   error
}

func (s *streamed) write(text string) {
	if s.err == nil {
		_, s.err = io.WriteString(s.w, text)
	}
}

func (s *streamed) value(v any) {
	b, err := json.Marshal(v)
	s.err = errors.Join(s.err, err)
	s.write(string(b))
}

// add adds an element to the list, on a line of its own.
func (s *streamed) add(v any) {
	sign := "\n"
	if s.first {
		sign = ",\n"
	}
	s.first = true
	s.write(sign)
	s.value(v)
}

// report is findings by kind. Of each kind the first are kept, unless all are
// asked for.
type report struct {
	all    bool
	first  map[audit.Kind][]audit.Finding
	counts map[audit.Kind]int
	mended int // that have a repair
}

// shown is how many findings of one kind are shown.
const shown = 20

func newReport(all bool) *report {
	return &report{all: all, first: map[audit.Kind][]audit.Finding{}, counts: map[audit.Kind]int{}}
}

func (r *report) add(f audit.Finding) {
	r.counts[f.Kind]++
	if f.Repair != nil {
		r.mended++
	}
	if r.all || r.counts[f.Kind] <= shown {
		r.first[f.Kind] = append(r.first[f.Kind], f)
	}
}

// kinds is those that were found, errors first.
func (r *report) kinds() (out []audit.Kind) {
	for _, severity := range []audit.Severity{audit.Error, audit.Warning} {
		for _, k := range audit.Kinds {
			if k.Severity == severity && r.counts[k.Kind] > 0 {
				out = append(out, k.Kind)
			}
		}
	}
	return out
}

var auditColumns = []column{
	{head: "ABOUT", first: 30, least: 22, last: 14},
	{head: "EVIDENCE", first: 40, least: 24},
	{head: "FIX", first: 30, least: 18},
}

// printReport writes the findings, grouped by kind.
func (c *command) printReport(w io.Writer, r *report, n audit.Counts) error {
	for _, k := range r.kinds() {
		if err := c.printKind(w, k, r); err != nil {
			return err
		}
	}
	checked := ""
	if n.Checked > 0 {
		checked = fmt.Sprintf(" (%d checked)", n.Checked)
	}
	text, colour := fmt.Sprintf(" in %s%s, %s, %s, %s, %s", count(n.Records, "record"), checked, count(n.Entries, "libcni entry"),
		count(n.Reservations, "reservation"), count(n.Interfaces, "interface"), count(n.Namespaces, "namespace")), green
	if n.Findings > 0 {
		text, colour = count(n.Findings, "finding")+text, red
	} else {
		text = "no findings" + text
	}
	if width := c.width(); width > 0 {
		text = strings.Join(broken(text, width), "\n")
	}
	text = c.paint(text, colour) + "\n"
	if r.mended > 0 {
		text += fmt.Sprintf("%d of them can be mended: tracewirectl audit --fix\n", r.mended)
	}
	_, err := io.WriteString(w, text)
	return err
}

func (c *command) printKind(w io.Writer, k audit.Kind, r *report) error {
	kept := slices.SortedStableFunc(slices.Values(r.first[k]), func(a, b audit.Finding) int { return strings.Compare(a.Network+a.About(), b.Network+b.About()) })
	colour := red
	if kept[0].Severity == audit.Warning {
		colour = bold
	}
	head := fmt.Sprintf("%s (%s, %d)", k, kept[0].Severity, r.counts[k])
	if _, err := io.WriteString(w, c.paint(head, colour)+"\n"); err != nil {
		return err
	}
	var rows [][]cell
	for _, f := range kept {
		says := evidence(f, r.all)
		if !r.all {
			says = c.short(says)
		}
		rows = append(rows, []cell{{text: c.aboutText(f)}, {text: says}, {c.short(fixText(f)), fixColour(f)}})
	}
	g := &grid{columns: auditColumns}
	g.fit(rows, c.width())
	if err := c.write(w, g, rows, true); err != nil {
		return err
	}
	more := "\n"
	if rest := r.counts[k] - len(kept); rest > 0 {
		more = fmt.Sprintf("and %d more (-v shows all)\n\n", rest)
	}
	_, err := io.WriteString(w, more)
	return err
}

// aboutText is what a finding is about, for a table.
func (c *command) aboutText(f audit.Finding) string {
	about := f.About()
	if f.Attachment != nil && about == f.Attachment.String() && c.width() > 0 {
		about = read.ShortAttachment(read.Entry{Network: f.Attachment.Network, ContainerID: f.Attachment.ContainerID, IfName: f.Attachment.IfName})
	}
	if f.Pod != "" {
		return about + " " + f.Pod
	}
	if f.Network != "" && !strings.HasPrefix(about, f.Network+"/") {
		about += " of " + f.Network
	}
	return about
}

// telling is how much evidence a finding is shown with: what it is, and what
// speaks against it.
const telling = 2

// evidence is what the sources say, the first of it or all.
func evidence(f audit.Finding, all bool) string {
	var says []string
	for _, e := range f.Evidence {
		says = append(says, string(e.Source)+": "+e.Says)
	}
	if !all && len(says) > telling {
		says = says[:telling]
	}
	return strings.Join(says, "; ")
}

// fixText is what a repair would do, or why there is none.
func fixText(f audit.Finding) string {
	if f.Fix != "" {
		return f.Fix
	}
	return "reported only: " + f.Why
}

func fixColour(f audit.Finding) colour {
	if f.Fix != "" {
		return plain
	}
	return dim
}

// watchAudit looks again and again until ctx ends, and shows what changed. A runtime
// that does not answer any more, as it is restarted, is told of and waited for.
func (c *command) watchAudit(ctx context.Context, a auditing) error {
	known := map[string]audit.Finding{}
	for first := true; ; first = false {
		n, err := c.node(ctx, a)
		if err != nil && first {
			return err
		}
		now, err := c.seen(ctx, n, err)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil { // what could not be looked at did not go
			if err := c.changes(known, now); err != nil {
				return err
			}
			known = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(a.every):
		}
	}
}

// seen is what one look finds, unless there is an error why it is not made.
func (c *command) seen(ctx context.Context, n audit.Node, why error) (map[string]audit.Finding, error) {
	if why != nil {
		c.complain(why)
		return nil, why
	}
	now := map[string]audit.Finding{}
	_, err := c.look(ctx, n, func(f audit.Finding) { now[f.ID] = f })
	return now, err
}

// changes writes what came and what went, straight to the output.
func (c *command) changes(before, now map[string]audit.Finding) error {
	at := c.now().In(c.zone)
	var errs []error
	tell := func(sign, word string, k colour, from, without map[string]audit.Finding) {
		for _, id := range slices.Sorted(maps.Keys(from)) {
			f := from[id]
			if _, both := without[id]; both {
				continue
			}
			if c.asJSON() {
				errs = append(errs, json.NewEncoder(c.out).Encode(map[string]any{"time": at, "change": word, "finding": f}))
				continue
			}
			line := fmt.Sprintf("%s %s %s %s", at.Format(time.TimeOnly), sign, f.Kind, c.aboutText(f))
			if word == "found" {
				line += ": " + c.short(evidence(f, false))
			}
			_, err := io.WriteString(c.out, c.paint(cutTo(read.Printable(line), c.width()), k)+"\n")
			errs = append(errs, err)
		}
	}
	tell("+", "found", red, now, before)
	tell("-", "gone", green, before, now)
	return errors.Join(errs...)
}

// cutTo cuts a line to a width, which 0 does not bound.
func cutTo(s string, width int) string {
	if width == 0 {
		return s
	}
	return cut(s, width, 0)
}
