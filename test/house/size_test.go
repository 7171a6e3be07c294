package house

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"
)

// maxPlugin is the plugin's size in bytes, stripped.
const maxPlugin = 5 << 20

func plugin(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("TRACEWIRE_BIN")
	if dir == "" {
		t.Skip("needs the program tracewire: run make test")
	}
	return filepath.Join(dir, "tracewire")
}

func TestPluginIsSmall(t *testing.T) {
	info, err := os.Stat(plugin(t))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > maxPlugin {
		t.Errorf("the plugin has %d bytes, more than %d", info.Size(), maxPlugin)
	}
}

// TestPluginHasNoPoints: what is installed cannot be told to kill itself. Neither
// the variables that do it are in it, nor a point, nor its name.
func TestPluginHasNoPoints(t *testing.T) {
	binary, err := os.ReadFile(plugin(t))
	if err != nil {
		t.Fatal(err)
	}
	traces := regexp.MustCompile("TRACEWIRE_[A-Z_]+").FindAllString(file(t, "trace/point/kill.go"), -1)
	if len(traces) == 0 {
		t.Error("the variables are not where they were looked for")
	}
	for _, trace := range append(traces, "trace/point.Pass", "unlink of record") {
		if bytes.Contains(binary, []byte(trace)) {
			t.Errorf("%s is in the plugin", trace)
		}
	}
}

// BenchmarkVersionStart compares the plugin's VERSION with an empty Go program,
// in turns: the median of the pairs' ratios, which the machine's speed and load
// are not in. 1.5 is the most it may be.
func BenchmarkVersionStart(b *testing.B) {
	p, empty := plugin(b), emptyProgram(b)
	var ratios []float64
	for b.Loop() {
		ratios = append(ratios, float64(start(b, p))/float64(start(b, empty)))
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
}

func emptyProgram(t testing.TB) string {
	t.Helper()
	empty := filepath.Join(t.TempDir(), "empty")
	src := empty + ".go"
	if err := os.WriteFile(src, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", empty, src)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return empty
}

// start runs a program to its end.
func start(t testing.TB, program string) time.Duration {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	began := time.Now()
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}
