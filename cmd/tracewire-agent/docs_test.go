package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tracewire/tracewire/chain/audit"
)

var update = flag.Bool("update", false, "write the table of the document anew")

// TestDocument: docs/metrics.md has the metrics as they are. -update writes it anew.
func TestDocument(t *testing.T) {
	const path = "../../docs/metrics.md"
	const begin, end = "metrics from cmd/tracewire-agent, by make test PKGS='./cmd/tracewire-agent -update' -->\n", "<!-- end: metrics -->"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(b), begin)
	old, tail, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no place for the table", path)
	}
	table := metricsTable(t)
	if *update {
		if err := os.WriteFile(path, []byte(head+begin+table+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(old, table); diff != "" {
		t.Errorf("(-%s +code)\n%s", path, diff)
	}
}

// metricsTable is a row for each metric of ours.
func metricsTable(t *testing.T) string {
	t.Helper()
	counts := newOperations()
	observed(counts, line(t, "cni.ADD", "podnet", "c1", nil))
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(counts, exports{(&agent{}).signals}, onNode(t), &audits{counts: map[audit.Kind]int{}, looked: true})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| metric | kind | labels | is |\n| --- | --- | --- | --- |\n")
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp())
	}
	return b.String()
}
