//go:build linux

package cases

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
)

// TestInstallWhileADDsRun: make install puts the plugin into place twenty times
// while pods come and go. None meets a busy or a cut file (calico#8932, cni#763).
func TestInstallWhileADDsRun(t *testing.T) {
	netns.Need(t, "make")
	if os.Getenv("TRACEWIRE_BIN") == "" {
		t.Skip("needs the program tracewire: run make test")
	}
	netns.Enter(t)
	root := t.TempDir()
	install := func() error {
		cmd := exec.Command("make", "-s", "-C", "../..", "-o", "build", "install", "DESTDIR="+root, "PREFIX=/opt/cni", "BINDIR=/usr/local/bin", "CONFDIR=/etc/cni/net.d", "UNITDIR=/etc/systemd/system")
		cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("make install: %w: %s", err, out)
		}
		return nil
	}
	if err := install(); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(root, "opt", "cni", "bin")
	n, err := attach.NewNode(t.TempDir(), bin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	var over atomic.Bool
	var rounds atomic.Int64
	const loops = 2
	for i := range loops {
		if _, err := n.Pod(fmt.Sprintf("pod%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	stdin := conf(t, n, nil)
	err = together(n, loops+1, func(i int) error {
		if i == loops {
			defer over.Store(true)
			for range 20 {
				if err := install(); err != nil {
					return err
				}
			}
			return nil
		}
		pod := fmt.Sprintf("pod%d", i)
		a := attach.Attachment{ContainerID: pod, IfName: "eth0", NetNS: n.PodPath(pod)}
		for !over.Load() {
			for _, verb := range []string{"ADD", "DEL"} {
				ctx, cancel := context.WithTimeout(context.Background(), stepTime)
				_, err := n.Run(ctx, "tracewire", []byte(stdin), n.Environment(verb, a))
				cancel()
				if err != nil {
					return fmt.Errorf("%s: %w", verb, err)
				}
			}
			rounds.Add(1)
		}
		return nil
	})
	if err != nil {
		t.Error(describe(err))
	}
	t.Logf("%d pods came and went", rounds.Load())
	if rounds.Load() == 0 {
		t.Error("no pod came and went meanwhile")
	}
	nothingLeft(t, n)
	if aside, err := filepath.Glob(filepath.Join(bin, ".*")); err != nil || len(aside) > 0 {
		t.Error(errors.Join(err, fmt.Errorf("beside the plugin: %q", aside)))
	}
}
