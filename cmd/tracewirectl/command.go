package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
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
	in       io.Reader // nil where nobody can be asked
	getenv   func(string) string
	now      func() time.Time
	zone     *time.Location
	boot     string          // boot id of this kernel
	terminal bool            // out is one
	columns  int             // of the terminal, 0 when not known
	attended bool            // err is a terminal: somebody waits
	broken   map[string]bool // what was said of lists that cannot be read

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

const about = `tracewirectl reads what the CNI plugin tracewire left behind: the traces in its
spool, its log and its records of attachments. It compares them with what is
live and finds what is left over. Only audit --fix, gc and uninstall --yes
change something; audit, gc --dry-run and uninstall show what it would be.

ATTACHMENT is a container id or a unique prefix of one, NAMESPACE/POD, a POD of
one namespace alone, NETWORK/CONTAINER:IFNAME, or an address.

Text is made to fit the terminal, or COLUMNS where that is set. Into a pipe or a
file all of it is written: lines are not folded, names not shortened.

Exit codes: 0 done, 1 nothing found or differences found, 2 wrong command line
or could not look.`

func (c *command) root(out *bufio.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "tracewirectl",
		Short: "Shows the attachments, traces and history of the CNI plugin tracewire",
		Long:  about,
		Example: `  tracewirectl trace                       # the last operation as a waterfall
  tracewirectl history --failed --since 1h # what went wrong in the last hour
  tracewirectl show default/web-0          # an attachment, recorded and live`,
		Version:       version,
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return c.checkFlags(cmd.Flags()) },
	}
	root.SetOut(out)
	root.SetErr(c.err)
	root.SetVersionTemplate(versionLine())
	root.SetUsageTemplate(strings.NewReplacer(".FlagUsages", ".FlagUsagesWrapped 80", // of columns
		"for more information about a command", "to learn more").Replace(root.UsageTemplate()))
	c.globalFlags(root)
	root.SetGlobalNormalizationFunc(american)
	root.AddCommand(c.trace(), c.history(), c.show(), c.audit(), c.check(), c.gc(), c.uninstall(), c.explain(), c.version())
	root.SetHelpCommand(help())
	c.completion(root)
	return root
}

func (c *command) globalFlags(root *cobra.Command) {
	root.Flags().Bool("version", false, "Prints the version")
	f := root.PersistentFlags()
	f.BoolP("help", "h", false, "Shows help for the command")
	f.StringVar(&c.flags.stateDir, "state-dir", "", "Reads the plugin's state in `DIR` (default: what the conflists say, else "+conflist.DefaultStateDir+")")
	f.StringVar(&c.flags.spool, "spool", "", "Reads the traces in `DIR` (default: what the conflists say, else spool in the state directory)")
	f.StringVar(&c.flags.log, "log", "", "Reads the plugin's log in `FILE` (default: what the conflists say, else "+conflist.DefaultLogPath+")")
	f.StringVar(&c.flags.confDir, "conf-dir", "", "Reads the network configuration lists in `DIR` (default: $NETCONFPATH, else "+conflist.DefaultFolder+")")
	f.StringVarP(&c.flags.output, "output", "o", "text", "Writes in this `FORMAT`: text or json")
	f.StringVar(&c.flags.colour, "colour", "auto", "Sets `WHEN` text is coloured: auto (on a terminal, unless NO_COLOR is set), always or never")
}

// american lets --color be --colour.
func american(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if name == "color" {
		name = "colour"
	}
	return pflag.NormalizedName(name)
}

// The values that global flags know.
var (
	outputs = []string{"text", "json"}
	colours = []string{"auto", "always", "never"}
)

// checkFlags refuses empty values of flags, values of global flags that nobody
// knows, and places that are not there.
func (c *command) checkFlags(set *pflag.FlagSet) (err error) {
	set.Visit(func(f *pflag.Flag) {
		if f.Value.Type() == "string" && f.Value.String() == "" {
			err = fmt.Errorf("--%s is empty", f.Name)
		}
	})
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name, value string
		known       []string
	}{
		{"--output", c.flags.output, outputs},
		{"--colour", c.flags.colour, colours},
	} {
		if !slices.Contains(f.known, f.value) {
			return fmt.Errorf("%s is one of %s, not %q", f.name, strings.Join(f.known, ", "), f.value)
		}
	}
	for _, f := range []struct{ name, path string }{
		{"--state-dir", c.flags.stateDir},
		{"--spool", c.flags.spool},
		{"--log", c.flags.log},
		{"--conf-dir", c.flags.confDir},
	} {
		if f.path == "" {
			continue
		}
		_, err := os.Stat(f.path)
		if _, rotated := os.Stat(f.path + ".1"); f.name == "--log" && rotated == nil {
			continue // renamed, and no operation since
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
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

// width is the columns to write for; 0 where nothing is to be folded or
// shortened, as a program may read it.
func (c *command) width() int {
	if n, err := strconv.Atoi(c.getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	switch {
	case !c.terminal:
		return 0
	case c.columns > 0:
		return c.columns
	}
	return 80
}

// count is a number of things, "1 line", "2 lines".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	if stem, ok := strings.CutSuffix(thing, "y"); ok {
		thing = stem + "ie"
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
