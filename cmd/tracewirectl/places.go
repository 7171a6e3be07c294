package main

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/tracewire/tracewire/conflist"
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

// networks is every entry of ours in the conflists on this node.
func (c *command) networks() (nets []conflist.Network, err error) {
	entries, err := c.own()
	for _, e := range entries {
		nets = append(nets, e.Network)
	}
	return nets, err
}

// own is every entry of ours in the conflists on this node.
func (c *command) own() (own []conflist.Entry, err error) {
	all, err := c.lists()
	for _, e := range all {
		if e.Ours() {
			own = append(own, e)
		}
	}
	return own, err
}

// lists is every entry of the conflists on this node, other plugins' too. A folder
// that was asked for has to be there. A file that cannot be read may be any other
// plugin's: it is told of and passed over.
func (c *command) lists() ([]conflist.Entry, error) {
	entries, broken, err := conflist.Folder(c.confDir())
	if errors.Is(err, fs.ErrNotExist) && c.flags.confDir == "" {
		return nil, nil
	}
	for _, b := range broken {
		if c.broken == nil {
			c.broken = map[string]bool{}
		}
		if !c.broken[b.Error()] {
			c.complain(b)
		}
		c.broken[b.Error()] = true
	}
	return entries, err
}

// confDir is where network configuration lists are.
func (c *command) confDir() string {
	return cmp.Or(c.flags.confDir, c.getenv("NETCONFPATH"), conflist.DefaultFolder)
}
