package trace

import (
	"bytes"
	"os"
	"strconv"
	"time"

	api "go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"
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

// staleAge is how long a process that has a TRACEPARENT itself may have run, for
// the value to be of this call: a command lives for one, a daemon does not.
const staleAge = 60 * time.Second

// Leftover tells that a process has had this TRACEPARENT in its own environment
// since it started, and is no command that was run for this call. Of a process
// that cannot be read nothing is known.
func Leftover(pid int, traceparent string) bool {
	proc := "/proc/" + strconv.Itoa(pid)
	environ, err := os.ReadFile(proc + "/environ")
	line := []byte("\x00" + EnvParent + "=" + traceparent + "\x00")
	if err != nil || !bytes.Contains(append([]byte{0}, environ...), line) {
		return false
	}
	stat, err := os.ReadFile(proc + "/stat")
	return err == nil && age(stat) > staleAge
}

// age is how long a process has run, by its line in /proc/PID/stat (proc(5):
// field 22, in hundredths of a second since boot). It is 0 where that cannot be
// read.
func age(stat []byte) time.Duration {
	const startTime = 22 - 3 // behind the name, which may hold blanks and brackets
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= startTime {
		return 0
	}
	ticks, err := strconv.ParseInt(string(fields[startTime]), 10, 64)
	var now unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return 0
	}
	return time.Duration(now.Nano()) - time.Duration(ticks)*(time.Second/100)
}
