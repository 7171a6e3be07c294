//go:build killpoints

package point

import (
	"os"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

var passed atomic.Int64 // points, by this process

// Pass is called as a point is reached. Its name is appended to the file
// TRACEWIRE_POINTS, a line each, and the point whose number TRACEWIRE_KILL_AT
// is, counted from 1, is the last: SIGKILL does not come back.
func Pass(when, what string) {
	n := passed.Add(1)
	if path := os.Getenv("TRACEWIRE_POINTS"); path != "" {
		note(path, when+" "+what+"\n")
	}
	if os.Getenv("TRACEWIRE_KILL_AT") == strconv.FormatInt(n, 10) {
		_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
		select {}
	}
}

func note(path, line string) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err) // a list that lacks a point would leave it untested
	}
	defer f.Close()
	if _, err := f.WriteString(line); err != nil {
		panic(err)
	}
}

// Boot is the boot id in TRACEWIRE_BOOT_ID, by which a test plays a reboot;
// empty where the kernel's own counts.
func Boot() string { return os.Getenv("TRACEWIRE_BOOT_ID") }
