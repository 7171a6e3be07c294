package veth

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	vish "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestVLANMessages: byte for byte what rtnetlink(7) and linux/if_bridge.h ask
// for, on a little-endian machine.
func TestVLANMessages(t *testing.T) {
	var m batch
	m.vlans("remove", unix.RTM_DELLINK, 7, []VLAN{{ID: 1}})
	m.vlans("add", unix.RTM_SETLINK, 7, []VLAN{{ID: 5, Native: true, Untagged: true}, {ID: 4094}})
	header := "0700 0000" + "07000000" + "00000000" + "00000000" // struct ifinfomsg: AF_BRIDGE, index 7
	master := "0600 0000 0100 0000"                              // IFLA_BRIDGE_FLAGS, BRIDGE_FLAGS_MASTER
	want := "34000000 1100 0500 01000000 00000000" + header +    // RTM_DELLINK
		"1400 1a80" + master + "0800 0200 0000 0100" + // IFLA_AF_SPEC
		"3c000000 1300 0500 02000000 00000000" + header + // RTM_SETLINK
		"1c00 1a80" + master + "0800 0200 0600 0500" + "0800 0200 0000 fe0f"
	if diff := cmp.Diff(strings.ReplaceAll(want, " ", ""), hex.EncodeToString(m.Bytes())); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestVLANs: the kernel has what was asked for.
func TestVLANs(t *testing.T) {
	w := newWorld(t)
	err := w.host.CreateBridge(NewBridge{Name: "vlans0", MAC: BridgeMAC("vlans0", "boot"), VLANs: true})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no bridge VLAN filtering (CONFIG_BRIDGE_VLAN_FILTERING)")
	}
	if err != nil {
		t.Fatal(err)
	}
	bridge, err := w.host.LinkByName("vlans0")
	if err != nil || !bridge.VLANs {
		t.Fatal(bridge, err)
	}
	pair := Pair{Host: "port0", Pod: "eth9", HostMAC: HostMAC("x"), PodMAC: HostMAC("y"), Bridge: bridge.Index, Namespace: w.pod}
	if err := w.host.Create(pair); err != nil {
		t.Fatal(err)
	}
	port, err := w.host.Index("port0")
	if err != nil {
		t.Fatal(err)
	}
	err = w.host.SetVLANs(port, []VLAN{{ID: 1}}, []VLAN{{ID: 5, Native: true, Untagged: true}, {ID: 4094}})
	if err != nil {
		t.Fatal(err)
	}
	all, err := vish.BridgeVlanList()
	if err != nil {
		t.Fatal(err)
	}
	var got []VLAN
	for _, v := range all[int32(port)] {
		got = append(got, VLAN{ID: int(v.Vid), Native: v.PortVID(), Untagged: v.EngressUntag()})
	}
	if diff := cmp.Diff([]VLAN{{ID: 5, Native: true, Untagged: true}, {ID: 4094}}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if listed, err := w.host.VLANs(port); !cmp.Equal(got, listed) || err != nil {
		t.Errorf("listed %v, error %v", listed, err)
	}
}

// TestReadVLANs: a list as linux/if_bridge.h describes it, on a little-endian machine.
func TestReadVLANs(t *testing.T) {
	body, err := hex.DecodeString(strings.ReplaceAll("0700 0000 09000000"+ // struct br_vlan_msg: AF_BRIDGE, index 9
		"0c00 0180"+"0800 0100 0600 0500"+ // VLAN 5, PVID and untagged
		"1400 0180"+"0800 0100 0000 0a00"+"0600 0200 0c00 0000"+ // VLANs 10 to 12
		"0800 0200 00000000", " ", "")) // global options of a bridge
	if err != nil {
		t.Fatal(err)
	}
	want := []VLAN{{ID: 5, Native: true, Untagged: true}, {ID: 10}, {ID: 11}, {ID: 12}}
	if diff := cmp.Diff(want, readVLANs(9, body)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if other := readVLANs(8, body); other != nil {
		t.Errorf("another port's: %v", other)
	}
}
