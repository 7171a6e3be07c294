package trace

import (
	"bytes"
	"errors"
	"io/fs"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"golang.org/x/sys/unix"
)

// Log is the file of JSON lines that tells each operation's history.
type Log struct {
	Path  string
	Level string // debug, info, warn, error or off
	// Closed is why nothing may be written there; nil where it may.
	Closed error
}

// Write appends the recorder's operation, in one write: a line a phase at
// debug, a line a warning, a line an attachment that was ended beside its own, and
// one summary with the root span's attributes.
func (l Log) Write(r *Recorder) error {
	level, err := zerolog.ParseLevel(l.Level)
	if l.Level == "off" || err != nil {
		return nil
	}
	var b bytes.Buffer
	log := zerolog.New(&b).Level(level)
	r.log(&log)
	if b.Len() == 0 {
		return nil
	}
	if l.Closed != nil {
		return l.Closed
	}
	for range 3 {
		if err = l.append(b.Bytes()); !errors.Is(err, errUnlinked) {
			return err
		}
	}
	return &fs.PathError{Op: "append", Path: l.Path, Err: err}
}

// maxLog is when a log that nobody rotates is renamed to path.1, in bytes: it
// never has more than twice that.
const maxLog = 64 << 20

// append writes to the file of that name, whichever it is by now. A line in one
// that lost its name would be read by nobody.
func (l Log) append(b []byte) error {
	f, err := openAppend(l.Path, 0o755)
	if err != nil {
		return err
	}
	defer unix.Close(f.fd)
	if f.Size > maxLog {
		l.rotate(f)
	}
	if err := writeLine(f.fd, l.Path, b); err != nil {
		return err
	}
	return named(f.fd)
}

// rotate renames the log, unless somebody else does. The lines in hand still go
// where it was opened. The path.1 that was there is lost, as the oldest segment of
// a full spool is, and counts as that does.
func (l Log) rotate(f opened) {
	var now, old unix.Stat_t
	if unix.Flock(f.fd, unix.LOCK_EX|unix.LOCK_NB) != nil || unix.Lstat(l.Path, &now) != nil || now.Ino != f.Ino || now.Dev != f.Dev {
		return
	}
	lost := unix.Lstat(l.Path+".1", &old) == nil
	if unix.Rename(l.Path, l.Path+".1") == nil && lost { // else the next one tries again
		Count(DroppedPath)
	}
}

func (r *Recorder) log(log *zerolog.Logger) {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, s := range r.spans {
		for _, e := range s.events {
			if e.warn {
				fields(s.line(log.Warn(), e.at), e.attrs).Msg(e.name)
			}
		}
		for _, n := range s.notes {
			fields(s.line(log.Info(), n.at), n.attrs).Msg(n.name)
		}
		if i > 0 {
			s.outcome(s.line(log.Debug(), s.start), now).Msg(s.name)
		}
	}
	if len(r.spans) == 0 {
		return
	}
	root := r.spans[0]
	e := log.Info()
	switch {
	case root.code == codes.Error && root.mild:
		e = log.Warn()
	case root.code == codes.Error:
		e = log.Error()
	}
	root.outcome(fields(root.line(e, root.start), root.attrs), now).Msg(root.name)
}

// line begins a line of the log that belongs to the span.
func (s *span) line(e *zerolog.Event, at time.Time) *zerolog.Event {
	return e.Str("time", at.UTC().Format(time.RFC3339Nano)).
		Str("trace_id", s.context.TraceID().String()).Str("span_id", s.context.SpanID().String())
}

func (s *span) outcome(e *zerolog.Event, now time.Time) *zerolog.Event {
	end := s.end
	if end.IsZero() {
		end = now
	}
	e = e.Float64("duration_ms", Milliseconds(end.Sub(s.start)))
	if s.code == codes.Error {
		return e.Str("outcome", "error").Str("error", bound(s.message))
	}
	return e.Str("outcome", "ok")
}

func fields(e *zerolog.Event, kv []attribute.KeyValue) *zerolog.Event {
	for _, a := range kv {
		switch a.Value.Type() {
		case attribute.STRING:
			e = e.Str(string(a.Key), bound(a.Value.AsString()))
		case attribute.STRINGSLICE:
			e = e.Strs(string(a.Key), a.Value.AsStringSlice())
		case attribute.INT64:
			e = e.Int64(string(a.Key), a.Value.AsInt64())
		case attribute.BOOL:
			e = e.Bool(string(a.Key), a.Value.AsBool())
		default:
			e = e.Interface(string(a.Key), a.Value.AsInterface())
		}
	}
	return e
}

func bound(s string) string {
	if len(s) > maxValue {
		return s[:maxValue]
	}
	return s
}
