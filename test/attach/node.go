//go:build linux

// Package attach plays a container runtime: it makes network namespaces,
// attaches them with the real plugins through libcni, and tells what spool,
// folders and kernel have of it afterwards.
package attach

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

// Dir stands for the node's folder in configuration lists and in expectations.
const Dir = "@DIR@"

// Node is a host's network namespace, the caller's own, with pods. A Node's
// methods are called from that namespace. Everything on disk is below Dir.
type Node struct {
	Dir  string
	Exec *Exec

	path []string // CNI_PATH
	host ns.NetNS
	pods map[string]ns.NetNS
	macs map[string]string // of bridges, which follow from the boot, by MAC
	// beyond is the pods that are not the node's, uplinks the host's interfaces to them.
	beyond, uplinks map[string]bool

	booted, mounts bool // another boot id is mounted; the thread has mounts of its own
	apart          bool // and nothing in the usual folder

	aside map[string]bool // operations that count for nothing, by the span's id

	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

// NewNode makes the calling thread's network namespace a node's. Programs are
// looked for in path.
func NewNode(dir string, path ...string) (*Node, error) {
	host, err := ns.GetCurrentNS()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "netns"), 0o755), prepare()); err != nil {
		_ = host.Close()
		return nil, err
	}
	n := &Node{Dir: dir, Exec: newExec(), path: path, host: host, pods: map[string]ns.NetNS{}, macs: map[string]string{}, beyond: map[string]bool{}, uplinks: map[string]bool{}, aside: map[string]bool{}}
	n.cni = libcni.NewCNIConfigWithCacheDir(path, filepath.Join(dir, "cache"), n.Exec)
	return n, nil
}

// Close lets go of the namespaces. The kernel removes what is in them.
func (n *Node) Close() {
	for name := range n.pods {
		_ = n.RemovePod(name)
	}
	_ = n.host.Close()
}

// baseline is what settings a fresh namespace may have from the machine.
var baseline = []struct{ path, value string }{
	{"ipv4/ip_forward", "0"},
	{"ipv4/conf/default/arp_notify", "0"},
	{"ipv6/conf/all/forwarding", "0"},
	{"ipv6/conf/default/accept_ra", "1"},
	{"ipv6/conf/default/accept_dad", "1"},
}

// prepare makes the calling thread's fresh namespace the same on every machine.
func prepare() error {
	for _, s := range baseline {
		err := os.WriteFile("/proc/sys/net/"+s.path, []byte(s.value), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// Pod is the namespace of a pod, made at its first use.
func (n *Node) Pod(name string) (ns.NetNS, error) {
	if p, ok := n.pods[name]; ok {
		return p, nil
	}
	p, err := ns.TempNetNS()
	if err != nil {
		return nil, err
	}
	if err := p.Do(func(ns.NetNS) error { return prepare() }); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	n.pods[name] = p
	// A link to this process's descriptor: nothing is left when it is killed.
	return p, os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.Fd()), n.PodPath(name))
}

// PodPath is where a runtime would have mounted the pod's namespace.
func (n *Node) PodPath(name string) string { return filepath.Join(n.Dir, "netns", name) }

// RemovePod takes a pod's namespace away, and its path.
func (n *Node) RemovePod(name string) error {
	p, ok := n.pods[name]
	if !ok {
		return fmt.Errorf("pod %s: %w", name, fs.ErrNotExist)
	}
	delete(n.pods, name)
	return errors.Join(p.Close(), os.Remove(n.PodPath(name)))
}

// In runs do in the namespace of a pod, or of "host".
func (n *Node) In(name string, do func() error) error {
	in := n.host
	if name != "host" {
		var err error
		if in, err = n.Pod(name); err != nil {
			return err
		}
	}
	return in.Do(func(ns.NetNS) error { return do() })
}

// Load reads the configuration list that counts from now on. Dir in it becomes
// the node's folder.
func (n *Node) Load(conflist []byte) (err error) {
	n.list, err = libcni.NetworkConfFromBytes(bytes.ReplaceAll(conflist, []byte(Dir), []byte(n.Dir)))
	return err
}

// Network is the name of the configuration list.
func (n *Node) Network() string { return n.list.Name }

// Attachment is one interface of one container, as a runtime knows it.
type Attachment struct {
	ContainerID, IfName string
	NetNS               string // CNI_NETNS
	Args                [][2]string
	Capabilities        map[string]any
}

func (a Attachment) runtime() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: a.ContainerID, IfName: a.IfName, NetNS: a.NetNS, Args: a.Args, CapabilityArgs: a.Capabilities}
}

// Add runs the whole list.
func (n *Node) Add(ctx context.Context, a Attachment) (types.Result, error) {
	return n.cni.AddNetworkList(ctx, n.list, a.runtime())
}

// Check runs the whole list.
func (n *Node) Check(ctx context.Context, a Attachment) error {
	return n.cni.CheckNetworkList(ctx, n.list, a.runtime())
}

// Del runs the whole list backward.
func (n *Node) Del(ctx context.Context, a Attachment) error {
	return n.cni.DelNetworkList(ctx, n.list, a.runtime())
}

// GC runs GC of the whole list: valid attachments stay.
func (n *Node) GC(ctx context.Context, valid []types.GCAttachment) error {
	return n.cni.GCNetworkList(ctx, n.list, &libcni.GCArgs{ValidAttachments: valid})
}

// Status asks the whole list.
func (n *Node) Status(ctx context.Context) error {
	return n.cni.GetStatusNetworkList(ctx, n.list)
}

// First is the list's first plugin, and the configuration that it is given
// when it runs without libcni: no runtimeConfig and no prevResult. Keys are JSON
// values that go into it; an empty one takes a key out.
func (n *Node) First(keys map[string]string) (plugin string, stdin []byte, err error) {
	first := n.list.Plugins[0]
	conf := map[string]json.RawMessage{}
	if err := json.Unmarshal(first.Bytes, &conf); err != nil {
		return "", nil, err
	}
	conf["name"], _ = json.Marshal(n.list.Name) // strings can always be written
	conf["cniVersion"], _ = json.Marshal(n.list.CNIVersion)
	for key, value := range keys {
		if conf[key] = json.RawMessage(value); value == "" {
			delete(conf, key)
		}
	}
	stdin, err = json.Marshal(conf)
	return first.Network.Type, stdin, err
}

// Run runs one program of the node's path with just that environment.
func (n *Node) Run(ctx context.Context, program string, stdin []byte, env []string) ([]byte, error) {
	path, err := n.Exec.FindInPath(program, n.path)
	if err != nil {
		return nil, err
	}
	return n.Exec.ExecPlugin(ctx, path, stdin, env)
}

// Environment is what a plugin finds when a runtime runs it (CNI spec 1.1.0,
// section 2).
func (n *Node) Environment(command string, a Attachment) []string {
	args := make([]string, len(a.Args))
	for i, kv := range a.Args {
		args[i] = kv[0] + "=" + kv[1]
	}
	return []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + a.ContainerID, "CNI_NETNS=" + a.NetNS, "CNI_IFNAME=" + a.IfName,
		"CNI_ARGS=" + strings.Join(args, ";"), "CNI_PATH=" + strings.Join(n.path, ":"), "PATH=" + os.Getenv("PATH"),
	}
}

// Indent is a value as JSON for people, with a line feed at its end.
func Indent(v any) (string, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	return string(b) + "\n", err
}
