//go:build linux

package attach

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// Files is the files below the node's state and IPAM folders and libcni's
// cache, as paths relative to Dir, that stand for an attachment: no locks, no
// cursors of host-local, no telemetry, nothing that the operator's command keeps.
func (n *Node) Files() (out []string, err error) {
	for _, dir := range []string{"state", "ipam", "cache"} {
		err := filepath.WalkDir(filepath.Join(n.Dir, dir), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || d.IsDir() {
				return err
			}
			name, err := filepath.Rel(n.Dir, path)
			if d.Name() != "lock" && !strings.HasPrefix(d.Name(), "last_reserved_ip.") && !strings.HasPrefix(name, "state/spool/") && !strings.HasPrefix(name, "state/audit.") {
				out = append(out, name)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Left is all that an attachment leaves behind, files, interfaces and rules;
// nothing after the last DEL.
func (n *Node) Left() ([]string, error) {
	files, errFiles := n.Files()
	links, errLinks := n.Links()
	rules, errRules := n.RulesLeft()
	return slices.Concat(files, links, rules), errors.Join(errFiles, errLinks, errRules)
}
