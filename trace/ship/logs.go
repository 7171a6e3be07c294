package ship

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"
	api "go.opentelemetry.io/otel/trace"

	"github.com/tracewire/tracewire/trace"
	"github.com/tracewire/tracewire/trace/read"
)

// maxRecords bounds the lines that are sent at once, in bytes: a record takes
// several times its line's.
const maxRecords = 256 << 10

// Log ships a log, also when it is rotated, as read.Tail reads it.
type Log struct {
	sending
	Path     string
	State    string // folder of the checkpoint; empty: beside the log
	Logs     Logs
	Resource []attribute.KeyValue

	tail    read.Tail
	place   checkpoint
	records records
}

// NewLog is a Log with no resource.
func NewLog(path string, to Logs) *Log { return &Log{Path: path, Logs: to} }

// Left says how much of the log was sent.
func (l *Log) Left() string {
	return fmt.Sprintf("%s: the lines behind byte %d are left", l.Path, l.tail.Place.Offset)
}

// Open takes the log for this agent. Its folder has to be there.
func (l *Log) Open() (err error) {
	if _, err := os.Stat(filepath.Dir(l.Path)); err != nil {
		return err
	}
	l.place, err = openCheckpoint(filepath.Dir(l.Path), l.State, "."+filepath.Base(l.Path)+".agent", l.Path)
	if err != nil {
		return err
	}
	l.tail = read.Tail{Path: l.Path}
	if err := l.place.load(&l.tail.Place); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.Log.Warn().Err(err).Msg("checkpoint cannot be read: all of the log is sent again")
	}
	l.records = newRecords(l.Resource)
	return nil
}

// Tidy does nothing: a log is removed by what rotates it.
func (l *Log) Tidy() error { return nil }

// Close lets go of the log.
func (l *Log) Close() { l.tail.Close(); l.place.close() }

// Ship sends the next lines. It returns false when there are none.
func (l *Log) Ship(ctx context.Context) (more bool, err error) {
	before := l.tail.Place
	chunk, torn, err := l.tail.Next(maxRecords)
	var records []sdklog.Record
	for line := range bytes.Lines(chunk) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		r, err := l.records.of(line)
		if err != nil {
			torn++
			l.Log.Warn().Err(err).Int("bytes", len(line)).Msg("line of the log cannot be read")
			continue
		}
		records = append(records, r)
	}
	l.pending = Stats{Broken: uint64(torn)}
	l.count(func(s *Stats) {
		s.Oldest = time.Time{}
		if len(records) > 0 {
			s.Oldest = records[0].Timestamp()
		}
	})
	if err != nil || len(chunk) == 0 {
		l.settled()
		return false, err
	}
	if err := l.send(ctx, records); err != nil {
		l.tail.Rewind(before)
		return true, err
	}
	l.settled()
	l.saved(l.place.save(l.tail.Place))
	return true, nil
}

// send sends records. What is refused is halved until it is known which it is for.
func (l *Log) send(ctx context.Context, records []sdklog.Record) error {
	n := len(records)
	if n == 0 {
		return nil
	}
	a, err := l.try(ctx, func(ctx context.Context) Answer { return l.Logs.Send(ctx, records) })
	if err != nil {
		return err
	}
	if a.Verdict != Refused || n == 1 {
		l.settle(a, n)
		return nil
	}
	if err := l.send(ctx, records[:n/2]); err != nil {
		return err
	}
	return l.send(ctx, records[n/2:])
}

// records makes SDK records of lines. Only a provider makes them: it is the
// processor that takes them out again.
type records struct {
	logger log.Logger
	last   *sdklog.Record
}

func newRecords(res []attribute.KeyValue) records {
	last := new(sdklog.Record)
	p := sdklog.NewLoggerProvider(sdklog.WithProcessor(taker{last}), sdklog.WithResource(resource.NewSchemaless(res...)),
		sdklog.WithAttributeCountLimit(-1), sdklog.WithAttributeValueLengthLimit(-1))
	return records{logger: p.Logger(trace.Scope), last: last}
}

// taker implements sdklog.Processor.
type taker struct{ last *sdklog.Record }

func (taker) Enabled(context.Context, sdklog.EnabledParameters) bool { return true }
func (t taker) OnEmit(_ context.Context, r *sdklog.Record) error     { *t.last = r.Clone(); return nil }
func (taker) Shutdown(context.Context) error                         { return nil }
func (taker) ForceFlush(context.Context) error                       { return nil }

// severities is what the plugin's levels are called.
var severities = map[string]log.Severity{
	"trace": log.SeverityTrace, "debug": log.SeverityDebug, "info": log.SeverityInfo,
	"warn": log.SeverityWarn, "error": log.SeverityError, "fatal": log.SeverityFatal, "panic": log.SeverityFatal4,
}

// of is the record of a line: its own keys are fields of a record, all others
// attributes. Sent again it is the same: it was observed when it was written.
func (r records) of(line []byte) (sdklog.Record, error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	var fields map[string]any
	if err := d.Decode(&fields); err != nil {
		return sdklog.Record{}, err
	}
	take := func(key string) string {
		text, _ := fields[key].(string)
		delete(fields, key)
		return text
	}
	var out log.Record
	level, message := take("level"), take("message")
	at, err := time.Parse(time.RFC3339Nano, take("time"))
	if err == nil {
		out.SetTimestamp(at)
		out.SetObservedTimestamp(at)
	}
	var c api.SpanContextConfig
	c.TraceID, _ = api.TraceIDFromHex(take("trace_id"))
	c.SpanID, _ = api.SpanIDFromHex(take("span_id"))
	out.SetSeverity(severities[level])
	out.SetSeverityText(strings.ToUpper(level))
	out.SetBody(attribute.StringValue(message))
	out.AddAttributes(attributes(fields)...)
	r.logger.Emit(api.ContextWithSpanContext(context.Background(), api.NewSpanContext(c)), out)
	return *r.last, err
}

// attributes is the fields of a line, by their names.
func attributes(fields map[string]any) (out []attribute.KeyValue) {
	for key, v := range fields {
		out = append(out, attribute.KeyValue{Key: attribute.Key(key), Value: value(v)})
	}
	slices.SortFunc(out, func(a, b attribute.KeyValue) int { return strings.Compare(string(a.Key), string(b.Key)) })
	return out
}

func value(v any) attribute.Value {
	switch v := v.(type) {
	case bool:
		return attribute.BoolValue(v)
	case string:
		return attribute.StringValue(v)
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return attribute.Int64Value(n)
		}
		f, _ := v.Float64()
		return attribute.Float64Value(f)
	case []any:
		list := make([]attribute.Value, len(v))
		for i, x := range v {
			list[i] = value(x)
		}
		return attribute.SliceValue(list...)
	case map[string]any:
		return attribute.MapValue(attributes(v)...)
	}
	return attribute.Value{}
}
