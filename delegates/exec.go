package delegates

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/trace"
)

// ErrPlugin marks what a delegated plugin's executable did wrong.
var ErrPlugin = errors.New("delegated plugin failed")

// maxQuoted is how many bytes of an answer an error quotes.
const maxQuoted = 256

// Plugin is a step that a delegated plugin's executable does (CNI spec 1.1.0,
// section 4).
type Plugin struct {
	Type string
	Step string // its name in the record: no other step of the attachment has it
	// Conf is the plugin's own configuration, JSON; nil where it is given the
	// complete one, as an IPAM plugin is.
	Conf json.RawMessage
	// Durable tells that what it makes may outlive this kernel.
	Durable bool
	// InPod tells that it makes nothing outside of the pod's namespace.
	InPod bool
	// Main tells that it makes the interface, and that its DEL looks for it.
	Main bool
}

// Add implements Delegate. An answer of null is an empty result.
func (p Plugin) Add(ctx context.Context, c Call) (*types100.Result, error) {
	r, _, err := p.add(ctx, c)
	if r == nil && err == nil {
		r = &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	}
	return r, err
}

// add is the answer, nil for null, and its version.
func (p Plugin) add(ctx context.Context, c Call) (r *types100.Result, version string, err error) {
	out, err := p.with(ctx, "ADD", c)
	if err != nil {
		return nil, "", err
	}
	var head struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(out, &head); err != nil {
		return nil, "", p.failed("answer is not one JSON document: %w: %s", err, quoted(out))
	}
	if string(bytes.TrimSpace(out)) == "null" {
		return nil, "", nil
	}
	if head.CNIVersion == "" {
		head.CNIVersion = versionOf(p.conf(c))
	}
	r, err = Result(head.CNIVersion, out)
	if err == nil {
		err = sound(r)
	}
	if err != nil {
		return nil, "", p.failed("answer: %w: %s", err, quoted(out))
	}
	return r, head.CNIVersion, nil
}

// conf is the configuration that the plugin is given, but for prevResult.
func (p Plugin) conf(c Call) []byte {
	if p.Conf != nil {
		return p.Conf
	}
	return c.Conf
}

// versionOf is a configuration's cniVersion, which was read at the door.
func versionOf(conf []byte) string {
	var head struct {
		CNIVersion string `json:"cniVersion"`
	}
	_ = json.Unmarshal(conf, &head)
	return head.CNIVersion
}

// sound is an error for an answer that no interface can be given.
func sound(r *types100.Result) error {
	seen := map[string]bool{}
	for _, ip := range r.IPs {
		ones, bits := ip.Address.Mask.Size()
		four := ip.Address.IP.To4() != nil
		if four != (bits == 32) || len(ip.Address.IP) == 0 || bits == 0 || ones == 0 {
			return fmt.Errorf("%s is no address with a prefix length", ip.Address.String())
		}
		if ip.Gateway != nil && four != (ip.Gateway.To4() != nil) {
			return fmt.Errorf("gateway %s of address %s is of another family", ip.Gateway, ip.Address.String())
		}
		if seen[ip.Address.IP.String()] {
			return fmt.Errorf("address %s stands twice", ip.Address.IP)
		}
		seen[ip.Address.IP.String()] = true
	}
	for _, route := range r.Routes {
		if _, bits := route.Dst.Mask.Size(); bits == 0 || len(route.Dst.IP) == 0 {
			return fmt.Errorf("route to %s has no destination", route.Dst.String())
		}
	}
	return nil
}

// Del implements Delegate. A plugin that ADD never came to run, or whose DEL
// succeeded already, has nothing to take back, and may not even be there.
func (p Plugin) Del(ctx context.Context, c Call) error {
	if !c.Made.To(p.Step) {
		return nil
	}
	err := p.noted(c, Freeing)
	if err == nil {
		_, err = p.with(ctx, "DEL", c)
	}
	if err := p.excuse(ctx, c, err); err != nil {
		return err
	}
	return p.noted(c, Freed)
}

// excuse is the error of a DEL, or a warning where it is excused.
func (p Plugin) excuse(ctx context.Context, c Call, err error) error {
	why := p.excused(c, err)
	if why == "" {
		return err
	}
	trace.Warn(ctx, why, trace.KeyError.String(err.Error()))
	return nil
}

// noted writes down how far the plugin came.
func (p Plugin) noted(c Call, how Ran) error {
	if c.Journal == nil {
		return nil
	}
	return c.Journal.Ran(p.Step, how, p.Durable && how == Asked)
}

// excused tells why a DEL that failed is none: what it should have removed is
// gone, or there is no sign that it ever was. A plugin that asks to be tried
// again is not excused.
func (p Plugin) excused(c Call, err error) string {
	_, missing := Find(p.Type, c.Path)
	why := "is missing"
	if neverRan(err) {
		missing, why = err, "cannot be started"
	}
	switch known := c.Before != nil && (p.Conf != nil || len(c.Before.IPs) > 0); {
	case err == nil || later(err):
		return ""
	case missing != nil && !c.Made.Known && !known:
		return p.Type + " " + why + ", and nothing is known that it made"
	case p.Conf != nil && !c.Made.Known && !known:
		return p.Type + " failed, and nothing is known that it made"
	case p.Main && c.Absent && (!c.Made.Known || c.Made.Steps[p.Step] == Freeing):
		return p.Type + " failed, and the interface is gone: an earlier DEL removed it"
	case p.InPod && c.NetNS == "":
		return p.Type + " failed, and all that it made went with the pod's namespace"
	}
	return ""
}

// later tells that a plugin asks to be tried again, or ran out of time.
func later(err error) bool {
	var e *types.Error
	return errors.As(err, &e) && e.Code == types.ErrTryAgainLater || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// Check implements Delegate. What the plugin itself found is a finding; an
// error of another kind tells that it could not look.
func (p Plugin) Check(ctx context.Context, c Call) error {
	_, err := p.with(ctx, "CHECK", c)
	var e *types.Error
	if errors.As(err, &e) && e.Code >= firstOwn { // the reference plugins say 999 to everything
		return Findings{{Code: "delegate.check", Expected: p.Type + " to find nothing", Found: e.Error()}}
	}
	return err
}

// firstOwn is the first code that is a plugin's own (CNI spec 1.1.0, "Error").
const firstOwn = 100

func (p Plugin) failed(format string, args ...any) error {
	return fmt.Errorf("%w: %s: %w", ErrPlugin, p.Type, fmt.Errorf(format, args...))
}

// with runs the executable with its configuration and prevResult.
func (p Plugin) with(ctx context.Context, verb string, c Call) ([]byte, error) {
	conf, err := p.stdin(verb, c)
	if err != nil {
		return nil, p.failed("configuration: %w", err)
	}
	return p.run(ctx, verb, c, conf)
}

// run runs the executable in a span named exec and returns its standard output.
func (p Plugin) run(ctx context.Context, verb string, c Call, conf []byte) (out []byte, err error) {
	path, err := Find(p.Type, c.Path)
	if err != nil {
		return nil, err
	}
	switch verb {
	case "ADD":
		if err := p.noted(c, Asked); err != nil {
			return nil, err
		}
	case "DEL", "GC":
		var cancel context.CancelFunc
		ctx, cancel = half(ctx)
		defer cancel()
	}
	err = trace.Rows(ctx, c.Watcher(), trace.Row{Name: "exec", Do: func(ctx context.Context) error {
		trace.Set(ctx, trace.KeyPlugin.String(path))
		out, err = p.exec(ctx, path, environ(ctx, verb, c), conf)
		return err
	}})
	if verb == "ADD" && neverRan(err) {
		err = errors.Join(err, p.noted(c, Freed))
	}
	return out, err
}

// neverRan tells that the kernel did not start the executable: it made nothing,
// and its DEL could not be started either.
func neverRan(err error) bool {
	var perr *fs.PathError
	return errors.As(err, &perr) && perr.Op == "fork/exec"
}

// half leaves half of the time to whoever comes after a plugin that hangs.
func half(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(end)/2)
}

// Find finds a plugin's executable: the first regular file of that name in the
// folders of CNI_PATH.
func Find(plugin string, dirs []string) (string, error) {
	if plugin == "" || strings.ContainsRune(plugin, os.PathSeparator) {
		return "", fmt.Errorf("%w: %q is no plugin's name", ErrPlugin, plugin)
	}
	for _, d := range dirs {
		path := filepath.Join(d, plugin)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: %s: no executable in CNI_PATH %q", ErrPlugin, plugin, strings.Join(dirs, ":"))
}

// stdin is the plugin's configuration. Its prevResult is the runtime's as it
// came, else on ADD the result so far, and on DEL and CHECK what our record has.
func (p Plugin) stdin(verb string, c Call) ([]byte, error) {
	conf, made := p.conf(c), c.Made.Result
	if verb == "ADD" {
		made = c.Before
	}
	if len(c.Prev) == 0 && made == nil {
		return conf, nil
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(conf, &m); err != nil {
		return nil, err
	}
	prev := fitting(c.Prev, made, versionOf(conf))
	if prev == nil {
		return conf, nil
	}
	m["prevResult"] = prev
	return json.Marshal(m)
}

// fitting is a prevResult that the plugin can read: the runtime's as it came,
// where it is of the configuration's version. One of another version, that was
// kept while the list changed, is converted; in place of one that cannot be read
// stands what we know. It is nil where the version can hold neither.
func fitting(prev json.RawMessage, made *types100.Result, version string) json.RawMessage {
	var of *types100.Result
	if len(prev) > 0 {
		read, err := Previous(prev)
		if said := versionOf(prev); err == nil && (said == "" || said == version) {
			return prev
		}
		if of = read; err != nil && made == nil {
			of = Salvage(prev)
		}
	}
	for _, r := range []*types100.Result{of, made} {
		if r == nil {
			continue
		}
		if as, err := r.GetAsVersion(version); err == nil {
			if b, err := json.Marshal(as); err == nil {
				return b
			}
		}
	}
	return nil
}

// environ is our environment with one of each variable, ours in their places.
func environ(ctx context.Context, verb string, c Call) []string {
	set := map[string]string{
		"CNI_COMMAND": verb, "CNI_CONTAINERID": c.ContainerID, "CNI_NETNS": c.NetNS, "CNI_IFNAME": c.IfName,
		"CNI_ARGS": ignoreUnknown(c.Args), "CNI_PATH": strings.Join(c.Path, ":"), EnvOperation: c.Operation,
	}
	maps.Copy(set, trace.Environment(ctx))
	out := []string{}
	for _, kv := range os.Environ() {
		k, v, _ := strings.Cut(kv, "=")
		if _, seen := set[k]; !seen {
			set[k] = v
		}
	}
	for k, v := range set {
		if v != "" || k != trace.EnvParent && k != trace.EnvState && k != EnvOperation {
			out = append(out, k+"="+v)
		}
	}
	return out
}

// ignoreUnknown lets the plugin ignore the keys it does not know: they are the
// runtime's, or ours.
func ignoreUnknown(args string) string {
	if args == "" {
		return "IgnoreUnknown=1"
	}
	return strings.TrimRight(args, ";") + ";IgnoreUnknown=1"
}

// exec runs the executable once; one that is just being replaced is tried again.
func (p Plugin) exec(ctx context.Context, path string, env []string, stdin []byte) ([]byte, error) {
	for wait := 10 * time.Millisecond; ; wait *= 2 {
		out, err := p.once(ctx, path, env, stdin)
		if !errors.Is(err, unix.ETXTBSY) || wait > time.Second {
			return out, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func (p Plugin) once(ctx context.Context, path string, env []string, stdin []byte) ([]byte, error) {
	stdout, stderr, err := Run(ctx, path, nil, env, stdin)
	if len(stderr) > 0 {
		trace.Warn(ctx, "standard error of "+p.Type, trace.KeyStderr.String(string(stderr)))
	}
	switch perr := (*fs.PathError)(nil); {
	case err == nil:
		return stdout, nil
	case ctx.Err() != nil, errors.As(err, &perr):
		return nil, p.failed("%w", err)
	case errors.Is(err, errLong):
		return nil, p.failed("%w: %s", err, quoted(stdout))
	}
	return nil, p.failed("%w", said(err, stdout, stderr))
}

// said is the error that a plugin printed, else what can be told.
func said(err error, stdout, stderr []byte) error {
	var e types.Error
	if json.Unmarshal(stdout, &e) == nil && (e.Code != 0 || e.Msg != "") {
		return &e
	}
	return fmt.Errorf("%w: no error printed: %s%s", err, quoted(stdout), quoted(stderr))
}

func quoted(b []byte) string {
	if len(b) > maxQuoted {
		return fmt.Sprintf("%q...", b[:maxQuoted])
	}
	return fmt.Sprintf("%q", b)
}
