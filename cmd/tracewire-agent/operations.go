package main

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/tracewire/tracewire/trace"
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

// read counts the operations of one line of the spool. One that cannot be read
// is the shipping's to tell of.
func (o *operations) read(line []byte) {
	td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
	if err != nil {
		return
	}
	for _, rs := range td.ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			o.observe(ss.Spans())
		}
	}
}

// observe counts the operations among spans: those whose parent is elsewhere. A
// phase is its operation's, whose verb it has as a label.
func (o *operations) observe(spans ptrace.SpanSlice) {
	verbs := map[pcommon.SpanID]string{} // of spans that were seen: a parent stands before its children
	for _, s := range spans.All() {
		verb, below := verbs[s.ParentSpanID()]
		if !below {
			verb = o.operation(s)
		} else {
			took(o.phases.WithLabelValues(verb, o.phase.bound(s.Name())), s)
		}
		verbs[s.SpanID()] = verb
	}
}

// operation counts one operation, and returns its verb.
func (o *operations) operation(root ptrace.Span) string {
	verb, network := o.phase.bound(strings.TrimPrefix(root.Name(), "cni.")), o.networks.bound(text(root, trace.KeyName))
	code := int64(0)
	if v, ok := root.Attributes().Get(string(trace.KeyErrorCode)); ok {
		code = v.Int()
	}
	o.total.WithLabelValues(verb, network, outcome(root), strconv.FormatInt(code, 10)).Inc()
	took(o.duration.WithLabelValues(verb, network), root)
	return verb
}

func text(s ptrace.Span, k trace.Key) string {
	if v, ok := s.Attributes().Get(string(k)); ok {
		return v.Str()
	}
	return ""
}

// outcome is how an operation ended.
func outcome(s ptrace.Span) string {
	switch {
	case s.Status().Code() != ptrace.StatusCodeError:
		return "ok"
	case s.Status().Message() == trace.Interrupted:
		return "interrupted"
	}
	return "error"
}

// took adds a span's duration, and its trace as an example of it.
func took(h prometheus.Observer, s ptrace.Span) {
	nanos := max(int64(s.EndTimestamp())-int64(s.StartTimestamp()), 0) // a clock that is set back
	seconds := time.Duration(nanos).Seconds()
	if e, ok := h.(prometheus.ExemplarObserver); ok {
		e.ObserveWithExemplar(seconds, prometheus.Labels{"trace_id": s.TraceID().String()})
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
