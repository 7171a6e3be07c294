package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/spf13/cobra"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
)

// plugins runs plugins as a container runtime does: through libcni, and with
// what libcni keeps of attachments.
type plugins struct {
	dirs  []string // of executables
	cache string   // libcni's folder, which has results in it

	cni *libcni.CNIConfig
	// collecting is libcni without what it keeps. Its GC ends all that is not listed,
	// what was made since the list too: which attachments end is said here.
	collecting *libcni.CNIConfig
	exec       invoke.Exec
	cached     map[delegates.Attachment]*libcni.NetworkAttachment
}

// The runtimes' usual folders.
const (
	defaultPluginDir = "/opt/cni/bin"
	defaultCacheDir  = "/var/lib/cni"
)

// pluginFlags adds the flags that say where plugins are.
func pluginFlags(cmd *cobra.Command, p *plugins) {
	cmd.Flags().StringArrayVar(&p.dirs, "plugin-dir", nil, "Runs the plugins in `DIR`; may be given again (default: $CNI_PATH, else "+defaultPluginDir+")")
	complete(cmd, "plugin-dir", cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs))
	cacheFlag(cmd, p)
}

// cacheFlag adds the flag that says what libcni keeps.
func cacheFlag(cmd *cobra.Command, p *plugins) {
	cmd.Flags().StringVar(&p.cache, "cache-dir", defaultCacheDir, "Reads what libcni keeps of attachments below `DIR`")
	complete(cmd, "cache-dir", cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs))
}

// open makes the plugins ready to be run.
func (c *command) open(p *plugins) {
	if len(p.dirs) == 0 {
		p.dirs = filepath.SplitList(c.getenv("CNI_PATH"))
	}
	if len(p.dirs) == 0 {
		p.dirs = []string{defaultPluginDir}
	}
	p.exec = &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: c.err}}
	p.cni = libcni.NewCNIConfigWithCacheDir(p.dirs, p.cache, p.exec)
	p.collecting = libcni.NewCNIConfigWithCacheDir(p.dirs, "/proc/self/fdinfo/none", p.exec) // nobody makes a folder there
}

// remember reads all that libcni keeps.
func (p *plugins) remember() error {
	all, err := p.cni.GetCachedAttachments("")
	if err != nil {
		return fmt.Errorf("--cache-dir: %w", err)
	}
	p.cached = map[delegates.Attachment]*libcni.NetworkAttachment{}
	for _, a := range all {
		p.cached[delegates.Attachment{Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName}] = a
	}
	return nil
}

// keeps is the attachments that libcni keeps something of; what cannot be read is
// left out.
func (p *plugins) keeps() (out []subject) {
	for e, err := range cache.Files(p.entries()) {
		if err != nil || e.Attachment == (delegates.Attachment{}) {
			continue
		}
		s := subject{Attachment: e.Attachment, addresses: e.Addresses}
		if list, rt := p.attached(e.Attachment); list != nil {
			s.namespace, s.pod = podOfArgs(rt.Args)
		}
		out = append(out, s)
	}
	return out
}

// podOfArgs is the pod of a runtime's CNI_ARGS.
func podOfArgs(args [][2]string) (namespace, pod string) {
	for _, kv := range args {
		switch kv[0] {
		case "K8S_POD_NAMESPACE":
			namespace = kv[1]
		case "K8S_POD_NAME":
			pod = kv[1]
		}
	}
	return namespace, pod
}

// entries is the folder of what libcni keeps.
func (p *plugins) entries() string { return filepath.Join(p.cache, "results") }

// entry is the file of an attachment there.
func (p *plugins) entry(a delegates.Attachment) string {
	return filepath.Join(p.entries(), cache.EntryName(a))
}

// attached is what libcni keeps of an attachment: its list as ADD had it, and what
// it is given beside the configuration; nil where it keeps nothing that can be used.
func (p *plugins) attached(a delegates.Attachment) (*libcni.NetworkConfigList, *libcni.RuntimeConf) {
	f, err := cache.ReadFile(p.entry(a)) // libcni would wait for a pipe
	if err != nil || f.Broken != nil || f.Attachment != a {
		return nil, nil
	}
	rt := &libcni.RuntimeConf{ContainerID: a.ContainerID, IfName: a.IfName}
	if len(f.NetNS) > 0 {
		rt.NetNS = f.NetNS[0]
	}
	kept, rt, err := p.cni.GetNetworkListCachedConfig(&libcni.NetworkConfigList{Name: a.Network}, rt)
	if err != nil {
		return nil, nil
	}
	list, err := libcni.NetworkConfFromBytes(kept)
	if err != nil {
		return nil, nil
	}
	return list, rt
}

// pluginsOf is the plugins of a list, in their order.
func pluginsOf(list *libcni.NetworkConfigList) (out []string) {
	for _, p := range list.Plugins {
		out = append(out, p.Network.Type)
	}
	return out
}

// del ends an attachment: by the whole list where libcni has it, else by the
// plugin alone, with the configuration of ADD.
func (p *plugins) del(ctx context.Context, r cache.Stored) error {
	list, rt := p.attached(r.Attachment)
	if list != nil {
		return p.cni.DelNetworkList(ctx, list, rt)
	}
	return p.run(ctx, "DEL", invocation{Attachment: r.Attachment, conf: r.Conf, args: r.Args, netns: r.NetNS})
}

// invocation is one run of a plugin alone.
type invocation struct {
	delegates.Attachment
	plugin      string // "" for ours
	conf        []byte
	args, netns string
	keys        map[string]any // that go into the configuration
}

// run runs one plugin. Its error is what it answered.
func (p *plugins) run(ctx context.Context, verb string, in invocation) error {
	conf, err := injected(in.conf, in.keys)
	if err != nil {
		return err
	}
	path, err := p.exec.FindInPath(cmp.Or(in.plugin, conflist.PluginType), p.dirs)
	if err != nil {
		return err
	}
	return invoke.ExecPluginWithoutResult(ctx, path, conf, &invoke.Args{
		Command: verb, ContainerID: in.ContainerID, NetNS: in.netns, IfName: in.IfName, PluginArgsStr: in.args, Path: strings.Join(p.dirs, ":"),
	}, p.exec)
}

// injected is a configuration with members set.
func injected(conf []byte, keys map[string]any) ([]byte, error) {
	if len(keys) == 0 && len(conf) > 0 {
		return conf, nil
	}
	var m map[string]any
	if err := json.Unmarshal(conf, &m); err != nil {
		return nil, err
	}
	for key, value := range keys {
		m[key] = value
	}
	return json.Marshal(m)
}

// network is one of ours: its list, where a file has it.
type network struct {
	name   string
	conf   []byte                    // of our entry
	file   string                    // of the list; empty where only records tell of it
	list   *libcni.NetworkConfigList // nil without a file
	all    []cache.Stored            // its records
	states []string                  // folders that may have more of them
}

// nets is the networks of ours, by name: of lists and of records.
func (c *command) nets(all []stored) ([]*network, error) {
	byName := map[string]*network{}
	named := func(name string) *network {
		if byName[name] == nil {
			byName[name] = &network{name: name}
		}
		return byName[name]
	}
	entries, err := c.own()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if n := named(e.Name); n.file == "" { // the runtime takes the first
			n.file, n.conf = e.File, e.Doc.Raw
			if n.list, err = listOf(e.File); err != nil {
				return nil, fmt.Errorf("%s: %w", e.File, err)
			}
		}
	}
	for _, r := range all {
		n := named(r.Network)
		if n.all = append(n.all, r.Stored); n.file == "" && len(r.Conf) > 0 {
			n.conf = r.Conf
		}
	}
	for _, n := range byName {
		if len(n.conf) == 0 { // a broken record is all that tells of it
			n.conf = bare(n.name, filepath.Dir(filepath.Dir(filepath.Dir(n.all[0].Path))))
		}
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b *network) int { return strings.Compare(a.name, b.name) }), nil
}

// only is the network of a name, or all without one.
func only(nets []*network, name string) ([]*network, error) {
	if name == "" {
		return nets, nil
	}
	var names []string
	for _, n := range nets {
		if n.name == name {
			return []*network{n}, nil
		}
		names = append(names, n.name)
	}
	return nil, fmt.Errorf("%w: no network %s among those of tracewire: %s", errNothing, name, strings.Join(names, ", "))
}

// bare is a configuration of which only network and state directory are known:
// enough for DEL and GC.
func bare(name, state string) []byte {
	b, _ := json.Marshal(map[string]any{ // strings can always be written
		"cniVersion": firstGC, "name": name, "type": conflist.PluginType, "tracewire": map[string]string{"stateDir": state},
	})
	return b
}

// listOf reads a network configuration list, or a single configuration as one.
func listOf(file string) (*libcni.NetworkConfigList, error) {
	if filepath.Ext(file) == ".conflist" {
		return libcni.NetworkConfFromFile(file)
	}
	conf, err := libcni.ConfFromFile(file) //nolint:staticcheck // runtimes read such files
	if err != nil {
		return nil, err
	}
	return libcni.ConfListFromConf(conf) //nolint:staticcheck // as above
}
