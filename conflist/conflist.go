// Package conflist reads network configurations: text to typed values, and the
// errors that name a wrong key and its value.
package conflist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// MaxBytes bounds a network configuration on standard input.
const MaxBytes = 4 << 20

// maxName bounds a network's name in bytes: it names folders (NAME_MAX).
const maxName = 255

// Defaults of the object "tracewire".
const (
	DefaultStateDir = "/var/lib/cni/tracewire"
	DefaultLogPath  = "/var/log/tracewire/tracewire.jsonl"
	DefaultMaxBytes = 64 << 20
	DefaultTimeout  = 30 * time.Second
	DefaultGrace    = 60 * time.Second
)

// Network is what is common to all steps of a network configuration. The keys
// of one step are read by that step.
type Network struct {
	CNIVersion string
	Name       string
	Type       string
	IPAM       string          // ipam.type; empty on a network without addresses
	Prev       json.RawMessage // prevResult; empty when absent or null
	Delegates  []Delegate      // plugins that run after our own steps, in order
	Tracewire  Tracewire
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
	// StatusGrace is how long a range set has to be exhausted before STATUS fails.
	StatusGrace time.Duration
	// StatusOnExhaustion is report, or never: then an exhausted range set is no
	// error of STATUS.
	StatusOnExhaustion string
}

// Parse reads what is common to all steps. What is wrong is in doc.Err; the
// Network is usable all the same, as DEL needs it: what could not be read has
// its default.
func Parse(doc *Value) Network {
	n := Network{
		CNIVersion: doc.At("cniVersion").Text(),
		Name:       doc.At("name").Text(),
		Type:       doc.At("type").Text(),
		Tracewire:  ours(doc.At("tracewire")),
	}
	rule{"must be the name of a plugin, without a path", plainName}.set(doc.At("ipam").At("type"), &n.IPAM)
	if len(n.Name) > maxName {
		doc.At("name").Fail(fmt.Sprintf("must be at most %d bytes", maxName))
	}
	if prev := doc.At("prevResult"); prev.Given() {
		n.Prev = prev.Raw
	}
	n.Delegates = delegated(doc)
	if n.Tracewire.Mode == "delegate" {
		if doc.At("ipam").Asks() {
			doc.At("ipam").Fail("must stand in delegates[0]: in mode delegate tracewire makes no interface")
		}
		if !doc.At("delegates").Asks() {
			doc.At("delegates").Fail("must have the plugin that mode delegate wraps")
		}
	}
	return n
}

// Lasting is a configuration's members, in the order of their names, without
// what a runtime adds to a call: prevResult, runtimeConfig and names with
// cni.dev (CNI spec 1.1.0, "Deriving request configuration").
func Lasting(doc *Value) []byte {
	var b bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(doc.object())) {
		if key != "prevResult" && key != "runtimeConfig" && !strings.HasPrefix(key, "cni.dev/") {
			fmt.Fprintf(&b, "%q:", key)
			_ = json.Compact(&b, doc.members[key]) // was read as part of the document
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}

// plainName tells that a text names a file in a folder.
func plainName(s string) bool {
	return filepath.Base(s) == s && s != "." && s != ".." && !strings.ContainsRune(s, 0)
}

// ours reads the object tracewire.
func ours(v *Value) Tracewire {
	t := Tracewire{
		Mode: "bridge", StateDir: DefaultStateDir, LogPath: DefaultLogPath, LogLevel: "info",
		SpoolBytes: DefaultMaxBytes, Timeout: DefaultTimeout, Sync: "auto", StatusGrace: DefaultGrace, StatusOnExhaustion: "report",
	}
	v.Only("mode", "stateDir", "log", "spool", "timeout", "ipamExec", "sync", "syncDelete", "statusGrace", "statusOnExhaustion", "removeBridge")
	log, spool := v.At("log"), v.At("spool")
	log.Only("path", "level")
	spool.Only("dir", "maxBytes")

	absolute := rule{"must be an absolute path", filepath.IsAbs}
	absolute.set(v.At("stateDir"), &t.StateDir)
	absolute.set(log.At("path"), &t.LogPath)
	t.SpoolDir = filepath.Join(t.StateDir, "spool")
	absolute.set(spool.At("dir"), &t.SpoolDir)
	oneOf("debug", "info", "warn", "error", "off").set(log.At("level"), &t.LogLevel)
	oneOf("auto", "always", "never").set(v.At("sync"), &t.Sync)
	oneOf("bridge", "ptp", "delegate").set(v.At("mode"), &t.Mode)
	v.At("ipamExec").Into(&t.IPAMExec)
	v.At("syncDelete").Into(&t.SyncDelete)
	budget(spool.At("maxBytes"), &t.SpoolBytes)
	duration(v.At("timeout"), &t.Timeout, 1, `must be a positive duration such as "30s"`)
	duration(v.At("statusGrace"), &t.StatusGrace, 0, `must be a duration such as "60s" that is not negative`)
	oneOf("report", "never").set(v.At("statusOnExhaustion"), &t.StatusOnExhaustion)
	return t
}

// rule is what a string has to be.
type rule struct {
	why  string
	good func(string) bool
}

func (r rule) set(v *Value, dst *string) {
	switch s := v.Text(); {
	case s == "":
	case r.good(s):
		*dst = s
	default:
		v.Fail(r.why)
	}
}

func oneOf(words ...string) rule {
	why := "must be "
	for i, w := range words {
		switch i {
		case 0:
		case len(words) - 1:
			why += " or "
		default:
			why += ", "
		}
		why += w
	}
	return rule{why, func(s string) bool { return slices.Contains(words, s) }}
}

func budget(v *Value, dst *int64) {
	n := *dst
	v.Into(&n)
	if n < 0 {
		v.Fail("must not be negative")
		return
	}
	*dst = n
}

func duration(v *Value, dst *time.Duration, least time.Duration, why string) {
	s := v.Text()
	if s == "" {
		return
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < least {
		v.Fail(why)
		return
	}
	*dst = d
}
