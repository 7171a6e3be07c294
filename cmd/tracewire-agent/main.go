// Command tracewire-agent runs on a node beside the plugin: it ships the traces
// and logs that the plugin wrote to a collector, and tells of operations that
// were killed.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain/cache"
)

// version is set by the linker.
var version = "dev"

// memoryLimit is what the garbage collector tries to stay below, in bytes.
const memoryLimit = 40 << 20

func main() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	c := &command{
		err: os.Stderr, out: os.Stdout, getenv: os.Getenv, boot: cache.BootID(),
		log: zerolog.New(os.Stderr).With().Timestamp().Logger(),
	}
	code := c.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
