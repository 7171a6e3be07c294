//go:build linux

// Package sandboxes is a container runtime that has pods' sandboxes and nothing
// else, for tests.
package sandboxes

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Serve has it listen until the test ends, and returns its socket. ids is the
// sandboxes', all ready.
func Serve(t *testing.T, ids ...string) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "cri.sock")
	ServeAt(t, socket, func() []string { return ids })
	return socket
}

// ServeAt is Serve on a socket of one's own, of sandboxes that come and go. ids is
// called whenever somebody asks.
func ServeAt(t *testing.T, socket string, ids func() []string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(s, runtime{ids: ids})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
}

type runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	ids func() []string
}

func (runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "fake", RuntimeVersion: "v1", RuntimeApiVersion: "v1"}, nil
}

func (r runtime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	out := &runtimeapi.ListPodSandboxResponse{}
	for _, id := range r.ids() {
		out.Items = append(out.Items, &runtimeapi.PodSandbox{Id: id})
	}
	return out, nil
}
