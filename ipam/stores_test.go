package ipam

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates"
)

// TestIn: what each file of a store is, whoever made it.
func TestIn(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"10.1.0.2": "c1\r\neth0", "10.1.0.3": "c2", "10.1.0.4": "", "10.1.0.5": " \n", "10.1.0.6": "\x00\x00", "10.1.0.7": "c\x00",
		"10.1.0.8": "\xff\xfe", "10.1.0.9": "of the printer", "10.1.0.300": "c3", "note": "c4", "fd00::2": "c5\r\neth0", "fe80::2%eth0": "c6",
		"lock": "", "last_reserved_ip.0": "10.1.0.2", "10.1.0.12": strings.Repeat("c", maxContent+1),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(os.Mkdir(filepath.Join(dir, "10.1.0.10"), 0o700), os.Symlink("10.1.0.2", filepath.Join(dir, "10.1.0.11")), unix.Mkfifo(filepath.Join(dir, "10.1.0.13"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]State{
		"10.1.0.2": Reserved, "10.1.0.3": Reserved, "10.1.0.4": Debris, "10.1.0.5": Debris, "10.1.0.6": Debris, "10.1.0.7": Debris, "10.1.0.8": Debris,
		"10.1.0.9": Strange, "10.1.0.300": Strange, "note": Strange, "fd00::2": Reserved, "fe80::2%eth0": Strange, "10.1.0.10": Strange, "10.1.0.11": Debris,
		"10.1.0.12": Debris, "10.1.0.13": Debris,
	}
	for h, err := range In(dir) {
		name := filepath.Base(h.Path)
		state, known := want[name]
		if err != nil || !known || h.State != state || h.Stamp == "" || h.Changed.IsZero() {
			t.Errorf("%s: %+v, %v, want state %d", name, h, err, state)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not told of: %v", want)
	}
	for h, err := range In(filepath.Join(dir, "none")) {
		t.Errorf("a store that is not there has %+v, %v", h, err)
	}
}

// TestDiscardRestore: a file is removed or written only as long as it is what it
// was looked at for.
func TestDiscardRestore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net")
	a := netip.MustParseAddr("10.1.0.2")
	path := filepath.Join(dir, a.String())
	who := delegates.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"}
	yes, no := func() (bool, error) { return true, nil }, func() (bool, error) { return false, nil }
	read := func() string { b, _ := os.ReadFile(path); return string(b) }
	there := func() bool { _, err := os.Lstat(path); return err == nil }
	check := func(err error, ok bool) {
		t.Helper()
		if err != nil || !ok {
			t.Fatalf("%v, the file holds %q", err, read())
		}
	}
	check(Restore(t.Context(), dir, a, who, no), !there())
	check(Restore(t.Context(), dir, a, who, yes), read() == "c1\r\neth0")
	check(Restore(t.Context(), dir, a, delegates.Attachment{ContainerID: "c2"}, yes), read() == "c1\r\neth0")
	h, err := Look(path)
	check(err, h.State == Reserved)
	check(Discard(t.Context(), h, yes), there())
	empty := h
	empty.State = Debris
	check(Discard(t.Context(), empty, no), there())
	check(Discard(t.Context(), h, no), !there())
	check(Restore(t.Context(), dir, a, who, yes), there())
	h, err = Look(path)
	check(err, true)
	check(os.WriteFile(path, nil, 0o600), true)
	check(Discard(t.Context(), h, no), there())
	h, err = Look(path)
	check(err, h.State == Debris)
	check(Discard(t.Context(), h, yes), there())
	check(Discard(t.Context(), h, no), !there())
	check(Discard(t.Context(), h, no), !there())
}
