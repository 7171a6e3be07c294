//go:build linux

package cases

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/test/attach"
)

// unread is a pipe that nobody reads any more.
func unread() (*os.File, error) {
	r, w, err := os.Pipe()
	if err == nil {
		err = r.Close()
	}
	return w, err
}

// unheard is standard outputs that take no answer.
var unheard = []struct {
	name   string
	open   func() (*os.File, error) // nil for one that is closed
	says   string
	before bool // an ADD ends before it makes anything
}{
	{"a disk that is full", func() (*os.File, error) { return os.OpenFile("/dev/full", os.O_WRONLY, 0) }, "no space left on device", false},
	{"a pipe that nobody reads", unread, "broken pipe", false},
	{"open to be read only", func() (*os.File, error) { return os.Open("/dev/null") }, "bad file descriptor", false},
	{"closed", nil, "it is closed", true},
}

// TestAnswerThatCannotBeWritten: the runtime takes the ADD for failed, and so it
// does: all is taken back, and log, span and standard error tell. The next ADD of
// the attachment works, also where standard error cannot be written either.
func TestAnswerThatCannotBeWritten(t *testing.T) {
	for _, tt := range unheard {
		for _, deaf := range []bool{false, true} {
			t.Run(tt.name+map[bool]string{true: ", and so standard error"}[deaf], func(t *testing.T) {
				n := node(t)
				stdin, a := conf(t, n, map[string]string{"ipMasq": "true"}), pod1(t, n)
				cmd := exec.Command(filepath.Join(os.Getenv("TRACEWIRE_BIN"), "tracewire"))
				if tt.open == nil {
					cmd = exec.Command("sh", "-c", `exec "$0" >&-`, cmd.Path)
				}
				said := bytes.Buffer{}
				cmd.Env, cmd.Stdin, cmd.Stderr = n.Environment("ADD", a), strings.NewReader(stdin), &said
				if tt.open != nil {
					cmd.Stdout = opened(t, tt.open)
				}
				if deaf {
					cmd.Stderr = opened(t, unread)
				}
				var exit *exec.ExitError
				if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
					t.Errorf("it ended with %v", err)
				}
				var e types.Error
				if err := json.Unmarshal(said.Bytes(), &e); !deaf && (err != nil || e.Code != 5 || !strings.Contains(e.Msg, "write standard output") || !strings.Contains(e.Msg, tt.says)) {
					t.Errorf("%v, standard error says %s", err, said.Bytes())
				}
				tells(t, n, tt.says, !tt.before)
				nothingLeft(t, n)
				must(t, n, "ADD", stdin, a)
				must(t, n, "DEL", stdin, a)
				nothingLeft(t, n)
			})
		}
	}
}

func opened(t *testing.T, open func() (*os.File, error)) *os.File {
	t.Helper()
	f, err := open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// tells looks at what spool and log have of the one ADD.
func tells(t *testing.T, n *attach.Node, says string, undone bool) {
	t.Helper()
	spans, err := n.Spans()
	if err != nil || !strings.HasPrefix(spans, "cni.ADD [error: input/output failure]\n") || undone != strings.Contains(spans, "\n  undo\n    bridge\n") {
		t.Errorf("%v, spans\n%s", err, spans)
	}
	log, err := os.ReadFile(filepath.Join(n.Dir, "log", "tracewire.jsonl"))
	if err != nil || !strings.Contains(string(log), says) || !strings.Contains(string(log), `"outcome":"error"`) {
		t.Errorf("%v, log\n%s", err, log)
	}
}

// TestErrorThatCannotBeWritten: it is the exit code that tells then, and nothing
// is taken for success.
func TestErrorThatCannotBeWritten(t *testing.T) {
	n := node(t)
	stdin, a := conf(t, n, map[string]string{"bridge": "7"}), pod1(t, n)
	for _, tt := range unheard {
		cmd := exec.Command("sh", "-c", `exec "$0" >&-`, filepath.Join(os.Getenv("TRACEWIRE_BIN"), "tracewire"))
		if tt.open != nil {
			cmd = exec.Command(filepath.Join(os.Getenv("TRACEWIRE_BIN"), "tracewire"))
			cmd.Stdout = opened(t, tt.open)
		}
		cmd.Env, cmd.Stdin = n.Environment("ADD", a), strings.NewReader(stdin)
		var exit *exec.ExitError
		if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("%s: it ended with %v", tt.name, err)
		}
	}
	nothingLeft(t, n)
}

// TestResultToTheNullDevice: who wants no result redirects it, and the ADD works.
func TestResultToTheNullDevice(t *testing.T) {
	n := node(t)
	stdin, a := conf(t, n, nil), pod1(t, n)
	cmd := exec.Command(filepath.Join(os.Getenv("TRACEWIRE_BIN"), "tracewire"))
	cmd.Env, cmd.Stdin = n.Environment("ADD", a), strings.NewReader(stdin)
	cmd.Stdout = opened(t, func() (*os.File, error) { return os.OpenFile(os.DevNull, unix.O_WRONLY, 0) })
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
	must(t, n, "DEL", stdin, a)
	nothingLeft(t, n)
}
