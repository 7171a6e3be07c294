package read

import (
	"encoding/json"
	"io"
	"testing"

	"github.com/tracewire/tracewire/trace"
)

// FuzzSpoolLine reads any line as the spool's; what can be read can be drawn
// and printed.
func FuzzSpoolLine(f *testing.F) {
	r := trace.NewRecorder(begun)
	_, span := r.Tracer(trace.Scope).Start(f.Context(), "cni.ADD")
	span.AddEvent("warned")
	span.End()
	f.Add(r.OTLP(nil))
	f.Add([]byte(`{"resourceSpans":[{"scopeSpans":[{"spans":[{}]}]}]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		spans, err := decode(line)
		if err != nil {
			return
		}
		for _, o := range Operations(spans) {
			_ = Tree(o)
			if err := Waterfall(io.Discard, o, 100, true); err != nil {
				t.Error(err)
			}
			if _, err := json.Marshal(o); err != nil {
				t.Log(err) // a year that JSON's time has no place for
			}
		}
	})
}

// FuzzLogLine reads any line as the log's.
func FuzzLogLine(f *testing.F) {
	f.Add([]byte(`{"level":"info","time":"2026-03-01T14:05:00.123Z","trace_id":"aa","cni.command":"ADD","cni.addresses":["10.0.0.1/8"],"duration_ms":4.384,"outcome":"ok","message":"cni.ADD"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		e, ok, err := parseEntry(line)
		if ok && err != nil {
			t.Errorf("an entry and an error: %+v, %v", e, err)
		}
		_ = ShortAttachment(e) + PodName(e) + Human(e.Duration)
	})
}
