package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tracewire/tracewire/chain"
	"github.com/tracewire/tracewire/chain/lock"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/bridge"
	"github.com/tracewire/tracewire/delegates/masquerade"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/ipam"
)

// leaving is what uninstall is asked for, and what it has met so far.
type leaving struct {
	plugins     plugins
	yes         bool
	attachments bool
	binaries    bool

	at     places
	all    []stored
	lost   []delegates.Attachment // whose record is lost
	kept   bool                   // attachments stay, and what they need to be ended
	failed bool                   // something could not be removed
}

func (c *command) uninstall() *cobra.Command {
	var l leaving
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Removes what tracewire keeps on this node",
		Long: `uninstall shows what tracewire keeps on this node, in the order in which it
goes, and removes it with --yes. First what no attachment needs: what
tracewire-agent and audit --fix remember, broken records, verdicts of STATUS.
Then attachments and bridges, with --attachments. Then what their DELs need and
write: tables of masquerade rules, spool, log, ` + chain.Volatile + `, and the state
directory.

Attachments stay without --attachments, and with them what they need to be ended
later: their records, reservations, interfaces and rules. With it each is ended
as a runtime would end it, which takes the network away from pods that live; a
bridge that tracewire made goes once it has no port. Programs stay without
--binaries. What other plugins use too stays and is told: files of others in
these folders, ports of others, stores of addresses, and lists. So do sysctls,
and the base chains of the reference plugins' rules.

What was interrupted or could not be removed is there to be removed by another
run. An agent that is at work keeps its files: it has to be stopped first.

Exit codes: 0 done, or shown, 2 something could not be removed.`,
		Example: `  tracewirectl uninstall
  tracewirectl uninstall --yes
  tracewirectl uninstall --yes --attachments --binaries`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.leave(cmd.Context(), cmd.OutOrStdout(), &l) },
	}
	pluginFlags(cmd, &l.plugins)
	f := cmd.Flags()
	f.BoolVar(&l.yes, "yes", false, "Removes it; without, it is only shown")
	f.BoolVar(&l.attachments, "attachments", false, "Ends all attachments too, those of living pods as well")
	f.BoolVar(&l.binaries, "binaries", false, "Removes the programs tracewire, tracewirectl and tracewire-agent too, and what was installed with them")
	return cmd
}

// belonging is one thing that is kept on the node.
type belonging struct {
	What    string `json:"what"`
	Path    string `json:"path"`
	Removed bool   `json:"removed"`
	Stays   string `json:"stays,omitempty"` // why it is not removed
	Error   string `json:"error,omitempty"` // why it could not be

	remove func(context.Context) error
}

// stays is the error of what is not removed, and why: no failure.
type stays string

func (s stays) Error() string { return string(s) }

const (
	othersFiles = stays("others have files in it, or a mount")
	needsFlag   = "--attachments removes it"
)

var errInterrupted = errors.New("interrupted")

// parts is what there may be, in the order in which it goes. What a part removes
// may make what the next ones look at.
var parts = [...]func(*command, *leaving) ([]belonging, error){
	(*command).unneeded, (*command).attachments, (*command).bridges, (*command).tables, (*command).files, (*command).programs, (*command).others,
}

// leave shows what there is, and removes it.
func (c *command) leave(ctx context.Context, w io.Writer, l *leaving) (err error) {
	c.open(&l.plugins)
	if l.at, err = c.places(); err != nil {
		return err
	}
	if l.all, err = records(l.at.state); err != nil {
		return err
	}
	l.kept = len(l.all) > 0 && !l.attachments
	things := []belonging{}
	for _, part := range parts {
		some, errLook := part(c, l)
		errRemove := l.remove(ctx, some)
		things, err = append(things, some...), errors.Join(err, errLook, errRemove)
	}
	if err = errors.Join(err, ctx.Err()); c.asJSON() {
		return errors.Join(printJSON(w, things), err)
	}
	return errors.Join(c.printLeaving(w, things, l.yes), err)
}

// remove removes what does not stay, past failures.
func (l *leaving) remove(ctx context.Context, things []belonging) (err error) {
	for i := range things {
		t := &things[i]
		if !l.yes || t.Stays != "" {
			continue
		}
		e := errInterrupted
		if ctx.Err() == nil {
			e = t.remove(ctx)
		}
		var reason stays
		switch {
		case errors.As(e, &reason):
			t.Stays = string(reason)
		case e != nil:
			t.Error, l.failed = e.Error(), true
			l.kept = l.kept || t.What == anAttachment || t.What == anInterface
			if ctx.Err() == nil { // else it is told once
				err = errors.Join(err, fmt.Errorf("%s %s: %w", t.What, t.Path, e))
			}
		default:
			t.Removed = true
		}
	}
	return err
}

// What an attachment is called in the list, and one whose record is lost.
const anAttachment, anInterface = "attachment", "interface"

// attachments is all that have a record. A record of no attachment is a file
// that nobody looks for.
func (c *command) attachments(l *leaving) (out []belonging, err error) {
	nets, err := c.nets(l.all)
	for _, r := range l.all {
		b := belonging{What: anAttachment, Path: r.String(), remove: func(ctx context.Context) error {
			if len(r.Conf) == 0 {
				r.Conf = l.confOf(nets, r.Network)
			}
			ctx, cancel := context.WithTimeout(ctx, repairTime)
			defer cancel()
			return l.plugins.del(ctx, r.Stored)
		}}
		if stray(r.Stored) {
			b.Path, b.remove = r.Path, func(context.Context) error { return missing(os.Remove(r.Path)) }
		}
		if !l.attachments {
			b.Stays = "its record is needed to end it: --attachments"
		}
		out = append(out, b)
	}
	lost, errLost := l.unrecorded(nets)
	return append(out, lost...), errors.Join(err, errLost)
}

// unrecorded is the host ends of ours that no record tells of: attachments whose
// record is lost.
func (l *leaving) unrecorded(nets []*network) (out []belonging, err error) {
	host, err := veth.Dial()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	ends, err := host.Links()
	for _, e := range ends {
		if veth.Owner(e.Alias) == "" || l.recorded(e.Alias) {
			continue
		}
		who, _ := veth.OwnerOf(e.Alias)
		l.lost = append(l.lost, who)
		b := belonging{What: anInterface, Path: e.Name, remove: func(ctx context.Context) error { return l.end(ctx, e, nets) }}
		if !l.attachments {
			b.Stays = "no record tells of it: tracewirectl audit has the reason, --attachments ends it"
			l.kept = true
		}
		out = append(out, b)
	}
	return out, err
}

// end ends an attachment of which the host end alone is known. An alias that is a
// hash tells no name for a DEL.
func (l *leaving) end(ctx context.Context, e veth.Link, nets []*network) error {
	ctx, cancel := context.WithTimeout(ctx, repairTime)
	defer cancel()
	who, hashed := veth.OwnerOf(e.Alias)
	if hashed {
		host, err := veth.Dial()
		if err != nil {
			return err
		}
		defer host.Close()
		_, err = host.Remove(ctx, e.Index, true)
		return err
	}
	return l.plugins.run(ctx, "DEL", invocation{Attachment: who, conf: l.confOf(nets, who.Network)})
}

// confOf is the configuration of a network, the bare one where none is known.
func (l *leaving) confOf(nets []*network, name string) []byte {
	for _, n := range nets {
		if n.name == name {
			return n.conf
		}
	}
	return bare(name, l.at.state[0])
}

// bridges is those that tracewire made.
func (c *command) bridges(l *leaving) (out []belonging, err error) {
	all, err := bridge.Own()
	if err != nil {
		return nil, fmt.Errorf("bridges: %w", err)
	}
	for _, m := range all {
		out = append(out, belonging{What: "bridge", Path: m.Name, Stays: l.bridgeStays(m), remove: func(ctx context.Context) error { return l.removeBridge(ctx, m.Name) }})
	}
	return out, nil
}

// bridgeStays is why a bridge does, "" for one that goes.
func (l *leaving) bridgeStays(m bridge.Made) string {
	switch {
	case len(m.Ports) > 0:
		return "it has ports of others: " + m.Ports[0]
	case !l.attachments:
		return needsFlag
	case l.kept && len(m.Ends) > 0:
		return "it has ports"
	}
	return ""
}

// recorded tells that a host end's attachment has, or had, a record.
func (l *leaving) recorded(alias string) bool {
	return slices.ContainsFunc(l.all, func(r stored) bool { return veth.Alias(r.String()) == alias })
}

// removeBridge removes a bridge under the plugin's lock, so that no ADD is about to
// use it. Where there is no state directory nobody uses it.
func (l *leaving) removeBridge(ctx context.Context, name string) error {
	var locks []*lock.Ranges
	defer func() {
		for _, file := range locks {
			_ = file.Close() // and with it the lock
		}
	}()
	for _, dir := range l.at.state {
		file, err := lock.OpenRanges(filepath.Join(dir, stateLock))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		locks = append(locks, file)
		if _, err := file.Lock(ctx, bridge.LockKey(name)); err != nil {
			return err
		}
	}
	gone, err := bridge.Remove(ctx, name)
	if err == nil && !gone {
		return stays("it has ports")
	}
	return err
}

// stateLock is the plugin's locks in a state directory.
const stateLock = "lock"

// tables is those of masquerade rules.
func (c *command) tables(l *leaving) (out []belonging, err error) {
	found, err := masquerade.Tables()
	if err != nil {
		return nil, fmt.Errorf("masquerade: %w", err)
	}
	for _, t := range found {
		b := belonging{What: "rules", Path: t.Name, remove: func(ctx context.Context) error { return masquerade.RemoveTables(ctx, true, t.Name) }}
		if l.needed(t) {
			b.Stays = "attachments of " + t.Network + " need it"
		}
		out = append(out, b)
	}
	return out, nil
}

// needed tells that attachments that stay are of a table's network, or may be: an
// alias that is a hash names none.
func (l *leaving) needed(t masquerade.Info) bool {
	recorded := slices.ContainsFunc(l.all, func(r stored) bool { return t.Of(r.Network) })
	lost := slices.ContainsFunc(l.lost, func(a delegates.Attachment) bool { return a.Network == "" || t.Of(a.Network) })
	return l.kept && (recorded || lost)
}

// others is what stays whatever is asked for: stores that other plugins may share,
// and the operator's own.
func (c *command) others(l *leaving) (out []belonging, err error) {
	nets, err := c.nets(l.all)
	for _, n := range nets {
		dir := n.store()
		if dir == "" || !there(dir) {
			continue
		}
		out = append(out, belonging{What: "addresses", Path: dir, Stays: fmt.Sprintf("host-local may share it; %s", count(n.reserved(), "reservation"))})
	}
	if there(settings) {
		out = append(out, belonging{What: "settings", Path: settings, Stays: "it is yours"})
	}
	own, _ := c.own() // was read before
	for _, e := range own {
		out = append(out, belonging{What: "list", Path: e.File, Stays: "it is yours, and still names tracewire"})
	}
	return out, err
}

// reserved is how many addresses of a network are.
func (n *network) reserved() (all int) {
	n.held()(func(ipam.Held) bool { all++; return true })
	return all
}

func (c *command) printLeaving(w io.Writer, things []belonging, done bool) error {
	g := &grid{columns: []column{{head: "WHAT"}, {head: "PATH", shorten: func(s string, n int) string { return cut(s, n, n*2/3) }, least: 30}, {head: " ", first: 40, least: 20}}}
	var rows [][]cell
	kept := 0
	for _, t := range things {
		word := cell{"would be removed", plain}
		switch {
		case t.Error != "":
			word = cell{t.Error, red}
		case t.Stays != "":
			word = cell{"stays: " + t.Stays, dim}
			if t.What == anAttachment || t.What == anInterface {
				kept++
			}
		case t.Removed:
			word = cell{"removed", green}
		}
		rows = append(rows, []cell{{text: t.What}, {text: c.short(t.Path)}, word})
	}
	g.fit(rows, c.width())
	if err := c.write(w, g, rows, true); err != nil {
		return err
	}
	text := ""
	if kept > 0 {
		text = fmt.Sprintf("%s and what it needs stay, reservations too: --attachments ends them\n", count(kept, "attachment"))
	}
	if !done {
		text += "nothing was done: --yes removes it\n"
	}
	if text == "" {
		return nil
	}
	_, err := io.WriteString(w, "\n"+text)
	return err
}
