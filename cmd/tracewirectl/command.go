package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/trace/read"
)

// command is what all subcommands share: streams, environment and global flags.
type command struct {
	out, err io.Writer
	getenv   func(string) string
	now      func() time.Time
	zone     *time.Location
	boot     string // boot id of this kernel
	terminal bool   // out is one
	columns  int    // of the terminal, 0 when not known

	flags struct{ stateDir, spool, log, confDir, output, colour string }
}

var (
	// errNothing marks that there is nothing of what was asked for: exit code 1.
	errNothing = errors.New("nothing found")
	// errFindings marks findings that were printed already: exit code 1.
	errFindings = errors.New("findings")
)

// run runs one command line and returns the exit code: 0, 1 for nothing found
// or findings, 2 for a wrong command line or when it could not look.
func (c *command) run(ctx context.Context, args []string) int {
	out := bufio.NewWriter(c.out)
	root := c.root(out)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if flushed := out.Flush(); flushed != nil {
		err = flushed
	}
	switch {
	case err == nil, errors.Is(err, unix.EPIPE): // nobody reads any more, as with head(1)
		return 0
	case errors.Is(err, errFindings):
		return 1
	}
	c.complain(err)
	if errors.Is(err, errNothing) {
		return 1
	}
	return 2
}

// complain writes an error as one line.
func (c *command) complain(err error) {
	text := strings.Join(strings.Fields(read.Printable(err.Error())), " ")
	_, _ = fmt.Fprintln(c.err, "tracewirectl: "+text) // nobody is left to tell
}

const about = `tracewirectl reads what the CNI plugin tracewire left behind: the traces in its spool, its log and its
records of attachments, and compares them with what is live. It changes nothing.

ATTACHMENT is a container id or a unique prefix of one, NAMESPACE/POD, NETWORK/CONTAINER:IFNAME, or an address.

Exit codes: 0 done, 1 nothing found or differences found, 2 wrong command line or could not look.`

func (c *command) root(out *bufio.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "tracewirectl",
		Short: "looks at the attachments, traces and history of the CNI plugin tracewire",
		Long:  about,
		Example: `  tracewirectl trace                       # the last operation as a waterfall
  tracewirectl history --failed --since 1h # what went wrong in the last hour
  tracewirectl show default/web-0          # a pod's attachment, recorded and live`,
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) error { return c.checkFlags() },
	}
	root.SetOut(out)
	root.SetErr(c.err)
	f := root.PersistentFlags()
	f.StringVar(&c.flags.stateDir, "state-dir", "", "state directory of the plugin (default: what the conflists say, else "+conflist.DefaultStateDir+")")
	f.StringVar(&c.flags.spool, "spool", "", "folder of traces (default: what the conflists say, else spool below the state directory)")
	f.StringVar(&c.flags.log, "log", "", "log file of the plugin (default: what the conflists say, else "+conflist.DefaultLogPath+")")
	f.StringVar(&c.flags.confDir, "conf-dir", "", "folder of network configuration lists (default: $NETCONFPATH, else "+defaultConfDir+")")
	f.StringVarP(&c.flags.output, "output", "o", "text", "text or json")
	f.StringVar(&c.flags.colour, "colour", "auto", "auto (on a terminal, unless NO_COLOR is set), always or never")
	root.SetGlobalNormalizationFunc(american)
	root.AddCommand(c.trace(), c.history(), c.show(), c.explain(), c.version())
	return root
}

// american lets --color be --colour.
func american(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if name == "color" {
		name = "colour"
	}
	return pflag.NormalizedName(name)
}

// checkFlags refuses values of global flags that nobody knows.
func (c *command) checkFlags() error {
	for _, f := range []struct {
		name, value string
		known       []string
	}{
		{"--output", c.flags.output, []string{"text", "json"}},
		{"--colour", c.flags.colour, []string{"auto", "always", "never"}},
	} {
		if !slices.Contains(f.known, f.value) {
			return fmt.Errorf("%s is one of %s, not %q", f.name, strings.Join(f.known, ", "), f.value)
		}
	}
	return nil
}

func (c *command) asJSON() bool { return c.flags.output == "json" }

// coloured tells whether text is coloured (https://no-color.org).
func (c *command) coloured() bool {
	switch c.flags.colour {
	case "always":
		return true
	case "never":
		return false
	}
	return c.terminal && c.getenv("NO_COLOR") == "" && c.getenv("TERM") != "dumb"
}

// width is the columns to write for.
func (c *command) width() int {
	if c.columns > 0 {
		return c.columns
	}
	return 100
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
