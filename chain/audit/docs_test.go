package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestDocs: docs/audit.md has every kind, source and action, and its example is
// what this package writes.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile("../../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, k := range Kinds {
		words = append(words, fmt.Sprintf("| %#q | %s | %s | %s |", string(k.Kind), k.Severity, k.Meaning, k.Mended))
	}
	for _, s := range []Source{Records, Quarantine, Libcni, IPAM, Kernel, Rules, Namespaces, Runtime, Processes, Check} {
		words = append(words, "`"+string(s)+"`")
	}
	for action := range mends {
		words = append(words, "`"+string(action)+"`")
	}
	for _, w := range words {
		if !bytes.Contains(b, []byte(w)) {
			t.Errorf("docs/audit.md has no %s", w)
		}
	}
	_, example, _ := strings.Cut(string(b), "```json\n")
	example, _, _ = strings.Cut(example, "```")
	d := json.NewDecoder(strings.NewReader(example))
	d.DisallowUnknownFields()
	var r struct {
		Version  int
		Counts   Counts
		Findings []Finding
		Unread   []map[string]string
	}
	if err := d.Decode(&r); err != nil || r.Version != Version || len(r.Findings) != 1 || r.Findings[0].About() != "10.22.0.9" {
		t.Errorf("%v: %+v", err, r)
	}
}
