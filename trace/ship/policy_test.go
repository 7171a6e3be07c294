package ship

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/trace"
)

// policyLine is an operation's line: in the trace of a digit, sampled or not.
func policyLine(t *testing.T, name, digit string, sampled, failed bool, took time.Duration) string {
	t.Helper()
	began := time.Now()
	flags := map[bool]string{true: "01", false: "00"}[sampled]
	parent := "00-" + strings.Repeat(digit, 32) + "-" + strings.Repeat(digit, 16) + "-" + flags
	r := trace.NewRecorder(began.Add(-took))
	_, root := r.Begin(name, began.Add(-took), trace.Origin{Parent: trace.ParseContext(parent)})
	if failed {
		root.Fail("broken")
	}
	root.End()
	return string(r.OTLP(nil))
}

func TestPolicy(t *testing.T) {
	const short, long = time.Millisecond, 2 * time.Second
	lines := []struct {
		name            string
		digit           string
		sampled, failed bool
		took            time.Duration
	}{
		{"sampled", "1", true, false, short},
		{"not sampled", "2", false, false, short},
		{"failed", "3", false, true, short},
		{"slow", "4", false, false, long},
		{"of the trace that failed", "3", false, false, short},
		{"before one of its trace that fails", "5", false, false, short},
		{"fails", "5", false, true, short},
		{"of the trace that was sampled, itself not", "1", false, false, short},
	}
	later := []string{policyLine(t, "later, of the trace that failed", "3", false, false, short), policyLine(t, "later, of none", "2", false, false, short)}
	text := ""
	for _, l := range lines {
		text += policyLine(t, l.name, l.digit, l.sampled, l.failed, l.took)
	}
	for _, tt := range []struct {
		name      string
		policy    Policy
		want      []string
		unsampled uint64
	}{
		{"all", Policy{Slow: time.Second}, []string{"sampled", "not sampled", "failed", "slow", "of the trace that failed", "before one of its trace that fails", "fails",
			"of the trace that was sampled, itself not", "later, of the trace that failed", "later, of none"}, 0},
		{"parent", Policy{Parent: true, Slow: time.Second}, []string{"sampled", "failed", "slow", "of the trace that failed", "before one of its trace that fails", "fails",
			"later, of the trace that failed"}, 1},
		{"parent, nothing is slow", Policy{Parent: true}, []string{"sampled", "failed", "of the trace that failed", "before one of its trace that fails", "fails",
			"later, of the trace that failed"}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &collector{}
			served(t, protocolHTTP, c)
			dir := spool(t, map[string]string{"20260101T0000Z": text})
			for i, more := range append([]string{""}, later...) {
				if err := add(dir+"/20260101T0000Z.jsonl", more); err != nil {
					t.Fatal(err)
				}
				s := NewSpool(dir, nil)
				s.Policy = tt.policy
				if s.Traces, _ = NewTraces(t.Context(), os.Getenv); s.Open() != nil {
					t.Fatal("not opened")
				}
				if err := Drain(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				if i == len(later) && s.Stats().Unsampled != tt.unsampled {
					t.Errorf("%d spans stay here", s.Stats().Unsampled)
				}
				s.Close()
			}
			if diff := cmp.Diff(tt.want, c.names()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
