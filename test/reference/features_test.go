//go:build linux

package reference

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// feature is a row of features.json.
type feature struct {
	Plugin    string   `json:"plugin"`    // of the reference
	Feature   string   `json:"feature"`   // or fault
	Reference string   `json:"reference"` // what its plugin does
	Ours      string   `json:"ours"`      // what tracewire does; "" is the same
	Report    []string `json:"report"`    // public reports, as repository#number
	// Test is what shows it: a folder of test/cases, or a Go test by its package's
	// folder and name, as ipam.TestAdd/exhausted.
	Test   []string `json:"test"`
	Reason string   `json:"reason"` // why nothing shows it
}

func features(t *testing.T) (out []feature) {
	t.Helper()
	f, err := os.Open("features.json")
	must(t, err)
	defer f.Close()
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	must(t, d.Decode(&out))
	return out
}

var (
	goTest = regexp.MustCompile(`^([a-z/]+)\.(Test\w+)(?:/(.+))?$`)
	report = regexp.MustCompile(`^[\w-]+#\d+$`)
)

// TestFeatures: every row says all, and what is to show it is there.
func TestFeatures(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range features(t) {
		name := f.Plugin + ": " + f.Feature
		if seen[name] {
			t.Errorf("%s is there twice", name)
		}
		seen[name] = true
		if f.Plugin == "" || f.Feature == "" || f.Reference == "" || strings.ContainsAny(name+f.Reference+f.Ours+f.Reason, "|\n") {
			t.Errorf("%s: %+v", name, f)
		}
		if (len(f.Test) == 0) == (f.Reason == "") {
			t.Errorf("%s: want tests or a reason, got %q and %q", name, f.Test, f.Reason)
		}
		for _, r := range f.Report {
			if !report.MatchString(r) {
				t.Errorf("%s: %q is no report", name, r)
			}
		}
		for _, shown := range f.Test {
			if err := exists(shown); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestScenariosAreFeatures: no scenario is without its row.
func TestScenariosAreFeatures(t *testing.T) {
	var shown []string
	for _, f := range features(t) {
		shown = append(shown, f.Test...)
	}
	for _, s := range scenarios {
		if !slices.Contains(shown, "test/reference.TestScenarios/"+s.name) {
			t.Errorf("no row of features.json names the scenario %q", s.name)
		}
	}
}

// exists looks for a case's folder, or for a Go test, whose subtest has to be a
// string in its package.
func exists(shown string) error {
	m := goTest.FindStringSubmatch(shown)
	if m == nil {
		_, err := os.Stat(filepath.Join("..", "..", shown, "steps"))
		return err
	}
	files, err := filepath.Glob(filepath.Join("..", "..", m[1], "*_test.go"))
	if err != nil {
		return err
	}
	function, subtest := false, m[3] == ""
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				function = function || n.Name.Name == m[2] && n.Recv == nil
			case *ast.BasicLit:
				text, err := strconv.Unquote(n.Value)
				subtest = subtest || err == nil && text == m[3]
			}
			return true
		})
	}
	if !function || !subtest {
		return fmt.Errorf("no test %s", shown)
	}
	return nil
}

// Where the tables are, between two lines that say where they come from.
const (
	begin = "<!-- begin: from test/reference/features.json, by make test PKGS='./test/reference -update' -->\n"
	end   = "<!-- end -->\n"
)

// TestTables: README has the rows that differ or are not shown, and
// docs/reference.md all of them. -update writes both anew.
func TestTables(t *testing.T) {
	all := features(t)
	differ := slices.DeleteFunc(slices.Clone(all), func(f feature) bool { return f.Ours == "" && f.Reason == "" })
	for _, tt := range []struct {
		path, up string
		rows     []feature
		reports  bool
	}{{"README.md", "", differ, false}, {"docs/reference.md", "../", all, true}} {
		path := filepath.Join("..", "..", tt.path)
		b, err := os.ReadFile(path)
		must(t, err)
		before, rest, hasBegin := strings.Cut(string(b), begin)
		have, after, hasEnd := strings.Cut(rest, end)
		if !hasBegin || !hasEnd {
			t.Errorf("%s has not the lines around the table", tt.path)
			continue
		}
		want := table(tt.rows, tt.up, tt.reports)
		if *update {
			must(t, os.WriteFile(path, []byte(before+begin+want+end+after), 0o644))
		} else if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(have, "\n")); diff != "" {
			t.Errorf("%s: -want +got:\n%s", tt.path, diff)
		}
	}
}

// table is the rows in Markdown, from a file that is up below the top folder.
func table(rows []feature, up string, reports bool) string {
	var b strings.Builder
	line := func(cells ...string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	head := []string{"feature or fault", "reference " + version, "tracewire", "shown by"}
	if reports {
		head = append(head, "reports")
	}
	line(head...)
	line(slices.Repeat([]string{"---"}, len(head))...)
	plugin := ""
	for _, f := range rows {
		if f.Plugin != plugin {
			plugin = f.Plugin
			line(append([]string{"**" + plugin + "**"}, slices.Repeat([]string{""}, len(head)-1)...)...)
		}
		cells := []string{f.Feature, f.Reference, f.Ours, f.shownBy(up, reports)}
		if f.Ours == "" {
			cells[2] = "the same"
		}
		if reports {
			cells = append(cells, strings.Join(f.Report, ", "))
		}
		line(cells...)
	}
	return b.String()
}

// shownBy is the first of the tests, or all, or the reason why there is none.
func (f feature) shownBy(up string, all bool) string {
	var out []string
	for _, shown := range f.Test {
		m := goTest.FindStringSubmatch(shown)
		switch {
		case m == nil:
			out = append(out, fmt.Sprintf("[%s](%s)", filepath.Base(shown), up+shown))
		case m[1] == "test/reference":
			out = append(out, "`make compare-reference`")
		default:
			out = append(out, fmt.Sprintf("[%s.%s](%s)", filepath.Base(m[1]), m[2], up+m[1]))
		}
	}
	if f.Reason != "" {
		return "not shown: " + f.Reason
	}
	if out = slices.Compact(out); !all {
		out = out[:1]
	}
	return strings.Join(out, ", ")
}
