package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/trace/ship"
)

// agent is all that runs on a node.
type agent struct {
	flags  flags
	boot   string
	log    zerolog.Logger
	getenv func(string) string
	traces ship.Traces

	// line is handed every line of a spool once, whether it could be sent or not;
	// nil where nobody is interested. Calls come one at a time.
	line func(line []byte)
	// beside runs beside the shipping until ctx ends; nil where nothing does.
	beside func(ctx context.Context) error

	mu     sync.Mutex
	spools map[string]*ship.Spool
}

// agent is the agent that the command line and the environment describe.
func (c *command) agent(ctx context.Context) (*agent, error) {
	traces, err := ship.NewTraces(ctx, c.getenv)
	if err != nil {
		return nil, err
	}
	return &agent{
		flags: c.flags, boot: c.boot, log: c.log, getenv: c.getenv, traces: traces, spools: map[string]*ship.Spool{},
	}, nil
}

// networks is every tracewire entry of this node's lists, and one with the
// defaults.
func (a *agent) networks() ([]conflist.Network, error) {
	entries, err := a.entries()
	nets := []conflist.Network{conflist.Parse(conflist.Read([]byte("{}")))}
	for _, e := range entries {
		nets = append(nets, e.Network)
	}
	return nets, err
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
	if dir := a.getenv("NETCONFPATH"); dir != "" {
		return dir
	}
	return conflist.DefaultFolder
}

// budgets is the spools to follow and their budgets in bytes.
func (a *agent) budgets() (map[string]int64, error) {
	out := map[string]int64{}
	nets, err := a.networks()
	for _, n := range nets {
		dir := n.Tracewire.SpoolDir
		if len(a.flags.spools) == 0 || slices.Contains(a.flags.spools, dir) {
			out[dir] = max(out[dir], n.Tracewire.SpoolBytes)
		}
	}
	for _, dir := range a.flags.spools {
		out[dir] = max(out[dir], 0)
	}
	return out, err
}

// look is the spools that were not followed before.
func (a *agent) look() (found []*ship.Spool, err error) {
	budgets, err := a.budgets()
	a.mu.Lock()
	defer a.mu.Unlock()
	for dir, budget := range budgets {
		if a.spools[dir] != nil {
			continue
		}
		s := ship.NewSpool(dir, a.traces)
		s.MaxBytes, s.State, s.Each = budget, a.flags.state, a.line
		s.Log = a.log.With().Str("spool", dir).Logger()
		s.Policy = ship.Policy{Parent: a.flags.policy == "parent", Slow: a.flags.slow}
		a.spools[dir] = s
		found = append(found, s)
	}
	return found, err
}

// rescan is how often is looked for places that new lists name.
const rescan = time.Minute

// run follows everything until ctx ends.
func (a *agent) run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	if a.beside != nil {
		all.Go(func() { _ = a.beside(ctx) })
	}
	for {
		found, err := a.look()
		if err != nil {
			a.log.Warn().Err(err).Msg("lists cannot be read")
		}
		for _, s := range found {
			all.Go(func() { s.Run(ctx) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(rescan):
		}
	}
}

// once sends all that is there. The error tells what is left.
func (a *agent) once(ctx context.Context) error {
	found, err := a.look()
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range found {
		s.Once = true
		errs = append(errs, sendOnce(ctx, s))
	}
	return errors.Join(errs...)
}

func sendOnce(ctx context.Context, s *ship.Spool) error {
	err := s.Open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was ever written there
	}
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Drain(ctx); err != nil {
		bytes, segments := s.Left()
		return fmt.Errorf("%w: %s: %d bytes in %d segments are left: %w", errLeft, s.Dir, bytes, segments, err)
	}
	return nil
}

// stats is what became of all traces.
func (a *agent) stats() (traces ship.Stats) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.spools {
		traces = traces.Plus(s.Stats())
	}
	return traces
}
