package audit

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/test/netns"
)

// TestUnread: a source that cannot be looked at is told of, and the others are
// looked at all the same. Nothing is waited for, and nothing huge is read.
func TestUnread(t *testing.T) {
	w := newWorld(t, ours, 1)
	w.put("ipam/net/10.213.0.9", "gone\r\neth0")
	w.put("file", "")
	w.must(unix.Mkfifo(w.Dir+"/cache/results/net-fifo-eth0", 0o600))
	w.must(unix.Mkfifo(w.Dir+"/ipam/net/10.213.0.10", 0o600))
	w.must(unix.Mkfifo(w.Dir+"/state/attachments/net/fifo:eth0", 0o600))
	for _, name := range []string{"cache/results/net-huge-eth0", "ipam/net/10.213.0.11", "state/attachments/net/huge:eth0"} {
		w.put(name, "")
		w.must(os.Truncate(filepath.Join(w.Dir, name), 1<<36)) // a hole
	}
	w.must(os.MkdirAll(w.Dir+"/other", 0o700))
	w.must(os.Symlink(w.Dir+"/state/attachments", w.Dir+"/other/attachments"))
	n := w.node()
	n.StateDirs = append(n.StateDirs, w.Dir+"/other", w.Dir+"/none")
	n.CacheDirs = append(n.CacheDirs, w.Dir+"/file", w.Dir+"/none")
	n.DataDirs = append(n.DataDirs, w.Dir+"/file", w.Dir+"/none")
	var found []Finding
	var unread []string
	_, err := n.Audit(t.Context(), Told{
		Finding: func(f Finding) { found = append(found, f) },
		Unread:  func(u Unread) { unread = append(unread, string(u.Source)+" "+w.Normal(u.Path)) },
	})
	w.must(err)
	slices.Sort(unread)
	if want := []string{"ipam @DIR@/file", "libcni @DIR@/file", "records @DIR@/other/attachments"}; !slices.Equal(unread, want) {
		t.Errorf("unread %q, want %q", unread, want)
	}
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(w.line(a), w.line(b)) })
	w.expect(found,
		"broken-libcni-entry @DIR@/cache/results/net-fifo-eth0 remove-libcni-entry",
		"broken-libcni-entry @DIR@/cache/results/net-huge-eth0 remove-libcni-entry",
		"broken-record net/fifo:eth0 del",
		"broken-record net/huge:eth0 del",
		"empty-reservation 10.213.0.10 remove-reservation",
		"empty-reservation 10.213.0.11 remove-reservation",
		"leaked-address 10.213.0.9 del")
}

// TestUnreadRules: iptables that fails is told of once, and what nf_tables has is
// found all the same. Without it there is nothing to tell.
func TestUnreadRules(t *testing.T) {
	for _, tt := range []struct{ name, program, unread string }{
		{"fails", "#!/bin/sh\necho no such table >&2\nexit 3\n", "rules: iptables: iptables: exit status 3: no such table"},
		{"missing", "", ""},
		{"fails at the end", "#!/bin/sh\n[ -e ${0%/*}/ran ] && { echo no such table >&2; exit 3; }\n: >${0%/*}/ran\n", "rules: iptables: iptables: exit status 3: no such table"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, ours, 1)
			w.publish("p1", "nftables")
			w.lose("p1")
			if tt.program != "" {
				w.put("bin/iptables", tt.program)
				w.must(os.Chmod(w.Dir+"/bin/iptables", 0o755)) //nolint:gosec // it is to be run
			}
			t.Setenv("PATH", w.Dir+"/bin")
			var found []Finding
			unread := ""
			_, err := w.node().Audit(t.Context(), Told{
				Finding: func(f Finding) { found = append(found, f) },
				Unread:  func(u Unread) { unread += u.Error() },
			})
			w.must(err)
			w.expect(found, "stale-portmap net/p1 del")
			if unread != tt.unread {
				t.Errorf("unread %q, want %q", unread, tt.unread)
			}
		})
	}
}

// TestNewer: a record of a newer plugin's is none that is broken.
func TestNewer(t *testing.T) {
	w := newWorld(t, ours, 1)
	body := `{"v":99,"kind":"start","network":"net"`
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(body))
	w.put("state/attachments/net/c9:eth0", fmt.Sprintf("%s,\"sum\":\"%016x\"}\n", body, sum.Sum64()))
	w.expect(w.look())
}

// TestCancelled: the audit ends with its context.
func TestCancelled(t *testing.T) {
	netns.Enter(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Node{}).Audit(ctx, Told{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
