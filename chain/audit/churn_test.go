package audit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
)

// TestChurn: nothing is wrong on a node that is at work, and nothing is found,
// however its operations and the looks fall together.
func TestChurn(t *testing.T) {
	for name, tt := range map[string]struct {
		list, backend string
		workers       int
	}{
		"ours": {ours, "nftables", 4}, "ours, one at a time": {ours, "nftables", 1},
		"theirs": {theirs, "nftables", 4}, "theirs, iptables": {strings.Replace(theirs, "nftables", "iptables", 1), "iptables", 4},
	} {
		t.Run(name, func(t *testing.T) {
			netns.Need(t, "iptables", "ip6tables", "nft")
			w := newWorld(t, tt.list, tt.workers/2)
			if tt.workers > 1 { // two of portmap's first at once would fail: each makes the chains that all share
				w.publish("first", tt.backend)
			} else {
				w.map6(tt.backend)
			}
			var running sync.WaitGroup
			var over atomic.Int64
			const turns = 12
			for i := range tt.workers {
				pod := fmt.Sprintf("w%d", i)
				a := w.attachment(pod)
				if i%2 == 0 {
					a = w.published(pod, 8000+i)
				}
				_, err := w.Pod(pod)
				w.must(err)
				running.Go(func() {
					defer over.Add(1)
					for range turns {
						if err := w.turn(a); err != nil {
							t.Error(err)
						}
					}
				})
			}
			looks := 0
			for ; over.Load() < int64(tt.workers); looks++ {
				for _, f := range w.look() {
					t.Errorf("found on a node that is well: %s", w.full(f))
				}
			}
			running.Wait()
			t.Logf("%d looks beside %d operations", looks, 2*tt.workers*turns)
		})
	}
}

// turn attaches a pod and detaches it.
func (w *world) turn(a attach.Attachment) error {
	return w.In("host", func() error {
		_, err := w.Add(context.Background(), a)
		return errors.Join(err, w.Del(context.Background(), a))
	})
}
