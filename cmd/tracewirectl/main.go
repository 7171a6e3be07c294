// Command tracewirectl is the operator's command: it reads what the plugin
// left behind, spool, log and records, compares it with what is live, and has the
// plugin end what is left over.
package main

import (
	"context"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/tracewire/tracewire/chain/cache"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	c := &command{out: os.Stdout, err: os.Stderr, getenv: os.Getenv, now: time.Now, zone: time.Local, boot: cache.BootID()}
	if fd := int(os.Stdout.Fd()); term.IsTerminal(fd) {
		c.terminal = true
		c.columns, _, _ = term.GetSize(fd)
	}
	c.attended = term.IsTerminal(int(os.Stderr.Fd()))
	if c.attended && term.IsTerminal(int(os.Stdin.Fd())) {
		c.in = os.Stdin
	}
	code := c.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
