//go:build linux

// Package telemetry follows what the plugin tells to where people look for it:
// a runtime's operations, failed and killed ones among them, through the agent
// and a stock Collector into Jaeger, and the log into VictoriaLogs and through
// rsyslog, each exactly once. The configurations are those of docs/pipelines,
// as they are. make e2e-telemetry builds all of that and runs it.
package telemetry

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/test/netns"
)

// Of the environment: the folder of Jaeger, Collector and VictoriaLogs; a file
// that the test runner prints at its end; that the default folders are nobody
// else's.
const (
	envPrograms = "TRACEWIRE_E2E"
	envTable    = "TRACEWIRE_TABLE"
	envSandbox  = "TRACEWIRE_SANDBOX"
)

// TestMain makes the process the plugin witness when it was started as one.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == witness {
		testify()
		return
	}
	os.Exit(m.Run())
}

// stage is the caller and all that listens.
type stage struct {
	*caller

	dir  string // of what programs say and keep
	kept string // the Collector's folder

	jaeger, victoria, collector, follower, rsyslog, agent, prometheus *program

	verdicts []*ask // of STATUS, those that are told
	rows     []row
}

// row is one of the summary.
type row struct {
	where, what string
	tally
}

// acts are the test, in their order. Each stands on what those before it left.
var acts = []struct {
	name string
	do   func(*stage, *testing.T)
}{
	{"operations", (*stage).operations},
	{"STATUS", (*stage).status},
	{"rename", (*stage).rename},
	{"copytruncate", (*stage).copytruncate},
	{"no Collector", (*stage).alone},
	{"Jaeger", (*stage).inJaeger},
	{"Prometheus", (*stage).inPrometheus},
	{"VictoriaLogs", (*stage).inVictoriaLogs},
	{"rsyslog", (*stage).inRsyslog},
	{"spool followed", (*stage).spoolFollowed},
	{"spool as it is", (*stage).spoolAsItIs},
	{"log as it is", (*stage).logAsItIs},
}

func TestTelemetry(t *testing.T) {
	if os.Getenv(envPrograms) == "" {
		t.Skip("runs by make e2e-telemetry")
	}
	if os.Getenv(envSandbox) == "" || os.Geteuid() != 0 {
		t.Skip("needs root: run make e2e-telemetry as root")
	}
	netns.Need(t, "curl", "logrotate", "prometheus", "rsyslogd")
	if err := unix.Mount("tmpfs", "/var/log", "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	s := &stage{dir: t.TempDir()}
	defer s.print(t)
	defer s.end(t)
	s.begin(t)
	for _, act := range acts {
		if !t.Run(act.name, func(t *testing.T) { s.t = t; act.do(s, t) }) {
			return
		}
	}
}

// begin starts all programs, and the caller.
func (s *stage) begin(t *testing.T) {
	t.Helper()
	s.caller, s.kept = newCaller(t), filepath.Join(s.dir, "collector")
	s.storeSpans(t)
	s.storeLines(t)
	s.collect(t, logPath)
	s.followSpool(t)
	s.follow(t)
	s.ship(t)
	s.scrape(t)
}

// end stops what runs.
func (s *stage) end(t *testing.T) {
	for _, p := range []*program{s.prometheus, s.agent, s.rsyslog, s.follower, s.collector, s.victoria, s.jaeger} {
		if p != nil {
			p.stop(t)
		}
	}
}

func (s *stage) start(t *testing.T, ready func() error, env []string, name string, args ...string) *program {
	t.Helper()
	return start(t, s.dir, ready, env, name, args...)
}

func built(name string) string { return filepath.Join(os.Getenv(envPrograms), name) }

// pipelines is the path of a file of docs/pipelines.
func pipelines(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs("../../../docs/pipelines/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// storeSpans starts a Jaeger that has nothing.
func (s *stage) storeSpans(t *testing.T) {
	t.Helper()
	s.jaeger = s.start(t, takesSpans(jaegerTakes), []string{"OTEL_TRACES_SAMPLER=always_off"}, built("jaeger"), "--config", pipelines(t, "jaeger.yaml"))
}

// storeLines starts a VictoriaLogs that has nothing.
func (s *stage) storeLines(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp(s.dir, "victoria")
	if err != nil {
		t.Fatal(err)
	}
	s.victoria = s.start(t, answers(victoria+"/health"), nil, built("victoria-logs"),
		"-storageDataPath="+dir, "-httpListenAddr="+strings.TrimPrefix(victoria, "http://"))
}

// Where the Collector takes spans: the usual ports are Jaeger's here.
const (
	collectorGRPC = "127.0.0.1:14317"
	collectorHTTP = "127.0.0.1:14318"
)

// collect starts the Collector, with what it kept; it follows a log.
func (s *stage) collect(t *testing.T, log string) {
	t.Helper()
	s.collector = s.start(t, takesSpans("http://"+collectorHTTP), []string{
		"TRACEWIRE_COLLECTOR_DIR=" + s.kept, "TRACEWIRE_OTLP_GRPC=" + collectorGRPC, "TRACEWIRE_OTLP_HTTP=" + collectorHTTP,
		"TRACEWIRE_TRACES=" + jaegerGRPC, "TRACEWIRE_LOGS=" + victoria + "/insert/opentelemetry/v1/logs", "TRACEWIRE_LOG=" + log,
	}, built("collector"), "--config", pipelines(t, "collector.yaml"))
}

// follow starts rsyslog.
func (s *stage) follow(t *testing.T) {
	t.Helper()
	pid, main := filepath.Join(s.dir, "rsyslog.pid"), filepath.Join(s.dir, "rsyslog.conf")
	text := fmt.Sprintf("global(workDirectory=%q)\ninclude(file=%q)\n", s.dir, pipelines(t, "rsyslog.conf"))
	if err := os.WriteFile(main, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.rsyslog = s.start(t, func() error { _, err := os.Stat(pid); return err }, nil, "rsyslogd", "-n", "-f", main, "-i", pid)
}

// ship starts the agent, which sends to the Collector.
func (s *stage) ship(t *testing.T) {
	t.Helper()
	s.agent = s.start(t, answers("http://127.0.0.1:9464/healthz"), []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + collectorGRPC, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
	}, filepath.Join(os.Getenv("TRACEWIRE_BIN"), "tracewire-agent"))
}

// scrape starts Prometheus.
func (s *stage) scrape(t *testing.T) {
	t.Helper()
	s.prometheus = s.start(t, answers(prometheus+"/-/ready"), nil, "prometheus", "--config.file="+pipelines(t, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(s.dir, "prometheus"), "--web.listen-address="+strings.TrimPrefix(prometheus, "http://"))
}

// print writes the summary to where the test runner prints it from.
func (s *stage) print(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, "%-16s %-28s %6s %6s %8s %8s\n", "telemetry", "of", "asked", "found", "doubled", "missing")
	for _, r := range s.rows {
		fmt.Fprintf(&b, "%-16s %-28s %6d %6d %8d %8d\n", r.where, r.what, r.asked, r.found, r.doubled, r.missing)
	}
	if path := os.Getenv(envTable); path != "" {
		if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
			t.Error(err)
		}
	}
	t.Log("\n" + b.String())
}

// count waits until a store has every operation exactly once, and notes what it
// has for the summary.
func (s *stage) count(t *testing.T, where, what string, look func([]*ask) (tally, error)) {
	t.Helper()
	var last tally
	defer func() { s.rows = append(s.rows, row{where, what, last}) }()
	within(t, where, func() (err error) {
		last, err = look(s.asks)
		return err
	})
}
