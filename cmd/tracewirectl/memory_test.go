//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain/audit"
)

// backdate makes a look that is remembered one of a while ago.
func backdate(dir string, while time.Duration) error {
	m, err := openMemory(context.Background(), dir)
	if err != nil {
		return err
	}
	defer m.close()
	l := m.recall()
	for id, s := range l.Seen {
		s.First -= while
		l.Seen[id] = s
	}
	return m.remember(l)
}

// TestMemory: what cannot be read as one saw nothing, and is replaced.
func TestMemory(t *testing.T) {
	saw := audit.Look{Version: audit.Version, Boot: thisBoot, Seen: map[string]audit.Sight{"a": {First: time.Minute, Network: "podnet"}}}
	good, err := json.Marshal(saw)
	if err != nil {
		t.Fatal(err)
	}
	text := func(s string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(s), 0o600) }
	}
	for _, tt := range []struct {
		name string
		make func(path string) error
		want audit.Look
	}{
		{"as it was left", text(string(good)), saw},
		{"missing", func(string) error { return nil }, audit.Look{}},
		{"empty", text(""), audit.Look{}},
		{"torn", text(string(good[:len(good)-5])), audit.Look{}},
		{"another version", text(strings.Replace(string(good), `"version":1`, `"version":2`, 1)), audit.Look{}},
		{"another form", text(`{"version":1,"boot":"` + thisBoot + `","seen":{"a":60000000000}}`), audit.Look{}},
		{"huge", func(path string) error {
			return os.WriteFile(path, []byte(string(good)+strings.Repeat(" ", maxMemory)), 0o600)
		}, audit.Look{}},
		{"a pipe", func(path string) error { return unix.Mkfifo(path, 0o600) }, audit.Look{}},
		{"a folder", func(path string) error { return os.MkdirAll(filepath.Join(path, "filled"), 0o700) }, audit.Look{}},
		{"folders where it is written", func(path string) error {
			return os.MkdirAll(filepath.Join(filepath.Dir(path), memoryAside, "filled"), 0o700)
		}, audit.Look{}},
		{"a link", func(path string) error { return os.Symlink("/proc/self/status", path) }, audit.Look{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			m, err := openMemory(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.close()
			if err := tt.make(filepath.Join(dir, memoryFile)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, m.recall()); diff != "" {
				t.Errorf("(-want +recalled)\n%s", diff)
			}
			if err := m.remember(saw); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(saw, m.recall()); diff != "" {
				t.Errorf("(-remembered +recalled)\n%s", diff)
			}
		})
	}
}

// TestFixWaits: who repairs is alone.
func TestFixWaits(t *testing.T) {
	n := newNode(t)
	if err := os.MkdirAll(n.state, 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := openMemory(t.Context(), n.state)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // so that it does not wait for long
	code, complaint := n.runTo(ctx, &strings.Builder{}, "audit", "--fix", "--cache-dir", t.TempDir())
	if code != 2 || !strings.Contains(complaint, "DIR/state/audit.lock is locked by process ") {
		t.Errorf("got code %d, %q", code, complaint)
	}
}

// TestFixInterrupted: who is told to stop begins no other repair.
func TestFixInterrupted(t *testing.T) {
	dir := t.TempDir()
	var complaint strings.Builder
	c := &command{err: &complaint, getenv: func(string) string { return "" }}
	c.flags.stateDir, c.flags.log, c.flags.confDir = dir, filepath.Join(dir, "log"), dir
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	plan := repairs{}
	for _, id := range []string{"a", "b"} {
		plan.Due = append(plan.Due, audit.Finding{ID: id, Repair: &audit.Repair{Action: audit.RemoveEntry, Path: filepath.Join(dir, id)}})
	}
	err := c.mend(ctx, audit.Node{}, &plugins{}, &plan)
	if !errors.Is(err, context.Canceled) || len(plan.Done)+len(plan.Failed) > 0 {
		t.Errorf("%v, done %v, failed %v\n%s", err, plan.Done, plan.Failed, complaint.String())
	}
}
