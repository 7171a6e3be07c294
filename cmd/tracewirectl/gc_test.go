package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tracewire/tracewire/chain/audit/cri"
	"github.com/tracewire/tracewire/chain/cache"
)

// TestOnlyAsked: whose socket was not asked has pods that would be taken for gone.
func TestOnlyAsked(t *testing.T) {
	made := func(runtime string, change ...func(*cache.Stored)) cache.Stored {
		r := cache.Stored{Record: cache.Record{Intent: cache.Intent{Runtime: runtime, Boot: thisBoot}, State: cache.Attached}}
		for _, do := range change {
			do(&r)
		}
		return r
	}
	earlier := func(r *cache.Stored) { r.Boot = "another" }
	interrupted := func(r *cache.Stored) { r.State = cache.Interrupted }
	containerd, podman := cri.Runtime{Executable: "/usr/bin/containerd"}, cri.Runtime{Executable: "/usr/bin/podman"}
	for _, tt := range []struct {
		name  string
		all   []cache.Stored
		asked []cri.Runtime
		want  string
	}{
		{"one", []cache.Stored{made("/usr/bin/containerd")}, []cri.Runtime{containerd}, ""},
		{"one that an update moved", []cache.Stored{made("/opt/old/containerd")}, []cri.Runtime{containerd}, ""},
		{"two, one asked", []cache.Stored{made("/usr/bin/containerd"), made("/usr/bin/podman")}, []cri.Runtime{containerd}, "/usr/bin/podman"},
		{"two, the other asked", []cache.Stored{made("/usr/bin/containerd"), made("/usr/bin/podman")}, []cri.Runtime{podman}, "/usr/bin/containerd"},
		{"two, both asked", []cache.Stored{made("/usr/bin/containerd"), made("/usr/bin/podman")}, []cri.Runtime{podman, containerd}, ""},
		{"three, one asked", []cache.Stored{made("/usr/bin/crio"), made("/usr/bin/containerd"), made("/usr/bin/podman")}, []cri.Runtime{containerd}, "/usr/bin/crio and /usr/bin/podman"},
		{"records that name none", []cache.Stored{made(""), made("")}, []cri.Runtime{containerd}, ""},
		{"one that names none", []cache.Stored{made(""), made("/usr/bin/containerd")}, []cri.Runtime{containerd}, ""},
		{"a runtime that nobody knows", []cache.Stored{made("/home/me/mycni")}, []cri.Runtime{containerd}, "/home/me/mycni"},
		{"of an earlier boot", []cache.Stored{made("/usr/bin/podman", earlier)}, []cri.Runtime{containerd}, ""},
		{"interrupted", []cache.Stored{made("/usr/bin/podman", interrupted)}, []cri.Runtime{containerd}, ""},
		{"a socket that tells nothing", []cache.Stored{made("/usr/bin/containerd")}, []cri.Runtime{{}}, ""},
		{"a socket that tells nothing, two runtimes", []cache.Stored{made("/usr/bin/containerd"), made("/usr/bin/podman")}, []cri.Runtime{{}}, "/usr/bin/containerd and /usr/bin/podman"},
		{"no records", nil, []cri.Runtime{containerd}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := (&command{boot: thisBoot}).onlyAsked(&network{name: "podnet", all: tt.all}, tt.asked); err != nil {
				got = err.Error()
			}
			want := ""
			if tt.want != "" {
				want = "network podnet has attachments that " + tt.want + " made, whose socket was not asked: give each runtime's by --cri"
			}
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// TestGCSockets: what is no runtime's socket is named, and nothing is done.
func TestGCSockets(t *testing.T) {
	dir := t.TempDir()
	file, silent := filepath.Join(dir, "file"), filepath.Join(dir, "silent.sock")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: silent})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	n := newNode(t)
	for _, tt := range []struct{ name, socket, want string }{
		{"not there", filepath.Join(dir, "none.sock"), ": runtime at SOCKET: no such file or directory"},
		{"not there, as a URL", "unix://" + filepath.Join(dir, "none.sock"), ": runtime at SOCKET: no such file or directory"},
		{"a file", file, ": runtime at SOCKET: connection refused"},
		{"a folder", dir, ": runtime at SOCKET: connection refused"},
		{"no path", "containerd.sock", " SOCKET: want PATH or unix://PATH, and an absolute path"},
		{"another protocol", "tcp://127.0.0.1:1", " SOCKET: want PATH or unix://PATH, and an absolute path"},
		{"one that never answers", silent, ": runtime at SOCKET: no answer in time: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) // cri.Patience is longer
			defer cancel()
			code, complaint := n.runTo(ctx, &strings.Builder{}, "gc", "--cri", tt.socket, "--cache-dir", dir)
			if want := "tracewirectl: --cri" + strings.Replace(tt.want, "SOCKET", tt.socket, 1); code != 2 || !strings.HasPrefix(complaint, want) {
				t.Errorf("got code %d, %q, want %q", code, complaint, want)
			}
		})
	}
}
