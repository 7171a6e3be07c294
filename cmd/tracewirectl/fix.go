package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain"
	"github.com/tracewire/tracewire/chain/audit"
	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// repairs is what --fix has to do.
type repairs struct {
	Due      []audit.Finding `json:"due"`      // to be repaired now
	Young    []audit.Finding `json:"young"`    // to be repaired when they were found for long enough
	Reported int             `json:"reported"` // that have no repair
	Done     []string        `json:"done"`     // ids of findings
	Failed   []string        `json:"failed"`
	Left     int             `json:"left"`           // findings that a look afterwards finds
	Made     string          `json:"made,omitempty"` // the folder that was made to remember Young

	wait time.Duration // until all of Young may be
}

// fix looks, shows the plan, and carries it out. Who does so at the same time waits
// for it.
func (c *command) fix(ctx context.Context, w io.Writer, a *auditing) error {
	c.open(&a.plugins)
	n, err := c.node(ctx, *a)
	if err != nil {
		return err
	}
	if len(c.broken) > 0 {
		return errors.New("nothing was repaired: a list that cannot be read may be ours, and name a state directory")
	}
	m, err := openMemory(ctx, n.StateDirs[0])
	if err != nil {
		return err
	}
	defer m.close()
	plan, err := c.planFix(ctx, n, m, a.grace)
	if err != nil {
		return err
	}
	if err := c.printPlan(w, plan, a.verbose); err != nil {
		return err
	}
	if len(plan.Due) > 0 {
		if err := c.agreed(w, a.yes, len(plan.Due)); err != nil {
			return err
		}
		err = c.mend(ctx, n, &a.plugins, &plan)
		var errAgain error
		plan.Left, errAgain = c.left(ctx, *a)
		err = errors.Join(err, errAgain)
	}
	return orFindings(errors.Join(err, c.printFixed(w, plan)), plan.Left)
}

// left is how much is found now: what was only reported may have gone with the rest.
func (c *command) left(ctx context.Context, a auditing) (int, error) {
	n, err := c.node(ctx, a)
	if err != nil {
		return 0, err
	}
	counts, err := c.look(ctx, n, func(audit.Finding) {})
	return counts.Findings, err
}

// planFix looks once. What could not be read may know what the rest does not:
// nothing is repaired then, and nothing forgotten.
func (c *command) planFix(ctx context.Context, n audit.Node, m *memory, grace time.Duration) (plan repairs, err error) {
	planner := audit.Planner{Boot: c.boot, Uptime: uptime(), Grace: grace, Scope: n.Scope()}
	var all []audit.Finding
	keep := func(f audit.Finding) {
		if !c.asJSON() {
			f.Evidence = nil // is not shown, and of very many takes much memory
		}
		all = append(all, f)
	}
	if _, err := c.look(ctx, n, keep); err != nil {
		return plan, fmt.Errorf("nothing was repaired: %w", err)
	}
	slices.SortFunc(all, func(a, b audit.Finding) int {
		return strings.Compare(string(a.Kind)+a.Network+a.About()+a.ID, string(b.Kind)+b.Network+b.About()+b.ID)
	})
	if slices.ContainsFunc(all, func(f audit.Finding) bool { return f.Repair != nil }) {
		if plan.Made, err = m.make(ctx); err != nil {
			return plan, err
		}
	}
	planner.Earlier = m.recall()
	plan.sort(&planner, all)
	return plan, m.remember(planner.Next())
}

// sort tells what is due, and how long the rest has to wait.
func (r *repairs) sort(planner *audit.Planner, all []audit.Finding) {
	r.Due, r.Young, r.Done, r.Failed, r.Left = []audit.Finding{}, []audit.Finding{}, []string{}, []string{}, len(all)
	planned := map[audit.Repair]bool{}
	for _, f := range all {
		switch due := planner.Due(f); {
		case due:
			r.Due = append(r.Due, f)
			planned[*f.Repair] = true
		case f.Repair == nil:
			r.Reported++
		case !planned[*f.Repair]:
			r.Young = append(r.Young, f)
			planned[*f.Repair] = true
		}
	}
	next := planner.Next()
	for _, f := range r.Young {
		r.wait = max(r.wait, planner.Grace-(planner.Uptime-next.Seen[f.ID].First))
	}
}

// uptime is since the kernel started, sleep included: no step of a clock is in it.
func uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0 // never, on Linux
	}
	return time.Duration(t.Nano())
}

var planColumns = []column{
	{head: "KIND", least: 14},
	{head: "ABOUT", first: 36, least: 22, last: 14},
	{head: "REPAIR", first: 40, least: 24},
}

// printPlan shows what would be done, and what has to wait.
func (c *command) printPlan(w io.Writer, plan repairs, all bool) error {
	if c.asJSON() {
		return nil // it is told once, at the end
	}
	var rows [][]cell
	planned := plan.Due
	if len(planned) == 0 {
		planned = plan.Young
	}
	first := planned
	if !all {
		first = first[:min(len(first), shown)]
	}
	for _, f := range first {
		rows = append(rows, []cell{{text: string(f.Kind)}, {text: c.aboutText(f)}, {text: c.short(f.Fix)}})
	}
	var b strings.Builder
	if len(rows) > 0 {
		g := &grid{columns: planColumns}
		g.fit(rows, c.width())
		if err := c.write(w, g, rows, true); err != nil {
			return err
		}
		if rest := len(planned) - len(rows); rest > 0 {
			fmt.Fprintf(&b, "and %d more (-v shows all)\n", rest)
		}
		b.WriteString("\n")
	}
	if n := len(plan.Young); n > 0 {
		fmt.Fprintf(&b, "%s of what was seen first now, or not for long enough: run it again in %d s\n", count(n, "repair"), int(plan.wait.Round(time.Second).Seconds()))
	}
	if plan.Made != "" {
		fmt.Fprintf(&b, "they are remembered in %s, which was made for it: tracewire has kept nothing on this node\n", plan.Made)
	}
	if plan.Reported > 0 {
		fmt.Fprintf(&b, "%s only reported: tracewirectl audit shows why\n", count(plan.Reported, "finding"))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// agreed is an error where nobody agrees to the repairs.
func (c *command) agreed(w io.Writer, yes bool, n int) error {
	switch {
	case yes:
		return nil
	case c.in == nil || c.asJSON():
		return fmt.Errorf("nothing was done: %s without --yes, and nobody to ask", count(n, "repair"))
	}
	if f, ok := w.(interface{ Flush() error }); ok {
		_ = f.Flush() // the plan has to be seen; a failure is met again
	}
	_, _ = fmt.Fprintf(c.err, "Carry out %s? [y/N] ", count(n, "repair"))
	answer, _ := bufio.NewReader(c.in).ReadString('\n')
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return errors.New("nothing was done")
	}
	return nil
}

// mend carries out what is due, past failures, until ctx ends.
func (c *command) mend(ctx context.Context, n audit.Node, p *plugins, plan *repairs) error {
	bar := c.progress("repairing", len(plan.Due))
	defer bar.end()
	var errs []error
	for i, f := range plan.Due {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%d of %s were begun: %w", i, count(len(plan.Due), "repair"), errors.Join(append(errs, err)...))
		}
		if err := c.repair(ctx, n, p, f); err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", f.Kind, f.About(), err))
			plan.Failed = append(plan.Failed, f.ID)
		} else {
			plan.Done = append(plan.Done, f.ID)
		}
		bar.step()
	}
	for _, err := range errs {
		c.complain(err)
	}
	if len(errs) > 0 {
		return fmt.Errorf("%s failed", count(len(errs), "repair"))
	}
	return nil
}

// repairTime bounds one repair.
const repairTime = time.Minute

// repair makes one repair, as an operation that tells of itself as the plugin's do.
func (c *command) repair(ctx context.Context, n audit.Node, p *plugins, f audit.Finding) error {
	begin := time.Now()
	r := trace.NewRecorder(begin)
	spans, root := r.Begin("audit.fix", begin, trace.Origin{})
	root.Set(trace.KeyCommand.String("FIX"), trace.KeyFinding.String(string(f.Kind)), trace.KeyRepair.String(string(f.Repair.Action)), trace.KeyName.String(f.Network))
	a := f.Repair.Attachment
	if f.Attachment != nil {
		a = *f.Attachment
	}
	root.Set(trace.Given(trace.KeyID.String(a.ContainerID), trace.KeyIfName.String(a.IfName), trace.KeyPath.String(f.Path))...)
	if f.Address.IsValid() {
		root.Set(trace.KeyAddresses.StringSlice([]string{netip.PrefixFrom(f.Address, f.Address.BitLen()).String()}))
	}
	spans, cancel := context.WithTimeout(spans, repairTime)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	err := trace.Run(spans, "audit."+string(f.Repair.Action), func(ctx context.Context) error {
		err := n.Mend(ctx, *f.Repair)
		if errors.Is(err, audit.ErrPlugin) {
			return p.mend(ctx, n, *f.Repair)
		}
		return err
	})
	if errors.Is(err, audit.ErrLeft) {
		return nil // another repair took it along, or somebody
	}
	if err != nil {
		root.Fail(err.Error())
	}
	root.End()
	c.sink(f.Network).Write(r) // a loss is counted
	return err
}

// mend has the plugin make a repair.
func (p *plugins) mend(ctx context.Context, n audit.Node, r audit.Repair) error {
	if r.Action == audit.Restore {
		return p.restore(ctx, n, r.Attachment)
	}
	err := p.delOf(ctx, r)
	if err == nil && r.Action == audit.EndEntry {
		r.Action = audit.RemoveEntry
		if err = n.Mend(ctx, r); errors.Is(err, audit.ErrLeft) {
			err = nil // libcni removed it
		}
	}
	return err
}

// restore has the plugin's CHECK put right what it finds. What it still finds is
// found by the next look.
func (p *plugins) restore(ctx context.Context, n audit.Node, a delegates.Attachment) error {
	for _, state := range n.StateDirs {
		r, err := cache.In(state).Read(a)
		if err != nil || r.State != cache.Attached {
			continue // it went
		}
		if done := p.restoring().check(ctx, stored{cache.Stored{Record: r}}, conflist.PluginType); done.Error != "" {
			return errors.New(done.Error)
		}
	}
	return nil
}

// restoring is the plugins, with a word for ours that a CHECK is to put right what
// it finds.
func (p *plugins) restoring() *plugins {
	out := *p
	out.exec = restoring{p.exec}
	out.cni = libcni.NewCNIConfigWithCacheDir(p.dirs, p.cache, out.exec)
	return &out
}

type restoring struct{ invoke.Exec }

func (r restoring) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	return r.Exec.ExecPlugin(ctx, path, stdin, append(environ, chain.EnvRestore+"=1"))
}

// delOf runs a DEL: of our plugin with the whole list where libcni has it, and with
// the namespace that was looked at; of another alone.
func (p *plugins) delOf(ctx context.Context, r audit.Repair) error {
	if list, rt := p.attached(r.Attachment); list != nil && r.Plugin() == conflist.PluginType {
		rt.NetNS = r.NetNS
		return p.cni.DelNetworkList(ctx, list, rt)
	}
	return p.run(ctx, "DEL", invocation{Attachment: r.Attachment, plugin: r.Plugin(), conf: []byte(r.Conf), args: r.Args, netns: r.NetNS})
}

// sink is where a network's operations go; without a list of it, where the first
// one's do.
func (c *command) sink(network string) trace.Sink {
	nets, _ := c.networks() // was read before
	nets = append(nets, conflist.Parse(conflist.Read([]byte("{}"))))
	t := nets[0].Tracewire
	for _, n := range nets {
		if n.Name == network {
			t = n.Tracewire
			break
		}
	}
	if c.flags.stateDir != "" {
		t.SpoolDir = filepath.Join(c.flags.stateDir, "spool")
	}
	if c.flags.spool != "" {
		t.SpoolDir = c.flags.spool
	}
	if c.flags.log != "" {
		t.LogPath = c.flags.log
	}
	return trace.Sink{
		Resource: trace.Resource(version, c.boot, c.getenv),
		Spool:    trace.Spool{Dir: t.SpoolDir, MaxBytes: t.SpoolBytes},
		Log:      trace.Log{Path: t.LogPath, Level: t.LogLevel},
	}
}

// printFixed tells what was done.
func (c *command) printFixed(w io.Writer, plan repairs) error {
	if c.asJSON() {
		return printJSON(w, plan)
	}
	text, colour := "nothing to repair", plain
	switch {
	case len(plan.Due) > 0:
		text, colour = count(len(plan.Done), "repair")+" made", green
	case len(plan.Young) > 0:
		text = "nothing was repaired yet"
	}
	if n := len(plan.Failed); n > 0 {
		text, colour = fmt.Sprintf("%s, %d failed", text, n), red
	}
	if len(plan.Due) > 0 && plan.Left > 0 {
		text += fmt.Sprintf(", %s left", count(plan.Left, "finding"))
	}
	_, err := io.WriteString(w, c.paint(text, colour)+"\n")
	return err
}
