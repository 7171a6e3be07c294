package read

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tracewire/tracewire/trace"
)

// operationPrefix begins the name of each operation's root span, and with it
// the message of its line in the log.
const operationPrefix = "cni."

// repairPrefix begins that of a repair, which the operator's command makes.
const repairPrefix = "audit."

// The outcomes of an operation.
const (
	OK     = "ok"
	Failed = "error"
)

// Entry is one operation as the log tells it, or the end of an attachment by
// another's: Command is then trace.ByGC or trace.ByReclaim, and Duration 0.
type Entry struct {
	Time         time.Time      `json:"time"` // when it began
	Command      string         `json:"command"`
	Network      string         `json:"network,omitempty"`
	ContainerID  string         `json:"containerID,omitempty"`
	IfName       string         `json:"ifName,omitempty"`
	PodNamespace string         `json:"podNamespace,omitempty"`
	Pod          string         `json:"pod,omitempty"`
	PodUID       string         `json:"podUID,omitempty"`
	Addresses    []netip.Prefix `json:"addresses,omitempty"`
	Duration     time.Duration  `json:"durationNanos"`
	Outcome      string         `json:"outcome"`
	Error        string         `json:"error,omitempty"`
	ErrorCode    uint           `json:"errorCode,omitempty"` // CNI's
	ErrorType    string         `json:"errorType,omitempty"` // the code's name
	TraceID      string         `json:"traceID"`
	Runtime      string         `json:"runtime,omitempty"` // executable that called the plugin; older plugins did not tell
	Kind         string         `json:"kind,omitempty"`    // of the finding that a repair mends, "leaked-address"
	Repair       string         `json:"repair,omitempty"`  // what it did, "del"
}

// Operators tells that the operator's command had the plugin run.
func (e Entry) Operators() bool { return filepath.Base(e.Runtime) == "tracewirectl" }

// Attachment is network/containerID:ifname, "" where the operation is on none.
func (e Entry) Attachment() string {
	if e.ContainerID == "" {
		return ""
	}
	return e.Network + "/" + e.ContainerID + ":" + e.IfName
}

// logLine is a line of the log. The keys are those of package trace.
type logLine struct {
	Time         time.Time `json:"time"`
	Message      string    `json:"message"`
	TraceID      string    `json:"trace_id"`
	Duration     float64   `json:"duration_ms"`
	Outcome      string    `json:"outcome"`
	Error        string    `json:"error"`
	Command      string    `json:"cni.command"`
	Network      string    `json:"cni.name"`
	ContainerID  string    `json:"cni.id"`
	IfName       string    `json:"cni.ifname"`
	PodNamespace string    `json:"k8s.namespace.name"`
	Pod          string    `json:"k8s.pod.name"`
	PodUID       string    `json:"k8s.pod.uid"`
	Addresses    []string  `json:"cni.addresses"`
	ErrorCode    uint      `json:"cni.error.code"`
	ErrorType    string    `json:"error.type"`
	Runtime      string    `json:"cni.runtime"`
	Kind         string    `json:"cni.audit.kind"`
	Repair       string    `json:"cni.audit.repair"`
}

// parseEntry reads a line of the log. One that tells of no operation and no end, a
// phase's or a warning's, is ok=false without an error.
func parseEntry(line []byte) (e Entry, ok bool, err error) {
	var l logLine
	if err := json.Unmarshal(line, &l); err != nil {
		return e, false, err
	}
	command, ok := strings.CutPrefix(l.Message, operationPrefix)
	if l.Message == trace.Gone {
		ok, l.Outcome = true, OK
	}
	if !ok && (l.Command == "" || !strings.HasPrefix(l.Message, repairPrefix)) {
		return e, false, nil
	}
	if l.Command != "" {
		command = l.Command
	}
	return Entry{
		Time: l.Time.UTC(), Command: command, Network: l.Network, ContainerID: l.ContainerID, IfName: l.IfName,
		PodNamespace: l.PodNamespace, Pod: l.Pod, PodUID: l.PodUID, Addresses: prefixes(l.Addresses),
		Duration: time.Duration(l.Duration * float64(time.Millisecond)).Round(time.Microsecond),
		Outcome:  l.Outcome, Error: l.Error, ErrorCode: l.ErrorCode, ErrorType: l.ErrorType, TraceID: l.TraceID,
		Runtime: l.Runtime, Kind: l.Kind, Repair: l.Repair,
	}, true, nil
}

// Log hands on each operation that a log tells of, in the order they ended,
// until each returns false. The file it was rotated to last, path.1, is read
// before it where there is one. Lines that cannot be read are counted and
// passed over.
func Log(path string, each func(Entry) bool) (torn int, err error) {
	files, err := rotation(path)
	for i, going := 0, true; i < len(files); i++ {
		if going {
			n := 0
			n, going = entries(files[i], each)
			torn += n
		}
		_ = files[i].Close()
	}
	return torn, err
}

// rotation opens path.1 and path, those that are there. The newer is opened
// first: when it is renamed meanwhile, it is read once. With neither the error
// is path's.
func rotation(path string) ([]*os.File, error) {
	now, err := open(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	old, errOld := open(path + rotated)
	switch {
	case errOld != nil && err != nil:
		return nil, err
	case errOld != nil:
		return []*os.File{now}, nil
	case err != nil: // renamed, and no operation since
		return []*os.File{old}, nil
	}
	if same(old, now) {
		_ = old.Close()
		return []*os.File{now}, nil
	}
	return []*os.File{old, now}, nil
}

// rotated is what logrotate puts behind the name of the last log but one.
const rotated = ".1"

func same(a, b *os.File) bool {
	x, errX := a.Stat()
	y, errY := b.Stat()
	return errX == nil && errY == nil && os.SameFile(x, y)
}

func entries(r io.Reader, each func(Entry) bool) (torn int, going bool) {
	for line := range lines(r) {
		e, ok, err := parseEntry(line)
		if err != nil {
			torn++
		}
		if ok && !each(e) {
			return torn, false
		}
	}
	return torn, true
}
