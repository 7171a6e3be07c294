package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/tracewire/tracewire/chain"
	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/chain/lock"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/bridge"
	"github.com/tracewire/tracewire/delegates/masquerade"
	"github.com/tracewire/tracewire/delegates/ptp"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/ipam"
	"github.com/tracewire/tracewire/trace"
)

// assemble binds the rooms together for one operation. ns is nil on DEL, which
// works from the host.
func (o *operation) assemble(ns *veth.Namespace) *chain.Chain {
	l := &locks{state: o.net.Tracewire.StateDir, need: ns != nil}
	c := &chain.Chain{
		Records: o.records(),
		Boot:    o.boot,
		Start:   o.start,

		Operation: cache.Operation{Name: o.name, Span: o.root.Traceparent(), Parent: o.root.Parent()},

		Lock:    l.attachment,
		Network: l.network,
		Build:   func(conf []byte, args string) (chain.Steps, error) { return o.steps(conf, args, ns, l) },
		Alive:   o.alive,
		Sandbox: o.sandbox,
		Tell:    o.tell,
		Holders: o.holders,
		Accept:  o.accept,
	}
	if ns != nil {
		c.Still = ns.Still
	}
	return c
}

// steps reads the configuration of each step.
func (o *operation) steps(conf []byte, args string, ns *veth.Namespace, l *locks) (chain.Steps, error) {
	doc, net := o.doc, o.net
	if !bytes.Equal(conf, o.stdin) { // a record's
		doc = conflist.Read(conf)
		net = conflist.Parse(doc)
	}
	pairs, argsErr := conflist.ParseArgs(args)
	s := chain.Steps{Name: net.Tracewire.Mode, Delegates: wrapped(net)}
	if s.Name == "delegate" {
		if len(net.Delegates) > 0 && net.Delegates[0].Type != "loopback" { // which takes the interface that each namespace has
			s.Vacant = func(a delegates.Attachment) error { return vacant(ns, a) }
		}
		return s, errors.Join(argsErr, doc.Err())
	}
	s.Leases = net.IPAM
	var ranges []netip.Prefix
	switch {
	case net.IPAM == "" && doc.Err() == nil: // a network without addresses
	case net.IPAM == "host-local" && !net.Tracewire.IPAMExec, net.IPAM == "":
		leases := o.leases(ipam.Parse(doc, pairs))
		s.IPAM, s.Short, ranges = leases, short, leases.Subnets()
	default:
		s.IPAM, s.Late, s.Early = delegates.Plugin{Type: net.IPAM, Step: "ipam", Durable: true}, true, net.IPAM == "dhcp"
	}
	wait := net.Tracewire.SyncDelete
	var masq masquerade.Policy
	leave := func(context.Context) error { return nil }
	if s.Name == "ptp" {
		masq = masquerade.Parse(doc, net.Name, "", ranges)
		s.Main = ptp.PTP{Conf: ptp.Parse(doc), Masquerade: masq, Namespace: ns, Wait: wait}
	} else {
		keys := bridge.Parse(doc, pairs)
		masq = masquerade.Parse(doc, net.Name, keys.Bridge, ranges)
		br := bridge.Bridge{Conf: keys, Masquerade: masq, Namespace: ns, Boot: o.boot, Wait: wait, Vacant: new(netip.Addr)}
		br.Hold = func(ctx context.Context, shared bool) (func(), error) {
			return l.network(ctx, bridge.LockKey(keys.Bridge), shared)
		}
		s.Name, s.Main, s.Shares, leave = "bridge", br, keys.RemoveBridge, br.Leave
		if leases, ok := s.IPAM.(ipam.HostLocal); ok {
			s.IPAM = o.onBridge(leases, br)
		}
	}
	s.Shares = s.Shares || masq.Shared()
	s.Last = func(ctx context.Context) error {
		return errors.Join(masquerade.RemoveAll(ctx, net.Name, wait), leave(ctx))
	}
	return s, errors.Join(argsErr, doc.Err())
}

// vacant is an error when the pod has an interface of the attachment's name.
func vacant(ns *veth.Namespace, a delegates.Attachment) error {
	host, err := veth.Dial()
	if err != nil {
		return err
	}
	defer host.Close()
	return ns.Vacant(host, a.IfName)
}

// wrapped is the steps of the configuration's delegates.
func wrapped(net conflist.Network) (out []chain.Step) {
	for i, d := range net.Delegates {
		p := delegates.Plugin{
			Type: d.Type, Step: fmt.Sprintf("delegates[%d] %s", i, d.Type), Conf: d.Conf,
			Durable: d.Durable, InPod: d.InPod, Main: i == 0 && net.Tracewire.Mode == "delegate",
		}
		w := delegates.Wrapped{Plugin: p}
		if p.Main {
			w.IPAM = conflist.Read(d.Conf).At("ipam").At("type").Text()
		}
		out = append(out, chain.Step{Name: "delegate " + d.Type, Delegate: w})
	}
	return out
}

// sandbox finds the namespace that ADD was given, at the path of the DEL or of
// the record. Without a record it is the path's, whichever is there, unless the
// interface is another attachment's.
func (o *operation) sandbox(r cache.Record, a delegates.Attachment, path string) (netns string, absent bool) {
	for _, at := range []string{path, r.NetNS} {
		if here, absent := o.at(at, r, a); here {
			return at, absent
		}
	}
	return "", true
}

// at tells whether the namespace at a path is the one that ADD was given, and
// has no interface of the attachment's name.
func (o *operation) at(path string, r cache.Record, a delegates.Attachment) (here, absent bool) {
	p, err := veth.Open(path)
	if err != nil {
		return false, true
	}
	defer p.Close()
	if !o.proven(p, r, a) {
		return false, true
	}
	_, err = p.Conn().Index(a.IfName)
	return true, veth.Gone(err)
}

// proven tells whether a namespace is the one that ADD was given, as far as the
// record goes. Without one, the interface may be of no other attachment that has
// a record: an ADD of a second one was refused, and its DEL is not to take it.
func (o *operation) proven(p *veth.Namespace, r cache.Record, a delegates.Attachment) bool {
	if r.State != cache.None {
		return r.Boot == o.boot && (r.Cookie == 0 || p.Cookie == r.Cookie)
	}
	all, _ := o.records().List()
	return p.Cookie == 0 || !slices.ContainsFunc(all, func(other cache.Stored) bool {
		return other.Boot == o.boot && other.Cookie == p.Cookie && other.IfName == a.IfName
	})
}

func (o *operation) records() cache.Dir {
	d := cache.In(o.net.Tracewire.StateDir)
	d.Sync = o.net.Tracewire.Sync
	return d
}

// locks is the locks of one operation. Where the state directory is missing, or
// cannot be written, a DEL has no record to guard: it goes on without.
type locks struct {
	state string
	need  bool // the operation cannot do without
	file  *lock.Ranges
}

// open opens the lock file, once: closing it would drop all locks. It is nil
// where the operation goes on without.
func (l *locks) open(ctx context.Context) (_ *lock.Ranges, err error) {
	if l.file != nil {
		return l.file, nil
	}
	path := filepath.Join(l.state, "lock")
	l.file, err = lock.OpenRanges(path)
	if errors.Is(err, fs.ErrNotExist) && l.need {
		if err = os.MkdirAll(l.state, 0o700); err == nil {
			l.file, err = lock.OpenRanges(path)
		}
	}
	if err != nil && !l.need {
		if !errors.Is(err, fs.ErrNotExist) {
			trace.Warn(ctx, "attachment is not locked", trace.KeyError.String(err.Error()))
		}
		return nil, nil
	}
	return l.file, err
}

// attachment takes the attachment's lock.
func (l *locks) attachment(ctx context.Context, a delegates.Attachment) (unlock func(), err error) {
	return l.network(ctx, a.String(), false)
}

// network takes the lock of a network, or of another key that no attachment has.
func (l *locks) network(ctx context.Context, network string, shared bool) (unlock func(), err error) {
	file, err := l.open(ctx)
	if file == nil || err != nil {
		return func() {}, err
	}
	if shared {
		return file.Share(ctx, network)
	}
	return file.Lock(ctx, network)
}

// alive tells whether what a record stands for is there: a host end that is
// proven to be its own, or in mode delegate the pod's interface, and its
// namespace at the path that ADD was given.
func (o *operation) alive(_ context.Context, r cache.Record) (bool, error) {
	made := r.Result.Get()
	if made == nil {
		return false, nil
	}
	if conflist.Parse(conflist.Read(r.Conf)).Tracewire.Mode == "delegate" {
		netns, absent := o.sandbox(r, r.Attachment, r.NetNS)
		return netns != "" && !absent, nil
	}
	return veth.Alive(r.String(), made, r.NetNS, r.Cookie)
}
