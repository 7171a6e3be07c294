package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/tracewire/tracewire/chain/lock"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/trace"
	"github.com/tracewire/tracewire/trace/ship"
)

// agent is all that runs on a node.
type agent struct {
	flags  flags
	log    zerolog.Logger
	getenv func(string) string
	teller teller
	traces ship.Traces
	logs   ship.Logs // nil: lines of the log are not shipped

	// line is handed every line of a spool once, whether it could be sent or not, by
	// one goroutine a spool; nil where nobody is interested.
	line func(line []byte)
	// beside runs beside the shipping until ctx ends; nil where nothing does.
	beside func(ctx context.Context) error

	audits audits

	mu     sync.Mutex
	spools map[string]*ship.Spool // by folder
	files  map[string]*ship.Log   // by path
	warned map[string]string      // what was warned of last, by the thing
}

// agent is the agent that the command line and the environment describe.
func (c *command) agent(ctx context.Context) (*agent, error) {
	a := &agent{
		flags: c.flags, log: c.log, getenv: c.getenv,
		teller: teller{boot: c.boot, version: version, getenv: c.getenv, locks: map[string]*lock.Ranges{}},
		spools: map[string]*ship.Spool{}, files: map[string]*ship.Log{},
	}
	var err error
	if a.traces, err = ship.NewTraces(ctx, c.getenv); err != nil {
		return nil, err
	}
	if c.flags.ship {
		a.logs, err = ship.NewLogs(ctx, c.getenv)
	}
	return a, err
}

// networks is every tracewire entry of this node's lists, and one with the
// defaults.
func (a *agent) networks() ([]conflist.Network, error) {
	entries, err := a.entries()
	return networks(entries), err
}

// networks is entries, and one with the defaults.
func networks(entries []conflist.Entry) []conflist.Network {
	nets := []conflist.Network{conflist.Parse(conflist.Read([]byte("{}")))}
	for _, e := range entries {
		nets = append(nets, e.Network)
	}
	return nets
}

// places is what the command line asks for, else what networks say of a place,
// sorted, each once.
func places(asked []string, nets []conflist.Network, of func(conflist.Tracewire) string) (all []string) {
	if len(asked) > 0 {
		return asked
	}
	for _, n := range nets {
		all = append(all, of(n.Tracewire))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// What networks say of a place.
func stateDir(t conflist.Tracewire) string { return t.StateDir }
func spoolDir(t conflist.Tracewire) string { return t.SpoolDir }
func logPath(t conflist.Tracewire) string  { return t.LogPath }

// budget is the greatest that a spool has, in bytes; 0 where none is known.
func budget(nets []conflist.Network, dir string) (most int64) {
	for _, n := range nets {
		if n.Tracewire.SpoolDir == dir {
			most = max(most, n.Tracewire.SpoolBytes)
		}
	}
	return most
}

// entries is every tracewire entry of this node's lists. A file that cannot be
// read is the runtime's to complain of.
func (a *agent) entries() (own []conflist.Entry, err error) {
	all, _, err := conflist.Folder(a.confDir())
	if errors.Is(err, fs.ErrNotExist) && a.flags.confDir == "" {
		err = nil
	}
	for _, e := range all {
		if e.Ours() {
			own = append(own, e)
		}
	}
	return own, err
}

// confDir is where network configuration lists are.
func (a *agent) confDir() string {
	if a.flags.confDir != "" {
		return a.flags.confDir
	}
	return cmp.Or(a.getenv("NETCONFPATH"), conflist.DefaultFolder)
}

// look is what was not followed before.
func (a *agent) look() (found []ship.Source, err error) {
	nets, err := a.networks()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, dir := range places(a.flags.spools, nets, spoolDir) {
		if a.spools[dir] == nil {
			a.spools[dir] = a.spool(dir, budget(nets, dir))
			found = append(found, a.spools[dir])
		}
	}
	for _, path := range places(a.flags.logs, nets, logPath) {
		if a.logs != nil && a.files[path] == nil {
			a.files[path] = a.file(path)
			found = append(found, a.files[path])
		}
	}
	return found, err
}

func (a *agent) spool(dir string, budget int64) *ship.Spool {
	s := ship.NewSpool(dir, a.traces)
	s.MaxBytes, s.State, s.Each, s.Once = budget, a.flags.state, a.line, a.flags.once
	s.Policy = ship.Policy{Parent: a.flags.policy == "parent", Slow: a.flags.slow}
	s.Log = a.log.With().Str("spool", dir).Logger()
	return s
}

func (a *agent) file(path string) *ship.Log {
	l := ship.NewLog(path, a.logs)
	l.State, l.Once = a.flags.state, a.flags.once
	l.Resource = trace.Resource(version, a.teller.boot, a.getenv)
	l.Log = a.log.With().Str("log", path).Logger()
	return l
}

// rescan is how often is looked for places that new lists name, and for
// operations that were killed.
const rescan = time.Minute

// run follows everything until ctx ends, or what runs beside it: an agent that
// nobody can ask is no better than one that stopped, and is started again.
func (a *agent) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer a.sum()
	defer all.Wait()
	defer stop()
	broken := make(chan error, 1)
	if a.beside != nil {
		all.Go(func() {
			if err := a.beside(ctx); err != nil {
				broken <- err
			}
		})
	}
	all.Go(func() { a.audit(ctx) })
	for {
		a.warn("operations that were killed cannot be told of", a.tell(ctx))
		found, err := a.look()
		a.warn("network configuration lists cannot be read", err)
		for _, s := range found {
			all.Go(func() { s.Run(ctx) })
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-broken:
			return err
		case <-time.After(rescan):
		}
	}
}

// warn says that a thing is wrong: once, until it is well again or wrong in
// another way.
func (a *agent) warn(what string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && a.warned[what] != text {
		a.log.Warn().Err(err).Msg(what)
	}
	if a.warned == nil {
		a.warned = map[string]string{}
	}
	a.warned[what] = text
}

// once sends all that is there. The error tells what is left.
func (a *agent) once(ctx context.Context) error {
	defer a.sum()
	errTell := a.tell(ctx)
	found, err := a.look()
	errs := []error{errTell, err}
	for _, s := range found {
		errs = append(errs, sendOnce(ctx, s))
	}
	return errors.Join(errs...)
}

func sendOnce(ctx context.Context, s ship.Source) error {
	err := s.Open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was ever written there
	}
	if err != nil {
		return err
	}
	defer s.Close()
	if err := ship.Drain(ctx, s); err != nil {
		return fmt.Errorf("%w: %s: %w", errLeft, s.Left(), err)
	}
	return s.Tidy()
}

// sum tells what became of everything, at the end.
func (a *agent) sum() {
	traces, logs := a.stats()
	for what, s := range map[string]ship.Stats{"spans": traces, "log records": logs} {
		if what == "spans" || a.logs != nil {
			a.log.Info().Uint64("sent", s.Sent).Uint64("rejected", s.Rejected).Uint64("dropped", s.Dropped).
				Uint64("unsampled", s.Unsampled).Uint64("broken", s.Broken).Uint64("failures", s.Failures).Msg(what)
		}
	}
}

// stats is what became of all traces, and of all lines of the log.
func (a *agent) stats() (traces, logs ship.Stats) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.spools {
		traces = traces.Plus(s.Stats())
	}
	for _, l := range a.files {
		logs = logs.Plus(l.Stats())
	}
	return traces, logs
}
