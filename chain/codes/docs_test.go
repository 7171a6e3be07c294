package codes

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the tables of the documents anew")

// yesNo is a column of few words.
var yesNo = map[bool]string{true: "yes", false: "no"}

// documents is where the tables stand, between two lines that name them.
var documents = []struct {
	path, table string
	head        []string
	rows        func() [][]string
}{
	{"README.md", "errors", []string{"code", "name", "meaning"}, func() [][]string { return errorRows(false) }},
	{"docs/errors.md", "errors", []string{"code", "name", "meaning", "what to do"}, func() [][]string { return errorRows(true) }},
	{"docs/check.md", "reasons", []string{"reason", "what is so", "what to know, or do", "DEL and ADD mend it", "`audit --fix` puts it right"}, func() (out [][]string) {
		for _, r := range Reasons {
			out = append(out, []string{"`" + r.Name + "`", r.Meaning, r.Hint, yesNo[r.Mends], yesNo[r.Restores]})
		}
		return out
	}},
	{"docs/check.md", "differences", []string{"what is so", "why it is none"}, func() (out [][]string) {
		for _, d := range Harmless {
			out = append(out, []string{d.What, d.Why})
		}
		return out
	}},
}

func errorRows(hints bool) (out [][]string) {
	for _, c := range Table {
		row := []string{fmt.Sprint(c.Number), c.Name, c.Meaning}
		if hints {
			row = append(row, c.Hint)
		}
		out = append(out, row)
	}
	return out
}

// TestDocuments: the documents have the tables as they are. -update writes them anew.
func TestDocuments(t *testing.T) {
	for _, d := range documents {
		begin := "<!-- begin: " + d.table + " from chain/codes, by make test PKGS='./chain/codes -update' -->\n"
		const end = "<!-- end -->\n"
		path := filepath.Join("..", "..", d.path)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		before, rest, hasBegin := strings.Cut(string(b), begin)
		have, after, hasEnd := strings.Cut(rest, end)
		if !hasBegin || !hasEnd {
			t.Errorf("%s has not the lines around the table of %s", d.path, d.table)
			continue
		}
		want := markdown(d.head, d.rows())
		if *update {
			if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
				t.Error(err)
			}
		} else if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(have, "\n")); diff != "" {
			t.Errorf("%s, %s: -want +got:\n%s", d.path, d.table, diff)
		}
	}
}

func markdown(head []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(head)
	line(strings.Fields(strings.Repeat("--- ", len(head))))
	for _, r := range rows {
		line(r)
	}
	return b.String()
}

// TestHarmless: every difference says what and why, once, in a table's cell.
func TestHarmless(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range Harmless {
		if d.What == "" || d.Why == "" || seen[d.What] || strings.ContainsAny(d.What+d.Why, "|\n") || strings.HasSuffix(d.Why, ".") {
			t.Errorf("%+v", d)
		}
		seen[d.What] = true
	}
}
