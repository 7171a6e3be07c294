// Command tracewirectl is the operator's command: it reads what the plugin
// left behind, spool, log and records, and compares it with what is live. It
// changes nothing.
package main

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	c := &command{out: os.Stdout, err: os.Stderr, getenv: os.Getenv, now: time.Now, zone: time.Local, boot: bootID()}
	if fd := int(os.Stdout.Fd()); term.IsTerminal(fd) {
		c.terminal = true
		c.columns, _, _ = term.GetSize(fd)
	}
	code := c.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// bootID is this boot of the kernel (random(4)); empty where it can not be read.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}
