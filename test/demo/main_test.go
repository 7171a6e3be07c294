//go:build linux

package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestDemo runs the demo as `make demo` does.
func TestDemo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: run make test")
	}
	if os.Getenv("TRACEWIRE_BIN") == "" {
		t.Skip("needs the program tracewire: run make test")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	got, err := exec.CommandContext(ctx, "go", "run", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, got)
	}
	for _, want := range []string{
		"cni.ADD", "cache.read", "cache.intent", "ipam", "bridge", "bridge.ensure", "gateway.ensure", "veth.create", "address.add", "route.add", "cache.commit",
		"cni.CHECK", "cni.DEL", "veth.delete", "cache.delete", "ADD of demo/hello:eth0",
		"pod heard: hello from host", "nothing is left on this machine",
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("%q is missing:\n%s", want, got)
		}
	}
}
