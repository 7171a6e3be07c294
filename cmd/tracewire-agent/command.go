package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tracewire/tracewire/conflist"
)

// command is the command line: streams, environment and flags.
type command struct {
	out, err io.Writer
	getenv   func(string) string
	boot     string // boot id of this kernel
	log      zerolog.Logger
	flags    flags
}

type flags struct {
	spools, logs []string
	confDir      string
	state        string
	listen       string
	policy       string
	slow         time.Duration
	ship, once   bool // log lines too; all that is there, and no more
	audit        auditFlags
}

// errLeft marks that something could not be sent: exit code 1.
var errLeft = errors.New("not everything was sent")

// run runs one command line and returns the exit code: 0, 1 where --once left
// something, 2 for a wrong command line or when it could not look.
func (c *command) run(ctx context.Context, args []string) int {
	root := c.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintln(c.err, "tracewire-agent: "+err.Error()) // nobody is left to tell
	if errors.Is(err, errLeft) {
		return 1
	}
	return 2
}

const about = `tracewire-agent sends the traces that the CNI plugin tracewire wrote into its
spool to an OpenTelemetry collector, and with --logs its log lines too.

Where to, and how, is said by the variables OTEL_EXPORTER_OTLP_* of the
OpenTelemetry specification: ENDPOINT, PROTOCOL (http/protobuf, which is the
default, or grpc), HEADERS, COMPRESSION, TIMEOUT, INSECURE, CERTIFICATE,
CLIENT_CERTIFICATE and CLIENT_KEY, and the same with TRACES_ and LOGS_ before
them. Without an endpoint it is this host, port 4318, or 4317 for grpc.

While the collector does not answer, or takes nothing (a token that is out of
date, a wrong path, a redirect, an error of its own), all stays in the spool, as
far as the plugin's budget goes, and /readyz says why. Only what it refuses for
its content (400, 413, 422; InvalidArgument, ResourceExhausted) is dropped, span
by span. How far it was sent is kept in agent.checkpoint in the
spool, and beside the log, or all of it below --state.

Exit codes: 0 done, 1 --once could not send everything, 2 wrong command line or
could not look.`

func (c *command) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "tracewire-agent",
		Short: "Sends the traces and logs of the CNI plugin tracewire to a collector",
		Long:  about,
		Example: `  OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318 tracewire-agent --logs
  tracewire-agent --policy parent --slow 500ms # what the runtime sampled, failures, and slow ones
  tracewire-agent --once                       # sends what is there and ends`,
		Version: version, Args: cobra.NoArgs,
		SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.start(cmd.Context()) },
	}
	root.SetOut(c.out)
	root.SetErr(c.err)
	f := root.Flags()
	f.StringArrayVar(&c.flags.spools, "spool", nil, "Ships the traces in `DIR`; may be given again (default: what the conflists say, and "+conflist.DefaultStateDir+"/spool)")
	f.StringArrayVar(&c.flags.logs, "log", nil, "Ships the log `FILE`; may be given again (default: what the conflists say, and "+conflist.DefaultLogPath+")")
	f.StringVar(&c.flags.confDir, "conf-dir", "", "Reads the network configuration lists in `DIR` (default: $NETCONFPATH, else "+conflist.DefaultFolder+")")
	f.StringVar(&c.flags.state, "state", "", "Keeps how far was sent, and what audits told of, in `DIR` (default: in the spool and beside the log, and nowhere)")
	f.BoolVar(&c.flags.ship, "logs", false, "Ships the lines of the log too")
	f.StringVar(&c.flags.policy, "policy", "all", "Ships `WHICH` traces: all, or parent: those that the parent sampled, those with an error, and slow ones")
	f.DurationVar(&c.flags.slow, "slow", time.Second, "Calls what takes this long slow; 0: nothing")
	f.BoolVar(&c.flags.once, "once", false, "Sends what is there, and ends")
	f.StringVar(&c.flags.listen, "listen", "127.0.0.1:9464", "Serves metrics and health at this `ADDRESS`; empty: nowhere")
	c.flags.audit.add(f)
	root.SetGlobalNormalizationFunc(aliases)
	return root
}

// aliases lets --conflist-dir be --conf-dir.
func aliases(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if name == "conflist-dir" {
		name = "conf-dir"
	}
	return pflag.NormalizedName(name)
}

// start checks the flags and runs the agent.
func (c *command) start(ctx context.Context) error {
	if p := c.flags.policy; p != "all" && p != "parent" {
		return fmt.Errorf("--policy is all or parent, not %q", p)
	}
	if c.flags.slow < 0 {
		return fmt.Errorf("--slow is negative: %s", c.flags.slow)
	}
	if err := c.flags.audit.possible(); err != nil {
		return err
	}
	if c.flags.state != "" {
		if err := os.MkdirAll(c.flags.state, 0o700); err != nil {
			return fmt.Errorf("--state: %w", err)
		}
	}
	a, err := c.agent(ctx)
	if err != nil {
		return err
	}
	if c.flags.once {
		return a.once(ctx)
	}
	if err := a.serve(ctx); err != nil {
		return err
	}
	return a.run(ctx)
}
