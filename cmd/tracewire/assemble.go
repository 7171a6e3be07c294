package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tracewire/tracewire/chain"
	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/chain/lock"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/bridge"
	"github.com/tracewire/tracewire/delegates/ptp"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/ipam"
	"github.com/tracewire/tracewire/trace"
)

// assemble binds the rooms together for one operation. ns is nil on DEL, which
// works from the host.
func (o *operation) assemble(ns *veth.Namespace) *chain.Chain {
	state := o.net.Tracewire.StateDir
	return &chain.Chain{
		Records: cache.Dir{Path: filepath.Join(state, "attachments"), Sync: o.net.Tracewire.Sync},
		Boot:    o.boot,
		Start:   o.start,
		Lock: func(ctx context.Context, a delegates.Attachment) error {
			return takeLock(ctx, state, a, ns != nil)
		},
		Build:  func(conf []byte, args string) (chain.Steps, error) { return o.steps(conf, args, ns) },
		Alive:  alive,
		Accept: o.accept,
	}
}

// steps reads the configuration of each step.
func (o *operation) steps(conf []byte, args string, ns *veth.Namespace) (chain.Steps, error) {
	doc, net := o.doc, o.net
	if !bytes.Equal(conf, o.stdin) { // a record's
		doc = conflist.Read(conf)
		net = conflist.Parse(doc)
	}
	pairs, argsErr := conflist.ParseArgs(args)
	s := chain.Steps{Name: net.Tracewire.Mode}
	switch wait := net.Tracewire.SyncDelete; s.Name {
	case "ptp":
		s.Main = ptp.PTP{Conf: ptp.Parse(doc), Namespace: ns, Wait: wait}
	default:
		s.Name, s.Main = "bridge", bridge.Bridge{Conf: bridge.Parse(doc, pairs), Namespace: ns, Boot: o.boot, Wait: wait}
	}
	switch {
	case net.IPAM == "" && doc.Err() == nil: // a network without addresses
	case net.IPAM == "host-local" && !net.Tracewire.IPAMExec, net.IPAM == "":
		s.IPAM = ipam.Parse(doc, pairs)
	default:
		s.IPAM, s.Late, s.Early = delegates.Plugin{Type: net.IPAM}, true, net.IPAM == "dhcp"
	}
	return s, errors.Join(argsErr, doc.Err())
}

// takeLock takes the attachment's lock for as long as this process lives. Where
// the state directory is missing, or can not be written, a DEL has no record
// to guard: it goes on without.
func takeLock(ctx context.Context, state string, a delegates.Attachment, need bool) error {
	path := filepath.Join(state, "lock")
	l, err := lock.OpenRanges(path)
	if errors.Is(err, fs.ErrNotExist) && need {
		if err = os.MkdirAll(state, 0o700); err == nil {
			l, err = lock.OpenRanges(path)
		}
	}
	if err != nil && !need {
		if !errors.Is(err, fs.ErrNotExist) {
			trace.Warn(ctx, "attachment is not locked", trace.KeyError.String(err.Error()))
		}
		return nil
	}
	if err != nil {
		return err
	}
	_, err = l.Lock(ctx, a.String())
	return err
}

// alive tells whether what a record stands for is there: a host end that is
// proven to be its own, and its namespace at the path that ADD was given.
func alive(_ context.Context, r cache.Record) (bool, error) {
	made := r.Result.Get()
	if made == nil {
		return false, nil
	}
	return veth.Alive(r.String(), made, r.NetNS, r.Cookie)
}
