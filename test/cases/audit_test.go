//go:build linux

package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tracewire/tracewire/chain/audit"
	"github.com/tracewire/tracewire/test/sandboxes"
)

// ctl runs a command of the operator's, and reads its answer. The runtime is asked
// where a case has one. The operations that it leaves count as run: how many
// plugins a command needs is told by nobody.
func (c *story) ctl(ctx context.Context, t *testing.T, answer any, words ...string) error {
	t.Helper()
	needSandbox(t)
	if c.runtime != "" && words[0] == "audit" {
		words = append(words, "--cri", c.runtime)
	}
	before, err := spooled(c.Node)
	if err != nil {
		return err
	}
	b, err := c.Ctl(ctx, words...)
	after, errAfter := spooled(c.Node)
	for _, name := range []string{"audit.fix", "DEL"} {
		c.ran[name] += after[name] - before[name]
	}
	if err := errors.Join(err, errAfter); err != nil {
		return err
	}
	return json.Unmarshal(b, answer)
}

// tell writes down what a command of the operator's tells, "none" where that is
// nothing.
func (c *story) tell(what string, lines ...string) {
	if len(lines) == 0 {
		lines = []string{"none"}
	}
	slices.Sort(lines)
	c.audits += "# " + what + "\n" + c.Normal(strings.Join(lines, "\n")) + "\n"
}

// audit writes down what an audit finds: "audit".
func (c *story) audit(ctx context.Context, t *testing.T, _ []string) error {
	found, err := c.found(ctx, t)
	c.tell("after: "+c.last, found...)
	return err
}

// found is what an audit finds, a line each.
func (c *story) found(ctx context.Context, t *testing.T) (lines []string, err error) {
	t.Helper()
	var r struct{ Findings []audit.Finding }
	err = c.ctl(ctx, t, &r, "audit")
	for _, f := range r.Findings {
		lines = append(lines, sentence(f))
	}
	return lines, err
}

// sentence is a finding as a line: kind, what it is about, what a repair would do, how
// old it is where that is hours, and the first words of what each source says.
func sentence(f audit.Finding) string {
	words := make([]string, len(f.Evidence))
	line := fmt.Sprintf("%s %s ", f.Kind, f.About())
	if f.Repair == nil {
		line += "reported"
	} else {
		line += string(f.Repair.Action)
	}
	if age := time.Since(f.Since).Round(time.Hour); age != 0 && !f.Since.IsZero() {
		line += fmt.Sprintf(", %.0f h old", age.Hours())
	}
	for i, e := range f.Evidence {
		words[i] = fmt.Sprintf("%s: %s", e.Source, first(e.Says))
	}
	slices.Sort(words) // of two interfaces none is first
	return strings.Join(append([]string{line}, words...), " | ")
}

// first is the first words of a text, without what is of this run alone.
func first(text string) string {
	words := strings.Fields(random.ReplaceAllString(text, "X"))
	return strings.Join(words[:min(len(words), 7)], " ")
}

// random is times, boot ids and cookies.
var random = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|cookie \d+`)

// fixed is what a run with --fix tells.
type fixed struct {
	Due, Young []audit.Finding
	Failed     []string // ids
}

// mend runs the command with --fix.
func (c *story) mend(ctx context.Context, t *testing.T, more ...string) (f fixed, err error) {
	t.Helper()
	err = c.ctl(ctx, t, &f, append([]string{"audit", "--fix", "--yes"}, more...)...)
	if len(f.Failed) > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d repairs failed", len(f.Failed), len(f.Due)))
	}
	return f, err
}

// look writes down what one look with --fix repairs, and what it leaves for the
// next, with the usual grace: "look".
func (c *story) look(ctx context.Context, t *testing.T, _ []string) error {
	f, err := c.mend(ctx, t)
	lines := append(done("repaired", f.Due), done("not yet", f.Young)...)
	c.tell("look, after: "+c.last, lines...)
	return err
}

func done(what string, all []audit.Finding) (lines []string) {
	for _, f := range all {
		lines = append(lines, fmt.Sprintf("%s: %s %s %s", what, f.Kind, f.About(), f.Repair.Action))
	}
	return lines
}

// fix looks twice, without a grace, and writes down what is repaired and what is
// left then: "fix".
func (c *story) fix(ctx context.Context, t *testing.T, _ []string) error {
	_, errFirst := c.mend(ctx, t, "--grace", "0s")
	f, errSecond := c.mend(ctx, t, "--grace", "0s")
	left, err := c.found(ctx, t)
	c.tell("fix, after: "+c.last, done("repaired", f.Due)...)
	c.tell("left", left...)
	return errors.Join(errFirst, errSecond, err)
}

// later makes the looks of before older: "later 60s".
func (c *story) later(_ context.Context, t *testing.T, args []string) error {
	path := filepath.Join(c.Dir, "state", "audit.json")
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var l audit.Look
	if err := json.Unmarshal(b, &l); err != nil {
		return err
	}
	for id, s := range l.Seen {
		s.First -= duration(t, args[0])
		l.Seen[id] = s
	}
	if b, err = json.Marshal(l); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// at is a time of a record.
var at = regexp.MustCompile(`"at":\d+`)

// old makes a file older than it is, or of a time to come: "old
// cache/results/net-c1-eth0 30h", "old state/attachments/net/c1:eth0 -24h".
func (c *story) old(_ context.Context, t *testing.T, args []string) error {
	path, by := filepath.Join(c.Dir, args[0]), duration(t, args[1])
	if strings.HasPrefix(args[0], "state/attachments/") {
		rewrite(t, path, func(line string) string {
			return at.ReplaceAllStringFunc(line, func(text string) string {
				then, _ := strconv.ParseInt(strings.TrimPrefix(text, `"at":`), 10, 64)
				return fmt.Sprintf(`"at":%d`, then-by.Nanoseconds())
			})
		})
	}
	when := time.Now().Add(-by)
	return os.Chtimes(path, when, when)
}

// uninstall writes down what an uninstall would remove, folders and programs
// apart: "uninstall".
func (c *story) uninstall(ctx context.Context, t *testing.T, _ []string) error {
	var all []struct{ What, Path, Stays string }
	err := c.ctl(ctx, t, &all, "uninstall", "--attachments")
	var lines []string
	for _, b := range all {
		if b.What == "attachment" || b.What == "interface" || b.What == "rules" {
			lines = append(lines, b.What+" "+b.Path)
		}
	}
	c.tell("uninstall, after: "+c.last, lines...)
	return err
}

// sandboxes makes an audit ask a runtime that has these, none without a name:
// "sandboxes c1 c2".
func (c *story) sandboxes(_ context.Context, t *testing.T, args []string) error {
	c.runtime = sandboxes.Serve(t, args...)
	return nil
}

// process runs one in a pod until the case ends, as a pod that lives has: "process
// pod1".
func (c *story) process(_ context.Context, t *testing.T, args []string) error {
	return c.In(args[0], func() error {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			return err
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return nil
	})
}
