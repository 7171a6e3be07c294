// Package iptables lists and changes the table nat of both families, by the
// programs that the reference plugins use for it.
package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
	return run(ctx, string(f)+"-restore", in, io.Discard, "--noflush", "-w", patience)
}

// List is the rules of one chain of the table nat, "" for the reference plugins'
// of all of its chains, each as what appends it.
func (f Family) List(ctx context.Context, chain string) (rules []string, err error) {
	args, l := []string{"-w", patience, "-t", "nat", "-S"}, listing{text: []byte(ofPlugins)}
	if chain != "" {
		args, l.text = append(args, chain), nil
	}
	err = run(ctx, string(f), "", &l, args...)
	return l.rules, err
}

// listing keeps the rules of what iptables prints, line by line: where a proxy of
// services is at work there are many more of others.
type listing struct {
	text  []byte
	rules []string
	rest  []byte // of a line that has not ended
}

func (l *listing) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, after, ended := bytes.Cut(l.rest, []byte("\n"))
		if !ended {
			return len(p), nil
		}
		if line = bytes.TrimSpace(line); bytes.HasPrefix(line, []byte("-A ")) && bytes.Contains(line, l.text) {
			l.rules = append(l.rules, string(line))
		}
		l.rest = after
	}
}

// ofPlugins is in every rule of the reference plugins': the name of a chain of
// theirs.
const ofPlugins = "CNI-"

// lasts bounds a look at one family: a program that hangs is not waited for.
const lasts = 15 * time.Second

// Nat is the reference plugins' rules of the table nat, of all families and
// chains, as List has them. A node without iptables has none.
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
func run(ctx context.Context, program, stdin string, stdout io.Writer, args ...string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return fmt.Errorf("%w: %s", ErrMissing, program)
	}
	stderr, err := delegates.Stream(ctx, path, args, []string{"PATH=" + os.Getenv("PATH")}, []byte(stdin), stdout)
	if err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, strings.Join(strings.Fields(string(stderr)), " "))
	}
	return nil
}
