package conflist

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

const (
	// DefaultFolder is where runtimes look for network configuration lists.
	DefaultFolder = "/etc/cni/net.d"
	// PluginType is the type of our own entries.
	PluginType = "tracewire"
)

// Entry is one plugin's entry of a list, with the list's name and version as
// libcni hands them on.
type Entry struct {
	File string
	Doc  *Value
	Network
}

// Ours tells that an entry is tracewire's.
func (e Entry) Ours() bool { return e.Type == PluginType }

// Folder is every entry of the lists in a folder, "" for the default one, by the
// names of the files. A file that cannot be read is one of broken, and passed
// over. What is wrong with an entry is its plugin's to judge.
func Folder(dir string) (entries []Entry, broken []error, err error) {
	if dir == "" {
		dir = DefaultFolder
	}
	files, err := os.ReadDir(dir)
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		if f.IsDir() || !slices.Contains([]string{".conflist", ".conf", ".json"}, filepath.Ext(path)) {
			continue
		}
		b, err := os.ReadFile(path)
		if err == nil {
			var found []Entry
			found, err = Entries(path, b)
			entries = append(entries, found...)
		}
		if err != nil {
			broken = append(broken, fmt.Errorf("%s: %w", path, err))
		}
	}
	return entries, broken, err
}

// Entries is the entries of one file: of a list, or a single configuration.
func Entries(path string, b []byte) (entries []Entry, err error) {
	var list map[string]json.RawMessage
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, err
	}
	var plugins []map[string]json.RawMessage
	if raw, ok := list["plugins"]; !ok {
		plugins = append(plugins, list)
	} else if err := json.Unmarshal(raw, &plugins); err != nil {
		return nil, fmt.Errorf("plugins: %w", err)
	}
	for _, p := range plugins {
		if p == nil {
			continue
		}
		for _, key := range []string{"name", "cniVersion"} {
			if raw, ok := list[key]; ok {
				p[key] = raw
			}
		}
		raw, _ := json.Marshal(p) // was read from JSON
		doc := Read(raw)
		entries = append(entries, Entry{File: path, Doc: doc, Network: Parse(doc)})
	}
	return entries, nil
}
