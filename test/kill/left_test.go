//go:build linux

package kill

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// left is what there is of attachments, in words; "" for nothing. What a child
// of a killed plugin is just removing is waited for.
func (w *worker) left() string {
	if w.look() == "" {
		return ""
	}
	if err := w.wait(); err != nil {
		return err.Error()
	}
	return w.look()
}

// look is read with few system calls: there are thousands of looks.
func (w *worker) look() string {
	files, errFiles := w.node.Files()
	links, errLinks := w.links()
	rules, errRules := rules()
	if err := errors.Join(errFiles, errLinks, errRules); err != nil {
		return err.Error()
	}
	// What stands in quarantine is evidence, for people.
	files = slices.DeleteFunc(files, func(s string) bool { return strings.HasPrefix(s, "state/quarantine/") })
	all := slices.Concat(files, links, rules)
	for _, path := range w.shared() {
		if !slices.Contains(w.files, path) {
			all = append(all, path)
		}
	}
	if n := mounts(); n != w.mounts {
		all = append(all, fmt.Sprintf("%d mounts instead of %d", n, w.mounts))
	}
	return strings.Join(all, ", ")
}

// links is the interfaces of host and pod, but for those that stay.
func (w *worker) links() (out []string, err error) {
	stay := []string{"lo"}
	if !w.bridge {
		stay = append(stay, "tb0")
	}
	if w.uplink {
		stay = append(stay, "up-out")
	}
	pod, err := w.node.Pod("pod")
	if err != nil {
		return nil, err
	}
	out = interfaces("host", stay)
	host, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer host.Close()
	if err := pod.Set(); err != nil {
		return nil, err
	}
	out = append(out, interfaces("pod", []string{"lo"})...)
	return out, unix.Setns(int(host.Fd()), unix.CLONE_NEWNET)
}

// interfaces is those of the calling thread's namespace.
func interfaces(where string, stay []string) (out []string) {
	b, _ := os.ReadFile("/proc/thread-self/net/dev")
	for line := range strings.Lines(string(b)) {
		if name, _, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && !slices.Contains(stay, name) {
			out = append(out, where+"/"+name)
		}
	}
	return out
}

// ofAttachments is what the kernel's lists of nf_tables have in them where
// something stands for an attachment: names of tables and chains, and comments.
// portmap's has the container's id alone.
var ofAttachments = []string{"tracewire", "CNI-", "cni-br-iface", "macspoofchk", "name: ", idPrefix}

// rules is the tables, chains and rules of attachments. iptables of today is
// one way to write them.
func rules() (out []string, err error) {
	for kind, name := range map[int]string{unix.NFT_MSG_GETTABLE: "table", unix.NFT_MSG_GETCHAIN: "chain", unix.NFT_MSG_GETRULE: "rule"} {
		req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_DUMP)
		req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_UNSPEC, Version: unix.NFNETLINK_V0})
		all, err := req.Execute(unix.NETLINK_NETFILTER, 0)
		if err != nil {
			return nil, err
		}
		for _, one := range all {
			for _, mark := range ofAttachments {
				if bytes.Contains(one, []byte(mark)) {
					out = append(out, fmt.Sprintf("%s with %q", name, mark))
				}
			}
		}
	}
	return out, nil
}

// wait waits for the end of all processes that plugins left. They are our
// children by then, so that there is an event for each.
func (w *worker) wait() error {
	end := time.After(patience)
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.ECHILD):
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		case pid != 0:
			continue
		}
		select {
		case <-w.ended:
		case <-end:
			return fmt.Errorf("a process is left after %s", patience)
		}
	}
}

// shared is the files in the folders beside the node's own. The list of what an
// earlier boot left is of this boot, and stays; so does the number of a child.
func (w *worker) shared() (out []string) {
	for _, dir := range shared {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if list, _ := filepath.Match("/run/tracewire/*/earlier-*", path); err == nil && !d.IsDir() && !list && path != "/run/tracewire/reaped" {
				out = append(out, path)
			}
			return nil
		})
	}
	return out
}

// mounts is how many there are.
func mounts() int {
	b, _ := os.ReadFile("/proc/thread-self/mountinfo")
	return strings.Count(string(b), "\n")
}
