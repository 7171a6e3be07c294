//go:build linux

package attach

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
)

// Exec runs plugins for libcni and keeps what each call said. The child starts
// from the calling goroutine's thread, and so in its network namespace.
type Exec struct {
	invoke.DefaultExec

	mu    sync.Mutex
	calls []Call
}

func newExec() *Exec {
	return &Exec{DefaultExec: invoke.DefaultExec{RawExec: &invoke.RawExec{}}}
}

// Call is one run of a plugin.
type Call struct {
	Plugin         string // name of the executable
	Verb           string // CNI_COMMAND
	Stdout, Stderr []byte
	Exit           int // -1 when a signal ended it
	Took           time.Duration
}

// ExecPlugin implements invoke.Exec. The error of a plugin that answered with
// one is a *types.Error.
func (e *Exec) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	var out, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader(stdin), &out, &stderr
	start := time.Now()
	err := cmd.Run()
	c := Call{Plugin: filepath.Base(path), Verb: verb(env), Stdout: out.Bytes(), Stderr: stderr.Bytes(), Took: time.Since(start)}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, err
	}
	c.Exit = cmd.ProcessState.ExitCode()
	e.mu.Lock()
	e.calls = append(e.calls, c)
	e.mu.Unlock()
	if c.Exit == 0 {
		return c.Stdout, nil
	}
	return nil, c.Err()
}

// verb is the CNI_COMMAND of an environment, where the last of a name counts.
func verb(env []string) (verb string) {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "CNI_COMMAND="); ok {
			verb = v
		}
	}
	return verb
}

// Calls is what was run since the last time it was asked.
func (e *Exec) Calls() []Call {
	e.mu.Lock()
	defer e.mu.Unlock()
	calls := e.calls
	e.calls = nil
	return calls
}

// Err is the error that the plugin answered with; nil when it exited with 0.
func (c Call) Err() error {
	if c.Exit == 0 {
		return nil
	}
	var answer types.Error
	if err := json.Unmarshal(c.Stdout, &answer); err != nil {
		return fmt.Errorf("%s exited with %d, stdout %q, stderr %q", c.Plugin, c.Exit, c.Stdout, c.Stderr)
	}
	return &answer
}

// Sound tells what is wrong with the form of an answer: standard output holds
// one JSON document or, on success, nothing; an error has code and msg, and
// exits with 1.
func (c Call) Sound() error {
	out := bytes.TrimSpace(c.Stdout)
	if c.Exit == 0 && len(out) == 0 {
		return nil
	}
	var answer struct {
		CNIVersion string
		Code       uint
		Msg        string
		Details    string
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return fmt.Errorf("%s exited with %d and standard output is not one JSON document: %w: %q", c.Plugin, c.Exit, err, out)
	}
	if failed := answer.Code != 0 && answer.Msg != ""; c.Exit != 0 && (c.Exit != 1 || !failed) || c.Exit == 0 && failed {
		return fmt.Errorf("%s exited with %d and answered %s", c.Plugin, c.Exit, out)
	}
	if c.Exit == 0 || c.Plugin != "tracewire" || strings.HasPrefix(answer.Msg, "unknown CNI_COMMAND") { // that is no operation
		return nil
	}
	// Where to look further: the trace, and what to do, for people or, of CHECK, for programs.
	var found struct{ Trace string }
	if json.Unmarshal([]byte(answer.Details), &found) != nil {
		_, found.Trace, _ = strings.Cut(answer.Details, "trace: ")
	}
	if answer.CNIVersion == "" || !traceID.MatchString(found.Trace) || found.Trace != "" && answer.Details[0] != '{' && !strings.Contains(answer.Details, "hint: ") {
		return fmt.Errorf("%s does not tell cniVersion, trace and hint: %s", c.Plugin, out)
	}
	return nil
}

// traceID begins with a trace's id (W3C Trace Context, 3.2.2.3).
var traceID = regexp.MustCompile(`^[0-9a-f]{32}`)
