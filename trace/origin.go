package trace

import (
	"time"

	api "go.opentelemetry.io/otel/trace"

	"github.com/tracewire/tracewire/proc"
)

// Annotations of a pod that name its parent span, for runtimes that put nothing
// into a plugin's environment.
const (
	AnnotationParent = "traceparent"
	AnnotationState  = "tracestate"
)

// Origin is the span that an operation comes from.
type Origin struct {
	Parent api.SpanContext // the zero one where a trace begins
	Stale  api.SpanContext // what a daemon left in the environment: linked to, no parent
}

// From reads the environment, and the pod's annotations where that names no
// parent. leftover tells that a value of TRACEPARENT is not of this call.
func From(getenv, annotation func(string) string, leftover func(traceparent string) bool) (o Origin) {
	o.Parent = Parent(getenv)
	if o.Parent.IsValid() && leftover(getenv(EnvParent)) {
		o.Parent, o.Stale = api.SpanContext{}, o.Parent
	}
	if !o.Parent.IsValid() {
		o.Parent = Parent(func(k string) string {
			return annotation(map[string]string{EnvParent: AnnotationParent, EnvState: AnnotationState}[k])
		})
	}
	return o
}

// stale is how long a process that has a TRACEPARENT itself may have run, for the
// value to be of this call: a command lives for one, a daemon does not.
const stale = proc.Ticks(60 * time.Second / proc.Tick)

// Leftover tells that a process has had this TRACEPARENT in its own environment
// since it started, and is no command that was run for this call. Of a process
// that cannot be read nothing is known.
func Leftover(pid int, traceparent string) bool {
	if proc.Environ(pid)[EnvParent] != traceparent {
		return false
	}
	return old(proc.Of(pid), proc.Now())
}

func old(p proc.Process, now proc.Ticks) bool { return now-p.Began > stale }
