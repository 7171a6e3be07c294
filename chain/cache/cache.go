// Package cache keeps the durable record of each attachment: an append-only
// journal that is begun before the first side effect and removed after the
// last, so that DEL can always finish.
package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/delegates"
)

// Schema is the version of the lines that this package writes. Lines of a
// newer one are read as far as they are understood.
const Schema = 1

// Intent is the journal's first line: all that is known before anything is done.
type Intent struct {
	delegates.Attachment
	Conf    json.RawMessage `json:"conf"` // network configuration as ADD was given it
	Args    string          `json:"args"` // CNI_ARGS
	NetNS   string          `json:"netns"`
	Inode   uint64          `json:"inode"`  // of the namespace
	Cookie  uint64          `json:"cookie"` // of the namespace (SO_NETNS_COOKIE)
	Boot    string          `json:"boot"`   // boot id
	Runtime string          `json:"runtime"`
	Span    string          `json:"span"` // traceparent of ADD's root span
}

// entry is one line. Exactly one of the pointers and words after Kind counts.
type entry struct {
	V      int              `json:"v"`
	Kind   string           `json:"kind"` // intent, reserved, plan, begin, end, result, told or deleting
	At     int64            `json:"at"`   // wall clock, nanoseconds since 1970
	After  int64            `json:"after"`
	Intent *Intent          `json:"intent,omitempty"`
	Result *types100.Result `json:"result,omitempty"`
	Phase  string           `json:"phase,omitempty"`
	Span   string           `json:"span,omitempty"`
}

// Phase is one phase of an ADD or DEL, as the journal has it.
type Phase struct {
	Name       string
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
	Unreadable  State = "unreadable"
)

// Record is a journal, replayed.
type Record struct {
	Intent
	State    State
	Began    time.Time // ADD's
	Reserved *types100.Result
	Plan     *types100.Result // nil before it was written
	Result   *types100.Result // what ADD answered
	Phases   []Phase
	Told     bool   // spool and log have ADD
	Deleting string // traceparent of the DEL that began; empty when none did
	Size     int64  // bytes
	Damaged  bool   // a line before the last can not be read

	good int64 // end of the last good line
}

// Made is what the record says that ADD made, for the steps.
func (r *Record) Made(boot string) delegates.Made {
	m := delegates.Made{Known: r.State != None && r.State != Unreadable, ThisBoot: r.Boot == boot, Cookie: r.Cookie, Reserved: r.Reserved, Result: r.Result}
	if m.Result == nil {
		m.Result = r.Plan
	}
	return m
}

// Dir is the folder of records, <stateDir>/attachments.
type Dir string

// Path is the file of an attachment's record. No two attachments share one:
// a container id holds no colon.
func (d Dir) Path(a delegates.Attachment) string {
	return filepath.Join(string(d), short(a.Network), short(a.ContainerID+":"+a.IfName))
}

// maxName is the longest file name in bytes (NAME_MAX).
const maxName = 255

// short is the name itself, or a hash where a file name can not be as long. A
// hash holds no colon and no network's name starts with one.
func short(name string) string {
	if len(name) <= maxName {
		return name
	}
	s := sha256.Sum256([]byte(name))
	return ":" + hex.EncodeToString(s[:])
}

// Read replays an attachment's journal. One that is not there is State None.
func (d Dir) Read(a delegates.Attachment) (Record, error) {
	b, err := os.ReadFile(d.Path(a))
	if os.IsNotExist(err) {
		return Record{State: None}, nil
	}
	if err != nil {
		return Record{State: Unreadable}, err
	}
	return Replay(b), nil
}

// Replay reads a journal's bytes. A line that can not be read is passed over;
// without an intent the record is Unreadable.
func Replay(b []byte) Record {
	r := Record{State: Unreadable, Size: int64(len(b))}
	at := int64(0)
	bad := false
	for line := range bytes.Lines(b) {
		at += int64(len(line))
		e, ok := decode(line)
		if !ok {
			bad = true
			continue
		}
		r.Damaged = r.Damaged || bad
		r.good = at
		r.apply(e)
	}
	return r
}

// apply is one line's effect.
func (r *Record) apply(e entry) {
	switch e.Kind {
	case "intent":
		if e.Intent == nil {
			return
		}
		r.Intent, r.State, r.Began = *e.Intent, Interrupted, time.Unix(0, e.At)
	case "reserved":
		r.Reserved = e.Result
	case "plan":
		r.Plan = e.Result
	case "begin":
		r.Phases = append(r.Phases, Phase{Name: e.Phase, Begin: time.Duration(e.After)})
	case "end":
		if n := len(r.Phases); n > 0 && r.Phases[n-1].Name == e.Phase {
			r.Phases[n-1].End = time.Duration(e.After)
		}
	case "result":
		r.Result = e.Result
		r.become(Attached)
	case "told":
		r.Told = true
	case "deleting":
		r.Deleting, r.Phases = e.Span, nil
		r.become(Deleting)
	}
}

// become changes the state of a record that has its intent.
func (r *Record) become(s State) {
	if r.State != Unreadable {
		r.State = s
	}
}

var table = crc32.MakeTable(crc32.Castagnoli)

const sumKey = `,"crc":"`

// encode is an entry's line: JSON whose last key is the CRC-32C of what stands before it.
func encode(e entry) ([]byte, error) {
	b, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	b = b[:len(b)-1]
	sum := crc32.Checksum(b, table)
	return fmt.Appendf(b, `%s%08x"}`+"\n", sumKey, sum), nil
}

// decode reads a line; ok is false when it is torn or changed.
func decode(line []byte) (e entry, ok bool) {
	body, sum, ok := split(line)
	if !ok || crc32.Checksum(body, table) != sum {
		return e, false
	}
	return e, json.Unmarshal(append(bytes.Clone(body), '}'), &e) == nil
}

func split(line []byte) (body []byte, sum uint32, ok bool) {
	const tail = len(sumKey) + 8 + len("\"}\n")
	at := len(line) - tail
	if at < 1 || !bytes.HasPrefix(line[at:], []byte(sumKey)) || !bytes.HasSuffix(line, []byte("\"}\n")) {
		return nil, 0, false
	}
	n, err := strconv.ParseUint(string(line[at+len(sumKey):at+len(sumKey)+8]), 16, 32)
	return line[:at], uint32(n), err == nil
}
