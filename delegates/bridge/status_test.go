//go:build linux

package bridge

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/test/netns"
)

// TestStatus: what the next ADD finds.
func TestStatus(t *testing.T) {
	netns.Enter(t)
	status := func(name string) string {
		if err := (Bridge{Conf: Conf{Bridge: name}}).Status(t.Context(), delegates.Call{}); err != nil {
			return err.Error()
		}
		return ""
	}
	add := func(l netlink.Link) {
		t.Helper()
		if err := netlink.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
	}
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "tb0"}}
	add(br)
	add(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "tv0"}, PeerName: "tv1"})
	for name, want := range map[string]string{
		"none":            "",
		"tb0":             "",
		"tv0":             "bridge conflict: tv0 is not a bridge but of kind veth",
		"lo":              "bridge conflict: lo is not a bridge but a device",
		"b23456789012345": "", // the longest name there is
	} {
		if got := status(name); got != want {
			t.Errorf("%s: error %s, want %s", name, got, want)
		}
	}
	full := func(n int) string { return fmt.Sprintf("no bridge port left: tb0 has %d of %d", n, veth.MaxPorts) }
	for n := 0; ; n++ {
		if have, err := veth.Ports("tb0"); err != nil || have != n {
			t.Fatalf("%d ports, want %d, %v", have, n, err)
		}
		got := status("tb0")
		l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("v", n), MasterIndex: br.Index}, PeerName: fmt.Sprint("w", n)}
		err := netlink.LinkAdd(l)
		if err != nil || n > veth.MaxPorts {
			if got != full(n) || n != veth.MaxPorts {
				t.Errorf("the kernel says %v after %d ports, STATUS says %s", err, n, got)
			}
			break
		}
		if got != "" {
			t.Fatalf("after %d ports: %s", n, got)
		}
	}
	if err := (Bridge{Conf: Conf{Bridge: "tb0"}}).Status(t.Context(), delegates.Call{}); !errors.Is(err, ErrNoPort) {
		t.Errorf("%v is no ErrNoPort", err)
	}
}
