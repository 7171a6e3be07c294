package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/spf13/cobra"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/chain/codes"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace/read"
)

func (c *command) check() *cobra.Command {
	var p plugins
	var verbose bool
	cmd := &cobra.Command{
		Use:   "check [ATTACHMENT...]",
		Short: "Runs CHECK as a runtime would, and shows what it finds",
		Long: `check runs the plugins' CHECK for attachments, or for all that have a record, as
a container runtime would: every plugin of the list that libcni keeps, with the
result and the arguments of ADD. Where libcni keeps nothing, tracewire's own
CHECK is run, with its delegates, from its record; what stands behind it in the
list is not known then, and is not checked. The last lines tell how much was.

What more than three attachments have alike is shown once, but with -v.

What a reason means is told in docs/check.md and by tracewirectl explain REASON.

Exit codes: 0 no findings, 1 findings, 2 something could not be looked at.`,
		Example: `  tracewirectl check
  tracewirectl check default/web-0 -o json
  tracewirectl check 10.22.0.5 --plugin-dir /usr/lib/cni`,
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, begin string) ([]string, cobra.ShellCompDirective) {
			return c.completeAttachments(cmd, nil, begin) // any number of them
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := c.wanted(args)
			if err != nil {
				return err
			}
			c.open(&p)
			done := c.checkAll(cmd.Context(), &p, all, checksAtOnce)
			if c.asJSON() {
				err = printJSON(cmd.OutOrStdout(), done)
			} else {
				err = c.printChecks(cmd.OutOrStdout(), done, verbose)
			}
			return errors.Join(err, verdictOf(done))
		},
	}
	pluginFlags(cmd, &p)
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "Shows every attachment, those with the same finding too")
	return cmd
}

// wanted is the attachments of names, or all that a record tells of. One of a
// name has to be attached.
func (c *command) wanted(names []string) (out []stored, err error) {
	p, err := c.places()
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return c.living(p.state, "", 0)
	}
	all, err := records(p.state)
	if err != nil {
		return nil, err
	}
	for _, text := range names {
		n, err := named(text)
		if err != nil {
			return nil, err
		}
		picked, err := pick(all, n)
		if err != nil {
			return nil, err
		}
		for _, r := range picked {
			if r.State != cache.Attached {
				return nil, fmt.Errorf("%s is not attached: %s", r, states[r.State])
			}
		}
		out = append(out, picked...)
	}
	return out, nil
}

// living is the records of attachments of this boot, of a network or of all. Where
// there are more than most, which 0 does not bound, no more are read.
func (c *command) living(states []string, network string, most int) (out []stored, err error) {
	for _, state := range states {
		for r, err := range cache.In(state).All() {
			switch {
			case err != nil:
				return nil, err
			case r.State != cache.Attached || r.Earlier(c.boot) || network != "" && r.Network != network:
				continue
			}
			if out = append(out, stored{r}); most > 0 && len(out) > most {
				return out, nil
			}
		}
	}
	return out, nil
}

// checked is what CHECK told of one attachment.
type checked struct {
	Attachment string    `json:"attachment"`
	Pod        string    `json:"pod,omitempty"`
	Plugins    []string  `json:"plugins"` // that were asked
	Whole      bool      `json:"wholeList"`
	Findings   []finding `json:"findings"`
	Error      string    `json:"error,omitempty"` // why one could not look
}

// finding is one difference.
type finding struct {
	Plugin   string `json:"plugin"`
	Reason   string `json:"reason"`
	Expected string `json:"expected"`
	Found    string `json:"found"`
	Hint     string `json:"hint,omitempty"`
	Mends    bool   `json:"mends"` // DEL and a new ADD put it right
}

// checksAtOnce bounds how many CHECKs run at the same time.
const checksAtOnce = 8

// unheard is how many run at the same time where nobody waits for them: half of the
// processors stay for the pods that are made meanwhile.
func unheard() int { return max(1, runtime.NumCPU()/2) }

// checkTime bounds one CHECK.
const checkTime = time.Minute

// checkAll checks attachments, some at the same time, in their order.
func (c *command) checkAll(ctx context.Context, p *plugins, all []stored, atOnce int) []checked {
	out := make([]checked, len(all))
	turns := make(chan struct{}, atOnce)
	bar := c.progress("CHECK", len(all))
	defer bar.end()
	var group sync.WaitGroup
	for i, r := range all {
		turns <- struct{}{}
		group.Go(func() {
			out[i] = p.check(ctx, r)
			bar.step()
			<-turns
		})
	}
	group.Wait()
	return out
}

// check checks one attachment, by the plugins of one type or all.
func (p *plugins) check(ctx context.Context, r stored, only ...string) checked {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	out := checked{Attachment: r.String(), Pod: podName(r), Plugins: []string{conflist.PluginType}, Findings: []finding{}}
	list, rt := p.attached(r.Attachment)
	if list == nil {
		out.take(conflist.PluginType, p.checkAlone(ctx, r))
		return out
	}
	out.Plugins, out.Whole = pluginsOf(list), true
	for _, plugin := range list.Plugins {
		if len(only) > 0 && !slices.Contains(only, plugin.Network.Type) {
			continue
		}
		one := *list
		one.Plugins = []*libcni.PluginConfig{plugin} // all are asked, past what one finds
		out.take(plugin.Network.Type, p.cni.CheckNetworkList(ctx, &one, rt))
	}
	return out
}

// checkAlone checks by our plugin alone, from the record.
func (p *plugins) checkAlone(ctx context.Context, r stored) error {
	made, version := r.Result.Get(), conflist.Parse(conflist.Read(r.Conf)).CNIVersion
	if made == nil {
		return errors.New("the record has no result")
	}
	prev, err := made.GetAsVersion(version)
	if err != nil {
		return err
	}
	return p.run(ctx, "CHECK", invocation{Attachment: r.Attachment, conf: r.Conf, args: r.Args, netns: r.NetNS, keys: map[string]any{"prevResult": prev}})
}

// take takes in what one plugin answered. Of another plugin than ours a code of its
// own is a finding; all else tells that it could not look.
func (c *checked) take(plugin string, err error) {
	var e *cnitypes.Error
	switch {
	case err == nil:
	case !errors.As(err, &e):
		c.Error = strings.TrimPrefix(c.Error+"; "+plugin+": "+err.Error(), "; ")
	case plugin == conflist.PluginType && e.Code == codes.Check:
		for _, f := range findingsOf(e) {
			c.add(plugin, f)
		}
	case plugin != conflist.PluginType && e.Code >= firstOwn:
		c.add(plugin, delegates.Finding{Code: "delegate.check", Expected: plugin + " to find nothing", Found: e.Error()})
	default:
		c.Error = strings.TrimPrefix(c.Error+"; "+plugin+": "+e.Error(), "; ")
	}
}

// firstOwn is the first code that is a plugin's own (CNI spec 1.1.0, "Error"). The
// reference plugins answer 999 to everything.
const firstOwn = 100

func (c *checked) add(plugin string, f delegates.Finding) {
	reason, _ := codes.ReasonOf(f.Code) // of a newer plugin's nothing is known
	c.Findings = append(c.Findings, finding{plugin, f.Code, f.Expected, f.Found, reason.Hint, reason.Mends})
}

// findingsOf is what our plugin's error lists.
func findingsOf(e *cnitypes.Error) delegates.Findings {
	var details struct{ Findings delegates.Findings }
	if json.Unmarshal([]byte(e.Details), &details) != nil || len(details.Findings) == 0 {
		return delegates.Findings{{Code: "delegate.check", Expected: "nothing to find", Found: e.Msg}} // another version's
	}
	return details.Findings
}

// verdictOf is the error that the exit code follows from.
func verdictOf(done []checked) (err error) {
	var errs []error
	for _, d := range done {
		if d.Error != "" {
			errs = append(errs, fmt.Errorf("%s: %s", d.Attachment, d.Error))
		}
		if len(d.Findings) > 0 {
			err = errFindings
		}
	}
	switch n := len(errs); {
	case n == 1:
		return fmt.Errorf("could not look: %w", errs[0])
	case n > 1:
		return fmt.Errorf("could not look at %s: %w", count(n, "attachment"), errs[0])
	}
	return err
}

// checkColumns fit into 80 columns: what is expected and found is broken between its
// words as long as anything else can be shortened.
var checkColumns = []column{
	{head: "ATTACHMENT", shorten: shortAttachments, first: 24, least: 15, last: 13},
	{head: "POD", shorten: shortPod, first: 20, least: 14, last: 12},
	{head: "REASON", last: 12},
	{head: "EXPECTED", first: 24, least: 12, words: true, last: 10},
	{head: "FOUND", first: 24, least: 12, words: true, last: 10},
}

func (c *command) printChecks(w io.Writer, done []checked, verbose bool) error {
	if len(done) == 0 {
		_, err := io.WriteString(w, "nothing to check: no attachment has a record\n")
		return err
	}
	alike := 3
	if verbose {
		alike = len(done)
	}
	if rows := c.checkRows(done, alike); len(rows) > 0 {
		g := &grid{columns: checkColumns}
		g.fit(rows, c.width())
		if err := errors.Join(c.write(w, g, rows, true), c.printNext(w, done)); err != nil {
			return err
		}
	}
	k := green
	if verdictOf(done) != nil {
		k = red
	}
	return c.printLines(w, k, sumOfChecks(done)...)
}

// same is what makes two findings alike.
type same struct{ reason, expected, found string }

// checkRows is a row a finding; one for all where more than some attachments have it.
func (c *command) checkRows(done []checked, alike int) (rows [][]cell) {
	with := map[same][]string{}
	each(done, func(d checked, s same) { with[s] = append(with[s], d.Attachment) })
	each(done, func(d checked, s same) {
		attachment, pod := d.Attachment, d.Pod
		if n := len(with[s]); n > alike {
			if with[s][0] != d.Attachment {
				return
			}
			attachment, pod = fmt.Sprintf("%d attachments%s%s", n, firstOf, d.Attachment), ""
		}
		rows = append(rows, []cell{{text: c.short(attachment)}, {text: pod}, {s.reason, red}, {text: c.short(s.expected)}, {text: c.short(s.found)}})
	})
	return rows
}

// each hands on every finding, one of an attachment once.
func each(done []checked, do func(checked, same)) {
	for _, d := range done {
		told := map[same]bool{}
		for _, f := range d.Findings {
			if s := (same{f.Reason, f.Expected, f.Found}); !told[s] {
				told[s] = true
				do(d, s)
			}
		}
	}
}

// printNext writes the next step of each reason, once.
func (c *command) printNext(w io.Writer, done []checked) error {
	lines, told := []string{""}, map[string]bool{}
	for _, d := range done {
		for _, f := range d.Findings {
			if f.Hint != "" && !told[f.Reason] {
				told[f.Reason] = true
				lines = append(lines, f.Reason+": "+f.Hint)
			}
		}
	}
	if len(lines) > 1 {
		lines = append(lines, "")
	}
	return c.printLines(w, plain, lines...)
}

// printLines writes lines, on as many as the terminal needs for them.
func (c *command) printLines(w io.Writer, k colour, lines ...string) error {
	var b strings.Builder
	for _, l := range lines {
		parts := []string{l}
		if c.width() > 0 {
			parts = broken(read.Printable(l), c.width())
		}
		for _, part := range parts {
			b.WriteString(c.paint(part, k) + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// tally is how many findings there are, and attachments: with some, checked by our
// plugin alone, and that could not be looked at.
type tally struct{ found, with, alone, failed int }

func tallied(done []checked) (t tally) {
	for _, d := range done {
		t.found += len(d.Findings)
		if len(d.Findings) > 0 {
			t.with++
		}
		if d.Error != "" {
			t.failed++
		}
		if !d.Whole {
			t.alone++
		}
	}
	return t
}

// sumOfChecks tells what was looked at, and what only in part.
func sumOfChecks(done []checked) []string {
	t, sum := tallied(done), "no findings"
	if t.found > 0 {
		sum = fmt.Sprintf("%s on %d of them", count(t.found, "finding"), t.with)
	}
	lines := []string{count(len(done), "attachment") + " checked, " + sum}
	if t.failed > 0 {
		lines[0] = fmt.Sprintf("%s: %d checked, %d could not be looked at", count(len(done), "attachment"), len(done)-t.failed, t.failed)
	}
	if t.failed > 0 && (t.found > 0 || t.failed < len(done)) {
		lines[0] += "; " + sum
	}
	if t.alone > 0 {
		lines = append(lines, fmt.Sprintf("of %d only tracewire's part: libcni keeps nothing of the plugins behind it", t.alone))
	}
	return lines
}
