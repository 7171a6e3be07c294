//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tracewire/tracewire/chain/audit/cri"
	"github.com/tracewire/tracewire/test/sandboxes"
)

// TestContainerd has the real containerd make pods, and then forget one behind
// whose back. Its programs (containerd, its shim and ctr of v2.4.2, runc) are in
// the folder that the environment names.
func TestContainerd(t *testing.T) {
	programs := os.Getenv("TRACEWIRE_CONTAINERD")
	if programs == "" {
		t.Skip("runs by TRACEWIRE_CONTAINERD=DIR make test PKGS=./cmd/tracewirectl TESTFLAGS='-run Containerd'")
	}
	w := newWorld(t, podnet, 0)
	hierarchies, err := controllers()
	w.must(err)
	group := fmt.Sprintf("tracewire-test-%d", os.Getpid())
	t.Cleanup(func() {
		for _, h := range hierarchies {
			_ = os.Remove(filepath.Join(h, group)) // empty by now
		}
	})
	socket, client := w.containerd(programs)
	first, second := w.sandbox(client, "web-0", group), w.sandbox(client, "web-1", group)

	got, err := cri.Ask(t.Context(), socket)
	w.must(err)
	if got.Name != "containerd" || filepath.Base(got.Executable) != "containerd" || len(got.Sandboxes) != 2 || !got.Sandboxes[0].Ready {
		t.Errorf("got %+v", got)
	}
	code, out, complaint := w.ctl("check")
	w.expect(0, code, out, complaint, "2 attachments checked, no findings\n")
	code, out, complaint = w.ctl("audit", "--cri", socket)
	w.expect(0, code, out, complaint, "no findings in 2 records (2 checked), ")
	code, out, complaint = w.ctl("gc", "--cri", socket)
	w.expect(0, code, out, complaint, "podnet: 2 attachments valid, 0 stale; GC has run\n")

	// A runtime whose state is lost knows neither pod; one is as if it had been.
	other := sandboxes.Serve(w.t, first)
	code, out, complaint = w.ctl("gc", "--cri", other)
	w.expect(2, code, out, complaint, "/containerd made, whose socket was not asked")
	_, err = client.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: second})
	w.must(err)
	code, out, complaint = w.ctl("audit", "--cri", socket)
	w.expect(0, code, out, complaint, "no findings in 1 record (1 checked), ")
	w.leak("10.215.0.77", strings.Repeat("ab", 32))
	code, out, complaint = w.ctl("gc", "--cri", socket, "--grace", "0s")
	w.expect(0, code, out, complaint, "podnet: 1 attachment valid, 1 stale; removed\n")
	code, out, complaint = w.ctl("check", "default/web-0")
	w.expect(0, code, out, complaint, "1 attachment checked, no findings\n")
}

// controllers mounts the machine's cgroup hierarchies, which the sandbox's own
// sysfs hides, and tells where.
func controllers() (dirs []string, err error) {
	const root = "/sys/fs/cgroup"
	all, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	errs := []error{unix.Mount("tmpfs", root, "tmpfs", 0, "")}
	for line := range strings.Lines(string(all)) {
		names := strings.Split(line, ":")[1]
		if names == "" {
			continue
		}
		dir := filepath.Join(root, strings.TrimPrefix(names, "name="))
		dirs = append(dirs, dir)
		errs = append(errs, os.Mkdir(dir, 0o755), unix.Mount("cgroup", dir, "cgroup", 0, names))
	}
	return dirs, errors.Join(errs...)
}

const containerdConfig = `version = 3
root = "@/root"
state = "@/state"
[grpc]
  address = "@/c.sock"
[ttrpc]
  address = "@/t.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "@/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "native"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "localhost/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
      BinaryName = "@BIN@/runc"
  [plugins."io.containerd.cri.v1.runtime".cni]
    use_internal_loopback = true
    bin_dirs = ["@PLUGINS@", "@REFERENCE@"]
    conf_dir = "@NET@"
`

// containerd starts it, with the image that pods need.
func (w *world) containerd(programs string) (socket string, _ runtimeapi.RuntimeServiceClient) {
	w.t.Helper()
	dir, err := os.MkdirTemp("", "ctrd") // a socket's path is short
	w.must(err)
	w.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := strings.NewReplacer("@BIN@", programs, "@PLUGINS@", pluginDir, "@REFERENCE@", os.Getenv("TRACEWIRE_REFERENCE"),
		"@NET@", w.Dir+"/net.d", "@", dir).Replace(containerdConfig)
	w.must(os.WriteFile(dir+"/config.toml", []byte(config), 0o600))
	log, err := os.Create(dir + "/log")
	w.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, programs+"/containerd", "-c", dir+"/config.toml")
	cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	w.must(cmd.Start())
	w.t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		if w.t.Failed() {
			b, _ := os.ReadFile(dir + "/log")
			w.t.Logf("containerd: %s", b[max(0, len(b)-4000):])
		}
	})
	conn, err := grpc.NewClient("unix:"+dir+"/c.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.must(err)
	w.t.Cleanup(func() { _ = conn.Close() })
	client := runtimeapi.NewRuntimeServiceClient(conn)
	wait, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	_, err = client.Version(wait, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
	w.must(err)
	w.image(dir + "/pause.tar")
	out, err := exec.Command(programs+"/ctr", "-a", dir+"/c.sock", "-n", "k8s.io", "images", "import", "--local", "--snapshotter", "native", dir+"/pause.tar").CombinedOutput()
	if err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	return dir + "/c.sock", client
}

// sandbox has a pod made, which goes with the test.
func (w *world) sandbox(client runtimeapi.RuntimeServiceClient, pod, group string) (id string) {
	w.t.Helper()
	r, err := client.RunPodSandbox(w.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: pod, Namespace: "default", Uid: pod}, Hostname: pod, Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/" + group},
	}})
	w.must(err)
	w.t.Cleanup(func() {
		ctx := context.Background()
		_, errStop := client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: r.PodSandboxId})
		_, errRemove := client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: r.PodSandboxId})
		if err := errors.Join(errStop, errRemove); err != nil {
			w.t.Error(err)
		}
	})
	return r.PodSandboxId
}

// image writes a docker archive of a program that waits.
func (w *world) image(path string) {
	w.t.Helper()
	dir := w.t.TempDir()
	source := dir + "/main.go"
	w.must(os.WriteFile(source, []byte(`package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGINT)
	<-c
}
`), 0o600))
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/pause", source)
	if out, err := build.CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	program, err := os.ReadFile(dir + "/pause")
	w.must(err)
	layer := archive(w, map[string][]byte{"pause": program})
	config := w.json(map[string]any{"architecture": "amd64", "os": "linux", "config": map[string]any{"Entrypoint": []string{"/pause"}, "WorkingDir": "/"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}}})
	manifest := w.json([]any{map[string]any{"Config": "config.json", "RepoTags": []string{"localhost/pause:1"}, "Layers": []string{"layer.tar"}}})
	w.must(os.WriteFile(path, archive(w, map[string][]byte{"layer.tar": layer, "config.json": config, "manifest.json": manifest}), fs.FileMode(0o600)))
}

func (w *world) json(v any) []byte {
	b, err := json.Marshal(v)
	w.must(err)
	return b
}

func archive(w *world, files map[string][]byte) []byte {
	var b bytes.Buffer
	a := tar.NewWriter(&b)
	for name, content := range files {
		w.must(a.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))}))
		_, err := a.Write(content)
		w.must(err)
	}
	w.must(a.Close())
	return b.Bytes()
}
