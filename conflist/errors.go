package conflist

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrInvalid marks a network configuration that the operator has to fix.
	ErrInvalid = errors.New("invalid network configuration")
	// ErrUnsupported marks a key that this version does not serve.
	ErrUnsupported = errors.New("unsupported field")
	// ErrArgs marks a CNI_ARGS that cannot be read.
	ErrArgs = errors.New("invalid CNI_ARGS")
)

// fault is what is wrong with one key.
type fault struct {
	kind error // ErrInvalid or ErrUnsupported
	key  string
	text string
}

func (f *fault) Error() string { return f.kind.Error() + ": " + f.key + ": " + f.text }
func (f *fault) Unwrap() error { return f.kind }

// Invalid is an ErrInvalid that names the key, its value and what is wrong.
func Invalid(key string, value any, why string) error {
	if key == "" {
		key = "network configuration"
	}
	return &fault{ErrInvalid, key, why + ", got " + Shown(value)}
}

// Unsupported is an ErrUnsupported that names the key and its value.
func Unsupported(key string, value any) error {
	return &fault{ErrUnsupported, key, "is not served by this version, got " + Shown(value)}
}

// maxShown bounds, in bytes, what an error quotes of a value.
const maxShown = 128

// Shown is a value as an error or an attribute quotes it: JSON, escaped, bounded.
func Shown(v any) string {
	b, err := json.Marshal(v)
	if raw, ok := v.(json.RawMessage); ok && err != nil {
		b, err = json.Marshal(string(raw)) // it is no JSON
	}
	if err != nil {
		return fmt.Sprintf("%q", fmt.Sprint(v))
	}
	if len(b) > maxShown {
		return strings.ToValidUTF8(string(b[:maxShown]), "") + "..."
	}
	return string(b)
}
