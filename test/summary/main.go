// Command summary reads what `go test -json` writes and tells it to a person:
// a line a package, the whole output of what failed, the files that are its
// arguments, each skipped test under its reason, and as the last line `N passed, N failed, N skipped`.
//
// Only tests without subtests are counted, and a package that failed by itself
// (it did not build, or its process ended early) counts as one failure. It exits 1 when
// anything failed, when no test ran, and with TRACEWIRE_NO_SKIP=1 when a test
// was skipped for a missing program.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

// needsProgram begins the reason of a test that is skipped for a missing program.
const needsProgram = "needs the program"

func main() {
	s := newSummary(os.Stdout)
	if err := s.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
		os.Exit(1)
	}
	s.show(os.Args[1:])
	if !s.finish(os.Getenv("TRACEWIRE_NO_SKIP") == "1") {
		os.Exit(1)
	}
}

// event is a line of test2json (go doc test2json) or of go build -json.
type event struct {
	Action      string
	Package     string
	Test        string
	Output      string
	Elapsed     float64
	ImportPath  string // of build events
	FailedBuild string // of a package whose build failed
}

// test is one test that has begun.
type test struct {
	output        []string
	hasSubtests   bool
	failedSubtest bool
}

// pkg is what is known of one package so far; a test that has ended is no longer in running.
type pkg struct {
	running                 map[string]*test
	output                  []string
	passed, failed, skipped int
}

// summary is the state of one reading.
type summary struct {
	out                     io.Writer
	pkgs                    map[string]*pkg
	builds                  map[string][]string // a failing build's output, by import path
	passed, failed, skipped int
	failures                []string            // package and test
	skips                   map[string][]string // package and test, by reason
}

func newSummary(out io.Writer) *summary {
	return &summary{out: out, pkgs: map[string]*pkg{}, builds: map[string][]string{}, skips: map[string][]string{}}
}

// read takes in all events. A line that is no event is passed on as it is.
func (s *summary) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		switch {
		case len(line) == 0:
		case json.Unmarshal(line, &e) != nil:
			s.printf("%s", line)
		default:
			s.take(e)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *summary) take(e event) {
	switch {
	case e.Action == "build-output":
		s.builds[e.ImportPath] = append(s.builds[e.ImportPath], e.Output)
	case e.Package == "":
	case e.Test == "":
		s.takePackage(s.pkg(e.Package), e)
	default:
		s.takeTest(s.pkg(e.Package), e)
	}
}

func (s *summary) pkg(path string) *pkg {
	if s.pkgs[path] == nil {
		s.pkgs[path] = &pkg{running: map[string]*test{}}
	}
	return s.pkgs[path]
}

// test returns a test that runs. Its first event makes it, and tells its parents that they have subtests.
func (p *pkg) test(name string) *test {
	if p.running[name] == nil {
		p.running[name] = &test{}
		for _, parent := range p.parents(name) {
			parent.hasSubtests = true
		}
	}
	return p.running[name]
}

func (p *pkg) parents(name string) []*test {
	var found []*test
	for i, c := range name {
		if c != '/' {
			continue
		}
		if t := p.running[name[:i]]; t != nil {
			found = append(found, t)
		}
	}
	return found
}

func (s *summary) takeTest(p *pkg, e event) {
	t := p.test(e.Test)
	switch e.Action {
	case "output":
		t.output = append(t.output, e.Output)
	case "pass":
		delete(p.running, e.Test)
		if !t.hasSubtests {
			p.passed++
		}
	case "skip":
		delete(p.running, e.Test)
		p.skipped++
		why := reason(t.output)
		s.skips[why] = append(s.skips[why], e.Package+" "+e.Test)
	case "fail":
		s.failTest(p, e.Package, e.Test)
	}
}

// failTest prints a test's output and counts it, unless a subtest of it was counted.
func (s *summary) failTest(p *pkg, path, name string) {
	t := p.running[name]
	delete(p.running, name)
	s.printf("%s", strings.Join(t.output, ""))
	if t.failedSubtest {
		return
	}
	for _, parent := range p.parents(name) {
		parent.failedSubtest = true
	}
	p.failed++
	s.failures = append(s.failures, path+" "+name)
}

func (s *summary) takePackage(p *pkg, e event) {
	switch e.Action {
	case "output":
		p.output = append(p.output, e.Output)
		return
	case "fail":
		s.failPackage(p, e)
	case "pass", "skip":
	default:
		return
	}
	s.passed, s.failed, s.skipped = s.passed+p.passed, s.failed+p.failed, s.skipped+p.skipped
	if p.passed+p.failed+p.skipped > 0 {
		s.printf("%-4s %s %.1fs: %s\n", e.Action, e.Package, e.Elapsed, count(p.passed, p.failed, p.skipped))
	}
	delete(s.pkgs, e.Package)
}

// failPackage fails the tests that never ended, the innermost first, and the package itself when no test explains its failure.
func (s *summary) failPackage(p *pkg, e event) {
	unfinished := make([]string, 0, len(p.running))
	for name := range p.running {
		unfinished = append(unfinished, name)
	}
	slices.SortFunc(unfinished, func(a, b string) int { return strings.Compare(b, a) })
	for _, name := range unfinished {
		s.failTest(p, e.Package, name)
	}
	s.printf("%s%s", strings.Join(s.builds[e.FailedBuild], ""), strings.Join(p.output, ""))
	delete(s.builds, e.FailedBuild)
	if p.failed == 0 {
		p.failed++
		s.failures = append(s.failures, e.Package)
	}
}

// show prints files that tests wrote for it. One that is not there is no loss.
func (s *summary) show(paths []string) {
	for _, path := range paths {
		if text, err := os.ReadFile(path); err == nil {
			s.printf("\n%s", text)
		}
	}
}

// finish prints the lists and the count, and says whether all is well.
func (s *summary) finish(noSkip bool) bool {
	for path, p := range s.pkgs { // go test was killed
		s.takePackage(p, event{Action: "fail", Package: path})
	}
	missing := s.printSkips()
	if len(s.failures) > 0 {
		s.printf("\nfailed:\n  %s\n", strings.Join(s.failures, "\n  "))
	}
	s.printf("\n")
	ran := s.passed+s.failed > 0
	if !ran {
		s.printf("no test ran\n")
	}
	skipsAllowed := !noSkip || missing == 0
	if !skipsAllowed {
		s.printf("TRACEWIRE_NO_SKIP=1, but tests were skipped for a missing program: %d\n", missing)
	}
	s.printf("%s\n", count(s.passed, s.failed, s.skipped))
	return s.failed == 0 && ran && skipsAllowed
}

// printSkips lists the skipped tests by reason and returns how many missed a program.
func (s *summary) printSkips() (missing int) {
	reasons := make([]string, 0, len(s.skips))
	for why, tests := range s.skips {
		reasons = append(reasons, why)
		if strings.HasPrefix(why, needsProgram) {
			missing += len(tests)
		}
	}
	slices.Sort(reasons)
	for _, why := range reasons {
		s.printf("\nskipped: %s\n  %s\n", why, strings.Join(s.skips[why], "\n  "))
	}
	return missing
}

func (s *summary) printf(format string, args ...any) { _, _ = fmt.Fprintf(s.out, format, args...) }

func count(passed, failed, skipped int) string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", passed, failed, skipped)
}

// logged is the place that t.Log and t.Skip put before their text.
var logged = regexp.MustCompile(`^\s+\S+\.go:\d+: `)

// reason is the text of a test's last log, the one t.Skip wrote, on one line.
func reason(output []string) string {
	var words []string
	for _, line := range output {
		at := logged.FindString(line)
		switch {
		case at != "":
			words = strings.Fields(line[len(at):])
		case len(words) > 0 && strings.HasPrefix(line, "        "): // the same log goes on
			words = append(words, strings.Fields(line)...)
		}
	}
	if len(words) == 0 {
		return "no reason given"
	}
	return strings.Join(words, " ")
}
