//go:build linux

package cases

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
	tracing "github.com/tracewire/tracewire/trace"
)

// small mounts a file system of a few pages and inodes at a path, for as long
// as the test runs.
func small(t *testing.T, path, options string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, "mode=0700,"+options); err != nil {
		t.Skipf("mount: %v: run make test", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
}

// readOnly makes what is below a path read-only, until the function that it
// returns is called.
func readOnly(t *testing.T, path string) (undo func()) {
	t.Helper()
	err := errors.Join(os.MkdirAll(path, 0o700), unix.Mount(path, path, "", unix.MS_BIND, ""))
	if err == nil {
		err = unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	if err != nil {
		t.Skipf("mount: %v: run make test", err)
	}
	undo = func() { _ = unix.Unmount(path, unix.MNT_DETACH) }
	t.Cleanup(undo)
	return undo
}

// refused is an ADD that could not write: code 5, with a path of the node and
// the system's reason, and nothing is left. It tells whether the ADD succeeded.
func (l *rounds) refused(t *testing.T, name string, reasons ...error) (added bool) {
	t.Helper()
	before := l.left(t)
	err := raw(t, l.Node, "ADD", l.stdin, l.Environment("ADD", l.pod)).Err()
	if err == nil {
		return true
	}
	for _, reason := range reasons {
		if expected(err, "5 "+reason.Error(), l.Normal) == nil && strings.Contains(l.Normal(err.Error()), "@DIR@/") {
			reasons = nil
		}
	}
	if reasons != nil {
		t.Errorf("%s: ADD: %s, want code 5, a path, and one of %v", name, describe(err), reasons)
	}
	if diff := cmp.Diff(before, l.left(t)); diff != "" {
		t.Fatalf("%s: a failed ADD left or took something: -before +after:\n%s", name, diff)
	}
	if err := l.end(t, ending{verb: "DEL", bare: true}).Err(); err != nil {
		t.Errorf("%s: DEL: %s", name, describe(err))
	}
	return false
}

// fill takes all room of a file system but some pages.
func fill(t *testing.T, dir string, leave int) {
	t.Helper()
	const page = 4096
	path := filepath.Join(dir, "filler")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	size := int64(0)
	for err == nil {
		var n int
		n, err = f.Write(make([]byte, page))
		size += int64(n)
	}
	if err := f.Truncate(max(0, size-int64(leave)*page)); err != nil {
		t.Fatal(err)
	}
}

// TestDiskFull: an ADD for which there is not room enough, in bytes or in
// inodes, says so and leaves nothing. The room grows until it is enough.
func TestDiskFull(t *testing.T) {
	for _, tt := range []struct {
		name, dir string
		options   func(room int) string
		leave     bool // of so many pages the room is what is left
	}{
		{"state, bytes", "state", func(int) string { return "size=256k" }, true},
		{"state, inodes", "state", func(room int) string { return fmt.Sprintf("size=1m,nr_inodes=%d", 1+room) }, false},
		{"addresses, bytes", "ipam", func(int) string { return "size=256k" }, true},
		{"addresses, inodes", "ipam", func(room int) string { return fmt.Sprintf("size=1m,nr_inodes=%d", 1+room) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			failed := 0
			for room := 0; ; room++ {
				l := newRounds(t, map[string]string{"ipMasq": "true"})
				dir := filepath.Join(l.Dir, tt.dir)
				small(t, dir, tt.options(room))
				if tt.leave {
					fill(t, dir, room)
				}
				if l.refused(t, fmt.Sprint(room), unix.ENOSPC) {
					_ = os.Remove(filepath.Join(dir, "filler"))
					l.ended(t, fmt.Sprint(room), endings[1])
					break
				}
				failed++
				if failed > 30 {
					t.Fatal("it is never enough")
				}
			}
			if failed == 0 {
				t.Error("no ADD met a full disk")
			}
		})
	}
}

// TestDiskFailsAtEachWrite: files that may not grow beyond a size, byte by byte
// over the whole record: every single write of an ADD fails once, in the middle too.
func TestDiskFailsAtEachWrite(t *testing.T) {
	netns.Need(t, "prlimit")
	dir := t.TempDir()
	limit := filepath.Join(dir, "limit")
	script := fmt.Sprintf("#!/bin/sh\nexec prlimit --fsize=$(cat %s) %s/tracewire\n", limit, os.Getenv("TRACEWIRE_BIN"))
	if err := os.WriteFile(filepath.Join(dir, "tracewire"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	l := &rounds{Node: node(t, dir)}
	l.pod, l.stdin, l.record = pod1(t, l.Node), conf(t, l.Node, map[string]string{"ipMasq": "true"}), filepath.Join(l.Dir, recordPath)
	set := func(text string) {
		if err := os.WriteFile(limit, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set("unlimited")
	record := l.begin(t)
	l.ended(t, "unlimited", endings[0])
	const step = 61 // bytes: less than any line has
	failed := 0
	for size := len(l.stdin) + 1; size < len(record)+2*step; size += step {
		set(fmt.Sprint(size))
		if l.refused(t, fmt.Sprint(size), unix.EFBIG) {
			l.ended(t, fmt.Sprint(size), endings[1])
		} else {
			failed++
		}
	}
	if failed < 10 {
		t.Errorf("only %d ADDs failed", failed)
	}
}

// TestDiskFullOnDEL: what was made on a disk that is full by now is freed, its
// record too.
func TestDiskFullOnDEL(t *testing.T) {
	for _, e := range endings {
		t.Run(e.name, func(t *testing.T) {
			l := newRounds(t, map[string]string{"ipMasq": "true"})
			state := filepath.Join(l.Dir, "state")
			small(t, state, "size=256k")
			l.begin(t)
			fill(t, state, 0)
			if err := l.end(t, e).Err(); err != nil {
				t.Error(describe(err))
			}
			if err := os.Remove(filepath.Join(state, "filler")); err != nil {
				t.Fatal(err)
			}
			nothingLeft(t, l.Node)
		})
	}
}

// TestDiskBrokenRecordOnFullDisk: a broken record for which quarantine has no room
// goes with its attachment.
func TestDiskBrokenRecordOnFullDisk(t *testing.T) {
	l := newRounds(t, nil)
	state := filepath.Join(l.Dir, "state")
	small(t, state, "size=1m,nr_inodes=9")
	l.begin(t)
	if err := os.WriteFile(l.record, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(state, fmt.Sprint("filler", i)), nil, 0o600)
	}
	if err := l.end(t, endings[1]).Err(); err != nil {
		t.Error(describe(err))
	}
	if exists(l.record) {
		t.Error("the record is there")
	}
}

// TestDiskState: what an operation meets where its state directory should be.
// ADD tells the path and the reason, STATUS that ADD would, and DEL frees what can
// be freed without writing: of what cannot go it tells, and goes on the next time.
func TestDiskState(t *testing.T) {
	for _, tt := range []struct {
		name string
		// break makes the state directory unusable, until mend is called.
		spoil  func(t *testing.T, state string) (mend func())
		reason error
		status string // "" where the next ADD would succeed
		del    string // error of the DEL of an attachment made before
	}{
		{"read-only", readOnly, unix.EROFS, "50 read-only file system", "11 state/attachments/net/c1:eth0: read-only file system"},
		{"a file in its place", func(t *testing.T, state string) func() {
			return aside(t, state, func() error { return os.WriteFile(state, nil, 0o600) })
		}, unix.ENOTDIR, "50 not a directory", ""},
		{"a link to nothing", func(t *testing.T, state string) func() {
			return aside(t, state, func() error { return os.Symlink("none", state) })
		}, unix.EEXIST, "50 no such file or directory", ""},
		{"a link to itself", func(t *testing.T, state string) func() {
			return aside(t, state, func() error { return os.Symlink(state, state) })
		}, unix.ELOOP, "50 too many levels of symbolic links", ""},
		{"missing", func(t *testing.T, state string) func() { return aside(t, state, func() error { return nil }) }, nil, "", ""},
		{"records in a file", func(t *testing.T, state string) func() {
			return aside(t, state+"/attachments", func() error { return os.WriteFile(state+"/attachments", nil, 0o600) })
		},
			unix.ENOTDIR, "50 not a directory", ""},
		{"the network's records in a file", func(t *testing.T, state string) func() {
			return aside(t, state+"/attachments/net", func() error { return os.WriteFile(state+"/attachments/net", nil, 0o600) })
		}, unix.ENOTDIR, "50 not a directory", ""},
		{"lock is a folder", func(t *testing.T, state string) func() {
			return aside(t, state+"/lock", func() error { return os.Mkdir(state+"/lock", 0o700) })
		}, unix.EISDIR, "50 is a directory", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			needSandbox(t)
			l := newRounds(t, nil)
			state := filepath.Join(l.Dir, "state")
			l.begin(t)
			mend := tt.spoil(t, state)
			verdictDir(t, l.Node)
			err := poll(t, l.Node, l.stdin).Err()
			if problem := expected(err, tt.status, l.Normal); problem != nil {
				t.Errorf("STATUS: %v", problem)
			}
			if problem := expected(l.end(t, endings[1]).Err(), tt.del, l.Normal); problem != nil {
				t.Errorf("DEL: %v", problem)
			}
			links, err := l.Links()
			if left, _ := filepath.Glob(filepath.Join(l.Dir, "ipam", "net", "10.*")); len(links) > 0 || err != nil || len(left) > 0 {
				t.Errorf("DEL left interfaces %q and addresses %q, %v", links, left, err)
			}
			if tt.reason != nil && tt.del == "" && l.refused(t, tt.name, tt.reason) {
				t.Error("ADD succeeded")
			}
			mend()
			l.ended(t, "mended", endings[1])
			l.begin(t)
			l.ended(t, "the next", endings[0])
		})
	}
}

// aside puts something else in a path's place until it is mended.
func aside(t *testing.T, path string, put func() error) (mend func()) {
	t.Helper()
	if err := errors.Join(os.Rename(path, path+".aside"), put()); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(os.RemoveAll(path), os.Rename(path+".aside", path)); err != nil {
			t.Fatal(err)
		}
	}
}

// places of spool and log, and how each is broken: dir is where the file should be.
var silenced = []struct {
	name  string
	spoil func(t *testing.T, dir string) error
	log   string // path of the log, where it is not dir's
}{
	{"a file in the folder's place", func(_ *testing.T, dir string) error { return os.WriteFile(dir, nil, 0o600) }, ""},
	{"full", func(t *testing.T, dir string) error { small(t, dir, "size=16k"); fill(t, dir, 0); return nil }, ""},
	{"full of inodes", func(t *testing.T, dir string) error { small(t, dir, "nr_inodes=1"); return nil }, ""},
	{"read-only", func(t *testing.T, dir string) error { readOnly(t, dir); return nil }, ""},
	{"a link to nothing in the folder's place", func(_ *testing.T, dir string) error { return os.Symlink("none", dir) }, ""},
	{"a pipe in the folder's place", func(_ *testing.T, dir string) error { return unix.Mkfifo(dir, 0o600) }, ""},
	{"a device that is full", func(_ *testing.T, dir string) error { return os.WriteFile(dir, nil, 0o600) }, "/dev/full"},
	{"each file is a pipe", func(_ *testing.T, dir string) error {
		return eachFile(dir, func(p string) error { return unix.Mkfifo(p, 0o600) })
	}, ""},
	{"each file is a folder", func(_ *testing.T, dir string) error {
		return eachFile(dir, func(p string) error { return os.Mkdir(p, 0o700) })
	}, ""},
	{"each file is a socket", func(_ *testing.T, dir string) error {
		return eachFile(dir, func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o600, 0) })
	}, ""},
	{"each file is a link", func(_ *testing.T, dir string) error {
		target := filepath.Join(dir, "..", "outside")
		return errors.Join(os.WriteFile(target, []byte("as it was"), 0o600), eachFile(dir, func(p string) error { return os.Symlink(target, p) }))
	}, ""},
}

// segments is the names of the spool's segments of these minutes.
func segments() (names []string) {
	for i := range 5 {
		names = append(names, tracing.Segment(time.Now().Add(time.Duration(i)*time.Minute))+tracing.SegmentSuffix)
	}
	return names
}

// eachFile puts something in the place of the log and of the segments of the
// next minutes.
func eachFile(dir string, put func(path string) error) error {
	errs := []error{os.MkdirAll(dir, 0o700), put(filepath.Join(dir, "tracewire.jsonl"))}
	for _, name := range segments() {
		errs = append(errs, put(filepath.Join(dir, name)))
	}
	return errors.Join(errs...)
}

// TestRootIsReadOnly: nothing is written, and no lock is made, beside the folders
// that the list names and /run, as where the lists are (containers/common#1122).
func TestRootIsReadOnly(t *testing.T) {
	c := rebooting(t)
	c.steps(t, "boot 1") // mounts of the test's own
	const again = unix.MS_BIND | unix.MS_REMOUNT
	if err := errors.Join(unix.Mount(c.Dir, c.Dir, "", unix.MS_BIND, ""), unix.Mount("", "/", "", again|unix.MS_RDONLY, "")); err != nil {
		t.Skipf("mount: %v: run make test", err)
	}
	t.Cleanup(func() { _, _ = unix.Unmount(c.Dir, unix.MNT_DETACH), unix.Mount("", "/", "", again, "") })
	if err := os.Mkdir("/etc/cni.lock", 0o700); !errors.Is(err, unix.EROFS) {
		t.Fatalf("the root can be written: %v", err)
	}
	c.steps(t, "status", "add c1 eth0 pod1", "check c1 eth0 pod1", "audit", "gc c1:eth0", "del c1 eth0 pod1")
	nothingLeft(t, c.Node)
}

// TestTelemetryLost: where spool and log cannot be written every verb answers as
// if they were turned off, byte by byte, and the loss is counted (moby/buildkit#6912).
func TestTelemetryLost(t *testing.T) {
	needSandbox(t)
	want, _ := answers(t, map[string]string{"tracewire.log": `{"level": "off"}`, "tracewire.spool": `{"maxBytes": 0}`}, func(string) {})
	for _, tt := range silenced {
		t.Run(tt.name, func(t *testing.T) {
			log := tt.log
			if log == "" {
				log = "@DIR@/telemetry/tracewire.jsonl"
			}
			got, lost := answers(t, map[string]string{
				"tracewire.log": `{"path": "` + log + `"}`, "tracewire.spool": `{"dir": "@DIR@/telemetry"}`,
			}, func(dir string) {
				if err := tt.spoil(t, filepath.Join(dir, "telemetry")); err != nil {
					t.Fatal(err)
				}
			})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-off +broken:\n%s", diff)
			}
			if lost < int64(len(want)-1) { // a STATUS that has nothing new says nothing
				t.Errorf("%d losses were counted, want %d", lost, len(want)-1)
			}
		})
	}
}

// answers is what each verb of an attachment's life exits with and prints, and
// how many losses were counted meanwhile.
func answers(t *testing.T, set map[string]string, spoil func(dir string)) (out []string, lost int64) {
	t.Helper()
	n := node(t)
	spoil(n.Dir)
	pod, answer, own := pod1(t, n), "", strings.ReplaceAll(conf(t, n, set), attach.Dir, n.Dir)
	before := dropped(t)
	for _, verb := range []string{"ADD", "ADD", "CHECK", "STATUS", "GC", "DEL", "DEL"} {
		stdin := json.RawMessage(own)
		switch verb {
		case "CHECK":
			stdin = put(t, stdin, []string{"prevResult"}, answer)
		case "GC":
			stdin = put(t, stdin, []string{"cni.dev/valid-attachments"}, `[{"containerID": "c1", "ifname": "eth0"}]`)
		}
		call := raw(t, n, verb, string(stdin), n.Environment(verb, pod))
		if answer == "" {
			answer = string(call.Stdout)
		}
		if _, err := n.Kernel(); err != nil { // learns the bridge's MAC
			t.Fatal(err)
		}
		said := n.Normal(string(call.Stdout))
		if call.Exit != 0 {
			var e struct {
				Code uint
				Msg  string
			}
			if err := json.Unmarshal(call.Stdout, &e); err != nil {
				t.Fatal(err)
			}
			said, _, _ = strings.Cut(fmt.Sprint(e.Code, " ", e.Msg), ", since ")
		}
		out = append(out, fmt.Sprint(verb, " ", call.Exit, " ", said, string(call.Stderr)))
	}
	nothingLeft(t, n)
	if b, err := os.ReadFile(filepath.Join(n.Dir, "outside")); err == nil && string(b) != "as it was" {
		t.Errorf("a link was followed: %q", b)
	}
	return out, dropped(t) - before
}

// dropped is the number of losses that were counted.
func dropped(t *testing.T) int64 {
	t.Helper()
	info, err := os.Stat("/run/tracewire/dropped")
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
