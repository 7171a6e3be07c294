package delegates

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/proc"
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
// answer. Its process group does not outlive it, and where ctx ends it nothing
// that it started does. An exit code other than 0 is an *exec.ExitError; more
// than 4 MiB of standard output are an error too.
func Run(ctx context.Context, path string, args, env []string, stdin []byte) (stdout, stderr []byte, err error) {
	out := &capped{max: maxAnswer}
	stderr, err = Stream(ctx, path, args, env, stdin, out)
	if err == nil && out.over {
		err = errLong
	}
	return out.b.Bytes(), stderr, err
}

// Stream is Run for a program that may print any amount, as it prints it.
func Stream(ctx context.Context, path string, args, env []string, stdin []byte, stdout io.Writer) (stderr []byte, err error) {
	// The signal at our death follows the thread that forked (prctl(2), PR_SET_PDEATHSIG).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	said := &capped{max: maxStderr}
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader(stdin), stdout, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	cmd.WaitDelay = time.Second // after its end, for what it left behind with its pipes
	if err = execute(ctx, cmd); errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it ended well; what it left behind holds its pipes
	}
	if cmd.Process != nil {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // usually nobody is left
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return said.b.Bytes(), err
}

// execute is cmd.Run with an end and points.
func execute(ctx context.Context, cmd *exec.Cmd) error {
	point.Pass(point.Before, cmd.Path)
	select {
	case <-ctx.Done(): // asked before the fork: a signal that is still ignored would be for the child too
		return ctx.Err()
	default:
	}
	adopt()
	since := proc.Now()
	err := cmd.Start()
	point.Pass(point.While, cmd.Path)
	if err == nil {
		ended := endWith(ctx, cmd.Process.Pid, since)
		err = cmd.Wait()
		ended()
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
