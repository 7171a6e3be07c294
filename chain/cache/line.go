package cache

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"
)

// entry is one line of a journal. Which fields count is told by Kind.
type entry struct {
	Kind  string // intent, reserved, asked, plan, begin, end, result, told, deleting, ended, freeing, freed or mended
	At    int64  // wall clock, nanoseconds since 1970
	After int64  // since the operation began, nanoseconds of a clock that never steps
	Intent
	Result json.RawMessage
	Phase  string // of begin and end; the step of asked, freeing and freed; the operation of deleting
	Span   string // of begin, the phase's span id; of deleting, the DEL's traceparent
}

// field is a key of a line and the variable it is read into and written from.
// Lines are read and written key by key: encoding/json's ways with structs
// cost each new process 0.1 ms a type.
type field struct {
	key string
	at  any // *string, *int64, *uint64 or *json.RawMessage
}

// fields is the keys of an entry, in the order they are written. A key whose
// variable is zero is left out.
func (e *entry) fields(schema *int64) []field {
	i := &e.Intent
	f := []field{{"v", schema}, {"kind", &e.Kind}, {"at", &e.At}, {"after", &e.After}}
	if e.Kind == "intent" {
		return append(f, field{"network", &i.Network}, field{"containerID", &i.ContainerID}, field{"ifName", &i.IfName},
			field{"conf", &i.Conf}, field{"args", &i.Args}, field{"netns", &i.NetNS}, field{"inode", &i.Inode}, field{"cookie", &i.Cookie},
			field{"boot", &i.Boot}, field{"runtime", &i.Runtime}, field{"span", &i.Span}, field{"parent", &i.Parent})
	}
	return append(f, field{"result", &e.Result}, field{"phase", &e.Phase}, field{"span", &e.Span}, field{"parent", &i.Parent})
}

const (
	sumKey = `,"sum":"`
	sumLen = 16
)

// sumOf is FNV-1a, 64 bits: it sees any one changed byte, and unlike CRC-32 it
// has no table that each new process would have to make first.
func sumOf(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b)
	return h.Sum64()
}

// encode is an entry's line: JSON whose last key is the sum of what stands before it.
func encode(e entry) ([]byte, error) {
	schema := int64(Schema)
	b := append(make([]byte, 0, 1024), '{')
	for _, f := range e.fields(&schema) {
		v, err := f.text()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.key, err)
		}
		if len(v) == 0 {
			continue
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(strconv.AppendQuote(b, f.key), ':')
		b = append(b, v...)
	}
	return fmt.Appendf(b, `%s%016x"}`+"\n", sumKey, sumOf(b)), nil
}

// text is the variable as JSON without line feeds, nothing when it is zero.
func (f field) text() ([]byte, error) {
	switch v := f.at.(type) {
	case *string:
		if *v != "" {
			return json.Marshal(*v)
		}
	case *int64:
		if *v != 0 {
			return strconv.AppendInt(nil, *v, 10), nil
		}
	case *uint64:
		if *v != 0 {
			return strconv.AppendUint(nil, *v, 10), nil
		}
	case *json.RawMessage:
		var b bytes.Buffer
		if len(*v) == 0 {
			return nil, nil
		}
		err := json.Compact(&b, *v)
		return b.Bytes(), err
	}
	return nil, nil
}

// decode reads the body of a line. A key that it does not know, of a newer
// schema, is passed over.
func decode(body []byte) (e entry, err error) {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(body, &m); err != nil {
		return e, err
	}
	if err := json.Unmarshal(m["kind"], &e.Kind); err != nil {
		return e, err
	}
	var schema int64
	for _, f := range e.fields(&schema) {
		raw, ok := m[f.key]
		if !ok {
			continue
		}
		if keep, ok := f.at.(*json.RawMessage); ok {
			*keep = raw
		} else if err := json.Unmarshal(raw, f.at); err != nil {
			return e, fmt.Errorf("%s: %w", f.key, err)
		}
	}
	return e, nil
}

// whole is a line's JSON object without its sum; ok is false when the line is
// torn or changed.
func whole(line []byte) (body []byte, ok bool) {
	const tail = len(sumKey) + sumLen + len("\"}\n")
	at := len(line) - tail
	if at < 1 || !bytes.HasPrefix(line[at:], []byte(sumKey)) || !bytes.HasSuffix(line, []byte("\"}\n")) {
		return nil, false
	}
	sum, err := strconv.ParseUint(string(line[at+len(sumKey):at+len(sumKey)+sumLen]), 16, 64)
	if err != nil || sumOf(line[:at]) != sum {
		return nil, false
	}
	return append(line[:at:at], '}'), true
}

// isPhase tells a line of a phase by its first keys. Most readers never ask
// for phases, so they are kept unread.
func isPhase(body []byte) bool {
	head := body[:min(len(body), 32)]
	return bytes.Contains(head, []byte(`"kind":"begin"`)) || bytes.Contains(head, []byte(`"kind":"end"`))
}
