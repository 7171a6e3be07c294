package cache

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
)

// libcni is the folders in which a runtime's libcni keeps results: its own, and
// those of programs that stand between, as multus. Plugins are told of none.
const libcni = "/var/lib/cni"

// LibcniDirs is those of them that are there.
func LibcniDirs() []string {
	between, _ := filepath.Glob(libcni + "/*/results") // the pattern is right
	return append(between, libcni+"/results")
}

// Entry is what libcni keeps of an attachment. Reference: cni v1.3.1,
// libcni/api.go, cachedInfo.
type Entry struct {
	delegates.Attachment // the zero one where the file cannot be read
	// Name is the file's: network, container id and interface name joined by
	// hyphens, which each of them may hold. It is put together, never split.
	Name  string
	NetNS []string // paths of the pod's network namespace; none where it tells of none
	Host  []string // names of interfaces outside of it

	Addresses []netip.Addr // of the result, where it can be read
}

// Entries is what libcni keeps of a network's attachments in folders, and of
// others whose files cannot be told from them. One that is not there holds none.
func Entries(network string, dirs ...string) (all []Entry, err error) {
	var errs []error
	for _, dir := range dirs {
		some, err := entries(dir, network)
		all, errs = append(all, some...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

func entries(dir, network string) (all []Entry, err error) {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	names, err := d.Readdirnames(-1)
	for _, name := range names {
		if !strings.HasPrefix(name, network+"-") {
			continue
		}
		b, err := readFile(filepath.Join(dir, name))
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if e := readEntry(name, b); e.Network == "" || e.Network == network {
			all = append(all, e)
		}
	}
	return all, err
}

// readEntry reads a file's content. What cannot be read, as an empty one that a
// crash left, has its name alone.
func readEntry(name string, b []byte) Entry {
	type result struct {
		Interfaces []struct{ Name, Sandbox string }
	}
	var t struct {
		Kind, ContainerID, IfName, NetworkName, NetNS string

		Result json.RawMessage
	}
	e := Entry{Name: name}
	if json.Unmarshal(b, &t) != nil {
		return e
	}
	raw := json.RawMessage(b) // of libcni before cni v0.8: the file is the result
	if t.Kind == "cniCacheV1" {
		e.Attachment = delegates.Attachment{Network: t.NetworkName, ContainerID: t.ContainerID, IfName: t.IfName}
		raw = t.Result
	}
	var made result
	_ = json.Unmarshal(raw, &made) // what cannot be read tells nothing
	e.Addresses = delegates.Addresses(delegates.Salvage(raw))
	for _, i := range made.Interfaces {
		if i.Sandbox == "" {
			e.Host = append(e.Host, i.Name)
		} else {
			e.NetNS = append(e.NetNS, i.Sandbox)
		}
	}
	if t.NetNS != "" {
		e.NetNS = []string{t.NetNS}
	}
	return e
}

// is tells whether it is an attachment's. An IfName of "" stands for any
// interface of the container.
func (e Entry) is(a delegates.Attachment) bool {
	if e.Network != "" {
		return e.ContainerID == a.ContainerID && (a.IfName == "" || e.IfName == a.IfName)
	}
	name := a.Network + "-" + a.ContainerID + "-" + a.IfName
	return e.Name == name || a.IfName == "" && strings.HasPrefix(e.Name, name)
}
