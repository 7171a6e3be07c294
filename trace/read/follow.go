package read

import (
	"bytes"
	"context"
	"time"
)

// Follow hands on the operations that a log and its path.1 tell of by now, none
// too, and then the new ones each time some were appended, until ctx ends. The
// log may be rotated, by renaming or by truncating, and may come to be later.
func Follow(ctx context.Context, path string, every time.Duration, each func([]Entry)) error {
	t := Tail{Path: path}
	defer t.Close()
	if err := t.find(); err != nil {
		return err
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	each(t.entries())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if found := t.entries(); len(found) > 0 {
			each(found)
		}
	}
}

// room is how much is read of a log at once, in bytes.
const room = 64 << 10

// entries is the operations that were appended since.
func (t *Tail) entries() (found []Entry) {
	for {
		chunk, _, err := t.Next(room)
		if err != nil || len(chunk) == 0 {
			return found // looked at again at the next tick
		}
		_, _ = entries(bytes.NewReader(chunk), func(e Entry) bool { found = append(found, e); return true })
	}
}
