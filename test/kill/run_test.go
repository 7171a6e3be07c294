//go:build linux

package kill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/test/attach"
)

// patience bounds one operation, and the end of the processes that it left.
const patience = 20 * time.Second

// call is one run of the plugin.
type call struct {
	verb   string
	a      attach.Attachment
	prev   string // prevResult
	at     int    // the point it is killed at, 0 for none
	points string // a file for the points' names, "" for none

	delegates string // others than the list's, "" for those
}

// outcome is how it ended.
type outcome struct {
	answer string // standard output, where it is an answer
	killed bool
	code   uint // of the error
	err    error
}

// run runs the plugin once.
func (w *worker) run(c call) (o outcome) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd, err := w.command(ctx, c)
	if err != nil {
		return outcome{err: err}
	}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return outcome{err: err}
	}
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	o.killed = status.Signaled() && status.Signal() == unix.SIGKILL && ctx.Err() == nil
	if o.code, o.err = failed(out.Bytes()); err != nil && o.err == nil {
		o.err = fmt.Errorf("%s: %w: %s%s", c.verb, err, out.String(), said.String())
	}
	if o.code == 0 {
		o.answer = out.String()
	}
	return o
}

// command is the run as a runtime would start it.
func (w *worker) command(ctx context.Context, c call) (*exec.Cmd, error) {
	keys := map[string]string{"runtimeConfig": w.runtime, "prevResult": c.prev}
	if c.delegates != "" {
		keys["delegates"] = c.delegates
	}
	if c.verb == "GC" {
		keys["cni.dev/valid-attachments"] = "[]"
	}
	plugin, stdin, err := w.node.First(keys)
	if err != nil {
		return nil, err
	}
	_ = os.Remove("/run/tracewire/reaped") // children of earlier runs are reaped later: not to be taken for ones that nobody reaps
	cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv(envBin), plugin))
	cmd.Stdin, cmd.WaitDelay = bytes.NewReader(stdin), patience
	cmd.Env = append(w.node.Environment(c.verb, c.a),
		fmt.Sprintf("TRACEWIRE_BOOT_ID=boot-%d", w.boot), fmt.Sprintf("TRACEWIRE_KILL_AT=%d", c.at), "TRACEWIRE_POINTS="+c.points)
	return cmd, nil
}

// failed is the error that a plugin printed, nil for none.
func failed(stdout []byte) (code uint, err error) {
	var e types.Error
	if json.Unmarshal(stdout, &e) != nil || e.Code == 0 {
		return 0, nil
	}
	return e.Code, &e
}
