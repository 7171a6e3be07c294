//go:build linux

package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	patience = 60 * time.Second       // for what another program does on its own
	between  = 100 * time.Millisecond // two looks at it
)

// within looks until there is nothing wrong, or fails the test.
func within(t *testing.T, what string, look func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(between)
	defer tick.Stop()
	for {
		err := look()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: after %v: %v", what, patience, err)
		case <-tick.C:
		}
	}
}

// program is a process that runs until it is stopped, and dies with the test.
type program struct {
	name string
	log  string // path of what it says
	cmd  *exec.Cmd
	stop func(*testing.T)
}

// start starts a program with the variables beside the test's own, and waits
// until it is ready. It says what it says into a file of the folder.
func start(t *testing.T, dir string, ready func() error, env []string, name string, args ...string) *program {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	p := &program{name: filepath.Base(name), cmd: exec.Command(path, args...)}
	out, err := os.CreateTemp(dir, p.name+".*.log")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p.log, p.cmd.Stdout, p.cmd.Stderr, p.cmd.Env = out.Name(), out, out, append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	p.stop = func(t *testing.T) { once.Do(func() { p.end(t) }) }
	t.Cleanup(func() {
		if t.Failed() {
			p.stop(t)
			said, _ := os.ReadFile(p.log)
			t.Logf("%s said:\n%s", p.name, said[max(0, len(said)-4000):])
		}
	})
	within(t, p.name, ready)
	return p
}

// end asks the process to end, and ends it where it does not.
func (p *program) end(t *testing.T) {
	late := time.AfterFunc(patience/4, func() {
		t.Errorf("%s does not end when it is asked to", p.name)
		_ = p.cmd.Process.Kill()
	})
	defer late.Stop()
	_ = p.cmd.Process.Signal(unix.SIGTERM)
	_ = p.cmd.Wait() // some tell by their code that a signal ended them
}

// run runs a program to its end.
func run(t *testing.T, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
}

// answers is ready when a GET of the address is answered with success.
func answers(url string) func() error {
	return func() error {
		_, err := get(url)
		return err
	}
}

// takesSpans is ready when OTLP over HTTP is taken there.
func takesSpans(endpoint string) func() error {
	return func() error {
		_, err := asked(http.Post(endpoint+"/v1/traces", "application/json", strings.NewReader("{}")))
		return err
	}
}

func get(url string) ([]byte, error) { return asked(http.Get(url)) }

// asked is the body of an answer that is a success.
func asked(r *http.Response, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(r.Body)
	if err = errors.Join(err, r.Body.Close()); err == nil && r.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s: %s", r.Status, bytes.TrimSpace(body))
	}
	return body, err
}
