package trace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	api "go.opentelemetry.io/otel/trace"

	"github.com/tracewire/tracewire/trace/point"
)

// Row is one named piece of work. The name is the span's, the log's and the
// journal's word for it.
type Row struct {
	Name string
	Do   func(context.Context) error
}

// Watcher is told as rows begin and end. The span is the row's id, 16 hex digits,
// by which a delegate's own spans know it; empty where it has none.
type Watcher interface {
	Begin(row, span string) error
	End(row string) error
}

// unwatched is told nothing.
type unwatched struct{}

func (unwatched) Begin(_, _ string) error { return nil }
func (unwatched) End(string) error        { return nil }

// Rows runs each row in a span of its own, in order, until one fails or ctx
// ends. A nil w is told nothing.
func Rows(ctx context.Context, w Watcher, rows ...Row) error {
	for _, r := range rows {
		if err := one(ctx, w, r); err != nil {
			return fmt.Errorf("%s: %w", r.Name, err)
		}
	}
	return nil
}

// All runs each row in a span of its own, past failures, and joins what they met.
func All(ctx context.Context, w Watcher, rows ...Row) error {
	errs := make([]error, len(rows))
	for i, r := range rows {
		errs[i] = Rows(ctx, w, r)
	}
	return errors.Join(errs...)
}

func one(ctx context.Context, w Watcher, r Row) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if w == nil {
		w = unwatched{}
	}
	return run(ctx, w, r)
}

// Run runs do in a child of the span in ctx. Without one it just runs do.
func Run(ctx context.Context, name string, do func(context.Context) error) error {
	return run(ctx, unwatched{}, Row{name, do})
}

func run(ctx context.Context, w Watcher, r Row) error {
	parent := api.SpanFromContext(ctx)
	ctx, child := parent.TracerProvider().Tracer(Scope).Start(ctx, r.Name)
	defer child.End()
	id := ""
	s, ours := child.(*span)
	if ours {
		id = s.context.SpanID().String()
	}
	defer func() {
		if p := recover(); p != nil {
			if ours {
				s.fail(fmt.Errorf("panic: %v", p))
			}
			panic(p) // the chain's to catch
		}
	}()
	err := w.Begin(r.Name, id)
	if err == nil {
		point.Pass(point.Before, r.Name)
		err = r.Do(ctx)
		point.Pass(point.After, r.Name)
	}
	if err == nil {
		err = w.End(r.Name)
	}
	if ours && err != nil {
		s.fail(err)
	}
	return err
}

// Quiet is a context whose work has no spans.
func Quiet(ctx context.Context) context.Context {
	return api.ContextWithSpan(ctx, api.SpanFromContext(context.Background()))
}

// Span is a span that work adds to.
type Span struct{ s api.Span }

// SpanOf is the span in ctx; one that keeps nothing where there is none.
func SpanOf(ctx context.Context) Span { return Span{api.SpanFromContext(ctx)} }

// Set adds attributes.
func (s Span) Set(kv ...attribute.KeyValue) { s.s.SetAttributes(kv...) }

// Event adds an event.
func (s Span) Event(name string, kv ...attribute.KeyValue) {
	s.s.AddEvent(name, api.WithAttributes(kv...))
}

// Set adds attributes to the span in ctx.
func Set(ctx context.Context, kv ...attribute.KeyValue) { SpanOf(ctx).Set(kv...) }

// Given is the attributes of texts that are not empty.
func Given(kv ...attribute.KeyValue) []attribute.KeyValue {
	return slices.DeleteFunc(kv, func(a attribute.KeyValue) bool { return a.Value.AsString() == "" })
}

// Milliseconds is a duration as attributes and log lines have it, to a microsecond.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Warn adds an event to the span in ctx, and a line of level warn to the log.
func Warn(ctx context.Context, what string, kv ...attribute.KeyValue) {
	s, ok := api.SpanFromContext(ctx).(*span)
	if !ok {
		return
	}
	s.addEvent(what, true, api.WithAttributes(kv...))
}

// Gone is the message of a line of the log that tells of an attachment which ended
// without a DEL.
const Gone = "attachment.gone"

// How an attachment ended without one, as KeyCommand of its line has it.
const (
	ByGC      = "GC"
	ByReclaim = "RECLAIM" // an ADD took the address of an earlier boot's
)

// TellGone adds a line of level info to the log: who an address was taken from is
// not to be looked for in the trace alone, which has it as spans and events, and
// does not stay.
func TellGone(ctx context.Context, by string, kv ...attribute.KeyValue) {
	s, ok := api.SpanFromContext(ctx).(*span)
	if !ok {
		return
	}
	n := event{name: Gone, at: s.r.now(), attrs: append([]attribute.KeyValue{KeyCommand.String(by)}, kv...)}
	s.change(func() { s.notes = append(s.notes, n) })
}

// Link adds a link from the span in ctx to another operation's span.
func Link(ctx context.Context, to api.SpanContext) {
	api.SpanFromContext(ctx).AddLink(api.Link{SpanContext: to})
}
