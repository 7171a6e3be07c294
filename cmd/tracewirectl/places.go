package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/tracewire/tracewire/conflist"
)

const (
	defaultConfDir = "/etc/cni/net.d"
	pluginType     = "tracewire"
)

// places is where the networks of this node keep their things. Networks may
// share a place or have their own.
type places struct{ state, spool, log []string }

// places are what the flags say, else what the conflists say, else the defaults.
func (c *command) places() (places, error) {
	nets, err := c.networks()
	if err != nil {
		return places{}, err
	}
	if len(nets) == 0 {
		none := conflist.Parse(conflist.Read([]byte("{}"))) // all defaults
		nets = append(nets, none)
	}
	var p places
	for _, n := range nets {
		t := n.Tracewire
		if c.flags.stateDir != "" {
			t.StateDir, t.SpoolDir = c.flags.stateDir, filepath.Join(c.flags.stateDir, "spool")
		}
		add(&p.state, t.StateDir)
		add(&p.spool, t.SpoolDir, c.flags.spool)
		add(&p.log, t.LogPath, c.flags.log)
	}
	return p, nil
}

// add adds the last of paths that is not empty, unless it is there.
func add(to *[]string, paths ...string) {
	path := ""
	for _, p := range paths {
		if p != "" {
			path = p
		}
	}
	if !slices.Contains(*to, path) {
		*to = append(*to, path)
	}
}

// networks is every tracewire entry of the conflists on this node. A folder
// that was asked for has to be there. A file that cannot be read may be any
// other plugin's: it is told of and passed over.
func (c *command) networks() (nets []conflist.Network, err error) {
	dir, asked := c.flags.confDir, c.flags.confDir != ""
	if dir == "" {
		dir = c.getenv("NETCONFPATH")
	}
	if dir == "" {
		dir = defaultConfDir
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) && !asked {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.IsDir() || !slices.Contains([]string{".conflist", ".conf", ".json"}, filepath.Ext(path)) {
			continue
		}
		found, err := entriesOf(path)
		if err != nil {
			c.complain(err)
		}
		nets = append(nets, found...)
	}
	return nets, nil
}

// entriesOf is the tracewire entries of one file, a list or a single
// configuration. What is wrong with one is the plugin's to judge: its paths count.
func entriesOf(path string) (nets []conflist.Network, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var list struct {
		Plugins []json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, raw := range append(list.Plugins, b) {
		if n := conflist.Parse(conflist.Read(raw)); n.Type == pluginType {
			nets = append(nets, n)
		}
	}
	return nets, nil
}
