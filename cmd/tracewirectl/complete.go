package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tracewire/tracewire/chain/audit"
	"github.com/tracewire/tracewire/chain/codes"
	"github.com/tracewire/tracewire/trace/read"
)

// help is cobra's own, but for a topic that it does not know.
func help() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Shows help for a command",
		Long:    "help shows what a command does, its flags and examples.",
		Example: "  tracewirectl help history",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) (names []string, _ cobra.ShellCompDirective) {
			of, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			for _, sub := range of.Commands() {
				if sub.IsAvailableCommand() && strings.HasPrefix(sub.Name(), begin) {
					names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return fmt.Errorf("unknown command %q for %q", rest[0], of.CommandPath())
			}
			return of.Help()
		},
	}
}

// completion makes a shell complete flags, and cobra's command for it speak
// like ours.
func (c *command) completion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	cmd, _, err := root.Find([]string{"completion"})
	if err != nil {
		return // without it there is nothing to reword
	}
	cmd.Short = "Prints the completion script for a shell"
	cmd.Long = "completion prints a script that makes a shell complete command lines of\ntracewirectl. The help of each shell tells where to put it."
	cmd.Example = "  source <(tracewirectl completion bash)"
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() } // makes an unknown shell an error
	for _, shell := range cmd.Commands() {
		shell.Short = "Prints the completion script for " + shell.Name()
		shell.Long = "completion " + shell.Name() + " prints the completion script for " + shell.Name() + "."
		shell.Example = loads[shell.Name()]
		if f := shell.Flags().Lookup("no-descriptions"); f != nil {
			f.Usage = "Leaves out the descriptions"
		}
	}
	complete(root, "output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))
	complete(root, "colour", cobra.FixedCompletions(colours, cobra.ShellCompDirectiveNoFileComp))
	for _, name := range []string{"state-dir", "spool", "conf-dir"} {
		complete(root, name, cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs))
	}
}

// loads is how a shell loads its script, now or each time it starts.
var loads = map[string]string{
	"bash": `  source <(tracewirectl completion bash)
  tracewirectl completion bash >/etc/bash_completion.d/tracewirectl`,
	"zsh": `  source <(tracewirectl completion zsh)
  tracewirectl completion zsh >"${fpath[1]}/_tracewirectl"`,
	"fish": `  tracewirectl completion fish | source
  tracewirectl completion fish >~/.config/fish/completions/tracewirectl.fish`,
	"powershell": "  tracewirectl completion powershell | Out-String | Invoke-Expression",
}

// complete says how a flag's value is completed.
func complete(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	_ = cmd.RegisterFlagCompletionFunc(flag, f) // refused for a flag that is not there: TestComplete
}

func completeCodes(_ *cobra.Command, args []string, begin string) (list []string, _ cobra.ShellCompDirective) {
	add := func(word, says string) {
		if len(args) == 0 && strings.HasPrefix(word, begin) {
			list = append(list, cobra.CompletionWithDesc(word, says))
		}
	}
	for _, k := range codes.Table {
		add(fmt.Sprint(k.Number), k.Name)
	}
	for _, r := range codes.Reasons {
		add(r.Name, r.Meaning)
	}
	for _, k := range audit.Kinds {
		add(string(k.Kind), k.Meaning)
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}

// completeAttachments completes an ATTACHMENT from the records: to pods, to
// containers of no pod, and to whatever else it begins as.
func (c *command) completeAttachments(_ *cobra.Command, args []string, begin string) (list []string, _ cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	p, err := c.places()
	all, errRecords := records(p.state)
	if errors.Join(err, errRecords) != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for _, r := range all {
		pod, id := podName(r), read.ShortID(r.ContainerID)
		names := [][2]string{{pod, "container " + id}, {r.ContainerID, pod}, {r.String(), pod}, {r.subject().pod, pod}}
		for _, a := range r.subject().addresses {
			names = append(names, [2]string{a.String(), pod})
		}
		for i, n := range names {
			usual := i == 0 || i == 1 && pod == ""
			if n[0] != "" && strings.HasPrefix(n[0], begin) && (begin != "" || usual) {
				list = append(list, strings.TrimSuffix(cobra.CompletionWithDesc(n[0], n[1]), "\t"))
			}
		}
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}
