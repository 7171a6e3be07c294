//go:build linux

package cases

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestVersionsOfDel: a record is of one version and DEL of another, or of none
// (containerd#6876). Under a version that nobody knows DEL is refused as ADD is,
// and one under a known version does the work.
func TestVersionsOfDel(t *testing.T) {
	all := []string{`"0.1.0"`, `"0.2.0"`, `"0.3.0"`, `"0.3.1"`, `"0.4.0"`, `"1.0.0"`, `"1.1.0"`}
	for _, add := range all {
		for _, del := range append([]string{`""`, "", `"9.9.9"`}, all...) {
			t.Run(strings.Trim(add, `"`)+" then "+strings.Trim(del, `"`), func(t *testing.T) {
				n := node(t)
				a := pod1(t, n)
				if err := raw(t, n, "ADD", conf(t, n, map[string]string{"cniVersion": add}), n.Environment("ADD", a)).Err(); err != nil {
					t.Fatal(describe(err))
				}
				call := raw(t, n, "DEL", conf(t, n, map[string]string{"cniVersion": del}), n.Environment("DEL", a))
				if del == `"9.9.9"` {
					unknownVersion.answered(t, n, call)
					call = raw(t, n, "DEL", conf(t, n, nil), n.Environment("DEL", a))
				}
				if err := call.Err(); err != nil {
					t.Error(describe(err))
				}
				nothingLeft(t, n)
			})
		}
	}
}

var unknownVersion = input{code: 1, names: []string{"9.9.9", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}}

// TestRecordOfNewerSchema: a record that a newer version of ours went on
// writing is read as far as it is understood, and its DEL leaves nothing, also
// with another configuration and no prevResult.
func TestRecordOfNewerSchema(t *testing.T) {
	kinds := map[string]func(line string) string{
		"unknown keys": func(line string) string {
			return strings.Replace(line, `{"v":1,`, `{"v":2,"colour":{"red":[1,null]},`, 1)
		},
		"newer number": func(line string) string { return strings.Replace(line, `{"v":1,`, `{"v":2,`, 1) },
		"unknown kind": func(line string) string { return line + "\n" + `{"v":2,"kind":"slept","for":{"ms":3}` },
	}
	for name, change := range kinds {
		t.Run(name, func(t *testing.T) {
			n := node(t)
			a := pod1(t, n)
			stdin := conf(t, n, map[string]string{"ipMasq": "true"})
			if err := raw(t, n, "ADD", stdin, n.Environment("ADD", a)).Err(); err != nil {
				t.Fatal(describe(err))
			}
			rewrite(t, filepath.Join(n.Dir, "state", "attachments", "net", "c1:eth0"), change)
			if err := raw(t, n, "DEL", conf(t, n, map[string]string{"ipam.dataDir": `"@DIR@/elsewhere"`}), n.Environment("DEL", a)).Err(); err != nil {
				t.Error(describe(err))
			}
			nothingLeft(t, n)
			if moved, err := filepath.Glob(filepath.Join(n.Dir, "state", "quarantine", "*")); err != nil || len(moved) > 0 {
				t.Errorf("in quarantine: %q, error %v", moved, err)
			}
		})
	}
}

// rewrite changes each line of a record, without its sum, and sums it anew.
func rewrite(t *testing.T, path string, change func(string) string) {
	t.Helper()
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for line := range strings.Lines(string(old)) {
		head, _, ok := strings.Cut(line, `,"sum":"`)
		if !ok {
			t.Fatalf("a line without a sum: %s", line)
		}
		for each := range strings.SplitSeq(change(head), "\n") {
			sum := fnv.New64a()
			_, _ = sum.Write([]byte(each))
			fmt.Fprintf(&b, "%s,\"sum\":\"%016x\"}\n", each, sum.Sum64())
		}
	}
	if bytes.Equal(b.Bytes(), old) {
		t.Fatal("nothing was changed")
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}
