//go:build linux

package cases

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/test/attach"
)

// recordPath is where pod1's record is, below the node's folder.
const recordPath = "state/attachments/net/c1:eth0"

// ending is a way to end an attachment: by which verb, and with how much help.
type ending struct {
	name string
	verb string
	bare bool // without prevResult and CNI_NETNS
}

var endings = []ending{
	{name: "DEL", verb: "DEL"},
	{name: "DEL with neither prevResult nor CNI_NETNS", verb: "DEL", bare: true},
	{name: "GC", verb: "GC"},
}

// rounds is one attachment, made and ended again and again on one node.
type rounds struct {
	*attach.Node
	pod    attach.Attachment
	stdin  string
	record string // path of the record
	answer string // ADD's
}

func newRounds(t *testing.T, set map[string]string) *rounds {
	t.Helper()
	n := node(t)
	return &rounds{Node: n, pod: pod1(t, n), stdin: conf(t, n, set), record: filepath.Join(n.Dir, recordPath)}
}

// begin attaches, and returns the record's bytes.
func (l *rounds) begin(t *testing.T) []byte {
	t.Helper()
	call := raw(t, l.Node, "ADD", l.stdin, l.Environment("ADD", l.pod))
	if err := call.Err(); err != nil {
		t.Fatal(describe(err))
	}
	l.answer = string(call.Stdout)
	b, err := os.ReadFile(l.record)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// end runs the verb that ends the attachment.
func (l *rounds) end(t *testing.T, e ending) attach.Call {
	t.Helper()
	stdin, pod := json.RawMessage(l.stdin), l.pod
	switch {
	case e.verb == "GC":
		stdin = put(t, stdin, []string{"cni.dev/valid-attachments"}, "[]")
	case e.bare:
		pod.NetNS = ""
	default:
		stdin = put(t, stdin, []string{"prevResult"}, l.answer)
	}
	return raw(t, l.Node, e.verb, string(stdin), l.Environment(e.verb, pod))
}

// left is what is there but for what quarantine keeps.
func (l *rounds) left(t *testing.T) []string {
	t.Helper()
	left, err := l.Left()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(left, func(name string) bool { return strings.HasPrefix(name, "state/quarantine/") })
}

// ended is what holds after every ending: success, and nothing left.
func (l *rounds) ended(t *testing.T, name string, e ending) {
	t.Helper()
	if err := l.end(t, e).Err(); err != nil {
		t.Errorf("%s: %s: %s", name, e.name, describe(err))
	}
	if left := l.left(t); len(left) > 0 {
		t.Fatalf("%s: %s: left behind: %q", name, e.name, left)
	}
}

// warned is the message and the quarantine of the log's warnings, newest last.
func (l *rounds) warned(t *testing.T) (out [][2]string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(l.Dir, "log", "tracewire.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var w struct {
			Level, Message string
			Quarantine     string `json:"cni.quarantine"`
		}
		if err := json.Unmarshal(line, &w); err != nil {
			t.Fatal(err)
		}
		if w.Level == "warn" {
			out = append(out, [2]string{w.Message, w.Quarantine})
		}
	}
	return out
}

// kept is what holds of a record that was broken: the log warns of it, and
// quarantine has it with a note.
func (l *rounds) kept(t *testing.T, name, message string) (path string) {
	t.Helper()
	for _, w := range slices.Backward(l.warned(t)) {
		if w[0] != message {
			continue
		}
		note, err := os.ReadFile(w[1] + ".why")
		if _, there := os.Lstat(w[1]); err != nil || there != nil || !strings.Contains(string(note), "attachments/net/") {
			t.Errorf("%s: kept at %s: %v, %v, note %q", name, w[1], there, err, note)
		}
		return w[1]
	}
	t.Errorf("%s: no warning that the %s", name, message)
	return ""
}

const (
	unreadable = "record cannot be read"
	holed      = "record is damaged: what can be read of it is used"
)

// places is what may stand in a record's place that is none.
var places = []struct {
	name string
	// put replaces the record, which is at path with its bytes.
	put func(path string, b []byte) error
	// warning is what the log has; "" where the record can be used.
	warning string
}{
	{"zero bytes", func(p string, _ []byte) error { return os.WriteFile(p, nil, 0o600) }, unreadable},
	{"NULs", func(p string, b []byte) error { return os.WriteFile(p, make([]byte, len(b)), 0o600) }, unreadable},
	{"NULs at the start", func(p string, b []byte) error { return os.WriteFile(p, append(make([]byte, 4096), b...), 0o600) }, unreadable},
	{"NULs at the end", func(p string, b []byte) error { return os.WriteFile(p, append(b, make([]byte, 4096)...), 0o600) }, ""},
	{"NULs between two lines", func(p string, b []byte) error {
		at := bytes.LastIndexByte(b[:len(b)-1], '\n') + 1
		return os.WriteFile(p, slices.Concat(b[:at], make([]byte, 512), []byte("\n"), b[at:]), 0o600)
	}, holed},
	{"a folder", func(p string, _ []byte) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) }, unreadable},
	{"a folder with files", func(p string, b []byte) error {
		return errors.Join(os.Remove(p), os.Mkdir(p, 0o700), os.WriteFile(filepath.Join(p, "x"), b, 0o600))
	}, unreadable},
	{"a link to a file", func(p string, b []byte) error {
		return errors.Join(os.Remove(p), os.WriteFile(elsewhere(p), b, 0o600), os.Symlink(elsewhere(p), p))
	}, unreadable},
	{"a link to nothing", func(p string, _ []byte) error { return errors.Join(os.Remove(p), os.Symlink(p+".none", p)) }, unreadable},
	{"a link to itself", func(p string, _ []byte) error { return errors.Join(os.Remove(p), os.Symlink(p, p)) }, unreadable},
	{"a pipe", func(p string, _ []byte) error { return errors.Join(os.Remove(p), unix.Mkfifo(p, 0o600)) }, unreadable},
	{"a socket", func(p string, _ []byte) error {
		return errors.Join(os.Remove(p), unix.Mknod(p, unix.S_IFSOCK|0o600, 0))
	}, unreadable},
	{"another owner and mode", func(p string, _ []byte) error { return errors.Join(os.Chown(p, 65534, 65534), os.Chmod(p, 0)) }, ""},
	{"a mode that all may write", func(p string, _ []byte) error { return os.Chmod(p, 0o777) }, ""},
	{"its intent twice", func(p string, b []byte) error {
		first := b[:bytes.IndexByte(b, '\n')+1]
		return os.WriteFile(p, slices.Concat(b, first), 0o600)
	}, ""},
	{"all of it twice", func(p string, b []byte) error { return os.WriteFile(p, slices.Concat(b, b), 0o600) }, ""},
	{"a record of another attachment", func(p string, b []byte) error {
		return os.WriteFile(p, bytes.ReplaceAll(b, []byte("c1"), []byte("c9")), 0o600)
	}, unreadable},
	{"gone", func(p string, _ []byte) error { return os.Remove(p) }, ""},
}

// elsewhere is a file that no operation may touch.
func elsewhere(record string) string {
	return filepath.Join(filepath.Dir(record), "..", "..", "..", "outside")
}

// TestRecordsPlace: whatever stands in a record's place, the attachment ends
// and nothing is left (cni#1055, flannel-cni#43).
func TestRecordsPlace(t *testing.T) {
	for _, p := range places {
		for _, e := range endings {
			t.Run(p.name+", "+e.name, func(t *testing.T) {
				l := newRounds(t, map[string]string{"ipMasq": "true"})
				b := l.begin(t)
				switch err := p.put(l.record, b); {
				case errors.Is(err, unix.EINVAL): // a user namespace has no other user
					t.Skip("needs root: run make test as root")
				case err != nil:
					t.Fatal(err)
				}
				l.ended(t, p.name, e)
				if p.warning != "" {
					l.kept(t, p.name, p.warning)
				}
				if after, err := os.ReadFile(elsewhere(l.record)); p.name == "a link to a file" && (err != nil || !bytes.Equal(b, after)) {
					t.Errorf("the file that was linked to is %q, %v", after, err)
				}
				again := l.end(t, ending{verb: "DEL", bare: true})
				if err := again.Err(); err != nil {
					t.Error(describe(err))
				}
				l.begin(t)
				l.ended(t, "the next", endings[0])
			})
		}
	}
}

// cuts is every end of a line of a record, a byte before and after it, and some
// others.
func cuts(b []byte) (at []int) {
	for i, c := range b {
		if c == '\n' {
			at = append(at, i, i+1, min(i+2, len(b)))
		}
	}
	dice := rand.New(rand.NewPCG(1, uint64(len(b))))
	for range 50 {
		at = append(at, dice.IntN(len(b)))
	}
	return at
}

// broken runs the endings in turn on a record that is changed anew each time.
func broken(t *testing.T, set map[string]string, endings []ending, change func(b []byte) [][]byte) {
	t.Helper()
	l := newRounds(t, set)
	length := len(change(l.begin(t)))
	l.ended(t, "whole", endings[0])
	for i := range length {
		b := l.begin(t)
		all := change(b)
		if i >= len(all) { // a number in it may have a digit less
			break
		}
		if err := os.WriteFile(l.record, all[i], 0o600); err != nil {
			t.Fatal(err)
		}
		l.ended(t, fmt.Sprintf("%d of %d", i, length), endings[i%len(endings)])
	}
	logSound(t, l.Node)
}

func cut(b []byte) (out [][]byte) {
	for _, at := range cuts(b) {
		out = append(out, b[:at])
	}
	return out
}

// flip changes a bit of a byte in a hundred places.
func flip(b []byte) (out [][]byte) {
	dice := rand.New(rand.NewPCG(2, 2))
	for range 100 {
		c := bytes.Clone(b)
		c[dice.IntN(len(c))] ^= 1 << dice.IntN(8)
		out = append(out, c)
	}
	return out
}

// TestRecordsCutAndFlipped: a record that ends anywhere, and one with a byte
// changed.
func TestRecordsCutAndFlipped(t *testing.T) {
	masquerade := map[string]string{"ipMasq": "true"}
	executed := map[string]string{"tracewire.ipamExec": "true"}
	for _, tt := range []struct {
		name    string
		set     map[string]string
		endings []ending
		change  func([]byte) [][]byte
	}{
		{"cut", masquerade, endings, cut},
		{"flipped", masquerade, endings, flip},
		// Where IPAM is another program the record alone tells that it was run, but for
		// prevResult: it is then the runtime's to say.
		{"cut, IPAM executed", executed, endings[:1], cut},
		{"flipped, IPAM executed", executed, endings, flip},
	} {
		t.Run(tt.name, func(t *testing.T) { broken(t, tt.set, tt.endings, tt.change) })
	}
}

// TestRecordDamaged: of a record with a hole the rest is used, by an operation
// that is killed and its next too: the configuration that ADD used, an executed
// IPAM plugin that it alone knows of.
func TestRecordDamaged(t *testing.T) {
	for _, e := range endings {
		t.Run(e.name, func(t *testing.T) {
			l := newRounds(t, map[string]string{"tracewire.ipamExec": "true"})
			b := l.begin(t)
			at := bytes.Index(b, []byte(`"asked"`))
			if at < 0 {
				t.Fatal("the record has no such line")
			}
			b[at] = 'X'
			if err := os.WriteFile(l.record, b, 0o600); err != nil {
				t.Fatal(err)
			}
			// CHECK meets it first, and leaves the attachment as it is.
			with := put(t, json.RawMessage(l.stdin), []string{"prevResult"}, l.answer)
			if err := raw(t, l.Node, "CHECK", string(with), l.Environment("CHECK", l.pod)).Err(); err != nil {
				t.Error(describe(err))
			}
			kept := l.kept(t, "damaged", holed)
			if was, err := os.ReadFile(kept); err != nil || !bytes.Equal(b, was) {
				t.Errorf("%s: %d of %d bytes, %v", kept, len(was), len(b), err)
			}
			// Attached as before: a second ADD is refused.
			if err := expected(raw(t, l.Node, "ADD", l.stdin, l.Environment("ADD", l.pod)).Err(), "102 attachment exists", l.Normal); err != nil {
				t.Error(err)
			}
			l.ended(t, "damaged", e)
		})
	}
}

// TestRecordLostWhileItLives: an ADD of an attachment whose record is broken is
// refused and touches nothing of it.
func TestRecordLostWhileItLives(t *testing.T) {
	l := newRounds(t, nil)
	l.begin(t)
	before, err := l.Kernel()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.record, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err = raw(t, l.Node, "ADD", l.stdin, l.Environment("ADD", l.pod)).Err()
	after, _ := l.Kernel()
	if err := expected(err, "102 ", l.Normal); err != nil {
		t.Error(err)
	}
	if before != after {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	l.ended(t, "lost", endings[1])
}

// TestRecordUnderAnotherName: a copy of a record is no attachment's: neither a
// DEL of its name nor a GC touches what the record stands for.
func TestRecordUnderAnotherName(t *testing.T) {
	for _, name := range []string{"c2:eth0", "c1:eth1", "c1:eth0.bak", "copy"} {
		t.Run(name, func(t *testing.T) {
			l := newRounds(t, map[string]string{"ipMasq": "true"})
			b := l.begin(t)
			path := filepath.Join(filepath.Dir(l.record), name)
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			before, err := l.Kernel()
			if err != nil {
				t.Fatal(err)
			}
			id, ifName, isName := strings.Cut(name, ":")
			if isName && !strings.HasSuffix(name, ".bak") {
				other := l.pod
				other.ContainerID, other.IfName, other.NetNS = id, ifName, ""
				if err := raw(t, l.Node, "DEL", l.stdin, l.Environment("DEL", other)).Err(); err != nil {
					t.Error(describe(err))
				}
			}
			valid := put(t, json.RawMessage(l.stdin), []string{"cni.dev/valid-attachments"}, `[{"containerID": "c1", "ifname": "eth0"}]`)
			if err := raw(t, l.Node, "GC", string(valid), l.Environment("GC", l.pod)).Err(); err != nil {
				t.Error(describe(err))
			}
			after, err := l.Kernel()
			if before != after || err != nil || exists(path) || !exists(l.record) {
				t.Errorf("the copy is there: %t, the record: %t, %v\nbefore:\n%s\nafter:\n%s", exists(path), exists(l.record), err, before, after)
			}
			l.kept(t, name, unreadable)
			l.ended(t, name, endings[1])
		})
	}
}

// TestNewerRecord: a record of a later version is used as far as it can be read,
// and goes with its attachment.
func TestNewerRecord(t *testing.T) {
	for _, e := range endings {
		l := newRounds(t, nil)
		b := l.begin(t)
		if err := os.WriteFile(l.record, bytes.ReplaceAll(b, []byte(`{"v":1,`), []byte(`{"v":7,`)), 0o600); err != nil {
			t.Fatal(err) // its sums are wrong now: a later version may count them otherwise
		}
		l.ended(t, "newer", e)
	}
}

// TestQuarantineIsBounded: of all that was broken quarantine keeps the newest.
func TestQuarantineIsBounded(t *testing.T) {
	const bound = 64
	l := newRounds(t, nil)
	for range bound + 8 {
		if err := os.MkdirAll(filepath.Dir(l.record), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(l.record, []byte("broken\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := l.end(t, ending{verb: "DEL", bare: true}).Err(); err != nil {
			t.Fatal(describe(err))
		}
	}
	kept, err := os.ReadDir(filepath.Join(l.Dir, "state", "quarantine"))
	if err != nil || len(kept) != 2*bound {
		t.Errorf("%d files, want %d and their notes: %v", len(kept), bound, err)
	}
}

// entries is what may become of libcni's own entry of an attachment.
var entries = []struct {
	name string
	put  func(path string, b []byte) error
	// check is CHECK's error; "" where it may succeed.
	check string
}{
	{"zero bytes", func(p string, _ []byte) error { return os.WriteFile(p, nil, 0o600) }, "cached result"},
	{"NULs", func(p string, b []byte) error { return os.WriteFile(p, make([]byte, len(b)), 0o600) }, "cached result"},
	{"half of it", func(p string, b []byte) error { return os.WriteFile(p, b[:len(b)/2], 0o600) }, "cached result"},
	{"another kind", func(p string, b []byte) error {
		return os.WriteFile(p, bytes.Replace(b, []byte("cniCacheV1"), []byte("cniCacheV9"), 1), 0o600)
	}, ""},
	{"without a result", func(p string, b []byte) error {
		var m map[string]json.RawMessage
		if err := json.Unmarshal(b, &m); err != nil {
			return err
		}
		delete(m, "result")
		b, err := json.Marshal(m)
		return errors.Join(err, os.WriteFile(p, b, 0o600))
	}, ""},
	{"a folder", func(p string, _ []byte) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) }, "prevResult"},
	{"a link to nothing", func(p string, _ []byte) error { return errors.Join(os.Remove(p), os.Symlink(p+".none", p)) }, "prevResult"},
	{"gone", func(p string, _ []byte) error { return os.Remove(p) }, "prevResult"},
}

// TestLibcniEntry: whatever became of libcni's entry, and of our record at the
// same time, DEL and GC end the attachment; CHECK says clearly what is missing.
func TestLibcniEntry(t *testing.T) {
	for _, e := range entries {
		for _, both := range []bool{false, true} {
			for _, verb := range []string{"DEL", "GC"} {
				t.Run(fmt.Sprintf("%s, record lost %t, %s", e.name, both, verb), func(t *testing.T) { libcniEntry(t, e.put, e.check, both, verb) })
			}
		}
	}
}

func libcniEntry(t *testing.T, spoil func(string, []byte) error, check string, both bool, verb string) {
	t.Helper()
	l := newRounds(t, map[string]string{"ipMasq": "true"})
	list := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "plugins": [%s]}`, l.stdin)
	if err := l.Load([]byte(list)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	if _, err := l.Add(ctx, l.pod); err != nil {
		t.Fatal(describe(err))
	}
	entry := filepath.Join(l.Dir, "cache", "results", "net-c1-eth0")
	b, err := os.ReadFile(entry)
	if err == nil {
		err = spoil(entry, b)
	}
	if both {
		err = errors.Join(err, os.WriteFile(l.record, nil, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Check(ctx, l.pod); check != "" && (err == nil || !strings.Contains(err.Error(), check)) {
		t.Errorf("CHECK: %v, want an error with %q", err, check)
	}
	if verb == "DEL" {
		err = l.Del(ctx, l.pod)
	} else {
		err = l.GC(ctx, []types.GCAttachment{})
	}
	if err != nil {
		t.Errorf("%s: %s", verb, describe(err))
	}
	left := slices.DeleteFunc(l.left(t), func(name string) bool { return strings.HasPrefix(name, "cache/") })
	if len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	logSound(t, l.Node)
}
