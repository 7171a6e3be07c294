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
type Plugin struct{ Type string }

// Add implements Delegate.
func (p Plugin) Add(ctx context.Context, c Call) (*types100.Result, error) {
	out, err := p.run(ctx, "ADD", c)
	if err != nil {
		return nil, err
	}
	var head struct {
		CNIVersion string `json:"cniVersion"`
	}
	var conf struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(out, &head); err != nil {
		return nil, p.failed("answer is not one JSON document: %w: %s", err, quoted(out))
	}
	_ = json.Unmarshal(c.Conf, &conf) // was read at the door
	if head.CNIVersion == "" {
		head.CNIVersion = conf.CNIVersion
	}
	if string(bytes.TrimSpace(out)) == "null" {
		return &types100.Result{CNIVersion: types100.ImplementedSpecVersion}, nil
	}
	r, err := Result(head.CNIVersion, out)
	if err == nil {
		err = sound(r)
	}
	if err != nil {
		return nil, p.failed("answer: %w: %s", err, quoted(out))
	}
	return r, nil
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

// Del implements Delegate. A plugin that ADD never came to run has nothing to
// take back, and may not even be there; nor is one missed of which neither
// record nor prevResult has an address.
func (p Plugin) Del(ctx context.Context, c Call) error {
	if c.Made.Known && !c.Made.Asked {
		return nil
	}
	if _, err := Find(p.Type, c.Path); err != nil && !c.Made.Known && (c.Before == nil || len(c.Before.IPs) == 0) {
		trace.Warn(ctx, "IPAM plugin is missing, and nothing is known that it gave", trace.KeyError.String(err.Error()))
		return nil
	}
	_, err := p.run(ctx, "DEL", c)
	return err
}

// Check implements Delegate.
func (p Plugin) Check(ctx context.Context, c Call) error {
	_, err := p.run(ctx, "CHECK", c)
	return err
}

func (p Plugin) failed(format string, args ...any) error {
	return fmt.Errorf("%w: %s: %w", ErrPlugin, p.Type, fmt.Errorf(format, args...))
}

// run runs the executable in a span named exec and returns its standard output.
func (p Plugin) run(ctx context.Context, verb string, c Call) (out []byte, err error) {
	path, err := Find(p.Type, c.Path)
	if err != nil {
		return nil, err
	}
	conf, err := stdin(verb, c)
	if err != nil {
		return nil, p.failed("configuration: %w", err)
	}
	if c.Journal != nil {
		if err := c.Journal.Asked(); err != nil {
			return nil, err
		}
	}
	err = trace.Rows(ctx, c.Watcher(), trace.Row{Name: "exec", Do: func(ctx context.Context) error {
		trace.Set(ctx, trace.KeyPlugin.String(path))
		out, err = p.exec(ctx, path, environ(ctx, verb, c), conf)
		return err
	}})
	return out, err
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

// stdin is the complete configuration, as we were given it on ADD. On DEL and
// CHECK its prevResult is the runtime's as it came, else what our record has.
func stdin(verb string, c Call) ([]byte, error) {
	prev := c.Prev
	if verb == "ADD" || len(prev) == 0 && c.Made.Result == nil {
		return c.Conf, nil
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(c.Conf, &m); err != nil {
		return nil, err
	}
	if len(prev) == 0 {
		var version string
		_ = json.Unmarshal(m["cniVersion"], &version) // was read at the door
		r, err := c.Made.Result.GetAsVersion(version)
		if err != nil {
			return c.Conf, nil // an old version cannot hold it: then without
		}
		if prev, err = json.Marshal(r); err != nil {
			return nil, err
		}
	}
	m["prevResult"] = prev
	return json.Marshal(m)
}

// environ is our environment with one of each variable, ours in their places.
func environ(ctx context.Context, verb string, c Call) []string {
	set := map[string]string{
		"CNI_COMMAND": verb, "CNI_CONTAINERID": c.ContainerID, "CNI_NETNS": c.NetNS, "CNI_IFNAME": c.IfName,
		"CNI_ARGS": ignoreUnknown(c.Args), "CNI_PATH": strings.Join(c.Path, ":"),
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
		if v != "" || k != trace.EnvParent && k != trace.EnvState {
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
