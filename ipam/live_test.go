package ipam

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/delegates"
)

func leaseOf(id, address string, settled bool) Lease {
	return Lease{delegates.Attachment{Network: "net1", ContainerID: id, IfName: "eth0"}, netip.MustParseAddr(address), settled}
}

// TestAddAfterTheStoreWasWiped: a store without a cursor has the live records'
// reservations again; what is being made or removed just now is passed over
// (nomad#26562).
func TestAddAfterTheStoreWasWiped(t *testing.T) {
	leases := []Lease{leaseOf("web", "10.1.0.2", true), leaseOf("busy", "10.1.0.3", false), leaseOf("web", "fd00::2", true), leaseOf("n", "10.1.0.4", true), leaseOf("out", "10.2.0.2", true)}
	for _, tt := range []struct {
		name, args string
		before     files
		err        error // of the look at the records
		want       string
		after      files
	}{
		{"wiped", "", nil, nil, "10.1.0.4", files{"10.1.0.2": "web\r\neth0", "10.1.0.4": "n\r\neth0", "last_reserved_ip.0": "10.1.0.4"}},
		{"an empty cursor", "", files{"last_reserved_ip.0": "", "10.1.0.2": ""}, nil, "10.1.0.4", files{"10.1.0.2": "web\r\neth0", "10.1.0.4": "n\r\neth0", "last_reserved_ip.0": "10.1.0.4"}},
		{"a cursor", "", files{"last_reserved_ip.0": "10.1.0.6"}, nil, "10.1.0.2", files{"10.1.0.2": "n\r\neth0", "last_reserved_ip.0": "10.1.0.2"}},
		{"requested, a live one's", "IP=10.1.0.2", nil, nil, "requested address is taken: 10.1.0.2 is held by container web eth0", files{"10.1.0.2": "web\r\neth0"}},
		{"requested, a busy one's", "IP=10.1.0.3", nil, nil, "requested address is taken: 10.1.0.3 is held by container busy eth0", files{"10.1.0.2": "web\r\neth0"}},
		{"records that cannot be read", "", nil, errors.New("broken"), "broken", files{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, dir := serve(t, pool, tt.args)
			h.Recorded = func() ([]Lease, error) { return leases, tt.err }
			tt.before.write(t, dir)
			if got := add(t, h, "n"); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if diff := cmp.Diff(tt.after, read(t, dir)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestAddPassesStationsOver: an address whose MAC the bridge knows is not given,
// unless it is asked for; so many in a row end the ADD, and the next goes on.
func TestAddPassesStationsOver(t *testing.T) {
	seen := func(all ...string) func(netip.Addr) (bool, error) {
		return func(a netip.Addr) (bool, error) { return slices.Contains(all, a.String()), nil }
	}
	h, dir := serve(t, pool, "")
	h.Station = seen("10.1.0.2", "10.1.0.4")
	for _, want := range []string{"10.1.0.3", "10.1.0.5", "10.1.0.6", exhaustedText} {
		if got := add(t, h, "n"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if diff := cmp.Diff(files{"10.1.0.3": "n\r\neth0", "10.1.0.5": "n\r\neth0", "10.1.0.6": "n\r\neth0", "last_reserved_ip.0": "10.1.0.6"}, read(t, dir)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}

	h, _ = serve(t, pool, "IP=10.1.0.2")
	h.Station = seen("10.1.0.2")
	if got := add(t, h, "n"); got != "10.1.0.2" {
		t.Errorf("requested: got %s", got)
	}

	h, dir = serve(t, `"subnet":"10.1.0.0/24"`, "")
	asked := 0
	h.Station = func(netip.Addr) (bool, error) { asked++; return asked <= 70, nil }
	for _, want := range []string{"no addresses available: the bridge has stations of the MACs of 64 free ones in a row", "10.1.0.72"} {
		if got := add(t, h, "n"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if diff := cmp.Diff(files{"10.1.0.72": "n\r\neth0", "last_reserved_ip.0": "10.1.0.72"}, read(t, dir)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestAddAsksForOneStation: the pod's MAC follows from one address of all; where
// one cannot look, the ADD goes on.
func TestAddAsksForOneStation(t *testing.T) {
	for keys, want := range map[string][]string{
		`"ranges":[[{"subnet":"fd00::/64"}],[{"subnet":"10.1.0.0/29"}]]`: {"10.1.0.2"},
		`"ranges":[[{"subnet":"fd00::/64"}]]`:                            {"fd00::2"},
		`"ranges":[[{"subnet":"10.1.0.0/29"}],[{"subnet":"fd00::/64"}]]`: {"10.1.0.2"},
	} {
		h, _ := serve(t, keys, "")
		var asked []string
		h.Station = func(a netip.Addr) (bool, error) {
			asked = append(asked, a.String())
			return false, errors.New("broken")
		}
		add(t, h, "n")
		if diff := cmp.Diff(want, asked); diff != "" {
			t.Errorf("%s (-want +got)\n%s", keys, diff)
		}
	}
}
