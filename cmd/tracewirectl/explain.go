package main

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tracewire/tracewire/chain/codes"
)

func (c *command) explain() *cobra.Command {
	return &cobra.Command{
		Use:   "explain [CODE]",
		Short: "tells what a CNI error code means and what to do next",
		Long:  "explain tells what an error code of the plugin means and what to do next. Without a code it lists all.",
		Example: `  tracewirectl explain 100
  tracewirectl explain -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			shown := codes.Table
			if len(args) > 0 {
				one, err := code(args[0])
				if err != nil {
					return err
				}
				shown = []codes.Code{one}
			}
			if c.asJSON() {
				return printJSON(cmd.OutOrStdout(), jsonCodes(shown))
			}
			g := &grid{columns: []column{{head: "CODE", right: true}, {head: "NAME"}, {head: "MEANING", least: 20}, {head: "NEXT", least: 20}}}
			var rows [][]cell
			for _, k := range shown {
				rows = append(rows, []cell{{text: fmt.Sprint(k.Number)}, {text: k.Name}, {text: k.Meaning}, {text: k.Hint}})
			}
			g.fit(rows, c.width())
			return c.write(cmd.OutOrStdout(), g, rows, true)
		},
	}
}

// code is the code of a number. The error lists the known ones.
func code(text string) (codes.Code, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err == nil {
		if k, ok := codes.Of(uint(n)); ok {
			return k, nil
		}
	}
	var known []string
	for _, k := range codes.Table {
		known = append(known, fmt.Sprint(k.Number))
	}
	list := strings.Join(known, ", ")
	if err != nil {
		return codes.Code{}, fmt.Errorf("%q is no code: known are %s", text, list)
	}
	return codes.Code{}, fmt.Errorf("%w: no code %d: known are %s", errNothing, n, list)
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
		Use:     "version",
		Short:   "prints the version",
		Example: "  tracewirectl version -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.asJSON() {
				return printJSON(cmd.OutOrStdout(), map[string]string{"version": version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "tracewirectl %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
