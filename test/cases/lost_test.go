//go:build linux

package cases

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/test/attach"
)

// TestGCOfThousands: the records of pods whose DEL never came pile up (multus#1488,
// cri-o#4296), with a result of the runtime's each. An ADD and a DEL of another pod
// do not look at them; one GC ends all, and a reader takes its spans.
func TestGCOfThousands(t *testing.T) {
	const lost, spans = 2000, 300
	n := node(t)
	stdin := conf(t, n, nil)
	records := cache.Dir{Path: filepath.Join(n.Dir, "state", "attachments")}
	if err := os.Mkdir(filepath.Dir(records.Path), 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range lost {
		in := cache.Intent{Attachment: delegates.Attachment{Network: "net", ContainerID: fmt.Sprint("lost", i), IfName: "eth0"}, Conf: []byte(stdin), NetNS: "/run/netns/none", Boot: cache.BootID()}
		j, err := records.Begin(in, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		_ = j.Close()
	}
	pod := pod1(t, n)
	for _, verb := range []string{"ADD", "DEL"} {
		if err := raw(t, n, verb, stdin, n.Environment(verb, pod)).Err(); err != nil {
			t.Fatalf("%s: %s", verb, describe(err))
		}
	}
	l := &rounds{Node: n, stdin: stdin}
	if err := l.end(t, ending{verb: "GC"}).Err(); err != nil {
		t.Fatal(describe(err))
	}
	ops, err := n.Operations()
	if err != nil {
		t.Fatal(err)
	}
	if got := len(ops[len(ops)-1].Root.Children); got > spans {
		t.Errorf("%d spans of GC's own, want %d at most", got, spans)
	}
	nothingLeft(t, n)
}

// TestNobodyStaysInThePod: after each operation no process has the pod's namespace
// open, is in it, or has it mounted, so that the runtime can remove it
// (containerd#3667, containerd#6143).
func TestNobodyStaysInThePod(t *testing.T) {
	for name, set := range map[string]map[string]string{
		"bridge":    {"ipMasq": "true"},
		"ptp":       ptpMode,
		"delegates": {"delegates": `[{"type": "tuning", "dataDir": "@DIR@/tuning", "mtu": 1400}, {"type": "bandwidth"}]`},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(t)
			for key, value := range set {
				set[key] = strings.ReplaceAll(value, attach.Dir, n.Dir)
			}
			pod := pod1(t, n)
			var st unix.Stat_t
			if err := unix.Stat(pod.NetNS, &st); err != nil {
				t.Fatal(err)
			}
			before, err := mounts(st.Ino)
			if err != nil {
				t.Fatal(err)
			}
			conf, answer := conf(t, n, set), ""
			for _, verb := range []string{"ADD", "ADD", "CHECK", "DEL", "DEL"} {
				stdin := conf
				if verb == "CHECK" {
					stdin = string(put(t, []byte(stdin), []string{"prevResult"}, answer))
				}
				call := raw(t, n, verb, stdin, n.Environment(verb, pod))
				if err := call.Err(); err == nil && verb == "ADD" {
					answer = string(call.Stdout)
				} else if err != nil && verb != "ADD" {
					t.Errorf("%s: %s", verb, describe(err))
				}
				if who := within(t, st.Ino); len(who) > 0 {
					t.Errorf("after %s: %q", verb, who)
				}
				if now, err := mounts(st.Ino); now != before || err != nil {
					t.Errorf("after %s it is mounted %d times, before %d, %v", verb, now, before, err)
				}
			}
			nothingLeft(t, n)
		})
	}
}

// within is the processes but this one that are in a network namespace, or have it
// open.
func within(t *testing.T, inode uint64) (who []string) {
	t.Helper()
	link := fmt.Sprintf("net:[%d]", inode)
	own := fmt.Sprint("/proc/", os.Getpid(), "/")
	for _, pattern := range []string{"/proc/[0-9]*/task/[0-9]*/ns/net", "/proc/[0-9]*/fd/*"} {
		all, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range all {
			if at, err := os.Readlink(path); err == nil && at == link && !strings.HasPrefix(path, own) {
				who = append(who, path)
			}
		}
	}
	return who
}

// mounts is how often a network namespace is mounted.
func mounts(inode uint64) (int, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	return strings.Count(string(b), fmt.Sprintf(" net:[%d] ", inode)), err
}
