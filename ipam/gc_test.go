package ipam

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/delegates"
)

// TestGC releases what no kept attachment holds, and leaves alone what is no
// reservation.
func TestGC(t *testing.T) {
	before := files{
		"10.1.0.2": "c1\r\neth0", "10.1.0.3": "c2\r\neth0", "10.1.0.4": "c1\r\nnet1", "10.1.0.5": "c1", "10.1.0.6": "c2", "10.1.0.7": "",
		"fd00::2": "c2\r\neth0", "10.1.0.8": "c3\r\neth0", "10.1.0.9": "c3", "last_reserved_ip.0": "10.1.0.9", "notes": "c2\r\neth0", "10.1.0.2.bak": "c2\r\neth0",
		"010.1.0.3": "c2\r\neth0", "FD00::3": "c2\r\neth0", "10.1.0.10": "# not a reservation\n",
	}
	c1 := delegates.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}
	for _, tt := range []struct {
		name     string
		kept     []delegates.Attachment
		recorded string // container with a record
		gone     []string
	}{
		{"none is kept", nil, "", []string{"10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6", "10.1.0.7", "10.1.0.8", "10.1.0.9", "fd00::2"}},
		{"one is", []delegates.Attachment{c1}, "", []string{"10.1.0.3", "10.1.0.4", "10.1.0.6", "10.1.0.7", "10.1.0.8", "10.1.0.9", "fd00::2"}},
		{"one is, and one has a record", []delegates.Attachment{c1}, "c3", []string{"10.1.0.3", "10.1.0.4", "10.1.0.6", "10.1.0.7", "fd00::2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, dir := serve(t, `"subnet":"10.1.0.0/24"`, "")
			before.write(t, dir)
			k := delegates.Kept{All: tt.kept, Recorded: func(a delegates.Attachment) bool { return a.ContainerID == tt.recorded && a.Network == "net1" }}
			if err := h.GC(t.Context(), delegates.Call{Attachment: delegates.Attachment{Network: "net1"}}, k); err != nil {
				t.Fatal(err)
			}
			want := files{}
			for name, content := range before {
				want[name] = content
			}
			for _, name := range tt.gone {
				delete(want, name)
			}
			if diff := cmp.Diff(want, read(t, dir)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestGCWithoutAStore makes none, and a network whose name is no folder's is an
// error.
func TestGCWithoutAStore(t *testing.T) {
	h, dir := serve(t, `"subnet":"10.1.0.0/24"`, "")
	none := delegates.Kept{Recorded: func(delegates.Attachment) bool { return false }}
	if err := h.GC(t.Context(), delegates.Call{Attachment: delegates.Attachment{Network: "net1"}}, none); err != nil {
		t.Error(err)
	}
	if made, err := filepath.Glob(dir + "*"); err != nil || len(made) > 0 {
		t.Errorf("made %q, %v", made, err)
	}
	for _, name := range []string{"", "..", "a/b"} {
		if err := h.GC(t.Context(), delegates.Call{Attachment: delegates.Attachment{Network: name}}, none); err == nil || !strings.Contains(err.Error(), "name: must be one path element") {
			t.Errorf("%q: %v", name, err)
		}
	}
}
