// Package iptables lists and changes the table nat of both families, by the
// programs that the reference plugins use for it.
package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/tracewire/tracewire/delegates"
)

// Family is an address family, by the name of its program.
type Family string

// The families.
const (
	IPv4 Family = "iptables"
	IPv6 Family = "ip6tables"
)

// ErrMissing marks an iptables program that is not there.
var ErrMissing = errors.New("program is missing")

// patience is how long iptables waits for another's lock, in seconds.
const patience = "10"

// Restore makes changes to the table nat, all or none of them.
func (f Family) Restore(ctx context.Context, lines []string) error {
	if len(lines) == 0 {
		return nil
	}
	in := "*nat\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
	_, err := run(ctx, string(f)+"-restore", in, "--noflush", "-w", patience)
	return err
}

// List is the rules of one chain of the table nat, "" for all of its chains,
// each as what appends it.
func (f Family) List(ctx context.Context, chain string) (rules []string, err error) {
	args := []string{"-w", patience, "-t", "nat", "-S"}
	if chain != "" {
		args = append(args, chain)
	}
	out, err := run(ctx, string(f), "", args...)
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "-A ") {
			rules = append(rules, line)
		}
	}
	return rules, err
}

// lasts bounds a look at one family: a program that hangs is not waited for.
const lasts = 15 * time.Second

// Nat is the rules of the table nat, of all families and chains, as List has
// them. A node without iptables has none.
func Nat(ctx context.Context) (rules []string, err error) {
	var errs []error
	for _, f := range []Family{IPv4, IPv6} {
		short, cancel := context.WithTimeout(ctx, lasts)
		own, err := f.List(short, "")
		cancel()
		if err != nil && !errors.Is(err, ErrMissing) {
			errs = append(errs, fmt.Errorf("%s: %w", f, err))
		}
		rules = append(rules, own...)
	}
	return rules, errors.Join(errs...)
}

// Chain is the chain that a rule is of.
func Chain(rule string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(rule, "-A "), " ")
	return name
}

// Target is what a rule's -j names.
func Target(rule string) string {
	_, after, _ := strings.Cut(rule, " -j ")
	name, _, _ := strings.Cut(after, " ")
	return name
}

// Names reads the names in a reference plugin's comment: name: \"net\" id: \"c1\".
// ok is false where it has not both, or was cut.
func Names(rule string) (network, id string, ok bool) {
	const quote = `\"`
	_, after, _ := strings.Cut(rule, "name: "+quote)
	network, after, _ = strings.Cut(after, quote+" id: "+quote)
	id, _, ok = strings.Cut(after, quote)
	return network, id, ok && network != "" && id != ""
}

// run runs a program of PATH, with PATH alone in its environment.
func run(ctx context.Context, program, stdin string, args ...string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("%w: %s", ErrMissing, program)
	}
	out, stderr, err := delegates.Run(ctx, path, args, []string{"PATH=" + os.Getenv("PATH")}, []byte(stdin))
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", program, err, strings.Join(strings.Fields(string(stderr)), " "))
	}
	return string(out), nil
}
