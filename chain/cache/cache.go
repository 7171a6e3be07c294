// Package cache keeps the durable record of each attachment: an append-only
// journal that is begun before the first side effect and removed after the
// last, so that DEL can always finish.
package cache

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace/point"
)

// Schema is the version of the lines that this package writes. Lines of a
// newer one are read as far as they are understood.
const Schema = 1

// Intent is the journal's first line: all that is known before anything is done.
type Intent struct {
	delegates.Attachment
	Conf    json.RawMessage // network configuration as ADD was given it
	Args    string          // CNI_ARGS
	NetNS   string
	Inode   uint64 // of the namespace
	Cookie  uint64 // of the namespace (SO_NETNS_COOKIE)
	Boot    string // boot id
	Runtime string // the executable that called ADD; empty when it was gone or pid 1
	Span    string // traceparent of ADD's root span
	Parent  string // traceparent of that one's parent; empty when there is none
}

// Phase is one phase of an ADD or DEL, as the journal has it.
type Phase struct {
	Name       string
	Span       string        // its span's id, empty where it had none
	Begin, End time.Duration // since the operation began; End is 0 while it is open
}

// State is what a journal tells of its attachment.
type State string

// The states. A record in any but None stands for things that may exist; an
// unreadable one says nothing of them.
const (
	None        State = "none"        // no journal
	Interrupted State = "interrupted" // an ADD that did not end
	Attached    State = "attached"
	Deleting    State = "deleting" // a DEL that did not end
	Ended       State = "ended"    // nothing is left that it stands for, but it was not told
	Unreadable  State = "unreadable"
)

// Record is a journal, replayed.
type Record struct {
	Intent
	State    State
	Began    time.Time // ADD's
	Reserved Result
	Plan     Result
	Result   Result                   // what ADD answered
	Steps    map[string]delegates.Ran // of executed plugins; nil when none was run
	Told     bool                     // spool and log have ADD
	Deleting string                   // traceparent of the DEL that began; empty when none did
	Size     int64                    // bytes
	Damaged  bool                     // a line before the last cannot be read
	Newer    bool                     // Unreadable, and a newer schema's

	last   operation
	holed  bool     // lines of it were lost, before it was mended
	good   int64    // end of the last good line
	unread [][]byte // lines of begin and end, read only when they are asked for
	phases []Phase  // that were read
}

// Operation is what others know an operation by.
type Operation struct {
	Name   string // of its root span: "cni.DEL"
	Span   string // traceparent of its root span
	Parent string // traceparent of that one's parent; empty when there is none
}

// operation is the one that wrote last.
type operation struct {
	Operation
	began time.Time
	until time.Duration // since it began, of its last line
}

// Result is a result as a line has it, read only when it is asked for; empty
// before the line was written.
type Result json.RawMessage

// Get is the result, nil where there is none.
func (r Result) Get() *types100.Result {
	if len(r) == 0 {
		return nil
	}
	var out types100.Result
	if json.Unmarshal(r, &out) != nil {
		return nil // a newer schema's
	}
	return &out
}

// Earlier tells that the record is of another boot than this one: what it stands
// for in the kernel is gone. It is false where one of them is not known.
func (r *Record) Earlier(boot string) bool { return boot != "" && r.Boot != "" && r.Boot != boot }

// Made is what the record says that ADD made, for the steps.
func (r *Record) Made(boot string) delegates.Made {
	m := delegates.Made{Known: r.State != None && r.State != Unreadable && r.whole(), ThisBoot: r.Boot == boot, Cookie: r.Cookie, Reserved: r.Reserved.Get(), Result: r.Result.Get()}
	if m.Result == nil {
		m.Result = r.Plan.Get()
	}
	m.Steps = maps.Clone(r.Steps)
	return m
}

// whole tells that no line is missing that anybody knows of. What a record with
// a hole does not tell of may have been done all the same.
func (r *Record) whole() bool { return !r.Damaged && !r.holed && r.good == r.Size }

// Dir is a folder of records.
type Dir struct {
	Path string
	// Sync is when a record is made to outlive a power cut: auto (before a plugin
	// runs whose state does), always or never.
	Sync string
}

// In is the folder of records of a state directory.
func In(stateDir string) Dir { return Dir{Path: filepath.Join(stateDir, "attachments")} }

// File is the file of an attachment's record. No two attachments share one:
// a container id holds no colon.
func (d Dir) File(a delegates.Attachment) string {
	return filepath.Join(d.Path, short(a.Network), short(a.ContainerID+":"+a.IfName))
}

// maxName is the longest file name in bytes (NAME_MAX).
const maxName = 255

// short is the name itself, or a hash where a file name cannot be as long. A
// hash holds no colon and no network's name starts with one.
func short(name string) string {
	if len(name) <= maxName {
		return name
	}
	s := sha256.Sum256([]byte(name))
	return ":" + hex.EncodeToString(s[:])
}

// errAnother marks a record that is another attachment's: a copy, or a file
// that was renamed.
var errAnother = errors.New("it is the record of another attachment")

// Read replays an attachment's journal. One that is not there is State None,
// also beside an ErrPlace.
func (d Dir) Read(a delegates.Attachment) (Record, error) {
	path := d.File(a)
	b, err := d.record(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{State: None}, nil
	}
	if elsewhere(err) {
		if err := d.Place(a.Network); err != nil {
			return Record{State: None}, err
		}
	}
	if err != nil {
		return Record{State: Unreadable}, err
	}
	r := Replay(b)
	if r.State != Unreadable && r.Attachment != a {
		return Record{State: Unreadable, Size: r.Size, good: r.good}, fmt.Errorf("%w: %s", errAnother, r.Attachment)
	}
	return r, nil
}

// record is a record's bytes. What is no regular file, or longer than a record
// can be, is an error, and is not read.
func (d Dir) record(path string) ([]byte, error) {
	fd, err := d.open(path, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	b, _, err := readOpen(fd, path, maxRecord)
	return b, err
}

// maxRecord is the longest record in bytes: a configuration and results of 4 MiB
// each, some of them several times.
const maxRecord = 64 << 20

// errNoFile marks what is never read, whatever may be in it.
var errNoFile = errors.New("is no regular file")

// readOpen reads a regular file of at most that many bytes.
func readOpen(fd int, path string, most int64) (b []byte, st unix.Stat_t, err error) {
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, st, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > most {
		return nil, st, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w of at most %d bytes", errNoFile, most)}
	}
	b, err = readAll(fd, path)
	return b, st, err
}

// readRegular is readOpen of what is at a path.
func readRegular(path string, most int64) (b []byte, st unix.Stat_t, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		err = errNoFile
		fallthrough
	case err != nil:
		return nil, st, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	return readOpen(fd, path, most)
}

// BootID is this boot of the kernel (random(4)); empty where it cannot be read.
func BootID() string {
	if id := point.Boot(); id != "" {
		return id
	}
	b, _ := readFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// readFile is os.ReadFile without the poller, which costs a short-lived process
// more than the file.
func readFile(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	return readAll(fd, path)
}

func readAll(fd int, path string) ([]byte, error) {
	b := make([]byte, 0, 8192)
	for {
		n, err := unix.Read(fd, b[len(b):cap(b)])
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			return b, nil
		}
		if b = b[:len(b)+n]; len(b) == cap(b) {
			b = slices.Grow(b, len(b))
		}
	}
}

// Replay reads a journal's bytes. A line that cannot be read is passed over;
// without an intent the record is Unreadable.
func Replay(b []byte) Record {
	r := Record{State: Unreadable, Size: int64(len(b))}
	at := int64(0)
	bad := false
	for line := range bytes.Lines(b) {
		at += int64(len(line))
		body, ok := whole(line)
		if !ok {
			bad = true
			continue
		}
		r.Damaged = r.Damaged || bad
		r.good = at
		if isPhase(body) {
			r.unread = append(r.unread, body)
		} else if e, err := decode(body); err == nil {
			r.add(e)
		}
	}
	r.Newer = r.State == Unreadable && newer(b)
	return r
}

// newer tells that a journal has a line of a newer schema.
func newer(b []byte) bool {
	for line := range bytes.Lines(b) {
		var head struct {
			Schema int64 `json:"v"`
		}
		if body, ok := whole(line); ok && json.Unmarshal(body, &head) == nil && head.Schema > Schema {
			return true
		}
	}
	return false
}

// sound is the lines of a journal that can be read.
func sound(b []byte) (out []byte) {
	for line := range bytes.Lines(b) {
		if _, ok := whole(line); ok {
			out = append(out, line...)
		}
	}
	return out
}

// add is one line's effect.
func (r *Record) add(e entry) {
	r.last.until = max(r.last.until, time.Duration(e.After))
	switch e.Kind {
	case "intent":
		r.Intent, r.State, r.Began = e.Intent, Interrupted, time.Unix(0, e.At)
		r.last = e.operation(Operation{"cni.ADD", e.Intent.Span, e.Parent})
	case "reserved":
		r.Reserved = Result(e.Result)
	case "plan":
		r.Plan = Result(e.Result)
	case "result":
		r.Result = Result(e.Result)
		r.become(Attached)
	case "asked", "freeing", "freed":
		r.ran(e)
	case "told":
		r.Told = true
	case "deleting":
		r.Deleting, r.unread, r.phases, r.Told = e.Span, nil, nil, false
		r.last = e.operation(Operation{cmp.Or(e.Phase, "cni.DEL"), e.Span, e.Parent})
		r.become(Deleting)
	case "mended":
		r.holed = true
	case "ended":
		r.become(Ended)
	case "begin":
		r.phases = append(r.phases, Phase{Name: e.Phase, Span: e.Span, Begin: time.Duration(e.After)})
	case "end":
		end(r.phases, e)
	}
}

// operation is the one that an entry is the first line of.
func (e entry) operation(o Operation) operation {
	return operation{Operation: o, began: time.Unix(0, e.At-e.After), until: time.Duration(e.After)}
}

// words is the kinds of the lines on executed plugins.
var words = [...]string{delegates.Asked: "asked", delegates.Freeing: "freeing", delegates.Freed: "freed"}

// ran is what a line tells of an executed plugin. Before there were delegates
// it was IPAM's.
func (r *Record) ran(e entry) {
	if r.Steps == nil {
		r.Steps = map[string]delegates.Ran{}
	}
	r.Steps[cmp.Or(e.Phase, "ipam")] = delegates.Ran(slices.Index(words[:], e.Kind))
}

// become changes the state of a record that has its intent.
func (r *Record) become(s State) {
	if r.State != Unreadable {
		r.State = s
	}
}

// Phases is the phases of the operation that wrote last, in the order they
// began.
func (r *Record) Phases() []Phase {
	for _, body := range r.unread {
		if e, err := decode(body); err == nil {
			r.add(e)
		}
	}
	r.unread = nil
	return r.phases
}

// end closes the last phase of that name that is open.
func end(phases []Phase, e entry) {
	for i := len(phases) - 1; i >= 0; i-- {
		if p := &phases[i]; p.Name == e.Phase && p.End == 0 {
			p.End = time.Duration(e.After)
			return
		}
	}
}
