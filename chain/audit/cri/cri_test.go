package cri

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tracewire/tracewire/chain/audit"
)

// fake is a runtime with two pods, one of them stopped.
type fake struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

func (fake) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "fake", RuntimeVersion: "v1.2", RuntimeApiVersion: "v1"}, nil
}

func (fake) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{
		{Id: "1635e8", State: runtimeapi.PodSandboxState_SANDBOX_READY}, {Id: "99aabb", State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY},
	}}, nil
}

// serve listens on a socket of the test's own.
func serve(t *testing.T, services ...runtimeapi.RuntimeServiceServer) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cri.sock")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	for _, service := range services {
		runtimeapi.RegisterRuntimeServiceServer(s, service)
	}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return path
}

func TestAsk(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := serve(t, fake{})
	want := Runtime{Socket: path, Name: "fake", Version: "v1.2", Executable: self, Sandboxes: []audit.Sandbox{{ID: "1635e8", Ready: true}, {ID: "99aabb"}}}
	for _, socket := range []string{path, "unix://" + path} {
		got, err := Ask(t.Context(), socket)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", socket, err, diff)
		}
	}
}

// empty is a runtime that starts.
type empty struct{ fake }

func (empty) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{}, nil
}

// TestNoPods: a runtime that has none is not one that was not asked.
func TestNoPods(t *testing.T) {
	got, err := Ask(t.Context(), serve(t, empty{}))
	if err != nil || got.Sandboxes == nil || len(got.Sandboxes) != 0 {
		t.Errorf("%#v, %v", got.Sandboxes, err)
	}
}

// deaf is a runtime that hangs.
type deaf struct{ fake }

func (deaf) ListPodSandbox(ctx context.Context, _ *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestCannotAsk(t *testing.T) {
	dir := t.TempDir()
	plainFile, dead := filepath.Join(dir, "file"), filepath.Join(dir, "dead.sock")
	if err := os.WriteFile(plainFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	silent := filepath.Join(dir, "silent.sock")
	l, err = net.ListenUnix("unix", &net.UnixAddr{Name: silent})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	for _, tt := range []struct{ name, socket, want string }{
		{"nothing", filepath.Join(dir, "none.sock"), "no such file or directory"},
		{"no socket", plainFile, "connection refused"},
		{"nobody listens", dead, "connection refused"},
		{"no path", "containerd.sock", "want PATH or unix://PATH, and an absolute path"},
		{"another protocol", "tcp://127.0.0.1:1", "want PATH or unix://PATH, and an absolute path"},
		{"another service", serve(t), "it does not serve the CRI (runtime.v1): "},
		{"a runtime that hangs", serve(t, deaf{}), "no answer in time: "},
		{"one that never says a word", silent, "no answer in time: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) // the caller's bound counts too
			defer cancel()
			got, err := Ask(ctx, tt.socket)
			if err == nil || !strings.HasPrefix(err.Error(), "runtime at "+tt.socket+": "+tt.want) {
				t.Errorf("got %v", err)
			}
			if diff := cmp.Diff([]audit.Sandbox(nil), got.Sandboxes, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
