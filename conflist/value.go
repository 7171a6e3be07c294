package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Value is one JSON value of a network configuration, its path kept for
// errors. What is wrong is collected and everything else is read all the same:
// a DEL has to go on with what there is.
type Value struct {
	Path string
	Raw  json.RawMessage // nil when the key is absent

	members map[string]json.RawMessage // of an object, read once
	known   map[string]*Value          // members that were asked for
	errs    *[]error                   // of the whole document
}

// Read reads a document. That it is no JSON object is in Err.
func Read(doc []byte) *Value {
	v := &Value{Raw: doc, errs: new([]error)}
	v.object()
	return v
}

// Err is what was wrong so far with what was read of the document.
func (v *Value) Err() error { return errors.Join(*v.errs...) }

// Fail adds an ErrInvalid that names the value.
func (v *Value) Fail(why string) { v.Add(Invalid(v.Path, v.Raw, why)) }

// Refuse adds an ErrUnsupported that names the value.
func (v *Value) Refuse() { v.Add(Unsupported(v.Path, v.Raw)) }

// Add adds an error to the document's. A key may be read by several rooms, and
// what follows from a wrong one is only noise: of a key and all below it the
// first counts. A nil error adds nothing.
func (v *Value) Add(err error) {
	var f, before *fault
	for _, e := range *v.errs {
		if errors.As(err, &f) && errors.As(e, &before) && within(f.key, before.key) {
			return
		}
	}
	if err != nil {
		*v.errs = append(*v.errs, err)
	}
}

// within tells that a key is another or stands below it.
func within(key, other string) bool {
	below, ok := strings.CutPrefix(key, other)
	return ok && (below == "" || below[0] == '.' || below[0] == '[')
}

// Given tells that the key is there and not null.
func (v *Value) Given() bool { return len(v.Raw) > 0 && string(v.Raw) != "null" }

// Asks tells that the value asks for something: it is not null, false, 0, "",
// [] or {}.
func (v *Value) Asks() bool {
	var b bytes.Buffer
	_ = json.Compact(&b, v.Raw) // was read as part of the document
	return v.Given() && !slices.Contains([]string{"false", "0", `""`, "[]", "{}"}, b.String())
}

// object reads the members of an object; a value that is none has none.
func (v *Value) object() map[string]json.RawMessage {
	if v.members != nil || len(v.Raw) == 0 && v.Path != "" || string(v.Raw) == "null" && v.Path != "" {
		return v.members
	}
	if json.Unmarshal(v.Raw, &v.members) != nil || v.members == nil {
		v.members = map[string]json.RawMessage{}
		v.Fail("must be an object")
	}
	return v.members
}

// At is a member of an object. As with Go's decoder, whose users write either,
// case counts only where both spellings are there.
func (v *Value) At(key string) *Value {
	if at := v.known[key]; at != nil {
		return at
	}
	at := &Value{Path: strings.TrimPrefix(v.Path+"."+key, "."), errs: v.errs}
	members := v.object()
	raw, ok := members[key]
	if !ok {
		for _, k := range slices.Sorted(maps.Keys(members)) {
			if strings.EqualFold(k, key) {
				raw = members[k]
				break
			}
		}
	}
	at.Raw = raw
	if v.known == nil {
		v.known = map[string]*Value{}
	}
	v.known[key] = at
	return at
}

// Each is the elements of an array.
func (v *Value) Each() []*Value {
	var raws []json.RawMessage
	v.Into(&raws)
	out := make([]*Value, len(raws))
	for i, raw := range raws {
		out[i] = &Value{Path: fmt.Sprintf("%s[%d]", v.Path, i), Raw: raw, errs: v.errs}
	}
	return out
}

// Into reads the value into a variable, which keeps its default when the value
// is absent, null or of another type.
func (v *Value) Into(variable any) {
	if !v.Given() {
		return
	}
	if err := json.Unmarshal(v.Raw, variable); err != nil {
		v.Fail("must be " + kind(variable))
	}
}

// kind is JSON's word for a variable's type.
func kind(variable any) string {
	switch variable.(type) {
	case *bool:
		return "a boolean"
	case *string:
		return "a string"
	case *int, *int64, **int:
		return "a whole number"
	case *[]json.RawMessage:
		return "an array"
	case *map[string]bool:
		return "an object of booleans"
	}
	return "of another type"
}

// Number reads a whole number from 0 to most.
func (v *Value) Number(variable *int, most int) {
	n := *variable
	v.Into(&n)
	if n < 0 || n > most {
		v.Fail(fmt.Sprintf("must be 0 to %d", most))
		return
	}
	*variable = n
}

// Optional is a whole number from 0 to most, nil when it is absent or wrong.
func (v *Value) Optional(most int) *int {
	if !v.Given() {
		return nil
	}
	n := -1
	v.Into(&n)
	if n < 0 || n > most {
		v.Fail(fmt.Sprintf("must be 0 to %d", most))
		return nil
	}
	return &n
}

// Texts is an array of strings, nil when it is absent or wrong.
func (v *Value) Texts() (out []string) {
	for _, e := range v.Each() {
		out = append(out, e.Text())
	}
	return out
}

// Text is the value as a string, empty when it is absent or wrong.
func (v *Value) Text() (s string) {
	v.Into(&s)
	return s
}

// Only makes a member of another name an error.
func (v *Value) Only(keys ...string) {
	for _, k := range slices.Sorted(maps.Keys(v.object())) {
		if !slices.Contains(keys, k) {
			(&Value{Path: v.Path + "." + k, Raw: v.members[k], errs: v.errs}).Fail("unknown key")
		}
	}
}
