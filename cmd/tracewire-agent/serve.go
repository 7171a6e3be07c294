package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/tracewire/tracewire/trace/ship"
)

// patience bounds what a scraper may take for its request, and the end of the
// last answer.
const patience = 5 * time.Second

// serve has the agent count what it reads, and answer at --listen until it ends.
// The address is taken before anything is shipped: one that is taken already is
// an error of the command line.
func (a *agent) serve(ctx context.Context) error {
	if a.flags.listen == "" {
		return nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", a.flags.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	counts := newOperations()
	a.line = counts.read
	server := &http.Server{Handler: pages(a.registry(counts), a.troubles), ReadHeaderTimeout: patience, ReadTimeout: patience, IdleTimeout: time.Minute}
	a.beside = func(ctx context.Context) error {
		context.AfterFunc(ctx, func() { end(server) })
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("metrics and health at %s: %w", a.flags.listen, err)
		}
		return nil
	}
	return nil
}

// end lets the answers that began end.
func end(s *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if s.Shutdown(ctx) != nil {
		_ = s.Close()
	}
}

// registry has all metrics of the agent.
func (a *agent) registry(counts *operations) *prometheus.Registry {
	r := prometheus.NewRegistry()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tracewire_agent_build_info", Help: "Version of the agent.", ConstLabels: prometheus.Labels{"version": version},
	})
	info.Set(1)
	r.MustRegister(counts, exports{a.signals}, node{lists: a.entries, spools: a.flags.spools}, &a.audits, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// signals is what became of each signal of OpenTelemetry.
func (a *agent) signals() map[string]ship.Stats {
	traces, logs := a.stats()
	out := map[string]ship.Stats{"traces": traces}
	if a.logs != nil {
		out["logs"] = logs
	}
	return out
}

// troubles is why what the plugin writes does not arrive.
func (a *agent) troubles() (out []string) {
	for signal, s := range a.signals() {
		if !s.Since.IsZero() {
			out = append(out, fmt.Sprintf("%s: nothing gets through since %s: %s", signal, s.Since.UTC().Format(time.RFC3339), s.LastError))
		}
		if s.Unsaved != "" {
			out = append(out, signal+": "+s.Unsaved)
		}
	}
	return out
}

// exports is how the shipping goes.
type exports struct {
	signals func() map[string]ship.Stats
}

var (
	descItems = prometheus.NewDesc("tracewire_export_items_total",
		"Spans and log records by what became of them: sent; rejected of a request that was taken; dropped with one that was refused for good; unsampled, which stay here.",
		[]string{"signal", "result"}, nil)
	descFailures = prometheus.NewDesc("tracewire_export_failures_total", "Requests that have to be sent again.", []string{"signal"}, nil)
	descBroken   = prometheus.NewDesc("tracewire_export_broken_lines_total", "Lines that cannot be read.", []string{"signal"}, nil)
	descLag      = prometheus.NewDesc("tracewire_export_lag_seconds", "Age of the oldest that waits to be sent.", []string{"signal"}, nil)
)

// Describe implements prometheus.Collector.
func (e exports) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descItems, descFailures, descBroken, descLag} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (e exports) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	for signal, s := range e.signals() {
		for result, n := range map[string]uint64{"sent": s.Sent, "rejected": s.Rejected, "dropped": s.Dropped, "unsampled": s.Unsampled} {
			count(descItems, n, signal, result)
		}
		count(descFailures, s.Failures, signal)
		count(descBroken, s.Broken, signal)
		gauge(ch, descLag, s.Lag(time.Now()).Seconds(), signal)
	}
}
