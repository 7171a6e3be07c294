package trace

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	api "go.opentelemetry.io/otel/trace"
)

// Key is the name of an attribute.
type Key = attribute.Key

// KeyValue is an attribute.
type KeyValue = attribute.KeyValue

// Root is the span of a whole operation, the one all others hang from.
type Root struct{ s *span }

// Begin starts the operation's root span: a child of the remote span that it
// comes from, or the first of a new trace.
func (r *Recorder) Begin(name string, at time.Time, from Origin) (context.Context, Root) {
	ctx := context.Background()
	if from.Parent.IsValid() {
		ctx = api.ContextWithRemoteSpanContext(ctx, from.Parent)
	}
	ctx, s := tracer{r: r}.start(ctx, name, api.WithTimestamp(at), api.WithLinks(api.Link{SpanContext: from.Stale}))
	return ctx, Root{s}
}

// Set adds attributes.
func (r Root) Set(kv ...attribute.KeyValue) { r.s.SetAttributes(kv...) }

// Fail marks the operation as failed.
func (r Root) Fail(message string) { r.s.SetStatus(codes.Error, message) }

// FailMildly marks the operation as failed where nothing that was asked for was
// left undone: a line of level warn in the log, not error.
func (r Root) FailMildly(message string) {
	r.Fail(message)
	r.s.change(func() { r.s.mild = true })
}

// End ends the operation.
func (r Root) End() { r.s.End() }

// Traceparent names the span to others (W3C Trace Context, 3.2).
func (r Root) Traceparent() string { return Format(r.s.context) }

// Parent names the remote span that is the operation's parent, "" for none.
func (r Root) Parent() string { return Format(r.s.parent) }

// TraceID is the trace's, 32 hex digits.
func (r Root) TraceID() string { return r.s.context.TraceID().String() }

// Environment is what a child process finds its parent span by: one of each
// variable, empty where there is nothing to tell.
func Environment(ctx context.Context) map[string]string {
	c := api.SpanContextFromContext(ctx)
	return map[string]string{EnvParent: Format(c), EnvState: c.TraceState().String()}
}
