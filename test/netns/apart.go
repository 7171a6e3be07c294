//go:build linux

package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// envApart is how far Apart has come: unset, init or tests.
const envApart = "TRACEWIRE_APART"

// Apart runs a package's tests where they see no process but their own, and no
// namespace that another's process is in: below an init of their own, which reaps
// as one does. It is called by TestMain and returns the exit code. Where such
// a namespace cannot be made they run as they are.
func Apart(m *testing.M) int {
	switch os.Getenv(envApart) {
	case "tests":
		return m.Run()
	case "init":
		return pid1()
	}
	outer := again("init")
	outer.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	err := outer.Run()
	if outer.Process == nil {
		return m.Run()
	}
	return codeOf(err)
}

// again is this program with its arguments, one step on.
func again(step string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), envApart+"="+step)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd
}

// pid1 starts the tests, and reaps until they end.
func pid1() int {
	tests := again("tests") // before /proc shows the new processes alone
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, ""), tests.Start())
	if err != nil {
		fmt.Fprintln(os.Stderr, "tests apart:", err)
		return 1
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			fmt.Fprintln(os.Stderr, "tests apart:", err)
			return 1
		case pid == tests.Process.Pid && status.Exited():
			return status.ExitStatus()
		case pid == tests.Process.Pid:
			fmt.Fprintln(os.Stderr, "tests apart: killed by", status.Signal())
			return 1
		}
	}
}

func codeOf(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "tests apart:", err)
	return 1
}
