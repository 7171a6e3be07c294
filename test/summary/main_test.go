package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSummary(t *testing.T) {
	tests := []struct {
		name   string
		events []string
		noSkip bool
		want   []string
		ok     bool
	}{
		{
			name: "passed, subtests counted and not their parent",
			events: []string{
				`{"Action":"start","Package":"a"}`,
				`{"Action":"run","Package":"a","Test":"TestX"}`,
				`{"Action":"output","Package":"a","Test":"TestX","Output":"=== RUN   TestX\n"}`,
				`{"Action":"run","Package":"a","Test":"TestX/one/two"}`,
				`{"Action":"pass","Package":"a","Test":"TestX/one/two"}`,
				`{"Action":"run","Package":"a","Test":"TestX/three"}`,
				`{"Action":"pass","Package":"a","Test":"TestX/three"}`,
				`{"Action":"pass","Package":"a","Test":"TestX"}`,
				`{"Action":"output","Package":"a","Output":"ok  \ta\t0.100s\n"}`,
				`{"Action":"pass","Package":"a","Elapsed":0.1}`,
				`{"Action":"output","Package":"b","Output":"?   \tb\t[no test files]\n"}`,
				`{"Action":"skip","Package":"b"}`,
			},
			want: []string{"pass a 0.1s: 2 passed, 0 failed, 0 skipped", "", "2 passed, 0 failed, 0 skipped"},
			ok:   true,
		},
		{
			name: "failed subtest, told and counted once",
			events: []string{
				`{"Action":"run","Package":"a","Test":"TestX"}`,
				`{"Action":"run","Package":"a","Test":"TestX/one"}`,
				`{"Action":"output","Package":"a","Test":"TestX/one","Output":"    a_test.go:7: boom\n"}`,
				`{"Action":"fail","Package":"a","Test":"TestX/one"}`,
				`{"Action":"output","Package":"a","Test":"TestX","Output":"--- FAIL: TestX (0.00s)\n"}`,
				`{"Action":"fail","Package":"a","Test":"TestX"}`,
				`{"Action":"output","Package":"a","Output":"FAIL\n"}`,
				`{"Action":"fail","Package":"a","Elapsed":0.2}`,
			},
			want: []string{
				"    a_test.go:7: boom", "--- FAIL: TestX (0.00s)", "FAIL",
				"fail a 0.2s: 0 passed, 1 failed, 0 skipped", "",
				"failed:", "  a TestX/one", "", "0 passed, 1 failed, 0 skipped",
			},
		},
		{
			name: "process ended under a test",
			events: []string{
				`{"Action":"run","Package":"a","Test":"TestX"}`,
				`{"Action":"run","Package":"a","Test":"TestX/one"}`,
				`{"Action":"output","Package":"a","Test":"TestX/one","Output":"panic: boom\n"}`,
				`{"Action":"fail","Package":"a","Elapsed":0.2}`,
			},
			want: []string{
				"panic: boom", "fail a 0.2s: 0 passed, 1 failed, 0 skipped", "",
				"failed:", "  a TestX/one", "", "0 passed, 1 failed, 0 skipped",
			},
		},
		{
			name: "a package that does not build",
			events: []string{
				`{"ImportPath":"a [a.test]","Action":"build-output","Output":"a.go:3:1: syntax error\n"}`,
				`{"ImportPath":"a [a.test]","Action":"build-fail"}`,
				`{"Action":"output","Package":"a","Output":"FAIL\ta [build failed]\n"}`,
				`{"Action":"fail","Package":"a","FailedBuild":"a [a.test]"}`,
			},
			want: []string{
				"a.go:3:1: syntax error", "FAIL\ta [build failed]", "fail a 0.0s: 0 passed, 1 failed, 0 skipped", "",
				"failed:", "  a", "", "0 passed, 1 failed, 0 skipped",
			},
		},
		{
			name: "skipped, by reason",
			events: []string{
				`{"Action":"run","Package":"a","Test":"TestX"}`,
				`{"Action":"output","Package":"a","Test":"TestX","Output":"    a_test.go:6: earlier\n"}`,
				`{"Action":"output","Package":"a","Test":"TestX","Output":"    a_test.go:7: needs the program nft\n"}`,
				`{"Action":"output","Package":"a","Test":"TestX","Output":"        in PATH\n"}`,
				`{"Action":"output","Package":"a","Test":"TestX","Output":"--- SKIP: TestX (0.00s)\n"}`,
				`{"Action":"skip","Package":"a","Test":"TestX"}`,
				`{"Action":"run","Package":"a","Test":"TestY"}`,
				`{"Action":"skip","Package":"a","Test":"TestY"}`,
				`{"Action":"run","Package":"a","Test":"TestZ"}`,
				`{"Action":"pass","Package":"a","Test":"TestZ"}`,
				`{"Action":"pass","Package":"a","Elapsed":1}`,
			},
			want: []string{
				"pass a 1.0s: 1 passed, 0 failed, 2 skipped",
				"", "skipped: needs the program nft in PATH", "  a TestX",
				"", "skipped: no reason given", "  a TestY",
				"", "1 passed, 0 failed, 2 skipped",
			},
			ok: true,
		},
		{
			name: "skipped for a missing program where that is forbidden",
			events: []string{
				`{"Action":"output","Package":"a","Test":"TestX","Output":"    a_test.go:7: needs the program nft\n"}`,
				`{"Action":"skip","Package":"a","Test":"TestX"}`,
				`{"Action":"pass","Package":"a","Test":"TestZ"}`,
				`{"Action":"pass","Package":"a","Elapsed":1}`,
			},
			noSkip: true,
			want: []string{
				"pass a 1.0s: 1 passed, 0 failed, 1 skipped",
				"", "skipped: needs the program nft", "  a TestX",
				"", "TRACEWIRE_NO_SKIP=1, but tests were skipped for a missing program: 1",
				"1 passed, 0 failed, 1 skipped",
			},
		},
		{
			name:   "go test ended before the package did",
			events: []string{`{"Action":"run","Package":"a","Test":"TestX"}`},
			want: []string{
				"fail a 0.0s: 0 passed, 1 failed, 0 skipped", "",
				"failed:", "  a TestX", "", "0 passed, 1 failed, 0 skipped",
			},
		},
		{
			name:   "no event",
			events: []string{"go: no such flag"},
			want:   []string{"go: no such flag", "", "no test ran", "0 passed, 0 failed, 0 skipped"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			s := newSummary(&out)
			if err := s.read(strings.NewReader(strings.Join(tt.events, "\n") + "\n")); err != nil {
				t.Fatal(err)
			}
			if ok := s.finish(tt.noSkip); ok != tt.ok {
				t.Errorf("all well: %v, want %v", ok, tt.ok)
			}
			if diff := cmp.Diff(strings.Join(tt.want, "\n")+"\n", out.String()); diff != "" {
				t.Errorf("printed (-want +got):\n%s", diff)
			}
		})
	}
}

// TestShow: what a test wrote is printed, and nothing where none did.
func TestShow(t *testing.T) {
	var out strings.Builder
	table := filepath.Join(t.TempDir(), "table")
	if err := os.WriteFile(table, []byte("a table\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	newSummary(&out).show([]string{table, table + " of nobody"})
	if out.String() != "\na table\n" {
		t.Errorf("printed %q", out.String())
	}
}
