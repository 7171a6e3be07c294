//go:build linux

package netns

import (
	"os"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

func TestEnter(t *testing.T) {
	before := thread(t)
	Enter(t)
	if thread(t) == before {
		t.Error("still in the old namespace")
	}
	links, err := netlink.LinkList()
	if err != nil || len(links) != 1 || links[0].Attrs().Name != "lo" {
		t.Errorf("got %v and error %v, want lo alone", links, err)
	}
}

func TestNew(t *testing.T) {
	Enter(t)
	host, pod := thread(t), New(t)
	other, err := ns.GetNS(pod.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	err = other.Do(func(ns.NetNS) error {
		if thread(t) == host {
			t.Error("the pod's namespace is the host's")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if thread(t) != host {
		t.Error("the test's thread left its namespace")
	}
}

// thread names the network namespace of the calling thread.
func thread(t *testing.T) string {
	t.Helper()
	name, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return name
}
