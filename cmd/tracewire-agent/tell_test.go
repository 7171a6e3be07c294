package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/chain/lock"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
	"github.com/tracewire/tracewire/trace/ship"
)

// TestMain lets this program be a process that holds a lock.
func TestMain(m *testing.M) {
	if path := os.Getenv("TRACEWIRE_TEST_LOCK"); path != "" {
		l, err := lock.OpenRanges(path)
		if err == nil {
			_, err = l.Lock(context.Background(), os.Args[1])
		}
		fmt.Println(err)
		_, _ = bufio.NewReader(os.Stdin).ReadByte() // until the test ends
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// locked holds a lock in another process until the returned function is called.
func locked(t *testing.T, path, key string) (unlock func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], key)
	cmd.Env = append(os.Environ(), "TRACEWIRE_TEST_LOCK="+path)
	in, errIn := cmd.StdinPipe()
	out, errOut := cmd.StdoutPipe()
	if errIn != nil || errOut != nil || cmd.Start() != nil {
		t.Fatal("no process")
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "<nil>\n" {
		t.Fatalf("%s, %v", line, err)
	}
	return func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
}

// TestTell: an operation that was killed is told once, with the ids that others
// know it by; one whose process lives, and one that told of itself, is not.
func TestTell(t *testing.T) {
	state := t.TempDir()
	a := delegates.Attachment{Network: "podnet", ContainerID: "c1", IfName: "eth0"}
	conf, err := json.Marshal(map[string]any{"name": "podnet", "type": "tracewire", "tracewire": map[string]any{
		"stateDir": state, "log": map[string]any{"path": filepath.Join(state, "log.jsonl")}}})
	if err != nil {
		t.Fatal(err)
	}
	records := cache.Dir{Path: filepath.Join(state, "attachments")}
	const span = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	j, err := records.Begin(cache.Intent{Attachment: a, Conf: conf, Args: "K8S_POD_NAME=web-0", Span: span}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Begin("veth.create", ""); err != nil {
		t.Fatal(err)
	}
	_ = j.Close()
	teller := teller{boot: "boot", version: "test", getenv: os.Getenv, locks: map[string]*lock.Ranges{}}
	tell := func() int {
		t.Helper()
		n, err := teller.tell(t.Context(), state)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	unlock := locked(t, filepath.Join(state, "lock"), a.String())
	got := []int{tell()}
	unlock()
	got = append(got, tell(), tell())
	if diff := cmp.Diff([]int{0, 1, 0}, got); diff != "" {
		t.Errorf("while it lives, then twice (-want +got):\n%s", diff)
	}
	segments, _ := filepath.Glob(filepath.Join(state, "spool", "*"+trace.SegmentSuffix))
	text := ""
	for _, path := range append(segments, filepath.Join(state, "log.jsonl")) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text += string(b)
	}
	for _, want := range []string{`"traceId":"0af7651916cd43dd8448eb211c80319c","spanId":"b7ad6b7169203331"`, `"name":"veth.create"`, `"interrupted"`, `"k8s.pod.name":"web-0"`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	if r, err := records.Read(a); err != nil || r.State != cache.Interrupted || !r.Told {
		t.Errorf("the record is %s, told %v, %v", r.State, r.Told, err)
	}
}

// TestTellOfNothing: an operation that ended as usual, and what is no record.
func TestTellOfNothing(t *testing.T) {
	state := t.TempDir()
	records := cache.Dir{Path: filepath.Join(state, "attachments")}
	a := delegates.Attachment{Network: "podnet", ContainerID: "c1", IfName: "eth0"}
	j, err := records.Begin(cache.Intent{Attachment: a, Span: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{j.Result(&types100.Result{}), j.Told(), j.Close(), os.WriteFile(filepath.Join(records.Path, "podnet", "empty:eth0"), nil, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	teller := teller{getenv: os.Getenv, locks: map[string]*lock.Ranges{}}
	if n, err := teller.tell(t.Context(), state); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// TestTellWhereOthersWrite: a record in a folder that others may write to makes
// no files of ours, wherever it says.
func TestTellWhereOthersWrite(t *testing.T) {
	state, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	records := cache.Dir{Path: filepath.Join(state, "attachments")}
	a := delegates.Attachment{Network: "podnet", ContainerID: "c1", IfName: "eth0"}
	conf, err := json.Marshal(map[string]any{"name": "podnet", "type": "tracewire", "tracewire": map[string]any{
		"stateDir": state, "spool": map[string]any{"dir": victim}, "log": map[string]any{"path": filepath.Join(victim, "log.jsonl")}}})
	if err != nil {
		t.Fatal(err)
	}
	j, err := records.Begin(cache.Intent{Attachment: a, Conf: conf, Span: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	_ = j.Close()
	if err := os.Chmod(state, 0o777); err != nil {
		t.Fatal(err)
	}
	teller := teller{getenv: os.Getenv, locks: map[string]*lock.Ranges{}}
	if n, err := teller.tell(t.Context(), state); n != 0 || !errors.Is(err, cache.ErrOpen) {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := os.Stat(victim); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there: %v", victim, err)
	}
}

// TestWarn: what stays wrong is said once, and names the thing.
func TestWarn(t *testing.T) {
	var out bytes.Buffer
	a := &agent{log: zerolog.New(&out)}
	for _, text := range []string{"x", "x", "", "x", "y"} {
		var err error
		if text != "" {
			err = errors.New(text)
		}
		a.warn("lists cannot be read", err)
	}
	want := strings.Join([]string{"x", "x", "y", ""}, `","message":"lists cannot be read"}`+"\n")
	if got := strings.ReplaceAll(out.String(), `{"level":"warn","error":"`, ""); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestDeadServer: an agent that nobody can ask any more ends.
func TestDeadServer(t *testing.T) {
	sandbox(t)
	a := &agent{log: zerolog.Nop(), getenv: os.Getenv, teller: teller{getenv: os.Getenv, locks: map[string]*lock.Ranges{}},
		spools: map[string]*ship.Spool{}, beside: func(context.Context) error { return errors.New("no listener") }}
	if err := a.run(t.Context()); err == nil || err.Error() != "no listener" {
		t.Errorf("error %v", err)
	}
}
