package chain

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// Volatile is where what does not outlive the boot is kept: of all networks, and
// the counters.
const Volatile = "/run/tracewire"

// RunDir is the folder of a network, a state directory and a store of addresses
// for what does not outlive the boot. Nobody makes it before there is something
// to keep.
func RunDir(network, state, store string) string {
	const maxName = 200 // with the hash below NAME_MAX
	sum := sha256.Sum256([]byte(network + "\x00" + state + "\x00" + store))
	// STATUS looks there before anybody judged the name: it must not lead elsewhere.
	name := strings.NewReplacer("/", "_", "\x00", "_").Replace(network[:min(len(network), maxName)])
	return filepath.Join(Volatile, name+"-"+hex.EncodeToString(sum[:8]))
}

// News is what a STATUS has to tell.
type News int

// A STATUS whose outcome is the last one's is silent; one that is nearly another
// leaves a warning in the log; one that is another leaves a span and a line.
const (
	Nothing News = iota
	Warning
	Change
)

// Verdict is what STATUS said last and what its steps remember, in one small
// file of this boot. Without the file, or with one that cannot be read, the last
// outcome was good and nothing is remembered.
type Verdict struct {
	path    string
	read    []byte // the file as it was; nil when there was none
	was, is outcome
	tell    bool // a step has a warning to tell
}

type outcome struct {
	Reason string                     `json:"reason,omitempty"` // why it was bad, without its figures; empty when it was good
	Trace  string                     `json:"trace,omitempty"`  // id of the trace that told so
	Steps  map[string]json.RawMessage `json:"steps,omitempty"`
}

const (
	maxVerdict = 1 << 20 // bytes that are read of the file: a range set takes some 200
	maxReason  = 4 << 10 // bytes of an error that tell it from another
)

// ReadVerdict reads the file.
func ReadVerdict(path string) *Verdict {
	v := &Verdict{path: path, read: readVerdict(path)}
	if json.Unmarshal(v.read, &v.was) != nil {
		v.was = outcome{}
	}
	v.is.Steps = map[string]json.RawMessage{}
	maps.Copy(v.is.Steps, v.was.Steps) // of steps that are not asked this time
	return v
}

// readVerdict reads what is a regular file, and opens nothing that could block.
// It is nil for any other. A file is never written in its place, so one read has
// it whole; without the os package it costs no poller.
func readVerdict(path string) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxVerdict {
		return nil
	}
	b := make([]byte, st.Size)
	n, err := unix.Read(fd, b)
	if err != nil {
		return nil
	}
	return b[:n]
}

// Trace is the id of the trace in which a failure is told: where it was told
// before, that one's, else its own.
func (v *Verdict) Trace(failure, own string) string {
	if v.was.Trace != "" && shape(failure) == v.was.Reason {
		return v.was.Trace
	}
	return own
}

// Settle writes down how a STATUS failed, or that it did not, and tells what is
// new. trace is its own trace's id. Where nothing can be written down nothing is ever new:
// silence is better than the same line every few seconds. Of two STATUS at once
// one settles, and what the other found is found again.
func (v *Verdict) Settle(failure, trace string) News {
	if v.is.Reason = shape(failure); v.is.Reason != "" {
		v.is.Trace = v.Trace(failure, trace)
	}
	b, err := json.Marshal(v.is)
	if err != nil || v.read == nil && string(b) == "{}" || bytes.Equal(b, v.read) {
		return Nothing
	}
	if v.replace(b) != nil {
		return Nothing
	}
	switch {
	case v.is.Reason != v.was.Reason:
		return Change
	case v.tell:
		return Warning
	}
	return Nothing
}

// replace writes the file aside and renames it, if it is still the one that was
// read.
func (v *Verdict) replace(b []byte) error {
	dir := filepath.Dir(v.path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	d, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(d) // and with it the lock
	if err := unix.Flock(d, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return &fs.PathError{Op: "flock", Path: dir, Err: err}
	}
	if !bytes.Equal(readVerdict(v.path), v.read) {
		return fs.ErrExist
	}
	// Only who has the lock writes: one name is enough, and no kill leaves more.
	aside := v.path + ".new"
	_ = os.Remove(aside)
	err = os.WriteFile(aside, b, 0o600)
	if err == nil {
		err = os.Rename(aside, v.path)
	}
	if err != nil {
		_ = os.Remove(aside)
	}
	return err
}

// shape is a text's words, each that has a digit as #. So an error that counts
// seconds, or quotes an id, is the same error all the time.
func shape(text string) string {
	apart := func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	all := strings.FieldsFunc(text[:min(len(text), maxReason)], apart)
	for i, word := range all {
		if strings.ContainsFunc(word, unicode.IsDigit) {
			all[i] = "#"
		}
	}
	return strings.Join(all, " ")
}

// notes is what one step remembers.
type notes struct {
	v    *Verdict
	step string
}

// Recall implements delegates.Notes.
func (n notes) Recall(variable any) { _ = json.Unmarshal(n.v.was.Steps[n.step], variable) }

// Keep implements delegates.Notes.
func (n notes) Keep(value any) {
	if b, err := json.Marshal(value); err == nil {
		n.v.is.Steps[n.step] = b
	}
}

// Tell implements delegates.Notes.
func (n notes) Tell() { n.v.tell = true }
