package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/trace"
)

// sandbox skips a test that would look at this host's attachments.
func sandbox(t *testing.T) {
	t.Helper()
	if os.Getenv("TRACEWIRE_SANDBOX") != "1" {
		t.Skip("needs folders of its own: run make test")
	}
}

// collector keeps the bodies of the requests it is sent.
type collector struct {
	mu     sync.Mutex
	bodies [][]byte
	each   func(n int) // is called before a request is answered
}

// ServeHTTP implements http.Handler.
func (c *collector) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	c.bodies = append(c.bodies, b)
	n := len(c.bodies)
	c.mu.Unlock()
	if c.each != nil {
		c.each(n)
	}
}

func served(t *testing.T, c *collector) {
	t.Helper()
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", s.URL)
}

// spooled is a folder with one operation in it.
func spooled(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "spool")
	r := trace.NewRecorder(time.Now())
	_, root := r.Begin("cni.ADD", time.Now(), trace.Origin{})
	root.End()
	s := trace.Sink{Spool: trace.Spool{Dir: dir, MaxBytes: 1 << 20}, Log: trace.Log{Path: filepath.Join(dir, "log.jsonl"), Level: "info"}}
	if !s.Write(r) {
		t.Fatal("not in the spool")
	}
	return dir
}

// nobody is an address where nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	return "http://" + l.Addr().String()
}

// ran runs a command line in this process.
func ran(t *testing.T, args ...string) (code int, complaint string) {
	t.Helper()
	var errs bytes.Buffer
	c := &command{out: io.Discard, err: &errs, getenv: os.Getenv, boot: "boot", log: zerolog.Nop()}
	code = c.run(t.Context(), args)
	return code, errs.String()
}

func TestOnce(t *testing.T) {
	sandbox(t)
	for _, tt := range []struct {
		name      string
		args      string
		there     bool // a collector
		code      int
		complaint string
		requests  int
	}{
		{"nothing was ever written", "--once --spool /nowhere", true, 0, "", 0},
		{"all of it is taken", "--once --spool SPOOL", true, 0, "", 1},
		{"log lines too", "--once --spool SPOOL --log SPOOL/log.jsonl --logs", true, 0, "", 2},
		{"a state directory that is not there yet", "--once --spool SPOOL --state SPOOL/../state", true, 0, "", 1},
		{"one that cannot be", "--once --spool SPOOL --state SPOOL/log.jsonl/state", true, 2, "--state: mkdir SPOOL/log.jsonl: not a directory", 0},
		{"nobody is there", "--once --spool SPOOL", false, 1, "not everything was sent: SPOOL: ", 0},
		{"a policy that nobody knows", "--once --policy some", true, 2, `--policy is all or parent, not "some"`, 0},
		{"no folder of lists", "--once --conf-dir /nowhere", true, 2, "open /nowhere: no such file or directory", 0},
		{"negative", "--slow=-1s", true, 2, "--slow is negative: -1s", 0},
		{"arguments", "x", true, 2, `unknown command "x"`, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &collector{}
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", nobody(t))
			if tt.there {
				served(t, c)
			}
			dir := spooled(t)
			code, complaint := ran(t, strings.Fields(strings.ReplaceAll(tt.args, "SPOOL", dir))...)
			if code != tt.code || !strings.Contains(complaint, strings.ReplaceAll(tt.complaint, "SPOOL", dir)) || (tt.complaint == "") != (complaint == "") {
				t.Errorf("code %d, %s", code, complaint)
			}
			if len(c.bodies) != tt.requests {
				t.Errorf("%d requests", len(c.bodies))
			}
		})
	}
}

// TestOnceTidies: an agent that never stays removes what was sent long ago, too.
func TestOnceTidies(t *testing.T) {
	sandbox(t)
	served(t, &collector{})
	dir := spooled(t)
	now, err := filepath.Glob(filepath.Join(dir, "2*"+trace.SegmentSuffix))
	if err != nil || len(now) != 1 {
		t.Fatal(now, err)
	}
	if err := os.Rename(now[0], filepath.Join(dir, "20260101T0000Z"+trace.SegmentSuffix)); err != nil {
		t.Fatal(err)
	}
	if code, complaint := ran(t, "--once", "--spool", dir); code != 0 {
		t.Fatal(complaint)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "2*"+trace.SegmentSuffix)); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// TestKilled: an agent that is killed when the collector has taken what it sent
// sends the same again when it is started anew, and no more after that.
func TestKilled(t *testing.T) {
	sandbox(t)
	bin := os.Getenv("TRACEWIRE_BIN")
	if bin == "" {
		t.Skip("needs the program tracewire-agent: run make test")
	}
	dir := spooled(t)
	agent := func() *exec.Cmd {
		return exec.Command(filepath.Join(bin, "tracewire-agent"), "--spool", dir, "--state", filepath.Dir(dir), "--listen", "")
	}
	c := &collector{}
	first := agent()
	started, gone, second := make(chan struct{}), make(chan struct{}), make(chan struct{})
	c.each = func(n int) {
		if n > 1 {
			close(second)
			return
		}
		<-started
		_ = first.Process.Kill()
		_ = first.Wait()
		close(gone) // and with it its lock
	}
	served(t, c)
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	close(started)
	<-gone
	again := agent()
	if err := again.Start(); err != nil {
		t.Fatal(err)
	}
	<-second
	if err := again.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := again.Wait(); err != nil {
		t.Errorf("the second: %v", err)
	}
	last := agent()
	last.Args = append(last.Args, "--once")
	if out, err := last.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if len(c.bodies) != 2 || !bytes.Equal(c.bodies[0], c.bodies[1]) {
		t.Errorf("%d requests (-first +second):\n%s", len(c.bodies), cmp.Diff(c.bodies[0], c.bodies[len(c.bodies)-1]))
	}
}
