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
)

func (c *command) check() *cobra.Command {
	var p plugins
	cmd := &cobra.Command{
		Use:   "check [ATTACHMENT...]",
		Short: "Runs CHECK as a runtime would, and shows what it finds",
		Long: `check runs the plugins' CHECK for attachments, or for all that have a record, as
a container runtime would: every plugin of the list that libcni keeps, with the
result and the arguments of ADD. Where libcni keeps nothing, tracewire's own
CHECK is run, with its delegates, from its record; what stands behind it in the
list is not known then, and is not checked. The last line tells how much was.

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
				err = c.printChecks(cmd.OutOrStdout(), done)
			}
			return errors.Join(err, verdictOf(done))
		},
	}
	pluginFlags(cmd, &p)
	return cmd
}

// wanted is the attachments of names, or all that a record tells of. One of a
// name has to be attached.
func (c *command) wanted(names []string) (out []stored, err error) {
	p, err := c.places()
	if err != nil {
		return nil, err
	}
	all, err := records(p.state)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return slices.DeleteFunc(all, func(r stored) bool { return r.State != cache.Attached || r.Earlier(c.boot) }), nil
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

// checkColumns fit into 100 columns.
var checkColumns = []column{
	{head: "ATTACHMENT", shorten: shortAttachment, first: 24, least: 15, last: 10},
	{head: "POD", shorten: shortPod, first: 20, least: 14, last: 8, leftOut: 1},
	{head: "REASON", least: 12},
	{head: "EXPECTED", first: 18, least: 12},
	{head: "FOUND", first: 18, least: 12},
	{head: "NEXT", first: 30, least: 20},
}

func (c *command) printChecks(w io.Writer, done []checked) error {
	var rows [][]cell
	for _, d := range done {
		for _, f := range d.Findings {
			rows = append(rows, []cell{{text: c.short(d.Attachment)}, {text: d.Pod}, {f.Reason, red}, {text: f.Expected}, {text: f.Found}, {text: f.Hint}})
		}
	}
	if len(rows) > 0 {
		g := &grid{columns: checkColumns}
		g.fit(rows, c.width())
		if err := c.write(w, g, rows, true); err != nil {
			return err
		}
		if _, err := io.WriteString(w, "\n"); err != nil {
			return err
		}
	}
	k := green
	if verdictOf(done) != nil {
		k = red
	}
	_, err := io.WriteString(w, c.paint(sumOfChecks(done), k)+"\n")
	return err
}

// sumOfChecks tells in one line what was looked at.
func sumOfChecks(done []checked) string {
	found, with, alone, failed := 0, 0, 0, 0
	for _, d := range done {
		found += len(d.Findings)
		if len(d.Findings) > 0 {
			with++
		}
		if d.Error != "" {
			failed++
		}
		if !d.Whole {
			alone++
		}
	}
	sum := "no findings"
	if found > 0 {
		sum = fmt.Sprintf("%s on %d of them", count(found, "finding"), with)
	}
	s := count(len(done), "attachment") + " checked, " + sum
	if failed > 0 {
		s += fmt.Sprintf("; %d could not be looked at", failed)
	}
	if alone > 0 {
		s += fmt.Sprintf("; of %d only tracewire's part: libcni keeps nothing of the plugins behind it", alone)
	}
	return s
}
