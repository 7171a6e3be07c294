//go:build linux

package cases

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/test/attach"
)

// counted is the system calls of one operation that cost something on every
// node, whatever its speed.
type counted struct {
	Changes  int // of rtnetlink: each takes the kernel's one lock for it
	Lookups  int // of one object by rtnetlink
	Dumps    int
	Rules    int // requests to nf_tables
	Forks    int // processes, the child that waits for a removal included
	Execs    int
	Syncs    int
	Creates  int // files made
	Listings int // folders read
	Leases   int // files of reservations, and libcni's, opened or asked for
	OfRun    int // calls that name something below /run/tracewire
}

// TestCounts: what an operation of an attachment costs on a bridge that is
// there already. A change here is a change of every pod's start.
func TestCounts(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs the program strace: run make test")
	}
	n := node(t)
	a := pod1(t, n)
	other := a
	other.ContainerID, other.NetNS = "c2", n.PodPath("pod2")
	if _, err := n.Pod("pod2"); err != nil {
		t.Fatal(err)
	}
	stdin := conf(t, n, map[string]string{"ipam.routes": `[{"dst": "0.0.0.0/0"}]`})
	if err := raw(t, n, "ADD", stdin, n.Environment("ADD", other)).Err(); err != nil {
		t.Fatal(describe(err))
	}
	add, answer := straced(t, n, strace, "ADD", stdin, a)
	with := conf(t, n, map[string]string{"ipam.routes": `[{"dst": "0.0.0.0/0"}]`, "prevResult": answer})
	check, _ := straced(t, n, strace, "CHECK", with, a)
	del, _ := straced(t, n, strace, "DEL", with, a)
	for _, tt := range []struct {
		name      string
		got, want counted
	}{
		// The pair, its alias and port flags, the address, up, the route; looked at: the
		// bridge before and after, the MAC in its table, both ends. Made: record and
		// reservation. Opened: lock, reservation, cursor twice. Of the list of what is of
		// an earlier boot: whether it is there.
		{"ADD", add, counted{Changes: 5, Lookups: 5, Creates: 2, Leases: 4, OfRun: 1}},
		{"CHECK", check, counted{Lookups: 3, Dumps: 2, Leases: 1}},
		// The child that waits for the removal, and whether the last one was reaped.
		{"DEL", del, counted{Changes: 1, Lookups: 1, Forks: 1, Leases: 2, OfRun: 1}},
	} {
		// The port forwards some 50 us after the pod's end is up: a look or two more.
		if tt.got.Lookups > tt.want.Lookups && tt.got.Lookups <= tt.want.Lookups+3 && tt.name == "ADD" {
			tt.got.Lookups = tt.want.Lookups
		}
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tt.name, diff)
		}
	}
}

// TestCountsOfCheck: what CHECK asks for. The pod's end, the host end and the
// bridge, addresses and routes; of IPv6 the gateway's address, of rules each
// chain.
func TestCountsOfCheck(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs the program strace: run make test")
	}
	for _, tt := range []struct {
		name string
		set  map[string]string
		want counted
	}{
		{"no gateway", map[string]string{"isGateway": "false"}, counted{Lookups: 3, Dumps: 1, Leases: 1}},
		{"all flags of the port", map[string]string{"hairpinMode": "true", "portIsolation": "true", "mtu": "1400"}, counted{Lookups: 3, Dumps: 1, Leases: 1}},
		{"default route", map[string]string{"isDefaultGateway": "true"}, counted{Lookups: 3, Dumps: 2, Leases: 1}},
		{"both families", map[string]string{"isDefaultGateway": "true", "ipam.ranges": dual}, counted{Lookups: 4, Dumps: 2, Leases: 2}},
		{"masquerade", map[string]string{"isDefaultGateway": "true", "ipMasq": "true"}, counted{Lookups: 3, Dumps: 2, Rules: 1, Leases: 1}},
		{"macspoofchk", map[string]string{"isDefaultGateway": "true", "macspoofchk": "true"}, counted{Lookups: 3, Dumps: 2, Rules: 3, Leases: 1}},
		{"ptp", ptpMode, counted{Lookups: 3, Dumps: 3, Leases: 2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := attached(t, tt.set)
			got, _ := straced(t, s.Node, strace, "CHECK", s.input(), s.a)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// trace runs the plugin under strace and counts.
func straced(t *testing.T, n *attach.Node, strace, verb, stdin string, a attach.Attachment) (c counted, answer string) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	wrapper := filepath.Join(t.TempDir(), "wrapper")
	script := fmt.Sprintf("#!/bin/sh\nexec %s -f -o %s -e trace=sendto,clone,clone3,fork,vfork,execve,fsync,fdatasync,openat,openat2,getdents64,access,faccessat,faccessat2,mkdirat,mkdir %s\n",
		strace, log, filepath.Join(os.Getenv("TRACEWIRE_BIN"), "tracewire"))
	if err := os.WriteFile(wrapper, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	out, err := n.Exec.ExecPlugin(ctx, wrapper, []byte(stdin), n.Environment(verb, a))
	if err != nil {
		t.Fatal(describe(err))
	}
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		c.count(line)
		if strings.Contains(line, "/run/tracewire") {
			c.OfRun++
		} else if strings.Contains(line, `"`+n.Dir+"/ipam/") || strings.Contains(line, `"/var/lib/cni/`) {
			c.Leases++
		}
	}
	c.Execs-- // the plugin itself
	return c, string(out)
}

// messages is rtnetlink's requests by number (linux/rtnetlink.h), which is all
// that strace prints of a socket that it cannot place.
var messages = map[string]string{
	"0x10": "RTM_NEWLINK", "0x11": "RTM_DELLINK", "0x12": "RTM_GETLINK", "0x13": "RTM_SETLINK",
	"0x14": "RTM_NEWADDR", "0x15": "RTM_DELADDR", "0x16": "RTM_GETADDR",
	"0x18": "RTM_NEWROUTE", "0x19": "RTM_DELROUTE", "0x1a": "RTM_GETROUTE", "0x1e": "RTM_GETNEIGH",
}

// nftables is its requests: the subsystem is the upper byte (linux/netfilter/nfnetlink.h).
var nftables = regexp.MustCompile(`^(NFNL_SUBSYS_NFTABLES|0xa[0-9a-f]{2})$`)

var request = regexp.MustCompile(`nlmsg_type=(\w+)[^,]*, nlmsg_flags=([\w|]+)`)

// count adds one line of strace's log. A call that another thread interrupted
// has its arguments on the line where it began.
func (c *counted) count(line string) {
	for _, m := range request.FindAllStringSubmatch(line, -1) {
		kind := m[1]
		if name := messages[kind]; name != "" {
			kind = name
		}
		switch {
		case nftables.MatchString(kind):
			c.Rules++
		case strings.Contains(m[2], "NLM_F_DUMP") || strings.HasSuffix(m[2], "|0x300"):
			c.Dumps++
		case strings.HasPrefix(kind, "RTM_GET"):
			c.Lookups++
		case strings.HasPrefix(kind, "RTM_"):
			c.Changes++
		}
	}
	call := strings.Fields(line)[1]
	name, _, _ := strings.Cut(call, "(")
	switch name {
	case "clone", "clone3", "fork", "vfork":
		if !strings.Contains(line, "CLONE_THREAD") {
			c.Forks++
		}
	case "execve":
		c.Execs++
	case "fsync", "fdatasync":
		c.Syncs++
	case "getdents64":
		c.Listings++
	case "openat", "openat2":
		if (strings.Contains(line, "O_EXCL") || strings.Contains(line, "O_TMPFILE")) && !strings.Contains(line, "= -1") {
			c.Creates++
		}
	}
}
