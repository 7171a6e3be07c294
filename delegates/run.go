package delegates

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/trace/point"
)

const (
	maxAnswer = 4 << 20 // bytes of a program's standard output
	maxStderr = 4 << 10 // bytes kept of its standard error
)

var errLong = fmt.Errorf("answer is longer than %d bytes", maxAnswer)

// Run runs a program once, in the calling thread's network namespace, and
// returns what it printed: of its standard error the first 4 KiB. env is its
// whole environment. It dies with us and with ctx, whose error is then the
// answer, and what it started does not outlive it. An exit code other than 0
// is an *exec.ExitError; more than 4 MiB of standard output are an error too.
func Run(ctx context.Context, path string, args, env []string, stdin []byte) (stdout, stderr []byte, err error) {
	// The signal at our death follows the thread that forked (prctl(2), PR_SET_PDEATHSIG).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, said := &capped{max: maxAnswer}, &capped{max: maxStderr}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader(stdin), out, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	if err = execute(cmd); errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it ended well; what it left behind holds its pipes
	}
	if cmd.Process != nil {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // usually nobody is left
	}
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case err == nil && out.over:
		err = errLong
	}
	return out.b.Bytes(), said.b.Bytes(), err
}

// execute is cmd.Run with its points.
func execute(cmd *exec.Cmd) error {
	point.Pass(point.Before, cmd.Path)
	err := cmd.Start()
	point.Pass(point.While, cmd.Path)
	if err == nil {
		err = cmd.Wait()
	}
	point.Pass(point.After, cmd.Path)
	return err
}

// capped keeps the first bytes and takes the rest, so that the writer ends.
type capped struct {
	b    bytes.Buffer
	max  int
	over bool
}

func (c *capped) Write(p []byte) (int, error) {
	room := c.max - c.b.Len()
	if len(p) > room {
		c.over = true
		c.b.Write(p[:room])
		return len(p), nil
	}
	return c.b.Write(p)
}
