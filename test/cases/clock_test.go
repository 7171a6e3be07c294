//go:build linux

package cases

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/test/attach"
)

// day is how far a clock steps.
const day = 24 * time.Hour

// TestNothingIsFreedInABoot: what lives keeps its address in an exhausted range,
// whatever the clock says, and whoever asks after a restart of the runtime.
func TestNothingIsFreedInABoot(t *testing.T) {
	needSandbox(t)
	for name, happens := range map[string]func(t *testing.T, n *attach.Node, first string){
		"the clock steps ahead":  func(t *testing.T, n *attach.Node, _ string) { touched(t, n, -day) },
		"the clock steps behind": func(t *testing.T, n *attach.Node, _ string) { touched(t, n, day) },
		"the clock is set":       func(t *testing.T, n *attach.Node, _ string) { touched(t, n, time.Until(time.Unix(0, 0))) },
		"the runtime restarts":   restarted,
	} {
		t.Run(name, func(t *testing.T) { nothingIsFreed(t, happens) })
	}
}

func nothingIsFreed(t *testing.T, happens func(t *testing.T, n *attach.Node, first string)) {
	first := t.TempDir()
	n := node(t, first)
	stdin := conf(t, n, map[string]string{"ipam.ranges": `[[{"subnet": "10.77.0.0/29"}]]`, "tracewire.statusGrace": `"0s"`})
	var all []attach.Attachment
	valid := []string{}
	for i := range 5 { // and the gateway: the range is exhausted
		a := podOf(t, n, i)
		must(t, n, "ADD", stdin, a)
		all, valid = append(all, a), append(valid, fmt.Sprintf(`{"containerID": %q, "ifname": "eth0"}`, a.ContainerID))
	}
	before := reservations(t, n)
	happens(t, n, first)
	exhausted := input{code: 100}
	for i := 5; i < 7; i++ {
		a := podOf(t, n, i)
		exhausted.answered(t, n, raw(t, n, "ADD", stdin, n.Environment("ADD", a)))
	}
	gc := string(put(t, []byte(stdin), []string{"cni.dev/valid-attachments"}, "["+strings.Join(valid, ",")+"]"))
	must(t, n, "GC", gc, attach.Attachment{})
	exhausted = input{code: 50}
	exhausted.answered(t, n, raw(t, n, "STATUS", stdin, n.Environment("STATUS", attach.Attachment{})))
	if diff := cmp.Diff(before, reservations(t, n)); diff != "" {
		t.Errorf("reservations (-before +after)\n%s", diff)
	}
	for _, a := range all {
		must(t, n, "CHECK", string(put(t, []byte(stdin), []string{"prevResult"}, `{"cniVersion": "1.1.0"}`)), a)
		must(t, n, "DEL", stdin, a)
	}
	nothingLeft(t, n)
}

// podOf is the i-th container's eth0.
func podOf(t *testing.T, n *attach.Node, i int) attach.Attachment {
	t.Helper()
	name := fmt.Sprint("pod", i)
	if _, err := n.Pod(name); err != nil {
		t.Fatal(err)
	}
	return attach.Attachment{ContainerID: fmt.Sprint("c", i), IfName: "eth0", NetNS: n.PodPath(name)}
}

// reservations is who holds which address.
func reservations(t *testing.T, n *attach.Node) map[string]string {
	t.Helper()
	out := map[string]string{}
	paths, _ := filepath.Glob(filepath.Join(n.Dir, "ipam", "net", "10.*"))
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(path)] = string(b)
	}
	return out
}

// touched makes all that was written as old as it would be by a clock that stepped
// since. The clock itself is the machine's.
func touched(t *testing.T, n *attach.Node, by time.Duration) {
	t.Helper()
	when := time.Now().Add(by)
	for _, dir := range []string{filepath.Join(n.Dir, "state"), filepath.Join(n.Dir, "ipam"), "/run/tracewire"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return errors.Join(err, os.Chtimes(path, when, when))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// restarted makes another executable call the plugin from now on.
func restarted(t *testing.T, _ *attach.Node, first string) {
	t.Helper()
	script := fmt.Sprintf("#!/bin/sh\n%s/tracewire\nexit $?\n", os.Getenv("TRACEWIRE_BIN"))
	if err := os.WriteFile(filepath.Join(first, "tracewire"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
}
