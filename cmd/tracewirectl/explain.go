package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tracewire/tracewire/chain/audit"
	"github.com/tracewire/tracewire/chain/codes"
)

func (c *command) explain() *cobra.Command {
	return &cobra.Command{
		Use:   "explain [CODE | REASON | KIND]",
		Short: "Explains an error code, a reason of CHECK or a kind of finding",
		Long: `explain tells what an error code of the plugin means and what to do next; of a
reason of CHECK, such as host.down, or a kind of audit's findings, such as
leaked-address, too. Without one it lists all of them by name.`,
		Example: `  tracewirectl explain 100
  tracewirectl explain host.down
  tracewirectl explain -o json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeCodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			w := cmd.OutOrStdout()
			switch {
			case len(args) == 0 && c.asJSON():
				return printJSON(w, everything())
			case len(args) == 0:
				return c.printEverything(w)
			}
			for _, explain := range []func(string) (any, [][2]string){reason, kind} {
				if doc, words := explain(args[0]); doc != nil {
					return c.printWords(w, doc, words)
				}
			}
			k, err := code(args[0])
			if err != nil {
				return err
			}
			return c.printWords(w, jsonCodes([]codes.Code{k}), [][2]string{
				{"code", fmt.Sprint(k.Number)}, {"name", k.Name}, {"meaning", k.Meaning}, {"next", k.Hint},
			})
		},
	}
}

// reason is one of CHECK's, nil for none.
func reason(name string) (doc any, words [][2]string) {
	r, ok := codes.ReasonOf(name)
	if !ok {
		return nil, nil
	}
	mends := "DEL and a new ADD mend it"
	if !r.Mends {
		mends = "DEL and a new ADD do not mend it"
	}
	restores := "audit --fix puts it right, while the pod goes on"
	if !r.Restores {
		restores = "audit --fix leaves it as it is"
	}
	return map[string]any{"reason": r.Name, "meaning": r.Meaning, "hint": r.Hint, "mends": r.Mends, "restores": r.Restores},
		[][2]string{{"reason", r.Name}, {"meaning", r.Meaning}, {"next", r.Hint}, {"mends", mends}, {"fix", restores}}
}

// kind is one of audit's findings, nil for none.
func kind(name string) (doc any, words [][2]string) {
	for _, k := range audit.Kinds {
		if string(k.Kind) == name {
			return map[string]any{"kind": k.Kind, "severity": k.Severity, "meaning": k.Meaning, "mended": k.Mended},
				[][2]string{{"kind", name}, {"severity", string(k.Severity)}, {"meaning", k.Meaning}, {"--fix", k.Mended}}
		}
	}
	return nil, nil
}

// printWords writes one thing, as a document or in words.
func (c *command) printWords(w io.Writer, doc any, words [][2]string) error {
	if c.asJSON() {
		return printJSON(w, doc)
	}
	g := &grid{columns: []column{{}, {least: 30}}}
	var rows [][]cell
	for _, x := range words {
		if x[1] != "" {
			rows = append(rows, []cell{{text: x[0], colour: dim}, {text: x[1]}})
		}
	}
	g.fit(rows, c.width())
	return c.write(w, g, rows, false)
}

// everything is every code, then every reason and every kind, each as it is
// explained by itself.
func everything() (all []any) {
	for _, k := range jsonCodes(codes.Table) {
		all = append(all, k)
	}
	for _, r := range codes.Reasons {
		doc, _ := reason(r.Name)
		all = append(all, doc)
	}
	for _, k := range audit.Kinds {
		doc, _ := kind(string(k.Kind))
		all = append(all, doc)
	}
	return all
}

// printEverything writes what there is to explain, a table each for codes, reasons
// and kinds.
func (c *command) printEverything(w io.Writer) error {
	var numbers, reasons, kinds [][]cell
	for _, k := range codes.Table {
		numbers = append(numbers, []cell{{text: fmt.Sprint(k.Number)}, {text: k.Name}, {text: k.Meaning}})
	}
	for _, r := range codes.Reasons {
		reasons = append(reasons, []cell{{text: r.Name}, {text: r.Meaning}})
	}
	for _, k := range audit.Kinds {
		kinds = append(kinds, []cell{{text: string(k.Kind)}, {text: string(k.Severity)}, {text: k.Meaning}})
	}
	for _, t := range []struct {
		columns []column
		rows    [][]cell
	}{
		{[]column{{head: "CODE", right: true}, {head: "NAME", least: 13}, {head: "MEANING", least: 30}}, numbers},
		{[]column{{head: "REASON OF CHECK"}, {head: "MEANING", least: 30}}, reasons},
		{[]column{{head: "KIND OF FINDING"}, {head: "SEVERITY"}, {head: "MEANING", least: 30}}, kinds},
	} {
		g := &grid{columns: t.columns}
		g.fit(t.rows, c.width())
		if err := errors.Join(c.write(w, g, t.rows, true), c.printLines(w, plain, "")); err != nil {
			return err
		}
	}
	return c.printLines(w, plain, "tracewirectl explain NAME tells more, and what to do")
}

// ofSpec is the codes of the CNI spec 1.1.0 ("Error") that the plugin never
// answers, but others do.
var ofSpec = map[uint64]string{
	3: "the container is unknown or does not exist, and the runtime needs no cleanup such as DEL",
}

// nothing is errNothing in words of its own.
type nothing string

func (n nothing) Error() string        { return string(n) }
func (n nothing) Is(target error) bool { return target == errNothing }

// code is the code of a number. The error tells of those that others answer.
func code(text string) (codes.Code, error) {
	var known []string
	for _, k := range codes.Table {
		known = append(known, fmt.Sprint(k.Number))
	}
	list := "the codes that it answers are " + strings.Join(known, ", ")
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return codes.Code{}, fmt.Errorf("%q is no code of tracewire, no reason of CHECK and no kind of finding; %s", text, list)
	}
	if k, ok := codes.Of(uint(n)); ok {
		return k, nil
	}
	own := "; " + list
	if n < 100 {
		own = "; CNI's own codes are those below 100" + own
	}
	if meaning := ofSpec[n]; meaning != "" {
		own = "; it is one of CNI's own codes: " + meaning
	}
	return codes.Code{}, nothing(fmt.Sprintf("code %d is not one that tracewire answers%s", n, own))
}

type jsonCode struct {
	Code    uint   `json:"code"`
	Name    string `json:"name"`
	Meaning string `json:"meaning"`
	Hint    string `json:"hint,omitempty"`
}

func jsonCodes(list []codes.Code) (out []jsonCode) {
	for _, k := range list {
		out = append(out, jsonCode{k.Number, k.Name, k.Meaning, k.Hint})
	}
	return out
}

func (c *command) version() *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "Prints the version",
		Example:           "  tracewirectl version -o json",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.asJSON() {
				return printJSON(cmd.OutOrStdout(), map[string]string{"version": version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
			}
			_, err := io.WriteString(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
}

func versionLine() string {
	return fmt.Sprintf("tracewirectl %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
