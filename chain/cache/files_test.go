package cache

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tracewire/tracewire/delegates"
)

// TestFiles: every file, with its list, and why one is broken.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	list := base64.StdEncoding.EncodeToString([]byte(`{"name":"net"}`))
	for name, content := range map[string]string{
		"net-c1-eth0": `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"net","config":"` + list + `"}`,
		"net-c2-eth0": `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24"}}`,
		"net-c3-eth0": "", "net-c4-eth0": `{"kind":`, "net-c5-eth0": `[]`, "net-c6-eth0": "\x00\x00",
		"net-c7-eth0": `{"kind":"cniCacheV1","containerId":"c7","ifName":"eth0","networkName":"net","result":{"ips":"none"}}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "net-c8-eth0"), 0o700), os.Symlink("net-c1-eth0", filepath.Join(dir, "net-c9-eth0"))); err != nil {
		t.Fatal(err)
	}
	var broken, sound []string
	for f, err := range Files(dir, filepath.Join(dir, "none")) {
		switch {
		case err != nil || f.Stamp == "" || f.Stamp != Stamp(f.Path):
			t.Errorf("%+v: %v", f, err)
		case f.Broken != nil:
			broken = append(broken, f.Name)
		default:
			sound = append(sound, f.Name+" "+f.String()+" "+string(f.List()))
		}
	}
	slices.Sort(broken)
	slices.Sort(sound)
	if want := []string{"net-c3-eth0", "net-c4-eth0", "net-c5-eth0", "net-c6-eth0", "net-c8-eth0", "net-c9-eth0"}; !slices.Equal(broken, want) {
		t.Errorf("broken %q, want %q", broken, want)
	}
	if want := []string{`net-c1-eth0 net/c1:eth0 {"name":"net"}`, "net-c2-eth0 /: ", "net-c7-eth0 net/c7:eth0 "}; !slices.Equal(sound, want) {
		t.Errorf("sound %q, want %q", sound, want)
	}
}

// TestRemoveFile: one that was written anew is another.
func TestRemoveFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "net-c1-eth0")
	write := func() string {
		t.Helper()
		if err := errors.Join(os.WriteFile(path+".new", nil, 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
		return Stamp(path)
	}
	old := write()
	now := write()
	for _, step := range []struct {
		stamp string
		there bool
	}{{old, true}, {now, false}, {now, false}} {
		if err := RemoveFile(path, step.stamp); err != nil || (Stamp(path) != "") != step.there {
			t.Fatalf("%+v: %v", step, err)
		}
	}
}

// TestIsolated: whose what is in quarantine was, since when, and why.
func TestIsolated(t *testing.T) {
	d := Dir{Path: filepath.Join(t.TempDir(), "attachments")}
	if all, err := d.Isolated(); err != nil || len(all) > 0 {
		t.Fatalf("%v, %v where there is none", all, err)
	}
	a := delegates.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"}
	if err := errors.Join(os.MkdirAll(filepath.Dir(d.File(a)), 0o700), os.WriteFile(d.File(a), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Quarantine(d.File(a), "it is empty"); err != nil {
		t.Fatal(err)
	}
	all, err := d.Isolated()
	if err != nil || len(all) != 1 || all[0].Attachment != a || all[0].Why != "it is empty" || all[0].Since.IsZero() {
		t.Errorf("%+v, %v", all, err)
	}
}
