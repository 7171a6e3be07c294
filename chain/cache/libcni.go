package cache

import (
	"cmp"
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

// maxEntry is the longest file of libcni's in bytes: a list and a result of 4 MiB
// each, one of them in base64.
const maxEntry = 16 << 20

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
	Config    string       // the network configuration list, base64; empty where it tells of none
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
		b, _, err := readRegular(filepath.Join(dir, name), maxEntry)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if e, _ := readEntry(name, b); e.Network == "" || e.Network == network {
			all = append(all, e)
		}
	}
	return all, err
}

// cached is a file of libcni's, as JSON: an envelope, or of libcni before cni v0.8
// the result itself.
type cached struct {
	Kind, ContainerID, IfName, NetworkName, NetNS, Config string

	Result *made
	made
}

// made is what counts of a result of any version.
type made struct {
	Interfaces []struct{ Name, Sandbox string }
	IPs        []struct{ Address string }
	IP4, IP6   struct{ IP string } // before 0.3.0
}

// readEntry reads a file's content. What cannot be read, as an empty one that a
// crash left, has its name alone, and an error.
func readEntry(name string, b []byte) (Entry, error) {
	e := Entry{Name: name}
	var t cached
	err := json.Unmarshal(b, &t)
	if kind := new(json.UnmarshalTypeError); err != nil && (!errors.As(err, &kind) || kind.Field == "") {
		return e, err // a member of another type is passed over
	}
	r := &t.made
	if t.Kind == "cniCacheV1" {
		e.Attachment = delegates.Attachment{Network: t.NetworkName, ContainerID: t.ContainerID, IfName: t.IfName}
		e.Config = t.Config
		r = cmp.Or(t.Result, &made{})
	}
	e.Addresses = r.addresses()
	for _, i := range r.Interfaces {
		if i.Sandbox == "" {
			e.Host = append(e.Host, i.Name)
		} else {
			e.NetNS = append(e.NetNS, i.Sandbox)
		}
	}
	if t.NetNS != "" {
		e.NetNS = []string{t.NetNS}
	}
	return e, nil
}

// addresses is a result's; what is none is passed over.
func (m made) addresses() (out []netip.Addr) {
	texts := []string{m.IP4.IP, m.IP6.IP}
	for _, ip := range m.IPs {
		texts = append(texts, ip.Address)
	}
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Addr().Unmap())
		}
	}
	return out
}

// is tells whether it is an attachment's. An IfName of "" stands for any
// interface of the container.
func (e Entry) is(a delegates.Attachment) bool {
	if e.Network != "" {
		return e.ContainerID == a.ContainerID && (a.IfName == "" || e.IfName == a.IfName)
	}
	name := EntryName(a)
	return e.Name == name || a.IfName == "" && strings.HasPrefix(e.Name, name)
}

// EntryName is what libcni calls an attachment's file. It is never split: each
// part may hold hyphens. Without an IfName all of the container's begin so.
func EntryName(a delegates.Attachment) string {
	return a.Network + "-" + a.ContainerID + "-" + a.IfName
}
