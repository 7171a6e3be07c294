package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain"
	"github.com/tracewire/tracewire/chain/codes"
	"github.com/tracewire/tracewire/chain/lock"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/bridge"
	"github.com/tracewire/tracewire/delegates/iptables"
	"github.com/tracewire/tracewire/delegates/macspoof"
	"github.com/tracewire/tracewire/delegates/netlink"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/ipam"
)

// errIfName marks an interface name that the kernel takes for something else.
var errIfName = errors.New("CNI_IFNAME")

// errStdin marks a standard input that is no network configuration.
var errStdin = errors.New("network configuration on standard input")

// border is what each error of the rooms is called outside. The first row that
// fits counts.
var border = []struct {
	is   func(error) bool
	code uint
}{
	{is(chain.ErrPanic), codes.Internal},
	{is(chain.ErrUnavailable), codes.Unavailable},
	{is(chain.ErrLimited), codes.Limited},
	{is(chain.ErrLeft), codes.TryLater},
	{is(veth.ErrPort), codes.NotReady},
	{is(veth.ErrNotReady), codes.NotReady},
	{is(veth.ErrDuplicate), codes.Duplicate},
	{isA[*lock.Held], codes.TryLater},
	{is(context.DeadlineExceeded), codes.TryLater},
	{is(context.Canceled), codes.TryLater},
	{said(codes.TryLater), codes.TryLater},
	{isA[delegates.Findings], codes.Check},
	{is(conflist.ErrUnsupported), codes.Unsupported},
	{is(conflist.ErrInvalid), codes.Config},
	{is(conflist.ErrArgs), codes.Environment},
	{is(errStdin), codes.Decode},
	{is(errIfName), codes.Environment},
	{is(chain.ErrUnrecorded), codes.Environment},
	{is(veth.ErrNoNamespace), codes.Environment},
	{is(veth.ErrOwnNamespace), codes.OwnNetNS},
	{is(ipam.ErrExhausted), codes.Exhausted},
	{is(ipam.ErrTaken), codes.Taken},
	{is(chain.ErrAttached), codes.Exists},
	{is(veth.ErrExists), codes.Exists},
	{is(bridge.ErrConflict), codes.Conflict},
	{is(chain.ErrVersion), codes.Version},
	{is(chain.ErrNoAddress), codes.Plugin},
	{is(delegates.ErrPlugin), codes.Plugin},
	{isA[*fs.PathError], codes.IO},
	{isA[*os.SyscallError], codes.IO},
	{is(iptables.ErrMissing), codes.Plugin},
	{isA[*exec.ExitError], codes.Plugin}, // iptables said no
	{is(macspoof.ErrNoBridge), codes.Kernel},
	{isA[unix.Errno], codes.Kernel},
	{is(netlink.ErrAnswer), codes.Kernel},
}

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func isA[T error](err error) bool {
	var t T
	return errors.As(err, &t)
}

// said tells that a delegated plugin itself answered with a code.
func said(code uint) func(error) bool {
	return func(err error) bool {
		var e *types.Error
		return errors.As(err, &e) && e.Code == code
	}
}

// toCNI is the one place where an error becomes CNI's. All of its text is kept.
func toCNI(err error) *types.Error {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	for _, b := range border {
		if b.is(err) {
			return types.NewError(b.code, text, details(err))
		}
	}
	return types.NewError(codes.Internal, text, "")
}

// details is CHECK's findings as a JSON object; empty for any other error.
func details(err error) string {
	var f delegates.Findings
	if !errors.As(err, &f) {
		return ""
	}
	action := "reconcile"
	for _, x := range f {
		if !codes.Mends(x.Code) {
			action = "inspect"
		}
	}
	b, _ := json.Marshal(map[string]any{"findings": f, "action": action}) // strings can always be written
	return string(b)
}

// failure is CNI's error object (CNI spec 1.1.0, "Error"), cniVersion set.
type failure struct {
	CNIVersion string `json:"cniVersion"`
	Code       uint   `json:"code"`
	Msg        string `json:"msg"`
	Details    string `json:"details,omitempty"`
}

// explain adds to an error where to look for more: trace, phase, hint.
func explain(e *types.Error, version, trace, phase string) failure {
	d := failure{CNIVersion: version, Code: e.Code, Msg: e.Msg, Details: e.Details}
	if d.CNIVersion == "" {
		d.CNIVersion = types100.ImplementedSpecVersion
	}
	if found, ok := strings.CutSuffix(d.Details, "}"); ok && e.Code == codes.Check { // to be read by programs
		d.Details = fmt.Sprintf(`%s,"trace":%q}`, found, trace)
		return d
	}
	add := func(key, value string) {
		if value != "" {
			d.Details = strings.TrimPrefix(d.Details+"; "+key+": "+value, "; ")
		}
	}
	add("trace", trace)
	add("phase", phase)
	if c, ok := codes.Of(e.Code); ok {
		add("hint", c.Hint)
	}
	return d
}
