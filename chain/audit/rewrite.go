package audit

import (
	"context"
	"errors"
	"os"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
)

// lost is what libcni keeps of an attachment whose record is lost.
type lost struct {
	cache.File
	entry  conflist.Entry // of ours in its list
	config config
	given  cache.Given
	made   *types100.Result
}

// lostIn reads it from one of libcni's files. A record can be written from it where
// all that was made is told there: what executables did is not.
func lostIn(path string, a delegates.Attachment) (l lost, ok bool) {
	f, lives := livingEntry(path, a)
	if !lives || len(f.NetNS) == 0 {
		return l, false
	}
	entries, err := conflist.Entries(f.Path, f.List())
	at := slices.IndexFunc(entries, conflist.Entry.Ours)
	if err != nil || at < 0 {
		return l, false
	}
	l = lost{File: f, entry: entries[at], config: configOf(entries[at].Doc, entries[at].Network)}
	if l.given, err = f.Given(); err != nil {
		return l, false
	}
	l.made, err = delegates.Previous(l.given.Result)
	executed := len(l.entry.Delegates) > 0 || l.entry.IPAM != "" && l.config.store == ""
	return l, err == nil && !executed
}

// dir is where its record belongs.
func (l lost) dir() cache.Dir { return cache.In(l.entry.Tracewire.StateDir) }

// reserved is the addresses of the result that are of the network's ranges.
func (l lost) reserved() *types100.Result {
	out := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	for _, ip := range l.made.IPs {
		if l.config.leases.Serves(veth.Addr(ip.Address.IP)) {
			own := *ip
			own.Interface = nil
			out.IPs = append(out.IPs, &own)
		}
	}
	return out
}

// writeRecord writes a record again that was lost, from what libcni keeps of the
// attachment, if that lives.
func (n Node) writeRecord(ctx context.Context, r Repair) error {
	l, ok := lostIn(r.Path, r.Attachment)
	if !ok || l.Stamp != r.Stamp {
		return nil
	}
	p, err := veth.Open(l.NetNS[0])
	if errors.Is(err, veth.ErrNoNamespace) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	d := l.dir()
	if err := os.MkdirAll(l.entry.Tracewire.StateDir, 0o700); err != nil {
		return err
	}
	return locked(ctx, d, r.Attachment.String(), func() error {
		if alive, err := veth.Alive(r.Attachment.String(), l.made, p.Path, p.Cookie); err != nil || !alive || n.recorded(r.Attachment) {
			return err
		}
		return d.Rewrite(cache.Intent{
			Attachment: r.Attachment, Conf: []byte(lasting(l.entry.Doc)), Args: l.given.Args,
			NetNS: p.Path, Inode: p.Inode, Cookie: p.Cookie, Boot: n.Boot,
		}, l.Changed, l.reserved(), l.made)
	})
}

// recorded tells that an attachment has a record by now.
func (n Node) recorded(a delegates.Attachment) bool {
	return slices.ContainsFunc(n.dirs(), func(d cache.Dir) bool { return d.Recorded(a) })
}
