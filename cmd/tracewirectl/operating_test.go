//go:build linux

package main

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/sandboxes"
)

var update = flag.Bool("update", false, "write the outputs of docs/operating.md anew")

// usualList is a network with the usual folders.
const usualList = `{"cniVersion": "1.1.0", "name": "podnet", "plugins": [
	{"type": "tracewire", "bridge": "cni0", "isGateway": true, "ipMasq": true,
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
	{"type": "portmap", "capabilities": {"portMappings": true}}]}`

// story is the node that docs/operating.md tells of.
type story struct {
	*world
	pods *[]string // the runtime's, by container id
}

// deeds is what happens between the commands.
var deeds = map[string]func(*story){
	"two pods": func(s *story) { s.attach(web, "web-0"); s.attach(old, "old-0") },
	"bridge down": func(s *story) {
		s.must(exec.Command("ip", "link", "set", "cni0", "down").Run())
	},
	"bridge up": func(s *story) {
		s.must(exec.Command("ip", "link", "set", "cni0", "up").Run())
		s.must(s.In(old, func() error {
			return exec.Command("ip", "route", "replace", "default", "via", "10.22.0.1").Run()
		}))
	},
	"pod gone, address leaked": func(s *story) {
		s.must(s.Vanish(old))
		s.must(os.Remove("/run/netns/old-0"))
		*s.pods = []string{web}
		s.must(os.WriteFile("/var/lib/cni/networks/podnet/10.22.0.77", []byte(db+"\r\neth0"), 0o600))
	},
	"a minute later":  (*story).later,
	"runtime forgets": func(s *story) { *s.pods = []string{db} },
	"another pod":     func(s *story) { s.attach(coredns, "coredns-5d78c9869d-x7v2k") },
}

// attach attaches a pod as containerd would.
func (s *story) attach(id, name string) {
	s.t.Helper()
	_, err := s.Pod(id)
	s.must(err)
	path := "/run/netns/" + name
	s.must(os.Symlink(s.PodPath(id), path))
	_, err = s.Add(s.t.Context(), attach.Attachment{ContainerID: id, IfName: "eth0", NetNS: path,
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", name}}})
	s.must(err)
	*s.pods = append(*s.pods, id)
}

// later makes the look before one of a minute ago.
func (s *story) later() { s.must(backdate("/var/lib/cni/tracewire", time.Minute)) }

// serve is containerd's socket.
func (s *story) serve() {
	s.must(os.MkdirAll("/run/containerd", 0o755))
	sandboxes.ServeAt(s.t, "/run/containerd/containerd.sock", func() []string { return *s.pods })
}

func newStory(t *testing.T) *story {
	w := newWorld(t, usualList, 0)
	s := &story{w, new([]string)}
	s.must(errors.Join(os.MkdirAll(w.Dir+"/cache/results", 0o755), os.Symlink(w.Dir+"/cache/results", "/var/lib/cni/results")))
	s.must(os.MkdirAll("/run/cni/net.d", 0o755))
	s.must(os.WriteFile("/run/cni/net.d/10-podnet.conflist", []byte(usualList), 0o600))
	s.env[0] = "NETCONFPATH=/run/cni/net.d"
	s.serve()
	return s
}

var (
	// part is a deed, or a command and what it prints.
	part = regexp.MustCompile("(?m)<!-- deed: (.*) -->$|^```console\n# tracewirectl (.*)\n((?s:.*?))```$")
	// machine is what differs from machine to machine.
	machine = regexp.MustCompile(`\d+ namespaces`)
)

// TestOperating plays docs/operating.md. -update writes its outputs anew.
func TestOperating(t *testing.T) {
	const path = "../../docs/operating.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := newStory(t)
	played := part.ReplaceAllStringFunc(string(page), func(text string) string {
		m := part.FindStringSubmatch(text)
		if m[1] != "" {
			deed := deeds[m[1]]
			if deed == nil {
				t.Fatalf("no deed %q", m[1])
			}
			deed(s)
			return text
		}
		_, out, complaint := s.ctl(strings.Fields(m[2])...)
		out = machine.ReplaceAllString(out, "4 namespaces")
		return "```console\n# tracewirectl " + m[2] + "\n" + strings.ReplaceAll(out, "/run/cni/net.d", "/etc/cni/net.d") + complaint + "```"
	})
	if *update {
		if err := os.WriteFile(filepath.Clean(path), []byte(played), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(page), played); diff != "" {
		t.Errorf("(-%s +played)\n%s", path, diff)
	}
}
