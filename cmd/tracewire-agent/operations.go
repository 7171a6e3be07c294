package main

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tracewire/tracewire/trace"
	"github.com/tracewire/tracewire/trace/read"
)

// buckets of the classic histograms, in seconds: a pod's network takes
// milliseconds, and a timeout 30 s.
var buckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// operations counts what the spool tells of operations and their phases. Labels
// are names of networks and phases, and never of attachments or pods.
type operations struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	phases   *prometheus.HistogramVec
	networks *names
	phase    *names
}

// Bounds on label values, for what nobody expects.
const (
	maxNetworks = 64
	maxPhases   = 128
)

func newOperations() *operations {
	return &operations{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tracewire_operations_total",
			Help: "CNI operations by their outcome: ok, error or interrupted; code is the CNI error code, 0 for none.",
		}, []string{"verb", "network", "outcome", "code"}),
		duration: histogram("tracewire_operation_duration_seconds", "How long CNI operations took.", "verb", "network"),
		phases:   histogram("tracewire_phase_duration_seconds", "How long the phases of CNI operations took.", "verb", "phase"),
		networks: newNames(maxNetworks),
		phase:    newNames(maxPhases),
	}
}

// histogram has classic buckets for every scraper, and native ones where they
// are asked for.
func histogram(name, help string, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
	}, labels)
}

// Describe implements prometheus.Collector.
func (o *operations) Describe(ch chan<- *prometheus.Desc) {
	o.each(func(c prometheus.Collector) { c.Describe(ch) })
}

// Collect implements prometheus.Collector.
func (o *operations) Collect(ch chan<- prometheus.Metric) {
	o.each(func(c prometheus.Collector) { c.Collect(ch) })
}

func (o *operations) each(do func(prometheus.Collector)) {
	do(o.total)
	do(o.duration)
	do(o.phases)
}

// observe counts one operation.
func (o *operations) observe(op read.Operation) {
	root := op.Root
	verb, ok := strings.CutPrefix(root.Name, "cni.")
	if !ok {
		verb = root.Name
	}
	verb, network := o.phase.bound(verb), o.networks.bound(root.Attributes.Text(trace.KeyName))
	o.total.WithLabelValues(verb, network, outcome(root.Span), strconv.FormatInt(root.Attributes.Int(trace.KeyErrorCode), 10)).Inc()
	took(o.duration.WithLabelValues(verb, network), root.Span)
	root.Walk(func(depth int, n read.Node) {
		if depth > 0 {
			took(o.phases.WithLabelValues(verb, o.phase.bound(n.Name)), n.Span)
		}
	})
}

// outcome is how an operation ended.
func outcome(s read.Span) string {
	switch {
	case !s.Failed:
		return "ok"
	case s.Message == trace.Interrupted:
		return "interrupted"
	}
	return "error"
}

// took adds a span's duration, and its trace as an example of it.
func took(h prometheus.Observer, s read.Span) {
	seconds := max(s.Duration(), 0).Seconds() // a clock that is set back
	if e, ok := h.(prometheus.ExemplarObserver); ok {
		e.ObserveWithExemplar(seconds, prometheus.Labels{"trace_id": s.TraceID})
		return
	}
	h.Observe(seconds)
}

// names bounds the values of a label: those beyond the first most are "other".
type names struct {
	mu   sync.Mutex
	most int
	seen map[string]bool
}

func newNames(most int) *names { return &names{most: most, seen: map[string]bool{}} }

func (n *names) bound(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.seen[name] && len(n.seen) >= n.most {
		return "other"
	}
	n.seen[name] = true
	return strings.ToValidUTF8(name, "\uFFFD")
}
