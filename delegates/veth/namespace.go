// Package veth plugs a pod's network namespace into the host: opening a
// namespace and its identity, the rtnetlink batches that make a veth pair,
// addresses and routes, and the child that waits for a pair's removal.
package veth

import (
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
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
	Cookie uint64 // its identity until the next boot
	Own    bool   // it is the namespace that this program runs in

	ns   ns.NetNS
	conn *Conn // opened in the namespace
}

// Open opens the network namespace at a path. An error that is an
// ErrNoNamespace tells that there is none.
func Open(path string) (*Namespace, error) {
	n, err := ns.GetNS(path)
	if err != nil {
		return nil, notOne(path, err)
	}
	p := &Namespace{Path: path, ns: n}
	if err := p.identify(); err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

func notOne(path string, err error) error {
	var missing ns.NSPathNotExistErr
	var other ns.NSPathNotNSErr
	if errors.As(err, &missing) || errors.As(err, &other) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w at %q: %w", ErrNoNamespace, path, err)
	}
	return fmt.Errorf("open %q: %w", path, err)
}

// identify reads who the namespace is. A path of procfs may name a namespace
// of another kind: the kernel refuses to enter that.
func (p *Namespace) identify() error {
	var st, own unix.Stat_t
	if err := unix.Fstat(int(p.ns.Fd()), &st); err != nil {
		return err
	}
	p.Inode = st.Ino
	if unix.Stat("/proc/thread-self/ns/net", &own) == nil {
		p.Own = own.Ino == st.Ino && own.Dev == st.Dev
	}
	err := p.ns.Do(func(ns.NetNS) (err error) {
		p.conn, err = Dial()
		return err
	})
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: %w", ErrNoNamespace, err)
	}
	if err == nil {
		p.Cookie = p.conn.Cookie()
	}
	return err
}

// Close lets go of the namespace.
func (p *Namespace) Close() error {
	if p.conn != nil {
		_ = p.conn.Close()
	}
	return p.ns.Close()
}

// Do runs do in the namespace, on a thread of its own. A panic there, which no
// caller could recover, becomes an error.
func (p *Namespace) Do(do func() error) error {
	return p.ns.Do(func(ns.NetNS) (err error) {
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("panic: %v", r)
			}
		}()
		return do()
	})
}

// Conn is an rtnetlink socket in the namespace.
func (p *Namespace) Conn() *Conn { return p.conn }

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
