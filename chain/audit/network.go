package audit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"maps"
	"strings"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates/bridge"
	"github.com/tracewire/tracewire/ipam"
)

// config is what one plugin's network configuration tells.
type config struct {
	network string
	ours    bool
	mode    string         // of ours: bridge, ptp or delegate
	bridge  string         // the interface whose ports pods are; empty for none
	store   string         // host-local's folder; empty where it has none
	leases  ipam.HostLocal // whose ranges, where store is not empty
	conf    string         // of ours, as a runtime hands it to a DEL; forgotten once it is learnt
}

// bridged is the plugins whose key bridge names an interface, "cni0" where it is
// not given.
var bridged = map[string]bool{"bridge": true, conflist.PluginType: true}

// configOf reads an entry of a list. What mode delegate wraps tells in its place.
func configOf(doc *conflist.Value, net conflist.Network) config {
	c := config{network: net.Name, ours: net.Type == conflist.PluginType}
	if c.ours {
		c.mode, c.conf = net.Tracewire.Mode, lasting(doc)
	}
	if c.mode == "delegate" && len(net.Delegates) > 0 {
		wrapped := conflist.Read(net.Delegates[0].Conf)
		inner := configOf(wrapped, conflist.Parse(wrapped))
		c.bridge, c.store, c.leases = inner.bridge, inner.store, inner.leases
		return c
	}
	if bridged[net.Type] && c.mode != "ptp" {
		c.bridge = cmp.Or(doc.At("bridge").Text(), bridge.DefaultBridge)
	}
	if net.IPAM == "host-local" {
		c.leases = ipam.Parse(doc, nil)
		c.store, _ = c.leases.Store(net.Name) // a name that is none has no folder
	}
	return c
}

// lasting is a configuration without what a runtime added for one attachment.
func lasting(doc *conflist.Value) string {
	var m map[string]json.RawMessage
	_ = json.Unmarshal(doc.Raw, &m) // was read before; of what is no object nothing is left
	maps.DeleteFunc(m, func(key string, _ json.RawMessage) bool {
		return key == "prevResult" || key == "runtimeConfig" || strings.HasPrefix(key, "cni.dev/")
	})
	b, _ := json.Marshal(m) // was read from JSON
	return string(b)
}

// network is what all configurations tell of one.
type network struct {
	name    string
	bridges map[string]bool
	stores  map[string]*store
	conf    string // a configuration of ours, JSON; empty where there is none
	portmap string // of portmap, JSON; empty where no list with an entry of ours has it
}

// networks is all that any configuration names.
type networks struct {
	all    map[string]*network
	stores map[string]*store
	read   map[uint64][]config // of texts that were read, by their hashes
	seed   maphash.Seed
}

func newNetworks() *networks {
	return &networks{all: map[string]*network{}, stores: map[string]*store{}, read: map[uint64][]config{}, seed: maphash.MakeSeed()}
}

// named is a network by its name.
func (n *networks) named(name string) *network {
	if n.all[name] == nil {
		n.all[name] = &network{name: name, bridges: map[string]bool{}, stores: map[string]*store{}}
	}
	return n.all[name]
}

// confOf is a configuration of ours of a network, "" where there is none.
func (n *networks) confOf(name string) string {
	if net := n.all[name]; net != nil {
		return net.conf
	}
	return ""
}

// learn takes in what a configuration tells. Of several of ours the first counts
// for a DEL: the conflists' are learnt before the records'.
func (n *networks) learn(c config) {
	net := n.named(c.network)
	if c.bridge != "" {
		net.bridges[c.bridge] = true
	}
	if c.ours && net.conf == "" {
		net.conf = c.conf
	}
	if c.store == "" {
		return
	}
	s := n.storeAt(c.store, c.network)
	s.ours = s.ours || c.ours
	s.serving[fmt.Sprint(c.leases.Sets)] = c.leases
	net.stores[c.store] = s
}

// storeAt is the store of a folder.
func (n *networks) storeAt(dir, network string) *store {
	if n.stores[dir] == nil {
		n.stores[dir] = &store{dir: dir, network: network, serving: map[string]ipam.HostLocal{}}
	}
	return n.stores[dir]
}

// once reads a text that many attachments share, and learns from it.
func (n *networks) once(text []byte, read func() []config) []config {
	key := maphash.Bytes(n.seed, text)
	all, known := n.read[key]
	if !known {
		all = read()
		for i := range all {
			n.learn(all[i])
			all[i].conf = ""
		}
		n.read[key] = all
	}
	return all
}

// recorded is the configuration of a record; the zero one where it cannot be
// read.
func (n *networks) recorded(r cache.Stored) *config {
	all := n.once(r.Conf, func() []config {
		doc := conflist.Read(r.Conf)
		own := conflist.Parse(doc)
		n.learnPorts([]conflist.Entry{{Doc: doc, Network: own}})
		return []config{configOf(doc, own)}
	})
	return &all[0]
}

// listed is the configurations of the list that libcni kept with an entry.
func (n *networks) listed(f cache.File) []config {
	if f.Config == "" {
		return nil
	}
	return n.once([]byte(f.Config), func() (all []config) {
		entries, _ := conflist.Entries(f.Path, f.List()) // libcni could read it
		n.learnPorts(entries)
		for _, e := range entries {
			all = append(all, configOf(e.Doc, e.Network))
		}
		return all
	})
}
