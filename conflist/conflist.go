// Package conflist reads network configurations: text to typed values, and the
// errors that name a wrong key and its value.
package conflist

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// MaxBytes bounds a network configuration on standard input.
const MaxBytes = 4 << 20

// Defaults of the object "tracewire".
const (
	DefaultStateDir = "/var/lib/cni/tracewire"
	DefaultLogPath  = "/var/log/tracewire/tracewire.jsonl"
	DefaultMaxBytes = 64 << 20
	DefaultTimeout  = 30 * time.Second
)

// Network is what is common to all steps of a network configuration. The keys
// of one step are read by that step, from Raw.
type Network struct {
	CNIVersion string
	Name       string
	Type       string
	IPAM       string          // ipam.type; empty on a network without addresses
	Prev       json.RawMessage // prevResult; empty when absent or null
	Tracewire  Tracewire
	Raw        []byte // as it came
}

// Tracewire is our own object, defaults filled in.
type Tracewire struct {
	Mode       string
	StateDir   string
	LogPath    string
	LogLevel   string // debug, info, warn, error or off
	SpoolDir   string
	SpoolBytes int64 // budget of the spool, 0 turns it off
	Timeout    time.Duration
	IPAMExec   bool
	Sync       string // auto, always or never
	SyncDelete bool
}

type text struct {
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	Type       string          `json:"type"`
	PrevResult json.RawMessage `json:"prevResult"`
	Delegates  json.RawMessage `json:"delegates"`
	IPAM       struct {
		Type string `json:"type"`
	} `json:"ipam"`
	Tracewire struct {
		Mode     string `json:"mode"`
		StateDir string `json:"stateDir"`
		Log      struct {
			Path  string `json:"path"`
			Level string `json:"level"`
		} `json:"log"`
		Spool struct {
			Dir      string `json:"dir"`
			MaxBytes *int64 `json:"maxBytes"`
		} `json:"spool"`
		Timeout            string `json:"timeout"`
		IPAMExec           bool   `json:"ipamExec"`
		Sync               string `json:"sync"`
		SyncDelete         bool   `json:"syncDelete"`
		StatusGrace        string `json:"statusGrace"`
		StatusOnExhaustion string `json:"statusOnExhaustion"`
		RemoveBridge       bool   `json:"removeBridge"`
	} `json:"tracewire"`
}

// keys is what each object of ours may hold.
var keys = map[string][]string{
	"tracewire":       {"mode", "stateDir", "log", "spool", "timeout", "ipamExec", "sync", "syncDelete", "statusGrace", "statusOnExhaustion", "removeBridge"},
	"tracewire.log":   {"path", "level"},
	"tracewire.spool": {"dir", "maxBytes"},
}

// Parse reads a network configuration from a plugin's standard input. The
// Network is usable also beside an error: what could not be read has its
// default. DEL goes on with it.
func Parse(stdin []byte) (Network, error) {
	var t text
	err := Decode(stdin, &t)
	n := Network{CNIVersion: t.CNIVersion, Name: t.Name, Type: t.Type, IPAM: t.IPAM.Type, Raw: stdin}
	if string(t.PrevResult) != "null" {
		n.Prev = t.PrevResult
	}
	ours := fields(stdin)["tracewire"]
	return n, errors.Join(err, unknown(ours, "tracewire"), n.ours(&t))
}

// ours fills the object tracewire: a value that is wrong has its default and is
// part of the error.
func (n *Network) ours(t *text) error {
	o := &t.Tracewire
	n.Tracewire = Tracewire{
		Mode: "bridge", StateDir: DefaultStateDir, LogPath: DefaultLogPath, LogLevel: "info",
		SpoolBytes: DefaultMaxBytes, Timeout: DefaultTimeout, Sync: "auto",
		IPAMExec: o.IPAMExec, SyncDelete: o.SyncDelete,
	}
	tw := &n.Tracewire
	errs := []error{
		set(&tw.StateDir, o.StateDir, "tracewire.stateDir", "must be an absolute path", filepath.IsAbs),
		set(&tw.LogPath, o.Log.Path, "tracewire.log.path", "must be an absolute path", filepath.IsAbs),
		set(&tw.LogLevel, o.Log.Level, "tracewire.log.level", "must be debug, info, warn, error or off", oneOf("debug", "info", "warn", "error", "off")),
		set(&tw.Sync, o.Sync, "tracewire.sync", "must be auto, always or never", oneOf("auto", "always", "never")),
		set(&tw.Mode, o.Mode, "tracewire.mode", "must be bridge, ptp or delegate", oneOf("bridge", "ptp", "delegate")),
	}
	tw.SpoolDir = filepath.Join(tw.StateDir, "spool")
	errs = append(errs, set(&tw.SpoolDir, o.Spool.Dir, "tracewire.spool.dir", "must be an absolute path", filepath.IsAbs))
	if b := o.Spool.MaxBytes; b != nil && *b < 0 {
		errs = append(errs, Invalid("tracewire.spool.maxBytes", *b, "must not be negative"))
	} else if b != nil {
		tw.SpoolBytes = *b
	}
	if d, err := time.ParseDuration(o.Timeout); o.Timeout != "" && (err != nil || d <= 0) {
		errs = append(errs, Invalid("tracewire.timeout", o.Timeout, `must be a positive duration such as "30s"`))
	} else if o.Timeout != "" {
		tw.Timeout = d
	}
	return errors.Join(append(errs, n.later(t))...)
}

// later refuses what a coming version serves.
func (n *Network) later(t *text) error {
	o := &t.Tracewire
	for _, k := range []struct {
		key   string
		value any
		asks  bool
	}{
		{"tracewire.mode", n.Tracewire.Mode, n.Tracewire.Mode != "bridge"},
		{"delegates", t.Delegates, asks(t.Delegates)},
		{"tracewire.removeBridge", o.RemoveBridge, o.RemoveBridge},
		{"tracewire.statusGrace", o.StatusGrace, o.StatusGrace != ""},
		{"tracewire.statusOnExhaustion", o.StatusOnExhaustion, o.StatusOnExhaustion != ""},
	} {
		if k.asks {
			return Unsupported(k.key, k.value)
		}
	}
	return nil
}

// set gives dst the value, unless it is empty or not good.
func set(dst *string, value, key, why string, good func(string) bool) error {
	if value == "" {
		return nil
	}
	if !good(value) {
		return Invalid(key, value, why)
	}
	*dst = value
	return nil
}

func oneOf(words ...string) func(string) bool {
	return func(s string) bool { return slices.Contains(words, s) }
}

// asks tells whether a JSON value asks for something: not null, false, 0, "",
// [] or {}.
func asks(raw json.RawMessage) bool {
	return !slices.Contains([]string{"", "null", "false", "0", `""`, "[]", "{}"}, strings.Join(strings.Fields(string(raw)), ""))
}

// Asking returns an ErrUnsupported for the first of keys whose value in conf
// asks for something.
func Asking(conf []byte, keys ...string) error {
	m := fields(conf)
	for _, k := range keys {
		if asks(m[k]) {
			return Unsupported(k, m[k])
		}
	}
	return nil
}

// Decode reads JSON into a value. A value of the wrong type is an ErrInvalid
// that names the key and the value, and all other keys are read all the same.
func Decode(conf []byte, into any) error {
	err := json.Unmarshal(conf, into)
	if t := (*json.UnmarshalTypeError)(nil); errors.As(err, &t) {
		got := any(t.Value)
		if raw := lookup(conf, t.Field); raw != nil {
			got = raw
		}
		return Invalid(t.Field, got, "must be "+kind(t.Type.Kind().String()))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

// kind is JSON's word for one of Go's kinds.
func kind(k string) string {
	switch k {
	case "bool":
		return "a boolean"
	case "string":
		return "a string"
	case "slice", "array":
		return "an array"
	case "struct", "map", "ptr":
		return "an object"
	}
	return "a whole number (" + k + ")"
}

// unknown is an error that names a key of an object of ours, or of one in it,
// that nobody knows.
func unknown(object json.RawMessage, path string) error {
	m := fields(object)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(keys[path], k) {
			return Invalid(path+"."+k, m[k], "unknown key")
		}
		if sub := path + "." + k; keys[sub] != nil {
			if err := unknown(m[k], sub); err != nil {
				return err
			}
		}
	}
	return nil
}

// fields is a JSON object's keys and values; empty when it is no object.
func fields(object []byte) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	if len(object) == 0 || json.Unmarshal(object, &m) != nil {
		return nil
	}
	return m
}

// lookup is the value at a dotted path, or nil.
func lookup(conf []byte, path string) json.RawMessage {
	raw := json.RawMessage(conf)
	for k := range strings.SplitSeq(path, ".") {
		raw = fields(raw)[k]
	}
	return raw
}
