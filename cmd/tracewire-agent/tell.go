package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/chain/lock"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// lockPatience is how long an attachment's lock is waited for. Who holds it is
// alive, and tells of itself.
const lockPatience = 50 * time.Millisecond

// teller writes the spans of operations whose process was killed, as the plugin
// does at the next operation on the attachment: here nobody has to wait for one.
type teller struct {
	boot, version string
	getenv        func(string) string
	locks         map[string]*lock.Ranges // by state directory: closing one would drop its locks
}

// tell tells of all operations in a state directory that were killed. It returns
// how many. Where others may write, a record that they planted would choose where
// we make files: none is read there.
func (t *teller) tell(ctx context.Context, stateDir string) (told int, err error) {
	records := cache.In(stateDir)
	if err := records.Trusted(); err != nil {
		return 0, err
	}
	var killed []delegates.Attachment
	errs := []error{records.Each(func(s cache.Stored) {
		if _, untold := s.Untold(); untold {
			killed = append(killed, s.Attachment)
		}
	})}
	for _, a := range killed {
		one, err := t.one(ctx, stateDir, records, a)
		if one {
			told++
		}
		errs = append(errs, err)
	}
	return told, errors.Join(errs...)
}

// one tells of one operation, under the attachment's lock.
func (t *teller) one(ctx context.Context, stateDir string, records cache.Dir, a delegates.Attachment) (told bool, err error) {
	unlock, err := t.lock(ctx, stateDir, a.String())
	if held := (*lock.Held)(nil); errors.As(err, &held) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unlock()
	r, err := records.Read(a)
	if err != nil {
		return false, err
	}
	if _, untold := r.Untold(); !untold {
		return false, nil
	}
	args, _ := conflist.ParseArgs(r.Args)
	told, err = r.Tell(func() trace.Sink { return t.sink(r) }, trace.OfPod(args)...)
	if err != nil {
		return false, err
	}
	j, err := records.Open(r, a, time.Now())
	if err != nil {
		return false, err
	}
	return told, errors.Join(j.Told(), j.Close())
}

func (t *teller) lock(ctx context.Context, stateDir, key string) (unlock func(), err error) {
	l := t.locks[stateDir]
	if l == nil {
		if l, err = lock.OpenRanges(filepath.Join(stateDir, "lock")); err != nil {
			return nil, err
		}
		t.locks[stateDir] = l
	}
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	return l.Lock(ctx, key)
}

// sink is where the operation would have told of itself.
func (t *teller) sink(r cache.Record) trace.Sink {
	n := conflist.Parse(conflist.Read(r.Conf)).Tracewire
	return trace.Sink{
		Resource: trace.Resource(t.version, t.boot, t.getenv),
		Spool:    trace.Spool{Dir: n.SpoolDir, MaxBytes: n.SpoolBytes},
		Log:      trace.Log{Path: n.LogPath, Level: n.LogLevel},
	}
}

// tell tells of what was killed, in all state directories.
func (a *agent) tell(ctx context.Context) error {
	nets, err := a.networks()
	errs := []error{err}
	for _, dir := range places(nil, nets, stateDir) {
		told, err := a.teller.tell(ctx, dir)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", dir, err))
		}
		if told > 0 {
			a.log.Info().Str("state", dir).Int("operations", told).Msg("operations were killed: their spans are written now")
		}
	}
	return errors.Join(errs...)
}
