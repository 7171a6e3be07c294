// Package cri asks a container runtime for its pods' sandboxes, by the Container
// Runtime Interface that kubelet uses (runtime.v1).
package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	client "k8s.io/cri-client/pkg"

	"github.com/tracewire/tracewire/chain/audit"
)

// Patience bounds a question, whatever the runtime does.
const Patience = 10 * time.Second

// Runtime is what a runtime told of itself and its pods.
type Runtime struct {
	Socket     string // a path
	Name       string // by its own word: "containerd", "cri-o"
	Version    string // "v2.4.2"
	Executable string // of who listens on the socket; empty where that cannot be told
	// Sandboxes is its pods', ready or stopped. The runtime forgets one when it is
	// removed.
	Sandboxes []audit.Sandbox
}

// Ask asks the runtime that listens on a socket: PATH or unix://PATH.
func Ask(ctx context.Context, socket string) (r Runtime, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("runtime at %s: %w", socket, err)
		}
	}()
	ctx, cancel := context.WithTimeout(logr.NewContext(ctx, logr.Discard()), Patience) // the client logs what it returns
	defer cancel()
	if r.Socket, err = Path(socket); err != nil {
		return r, err
	}
	if r.Executable, err = listener(ctx, r.Socket); err != nil {
		return r, err
	}
	service, err := client.NewRemoteRuntimeServiceBuilder().WithEndpoint("unix://" + r.Socket).
		WithConnectionTimeout(Patience).WithTracerProvider(nil).Build(ctx)
	if err != nil {
		return r, plain(err)
	}
	defer func() { _ = service.Close(ctx) }()
	return r, plain(r.fill(ctx, service))
}

// fill asks both questions.
func (r *Runtime) fill(ctx context.Context, service api.RuntimeService) error {
	v, err := service.Version(ctx, "")
	if err != nil {
		return err
	}
	r.Name, r.Version = v.GetRuntimeName(), v.GetRuntimeVersion()
	all, err := service.ListPodSandbox(ctx, nil)
	r.Sandboxes = make([]audit.Sandbox, 0, len(all)) // of a runtime without pods: not nil
	for _, s := range all {
		r.Sandboxes = append(r.Sandboxes, audit.Sandbox{ID: s.GetId(), Ready: s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY})
	}
	return err
}

// Path is where a socket is, of PATH or unix://PATH.
func Path(socket string) (string, error) {
	path := strings.TrimPrefix(socket, "unix://")
	if !filepath.IsAbs(path) {
		return "", errors.New("want PATH or unix://PATH, and an absolute path")
	}
	return filepath.Clean(path), nil
}

// listener is the executable of who listens on a socket (unix(7), SO_PEERCRED):
// empty where that was an init's doing, or is another namespace's. The error is
// the kernel's of a socket that nobody listens on.
func listener(ctx context.Context, path string) (executable string, err error) {
	conn, err := (&net.Dialer{}).DialUnix(ctx, "unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return "", inner(err)
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.SyscallConn()
	if err != nil {
		return "", err
	}
	var who *unix.Ucred
	err = raw.Control(func(fd uintptr) { who, _ = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err != nil || who == nil || who.Pid <= 1 {
		return "", err
	}
	executable, _ = os.Readlink("/proc/" + strconv.Itoa(int(who.Pid)) + "/exe")
	return strings.TrimSuffix(executable, " (deleted)"), nil
}

// inner is the kernel's part of a network error: the path is told already.
func inner(err error) error {
	var number unix.Errno
	if errors.As(err, &number) {
		return number
	}
	return err
}

// said is what gRPC's codes mean here.
var said = map[codes.Code]string{
	codes.Unimplemented:    "it does not serve the CRI (runtime.v1)",
	codes.DeadlineExceeded: "no answer in time",
	codes.PermissionDenied: "it refuses to tell",
}

// plain is a client's error in words that help.
func plain(err error) error {
	if err == nil {
		return nil
	}
	s, _ := status.FromError(err)
	if words := said[s.Code()]; words != "" {
		return fmt.Errorf("%s: %s", words, s.Message())
	}
	return err
}
