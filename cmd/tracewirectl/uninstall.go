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
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates/masquerade"
	"github.com/tracewire/tracewire/trace/read"
)

// leaving is what uninstall is asked for.
type leaving struct {
	plugins     plugins
	yes         bool
	attachments bool
	binaries    bool
}

func (c *command) uninstall() *cobra.Command {
	var l leaving
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Removes what tracewire keeps on this node",
		Long: `uninstall shows what tracewire keeps on this node, and removes it with --yes:
verdicts and counters in ` + chain.Volatile + `, spool, log, quarantine, the tables of
masquerade rules that no attachment needs, and the state directory. Files of
others in these folders stay, and so do network configuration lists.

Attachments stay without --attachments, and with them what they need to be ended
later: their records, reservations, interfaces and rules. With it each is ended
as a runtime would end it, which takes the network away from pods that live.
Programs stay without --binaries.

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
	f.BoolVar(&l.binaries, "binaries", false, "Removes the programs tracewire, tracewirectl and tracewire-agent too")
	return cmd
}

// belonging is one thing that is kept on the node.
type belonging struct {
	What  string `json:"what"`
	Path  string `json:"path"`
	Stays string `json:"stays,omitempty"` // why it is not removed
	Error string `json:"error,omitempty"` // why it could not be

	remove func(context.Context) error
}

// leave shows what there is, and removes it.
func (c *command) leave(ctx context.Context, w io.Writer, l *leaving) error {
	if err := c.open(&l.plugins); err != nil {
		return err
	}
	at, err := c.places()
	if err != nil {
		return err
	}
	all, err := records(at.state)
	if err != nil {
		return err
	}
	// Attachments go first: what ends them is told of in spool and log, and needs
	// the state directory.
	things := c.attachments(l, all)
	err = remove(ctx, l.yes, things)
	kept := err != nil || len(all) > 0 && !l.attachments
	tables, errTables := c.tables(all, kept)
	rest := slices.Concat(tables, files(at, kept), c.programs(l), c.lastly())
	err = errors.Join(err, errTables, remove(ctx, l.yes, rest))
	things = append(things, rest...)
	if c.asJSON() {
		return errors.Join(printJSON(w, things), err)
	}
	return errors.Join(c.printLeaving(w, things, l.yes), err)
}

// remove removes what does not stay, past failures.
func remove(ctx context.Context, yes bool, things []belonging) (err error) {
	for i := range things {
		t := &things[i]
		if !yes || t.Stays != "" {
			continue
		}
		switch e := t.remove(ctx); {
		case e != nil:
			t.Error = e.Error()
			err = errors.Join(err, fmt.Errorf("%s %s: %w", t.What, t.Path, e))
		case there(t.Path):
			t.Stays = "others have files in it, or a mount"
		}
	}
	return err
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// attachments is all that have a record.
func (c *command) attachments(l *leaving, all []stored) (out []belonging) {
	for _, r := range all {
		b := belonging{What: "attachment", Path: r.String(), remove: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, repairTime)
			defer cancel()
			return l.plugins.del(ctx, r.Stored)
		}}
		if !l.attachments {
			b.Stays = "its record is needed to end it: --attachments"
		}
		out = append(out, b)
	}
	return out
}

// tables is those of masquerade rules.
func (c *command) tables(all []stored, kept bool) (out []belonging, err error) {
	found, err := masquerade.Tables()
	if err != nil {
		return nil, fmt.Errorf("masquerade: %w", err)
	}
	for _, t := range found {
		b := belonging{What: "rules", Path: t.Name, remove: func(ctx context.Context) error { return masquerade.RemoveTables(ctx, true, t.Name) }}
		if kept && slices.ContainsFunc(all, func(r stored) bool { return t.Of(r.Network) }) {
			b.Stays = "attachments of " + t.Network + " need it"
		}
		out = append(out, b)
	}
	return out, nil
}

// file is a file or folder of ours, where it is there.
func file(what, path string, remove func(string) error) (out []belonging) {
	if there(path) {
		out = append(out, belonging{What: what, Path: path, remove: func(context.Context) error { return missing(remove(path)) }})
	}
	return out
}

// missing makes success of an error that the thing is gone.
func missing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// ifEmpty removes a folder that nobody else has anything in.
func ifEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		return missing(err)
	}
	err = os.Remove(dir)
	if errors.Is(err, unix.EBUSY) {
		return nil // a mount
	}
	return missing(err)
}

// files is what is on disk, the deepest first.
func files(at places, kept bool) (out []belonging) {
	for _, dir := range at.spool {
		out = append(out, file("traces", dir, emptySpool)...)
	}
	for _, path := range at.log {
		old, _ := filepath.Glob(path + ".[0-9]*") // a pattern of ours
		for _, p := range append(old, path) {
			out = append(out, file("log", p, os.Remove)...)
		}
		if dir := filepath.Dir(path); filepath.Base(dir) == conflist.PluginType { // made for it
			out = append(out, file("log", dir, emptyLog)...)
		}
	}
	out = append(out, file("verdicts and counters", chain.Volatile, os.RemoveAll)...)
	for _, dir := range at.state {
		out = append(out, file("broken records", filepath.Join(dir, "quarantine"), os.RemoveAll)...)
		state := file("state", dir, emptyState)
		for i := range state {
			if kept {
				state[i].Stays = "attachments need it"
			}
		}
		out = append(out, state...)
	}
	return out
}

// follower is the files that tracewire-agent keeps in a folder that it follows.
var follower = []string{"agent.checkpoint", "agent.lock"}

// names removes files of a folder, and the folder where nothing else is in it.
func names(dir string, all ...string) error {
	var errs []error
	for _, name := range all {
		errs = append(errs, missing(os.Remove(filepath.Join(dir, name))))
	}
	return errors.Join(append(errs, ifEmpty(dir))...)
}

// emptySpool removes segments and what tells how far they were sent.
func emptySpool(dir string) error {
	paths, err := read.Segments(dir)
	all := slices.Clone(follower)
	for _, p := range paths {
		all = append(all, filepath.Base(p))
	}
	return errors.Join(err, names(dir, all...))
}

func emptyLog(dir string) error { return names(dir, follower...) }

// emptyState removes what a state directory has, once nobody's record is in it.
func emptyState(dir string) error {
	folders, err := os.ReadDir(filepath.Join(dir, "attachments"))
	errs := []error{missing(err)}
	for _, f := range folders {
		errs = append(errs, missing(os.Remove(filepath.Join(dir, "attachments", f.Name())))) // empty, or an error
	}
	return errors.Join(append(errs, missing(os.RemoveAll(filepath.Join(dir, "networks"))), names(dir, "attachments", memoryFile, memoryAside, memoryLock, "lock"))...)
}

// programs is the executables.
func (c *command) programs(l *leaving) (out []belonging) {
	var paths []string
	for _, dir := range l.plugins.dirs {
		paths = append(paths, filepath.Join(dir, conflist.PluginType))
	}
	if self, err := os.Executable(); err == nil {
		for _, name := range []string{"tracewirectl", "tracewire-agent"} {
			paths = append(paths, filepath.Join(filepath.Dir(self), name))
		}
	}
	for _, p := range paths {
		for _, b := range file("program", p, os.Remove) {
			if !l.binaries {
				b.Stays = "--binaries removes it"
			}
			out = append(out, b)
		}
	}
	return out
}

// lastly is the lists that would make all of it anew.
func (c *command) lastly() (out []belonging) {
	own, _ := c.own() // was read before
	for _, e := range own {
		out = append(out, belonging{What: "list", Path: e.File, Stays: "it is yours, and still names tracewire"})
	}
	return out
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
			if t.What == "attachment" {
				kept++
			}
		case done:
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
