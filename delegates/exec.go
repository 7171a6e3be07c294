package delegates

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	api "go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/trace"
)

// ErrPlugin marks what a delegated plugin's executable did wrong.
var ErrPlugin = errors.New("delegated plugin failed")

const (
	maxAnswer = 4 << 20 // bytes of a plugin's standard output
	maxStderr = 4 << 10 // bytes kept of its standard error
	maxQuoted = 256     // bytes of an answer quoted in an error
)

// ExecPhase is the phase in which a delegated plugin's executable runs.
const ExecPhase = "exec"

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
	if err != nil {
		return nil, p.failed("answer: %w: %s", err, quoted(out))
	}
	return r, nil
}

// Del implements Delegate. A plugin that ADD never came to run has nothing to
// take back, and may not even be there.
func (p Plugin) Del(ctx context.Context, c Call) error {
	if c.Made.Known && !c.Made.Asked {
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
	err = trace.Rows(ctx, c.Watcher(), trace.Row{Name: ExecPhase, Do: func(ctx context.Context) error {
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
			return c.Conf, nil // an old version can not hold it: then without
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
	span := api.SpanContextFromContext(ctx)
	set := map[string]string{
		"CNI_COMMAND": verb, "CNI_CONTAINERID": c.ContainerID, "CNI_NETNS": c.NetNS, "CNI_IFNAME": c.IfName,
		"CNI_ARGS": ignoreUnknown(c.Args), "CNI_PATH": strings.Join(c.Path, ":"),
		trace.EnvParent: trace.Format(span), trace.EnvState: span.TraceState().String(),
	}
	out := []string{}
	for _, kv := range os.Environ() {
		k, v, _ := strings.Cut(kv, "=")
		if _, seen := set[k]; !seen {
			set[k] = v
		}
	}
	for k, v := range set {
		if v != "" || strings.HasPrefix(k, "CNI_") {
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
	// The signal at our death follows the thread that forked (prctl(2), PR_SET_PDEATHSIG).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stdout, stderr := &capped{max: maxAnswer}, &capped{max: maxStderr}
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader(stdin), stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if stderr.b.Len() > 0 {
		trace.Warn(ctx, "standard error of "+p.Type, trace.KeyStderr.String(stderr.b.String()))
	}
	if ctx.Err() != nil {
		return nil, p.failed("%w", ctx.Err())
	}
	if perr := (*fs.PathError)(nil); errors.As(err, &perr) {
		return nil, p.failed("%w", err)
	}
	if err != nil {
		return nil, p.failed("%w", said(err, stdout.b.Bytes(), stderr.b.Bytes()))
	}
	if stdout.over {
		return nil, p.failed("answer is longer than %d bytes: %s", maxAnswer, quoted(stdout.b.Bytes()))
	}
	return stdout.b.Bytes(), nil
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

// capped keeps the first bytes and takes the rest, so that the writer ends.
type capped struct {
	b    bytes.Buffer
	max  int
	over bool
}

func (c *capped) Write(p []byte) (int, error) {
	room := c.max - c.b.Len()
	if len(p) > room {
		c.over = true
		c.b.Write(p[:room])
		return len(p), nil
	}
	return c.b.Write(p)
}
