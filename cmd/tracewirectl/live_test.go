//go:build linux

package main

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/test/netns"
)

// TestShowLive makes an attachment in the kernel, as its record says, and then
// takes parts of it away.
func TestShowLive(t *testing.T) {
	netns.Enter(t)
	n := newNode(t)
	address, path := netip.MustParsePrefix("10.22.0.5/16"), netns.New(t).Path()
	pod, err := veth.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pod.Close)
	host := plug(t, pod, "podnet/"+web+":eth0", "vethtw00000001")
	inPod, err := pod.Conn().LinkByName("eth0")
	if err := errors.Join(err, pod.Conn().AddAddresses(inPod.Index, veth.Addressing{Up: true}, address),
		pod.Conn().AddRoutes(inPod.Index, veth.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.22.0.1")})); err != nil {
		t.Fatal(err)
	}
	n.attach(web, "default/web-0", path, pod.Cookie, true, result(t, "10.22.0.5/16"))
	for _, tt := range []struct {
		name    string
		do      func() error
		differs []string
	}{
		{"as recorded", func() error { return nil }, nil},
		{"address gone", func() error { return pod.Conn().DropAddress(inPod.Index, address) }, []string{"pod.address 10.22.0.5/16 none", "pod.route 0.0.0.0/0 via 10.22.0.1 none"}},
		{"alias another's", func() error { return host.mark("podnet/another:eth0") }, []string{"host.alias of this attachment tracewire:podnet/another:eth0", "pod.address 10.22.0.5/16 none", "pod.route 0.0.0.0/0 via 10.22.0.1 none"}},
	} {
		// Not in a subtest: that runs on another thread, in another namespace.
		if err := tt.do(); err != nil {
			t.Fatal(err)
		}
		r, err := (&command{getenv: func(string) string { return n.conf }}).find("default/web-0")
		if err != nil {
			t.Fatal(err)
		}
		v := (&command{boot: thisBoot, zone: time.UTC}).view(r)
		var got []string
		for _, x := range v.Compared {
			if x.Differs {
				got = append(got, x.What+" "+x.Record+" "+x.Live)
			}
		}
		if agree := v.verdict() == "record and kernel agree"; agree != (tt.differs == nil) {
			t.Errorf("%s: %s", tt.name, v.verdict())
		}
		if diff := cmp.Diff(tt.differs, got); diff != "" || v.err != nil || v.Boot != thisBoot || v.EarlierBoot {
			t.Errorf("%s: %v, boot %q (-want +got):\n%s", tt.name, v.err, v.Boot, diff)
		}
	}
}

// TestShowUnrecorded looks for an attachment whose record is gone.
func TestShowUnrecorded(t *testing.T) {
	netns.Enter(t)
	n := newNode(t)
	pod, err := veth.Open(netns.New(t).Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pod.Close)
	attachment := "podnet/" + web + ":eth0"
	name := veth.HostNames(attachment)[1]
	plug(t, pod, attachment, name)
	code, out, complaint := n.run("show", attachment)
	if code != 1 || complaint != "" || !strings.Contains(out, name) || !strings.Contains(out, "state       none") {
		t.Errorf("got code %d, %q\n%s", code, complaint, out)
	}
	if code, _, _ := n.run("show", "podnet/"+db+":eth0"); code != 1 {
		t.Errorf("another: got code %d", code)
	}
}

// plugged is a host end that a test made.
type plugged struct {
	conn  *veth.Conn
	index int
}

func (p plugged) mark(attachment string) error {
	return p.conn.Mark(p.index, veth.Alias(attachment), nil)
}

// plug makes the bridge and the pair that result tells of.
func plug(t *testing.T, pod *veth.Namespace, attachment, host string) plugged {
	t.Helper()
	conn, err := veth.Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	r := result(t)
	mac := func(i int) net.HardwareAddr {
		m, err := net.ParseMAC(r.Interfaces[i].Mac)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	err = conn.CreateBridge(veth.NewBridge{Name: r.Interfaces[0].Name, MAC: mac(0), MTU: 1500})
	bridge, errBridge := conn.Index(r.Interfaces[0].Name)
	err = errors.Join(err, errBridge, conn.Create(veth.Pair{
		Host: host, Pod: "eth0", HostMAC: mac(1), PodMAC: mac(2), MTU: 1500, Bridge: bridge, Namespace: pod,
	}))
	index, errHost := conn.Index(host)
	p := plugged{conn, index}
	if err := errors.Join(err, errHost, p.mark(attachment)); err != nil {
		t.Fatal(err)
	}
	return p
}
