package delegates

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/proc"
)

// EnvOperation is set for all executables that are run, and for all that they
// run: the traceparent of the operation's root span, which no two operations
// share. Where we are killed the kernel ends the executable, and nobody what it
// had started; whoever meets the record next knows that by it.
const EnvOperation = "TRACEWIRE_OPERATION"

// EndLeft ends the processes that carry an operation's name, and returns the
// programs' names. The operations are over: who ran them was killed. What cannot
// be told is none.
func EndLeft(operations ...string) (ended []string) {
	until := time.Now().Add(endTime)
	for again := true; again && time.Now().Before(until); { // what is not killed yet may start more
		again = false
		for _, pid := range proc.All() {
			if pid == os.Getpid() {
				continue
			}
			if time.Now().After(until) {
				break // to read an environment may take as long as its process holds its memory
			}
			if name, ok := endOne(pid, operations, until); ok {
				ended, again = append(ended, name), true
			}
		}
	}
	return ended
}

// endOne ends a process where it is of an operation, and waits until it is gone.
// What is found gone already is not ok.
func endOne(pid int, operations []string, until time.Time) (name string, ok bool) {
	if !carries(pid, operations) {
		return "", false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return "", false
	}
	defer func() { _ = unix.Close(fd) }()
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if !carries(pid, operations) || unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) != nil { // the number may be another's by now
		return "", false
	}
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(until).Milliseconds()))
	return strings.TrimSpace(string(comm)), true
}

// carries tells whether a process has the name of one of the operations in its
// environment. One that ended has none.
func carries(pid int, operations []string) bool {
	value := proc.Environ(pid)[EnvOperation]
	return value != "" && slices.Contains(operations, value)
}
