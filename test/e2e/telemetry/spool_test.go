//go:build linux

package telemetry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// spoolDir is the spool's default place.
const spoolDir = "/var/lib/cni/tracewire/spool"

// follower is a Collector that follows the spool's segments as they are written,
// by the reader of files that its receivers of files share, and writes down what
// it read.
const follower = `
extensions: {health_check: {endpoint: %q}}
receivers: {file_log: {include: [%q], start_at: beginning}}
exporters: {file: {path: %q}}
service:
  extensions: [health_check]
  pipelines: {logs: {receivers: [file_log], exporters: [file]}}
  telemetry: {metrics: {level: none}}
`

func (s *stage) followed() string { return filepath.Join(s.dir, "followed.json") }

// followSpool starts the follower.
func (s *stage) followSpool(t *testing.T) {
	t.Helper()
	const health = "127.0.0.1:13134"
	conf := filepath.Join(s.dir, "follower.yaml")
	text := fmt.Sprintf(follower, health, spoolDir+"/*.jsonl", s.followed())
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.follower = s.start(t, answers("http://"+health), nil, built("collector"), "--config", conf)
}

// spoolFollowed compares what the follower read with the segments: each line
// once, as it is.
func (s *stage) spoolFollowed(t *testing.T) {
	paths, err := filepath.Glob(spoolDir + "/*.jsonl")
	if err != nil || len(paths) == 0 {
		t.Fatalf("segments: %q, %v", paths, err)
	}
	lines := map[string]int{}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			lines[strings.TrimSuffix(line, "\n")] = 0
		}
	}
	sum := tally{}
	within(t, "a Collector that follows the spool", func() error {
		got, err := s.bodies()
		sum = tally{}
		for line := range lines {
			lines[line] = 0
		}
		for _, line := range got {
			if _, known := lines[line]; !known {
				err = errors.Join(err, fmt.Errorf("a line that is not in the spool: %.200s", line))
			}
			lines[line]++
		}
		for _, n := range lines {
			sum.add(n)
		}
		return errors.Join(err, sum.ok())
	})
	s.rows = append(s.rows, row{"Collector", "the spool's files", sum})
}

// bodies is the lines that the follower has written down.
func (s *stage) bodies() (all []string, err error) {
	f, err := os.Open(s.followed())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for d := json.NewDecoder(f); ; {
		var batch struct {
			ResourceLogs []struct {
				ScopeLogs []struct {
					LogRecords []struct{ Body struct{ StringValue string } }
				}
			}
		}
		err := d.Decode(&batch)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		for _, r := range batch.ResourceLogs {
			for _, scope := range r.ScopeLogs {
				for _, record := range scope.LogRecords {
					all = append(all, record.Body.StringValue)
				}
			}
		}
	}
}
