//go:build linux

package reference

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
)

// side is who is attached by: the programs, and their name in the table.
type side struct {
	name        string
	bridge, ptp string // types in the configuration list
}

var (
	theirs = side{name: "reference", bridge: "bridge", ptp: "ptp"}
	ours   = side{name: "tracewire", bridge: "tracewire", ptp: "tracewire"}
)

// world is a node in a network namespace of its own, whose plugins are one
// side's and host-local, and what was seen there.
type world struct {
	*attach.Node
	t      *testing.T
	conf   string
	result types.Result // of the last ADD
	seen   []string
}

func newWorld(t *testing.T, on side, s scenario) *world {
	t.Helper()
	bin, reference := os.Getenv("TRACEWIRE_BIN"), os.Getenv("TRACEWIRE_REFERENCE")
	if bin == "" || reference == "" {
		t.Skip("needs the program tracewire: run make test")
	}
	netns.Need(t, s.needs...)
	netns.Enter(t)
	dir := t.TempDir()
	plugins := filepath.Join(dir, "plugins")
	must(t, os.Mkdir(plugins, 0o755))
	for _, program := range []string{filepath.Join(bin, "tracewire"), filepath.Join(reference, "bridge"), filepath.Join(reference, "ptp"), filepath.Join(reference, "host-local")} {
		must(t, os.Symlink(program, filepath.Join(plugins, filepath.Base(program))))
	}
	n, err := attach.NewNode(dir, plugins)
	must(t, err)
	t.Cleanup(n.Close)
	w := &world{Node: n, t: t, conf: s.list(on)}
	w.load(w.conf)
	return w
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// load reads a configuration list.
func (w *world) load(list string) {
	w.t.Helper()
	must(w.t, w.Load([]byte(list)))
}

// stepTime bounds one operation.
const stepTime = 30 * time.Second

// pod is eth0 of a container, in a namespace of its own.
func (w *world) pod(id string) attach.Attachment {
	w.t.Helper()
	_, err := w.Pod(id)
	must(w.t, err)
	return attach.Attachment{ContainerID: id, IfName: "eth0", NetNS: w.PodPath(id)}
}

// see adds to the outcome.
func (w *world) see(format string, args ...any) {
	w.seen = append(w.seen, fmt.Sprintf(format, args...))
}

// made is an ADD of the preparation, which has to succeed.
func (w *world) made(id string) attach.Attachment {
	w.t.Helper()
	a := w.pod(id)
	must(w.t, w.do("ADD", a))
	return a
}

// run is an operation whose answer belongs to the outcome. It tells whether
// that was success.
func (w *world) run(verb string, a attach.Attachment) bool {
	w.t.Helper()
	err := w.do(verb, a)
	w.see("%s %s", verb, answered(err))
	return err == nil
}

func (w *world) do(verb string, a attach.Attachment) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	switch verb {
	case "ADD":
		w.result, err = w.Add(ctx, a)
	case "CHECK":
		err = w.Check(ctx, a)
	case "DEL":
		err = w.Del(ctx, a)
	case "STATUS":
		err = w.Status(ctx)
	}
	w.t.Logf("%s %s: %v", verb, a.ContainerID, err)
	return err
}

// answered is "ok", or the error's code, and the reasons of CHECK where it has some.
func answered(err error) string {
	var answer *types.Error
	switch {
	case err == nil:
		return "ok"
	case !errors.As(err, &answer):
		return "fails"
	}
	words := []string{fmt.Sprint(answer.Code)}
	var details struct{ Findings []struct{ Code string } }
	if json.Unmarshal([]byte(answer.Details), &details) == nil {
		for _, f := range details.Findings {
			words = append(words, f.Code)
		}
	}
	return "fails (" + strings.Join(words, " ") + ")"
}

// things is what there is of attachments, by kind.
type things map[string]int

// have counts interfaces, reservations, rules, records, and what libcni keeps.
func (w *world) have() things {
	w.t.Helper()
	links, err := w.Links()
	must(w.t, err)
	files, err := w.Files()
	must(w.t, err)
	rules, err := w.RulesLeft()
	must(w.t, err)
	out := things{"rules": min(len(rules), 1)}
	for _, l := range links {
		if strings.HasPrefix(l, "host/") {
			out["host end"]++
		} else {
			out["eth0"]++
		}
	}
	kinds := map[string]string{"ipam": "reservation", "state": "record", "cache": "result of libcni"}
	for _, f := range files {
		first, _, _ := strings.Cut(f, "/")
		out[kinds[first]]++
	}
	return out
}

// left sees what there is more than before.
func (w *world) left(before things) {
	w.t.Helper()
	after := w.have()
	var more []string
	for _, kind := range slices.Sorted(maps.Keys(after)) {
		switch n := after[kind] - before[kind]; {
		case n == 1:
			more = append(more, kind)
		case n != 0:
			more = append(more, fmt.Sprintf("%d %ss", n, kind))
		}
	}
	if more == nil {
		more = []string{"nothing"}
	}
	w.see("left: %s", strings.Join(more, " + "))
}
