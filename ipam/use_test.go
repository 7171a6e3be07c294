package ipam

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/conflist"
)

func TestUses(t *testing.T) {
	data := t.TempDir()
	doc := conflist.Read([]byte(`{"ipam":{"type":"host-local","dataDir":"` + data + `","ranges":[[{"subnet":"10.22.0.0/29"}],[{"subnet":"fd00::/124"}]]}}`))
	h := Parse(doc, nil)
	want := []Use{{Ranges: "10.22.0.1-10.22.0.6", Total: 5}, {Ranges: "fd00::1-fd00::f", Total: 14}}
	if got, err := h.Uses("net"); err != nil || !cmp.Equal(want, got) {
		t.Errorf("no store: %v\n%s", err, cmp.Diff(want, got))
	}
	if err := os.Mkdir(filepath.Join(data, "net"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"10.22.0.1", "10.22.0.2", "10.22.0.3", "10.99.0.1", "fd00::5", "FD00::6", "last_reserved_ip.0", "lock"} {
		if err := os.WriteFile(filepath.Join(data, "net", name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want[0].Used, want[1].Used = 2, 1 // of the first one is the gateway
	if got, err := h.Uses("net"); err != nil || !cmp.Equal(want, got) {
		t.Errorf("%v (-want +got)\n%s", err, cmp.Diff(want, got))
	}
}
