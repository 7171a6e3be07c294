package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/tracewire/tracewire/chain/audit"
	"github.com/tracewire/tracewire/chain/audit/cri"
	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/ipam"
)

// auditFlags is how often is looked for what is left over, and which runtimes are
// asked for it.
type auditFlags struct {
	interval time.Duration // 0 for never
	sockets  []string
}

// defaultInterval is between two audits: what is left over has time.
const defaultInterval = 5 * time.Minute

func (a *auditFlags) add(f *pflag.FlagSet) {
	f.DurationVar(&a.interval, "audit-interval", defaultInterval, "Looks for leaked addresses and what else is left over after each `DURATION`; 0: never")
	f.StringArrayVar(&a.sockets, "cri", nil, "Asks the container runtime at `SOCKET` for its pods, for the audit; may be given again")
}

// possible is an error for what cannot be meant.
func (a auditFlags) possible() error {
	if a.interval != 0 && a.interval < time.Second {
		return fmt.Errorf("--audit-interval is 0 or at least 1s, not %s", a.interval)
	}
	for _, s := range a.sockets {
		if _, err := cri.Path(s); err != nil {
			return fmt.Errorf("--cri %s: %w", s, err)
		}
	}
	return nil
}

// audits is what the last audit found.
type audits struct {
	mu     sync.Mutex
	counts map[audit.Kind]int
	known  map[string]bool // ids that were told of
	ended  time.Time       // of the last that could look at everything; zero before
}

var (
	descFindings = prometheus.NewDesc("tracewire_audit_findings", "What the last audit found, by kind; absent before the first and without audits.", []string{"kind", "severity"}, nil)
	descAudited  = prometheus.NewDesc("tracewire_audit_timestamp_seconds", "When the last audit ended that could look at everything; 0 for none.", nil, nil)
)

// Describe implements prometheus.Collector.
func (a *audits) Describe(ch chan<- *prometheus.Desc) { ch <- descFindings; ch <- descAudited }

// Collect implements prometheus.Collector.
func (a *audits) Collect(ch chan<- prometheus.Metric) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.counts == nil {
		return // none ended yet: nothing is known
	}
	for _, k := range audit.Kinds {
		gauge(ch, descFindings, float64(a.counts[k.Kind]), string(k.Kind), string(k.Severity))
	}
	at := 0.0
	if !a.ended.IsZero() {
		at = float64(a.ended.UnixMilli()) / 1000
	}
	gauge(ch, descAudited, at)
}

// audit looks at every interval until ctx ends.
func (a *agent) audit(ctx context.Context) {
	for a.flags.audit.interval > 0 {
		if err := a.auditOnce(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn().Err(err).Msg("audit could not look at everything")
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(a.flags.audit.interval):
		}
	}
}

// toldAtOnce bounds how many new findings of one audit have a line each.
const toldAtOnce = 100

// auditOnce looks once, and tells of what it has not found before.
func (a *agent) auditOnce(ctx context.Context) error {
	n, err := a.node(ctx)
	if err != nil {
		return err
	}
	counts, known, fresh := map[audit.Kind]int{}, map[string]bool{}, 0
	var errs []error
	_, err = n.Audit(ctx, audit.Told{
		Unread: func(u audit.Unread) { errs = append(errs, u) },
		Finding: func(f audit.Finding) {
			counts[f.Kind]++
			known[f.ID] = true
			if a.audits.known[f.ID] {
				return
			}
			fresh++
			if fresh <= toldAtOnce {
				a.tellOf(f)
			}
		},
	})
	if err != nil { // ctx ended: nothing is known
		return err
	}
	if fresh > toldAtOnce {
		a.log.Warn().Int("findings", fresh-toldAtOnce).Msg("more findings: tracewirectl audit shows them")
	}
	a.audits.take(counts, known, len(errs) == 0)
	return errors.Join(errs...)
}

// take takes over what an audit found. Where it could not look at everything, what
// was found before may still be there, and is not told of again.
func (a *audits) take(counts map[audit.Kind]int, known map[string]bool, all bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if all {
		a.ended = time.Now()
	} else {
		for id := range a.known {
			known[id] = true
		}
	}
	a.counts, a.known = counts, known
}

// tellOf writes a line on a finding.
func (a *agent) tellOf(f audit.Finding) {
	line := a.log.Warn().Str("id", f.ID).Str("kind", string(f.Kind)).Str("severity", string(f.Severity)).Str("about", f.About())
	if f.Network != "" {
		line = line.Str("network", f.Network)
	}
	says := make([]string, len(f.Evidence))
	for i, e := range f.Evidence {
		says[i] = string(e.Source) + ": " + e.Says
	}
	line.Strs("evidence", says).Msg("audit found something")
}

// node is where the audit looks, the runtimes asked. A runtime that does not
// answer is an error: without its pods much would seem to be left over.
func (a *agent) node(ctx context.Context) (n audit.Node, err error) {
	lists, _, err := conflist.Folder(a.confDir())
	nets, errNets := a.networks() // tells where a folder has to be there
	if errNets != nil {
		return n, errors.Join(err, errNets)
	}
	n = audit.Node{Boot: cache.BootID(), CacheDirs: cache.LibcniDirs(), DataDirs: []string{ipam.DefaultDataDir}, Conflists: lists}
	seen := map[string]bool{}
	for _, net := range nets {
		if dir := filepath.Clean(net.Tracewire.StateDir); !seen[dir] {
			seen[dir] = true
			n.StateDirs = append(n.StateDirs, dir)
		}
	}
	for _, socket := range a.flags.audit.sockets {
		r, err := cri.Ask(ctx, socket)
		if err != nil {
			return n, err
		}
		for _, s := range r.Sandboxes {
			n.Sandboxes = append(n.Sandboxes, audit.Sandbox{ID: s.ID, Ready: s.Ready, Created: s.Created})
		}
	}
	if len(a.flags.audit.sockets) > 0 && n.Sandboxes == nil {
		n.Sandboxes = []audit.Sandbox{} // it has none, and was asked
	}
	return n, nil
}
