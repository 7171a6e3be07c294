package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

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
	known  map[string]bool // ids that were told of; nil before the first
	ended  time.Time       // of the last that could look at everything; zero before
	looked bool            // one ended, however
	unread int             // sources that the last could not look at

	said string // of that, last
	kept []byte // toldFile, as it is
}

var (
	descFindings = prometheus.NewDesc("tracewire_audit_findings", "What the last audit found, by kind, without what CHECK would find; absent before the first and without audits.", []string{"kind", "severity"}, nil)
	descUnread   = prometheus.NewDesc("tracewire_audit_unread", "Sources that the last audit could not look at, a runtime that did not answer too; absent before the first.", nil, nil)
	descAudited  = prometheus.NewDesc("tracewire_audit_timestamp_seconds", "When the last audit ended that could look at everything; 0 for none.", nil, nil)
)

// Describe implements prometheus.Collector.
func (a *audits) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descFindings, descUnread, descAudited} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (a *audits) Collect(ch chan<- prometheus.Metric) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.looked {
		gauge(ch, descUnread, float64(a.unread))
	}
	if a.counts == nil {
		return // none ended yet: nothing is known
	}
	for _, k := range audit.Kinds {
		if k.Kind == audit.Drift {
			continue // no CHECK is run here
		}
		gauge(ch, descFindings, float64(a.counts[k.Kind]), string(k.Kind), string(k.Severity))
	}
	at := 0.0
	if !a.ended.IsZero() {
		at = float64(a.ended.UnixMilli()) / 1000
	}
	gauge(ch, descAudited, at)
}

// audit looks again and again until ctx ends. The interval is between the end of
// one and the next: one that takes longer keeps nobody waiting.
func (a *agent) audit(ctx context.Context) {
	for a.flags.audit.interval > 0 {
		if err := a.auditOnce(ctx); ctx.Err() == nil {
			a.sayUnread(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(a.flags.audit.interval):
		}
	}
}

// sayUnread says what an audit could not look at: once, until that changes.
func (a *agent) sayUnread(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != a.audits.said {
		a.log.Warn().Err(err).Msg("audit could not look at everything")
	}
	a.audits.said = text
}

// toldAtOnce bounds how many new findings of one audit have a line each.
const toldAtOnce = 100

// auditOnce looks once, and tells of what it has not found before.
func (a *agent) auditOnce(ctx context.Context) error {
	n, err := a.node(ctx)
	if err != nil {
		a.audits.missed()
		return err
	}
	if a.audits.known == nil {
		a.audits.known = a.recall()
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
	a.audits.take(counts, known, len(errs))
	return errors.Join(append(errs, a.remember())...)
}

// missed takes down that nothing could be looked at.
func (a *audits) missed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.looked, a.unread = true, 1
}

// take takes over what an audit found. Where it could not look at everything, what
// was found before may still be there: it is counted, and not told of again.
func (a *audits) take(counts map[audit.Kind]int, known map[string]bool, unread int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if unread == 0 {
		a.ended = time.Now()
	} else {
		maps.Copy(known, a.known)
		for kind, n := range a.counts {
			counts[kind] = max(counts[kind], n)
		}
	}
	a.counts, a.known, a.looked, a.unread = counts, known, true, unread
}

// toldFile is what was told of, below --state: an agent that starts again does not
// tell of it again.
const toldFile = "agent-audit.json"

// maxTold bounds what is read of it in bytes: a finding takes some 20.
const maxTold = 16 << 20

// recall is what an agent before told of. Without a folder for it, or where it
// cannot be read, that is nothing.
func (a *agent) recall() map[string]bool {
	known := map[string]bool{}
	if a.flags.state == "" {
		return known
	}
	f, err := os.OpenFile(filepath.Join(a.flags.state, toldFile), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return known
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxTold))
	var ids []string
	if err != nil || json.Unmarshal(b, &ids) != nil {
		return known
	}
	a.audits.kept = b
	for _, id := range ids {
		known[id] = true
	}
	return known
}

// remember keeps what was told of, where that changed.
func (a *agent) remember() error {
	b, err := json.Marshal(slices.Sorted(maps.Keys(a.audits.known)))
	if err != nil || a.flags.state == "" || bytes.Equal(b, a.audits.kept) {
		return err
	}
	path := filepath.Join(a.flags.state, toldFile)
	aside := path + ".new"
	_ = os.Remove(aside) // whatever it is
	if err = os.WriteFile(aside, b, 0o600); err == nil {
		err = os.Rename(aside, path)
	}
	if err == nil {
		a.audits.kept = b
	}
	return err
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
		n.Sandboxes = append(n.Sandboxes, r.Sandboxes...)
	}
	if len(a.flags.audit.sockets) > 0 && n.Sandboxes == nil {
		n.Sandboxes = []audit.Sandbox{} // it has none, and was asked
	}
	return n, nil
}
