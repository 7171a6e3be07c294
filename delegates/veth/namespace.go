// Package veth plugs a pod's network namespace into the host: opening a
// namespace and its identity, the rtnetlink batches that make a veth pair,
// addresses and routes, and the child that waits for a pair's removal.
package veth

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
)

var (
	// ErrNoNamespace marks a path where no network namespace is.
	ErrNoNamespace = errors.New("no network namespace")
	// ErrOwnNamespace marks a pod's namespace that is our own.
	ErrOwnNamespace = errors.New("network namespace of the plugin itself")
)

// Namespace is a pod's network namespace, held open.
type Namespace struct {
	Path   string // as CNI_NETNS names it
	Inode  uint64 // of the namespace: used again as soon as it is gone
	Cookie uint64 // its identity until the next boot, 0 where the kernel has none
	Own    bool   // it is the namespace that this program runs in

	fd   int
	conn *Conn // opened in the namespace
}

// Open opens the network namespace at a path. An error that is an
// ErrNoNamespace tells that there is none.
func Open(path string) (*Namespace, error) {
	// Without O_NONBLOCK a named pipe at the path would be waited for.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENXIO) {
		return nil, fmt.Errorf("%w at %q: %w", ErrNoNamespace, path, err)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	p := &Namespace{Path: path, fd: fd}
	err = p.identify()
	if err == nil {
		return p, nil
	}
	p.Close()
	if errors.Is(err, errOther) || errors.Is(err, unix.EINVAL) { // a namespace of another kind
		return nil, fmt.Errorf("%w at %q: %w", ErrNoNamespace, path, err)
	}
	return nil, fmt.Errorf("%q: %w", path, err)
}

var errOther = errors.New("something else is there")

// identify reads who the namespace is. The kernel refuses to enter one of
// another kind.
func (p *Namespace) identify() error {
	var kind unix.Statfs_t
	if err := unix.Fstatfs(p.fd, &kind); err != nil {
		return err
	}
	if kind.Type != unix.NSFS_MAGIC {
		return errOther
	}
	var st, own unix.Stat_t
	if err := unix.Fstat(p.fd, &st); err != nil {
		return err
	}
	p.Inode = st.Ino
	if unix.Stat(ownPath, &own) == nil {
		p.Own = own.Ino == st.Ino && own.Dev == st.Dev
	}
	err := p.Do(func() (err error) {
		p.conn, err = Dial()
		return err
	})
	if err == nil {
		p.Cookie = p.conn.Cookie()
	}
	return err
}

// Close lets go of the namespace.
func (p *Namespace) Close() {
	if p.conn != nil {
		p.conn.Close()
	}
	_ = unix.Close(p.fd)
}

// StateOf tells why no network namespace is at a path: "missing" or "not a
// namespace"; "" where one is. It does not open it.
func StateOf(path string) string {
	var kind unix.Statfs_t
	switch err := unix.Statfs(path, &kind); {
	case err != nil:
		return "missing"
	case kind.Type != unix.NSFS_MAGIC:
		return "not a namespace"
	}
	return ""
}

// Missing tells that no network namespace can be at a path. Where one cannot
// look, one may be.
func Missing(path string) bool {
	var kind unix.Statfs_t
	err := unix.Statfs(path, &kind)
	if err == nil {
		return kind.Type != unix.NSFS_MAGIC
	}
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)
}

const ownPath = "/proc/thread-self/ns/net"

// Do runs do in the namespace, on the calling goroutine: a goroutine of its
// own, as pkg/ns of the reference plugins has, costs a thread each time. do
// starts no goroutine. A thread that cannot come back is never used again.
func (p *Namespace) Do(do func() error) (err error) {
	runtime.LockOSThread()
	back, err := unix.Open(ownPath, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(back)
		err = unix.Setns(p.fd, unix.CLONE_NEWNET)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter: %w", err)
	}
	defer func() {
		if lost := unix.Setns(back, unix.CLONE_NEWNET); lost != nil {
			fmt.Fprintf(os.Stderr, "tracewire: leave %s: %v\n", p.Path, lost)
			os.Exit(1)
		}
		runtime.UnlockOSThread()
	}()
	return do()
}

// Conn is an rtnetlink socket in the namespace.
func (p *Namespace) Conn() *Conn { return p.conn }

// namespaceID is the number that the connection's namespace has for another
// one, -1 for none (linux/net_namespace.h).
func (c *Conn) namespaceID(other *Namespace) (int, error) {
	var m batch
	m.Add("look up namespace", unix.RTM_GETNSID, 0)
	m.Raw(0, 0, 0, 0)
	m.U32(unix.NETNSA_FD, uint32(other.fd))
	m.End()
	body, err := c.Ask(&m.Batch)
	id := -1
	if len(body) >= 4 {
		netlink.Walk(body[4:], func(kind uint16, d []byte) {
			if kind == unix.NETNSA_NSID {
				id = int(int32(netlink.Uint32(d)))
			}
		})
	}
	return id, err
}

// Vacant is an error, ErrExists, when the namespace has an interface of that
// name; it says whose it is.
func (p *Namespace) Vacant(host *Conn, name string) error {
	l, err := p.conn.LinkByName(name)
	if Gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	owner := "somebody else's"
	if l.Kind == "veth" && l.Peer != 0 {
		if peer, err := host.LinkByIndex(l.Peer); err == nil && peer.Peer == l.Index && Owner(peer.Alias) != "" {
			owner = "owned by " + Owner(peer.Alias)
		}
	}
	return fmt.Errorf("%w: %s in %s, %s", ErrExists, name, p.Path, owner)
}

// Still tells whether the path still names this namespace: a runtime may have
// taken the pod away meanwhile.
func (p *Namespace) Still() error {
	var st unix.Stat_t
	if err := unix.Stat(p.Path, &st); err != nil || st.Ino != p.Inode {
		return fmt.Errorf("%w any more at %q: it was replaced or removed meanwhile", ErrNoNamespace, p.Path)
	}
	return nil
}

// Alive tells whether an attachment is there: a host end of one of its
// result's names that has its alias, and at the path the namespace of that
// cookie. A cookie of 0, of an older kernel, is not compared.
func Alive(attachment string, r *types100.Result, path string, cookie uint64) (bool, error) {
	host, err := Dial()
	if err != nil {
		return false, err
	}
	defer host.Close()
	there := false
	for _, i := range r.Interfaces {
		if i.Sandbox != "" {
			continue
		}
		l, err := host.LinkByName(i.Name)
		if err != nil && !Gone(err) {
			return false, err
		}
		there = there || err == nil && l.Alias == Alias(attachment)
	}
	if !there {
		return false, nil
	}
	p, err := Open(path)
	if errors.Is(err, ErrNoNamespace) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer p.Close()
	return cookie == 0 || p.Cookie == cookie, nil
}
