package cache

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/delegates"
)

// TestList: every record, what cannot be read by its file's name.
func TestList(t *testing.T) {
	d := Dir{Path: filepath.Join(t.TempDir(), "attachments")}
	if all, err := d.List(); len(all) > 0 || err != nil {
		t.Errorf("a folder that is not there: %v, %v", all, err)
	}
	for _, a := range []delegates.Attachment{web, {Network: "net", ContainerID: "c1", IfName: "eth1"}, {Network: "a", ContainerID: "c9", IfName: "eth0"}} {
		in := intent
		in.Attachment = a
		j, err := d.Begin(in, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		_ = j.Close()
	}
	if err := errors.Join(os.WriteFile(filepath.Join(d.Path, "net", "c2:eth0"), nil, 0o600), os.Symlink("none", filepath.Join(d.Path, "net", "c3:eth0")),
		os.WriteFile(filepath.Join(d.Path, "stray"), nil, 0o600), os.Mkdir(filepath.Join(d.Path, "empty"), 0o700)); err != nil {
		t.Fatal(err)
	}
	all, err := d.List()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]State{}
	for _, s := range all {
		got[s.String()] = s.State
		if s.Path != d.File(s.Attachment) {
			t.Errorf("%s is at %s", s.Attachment, s.Path)
		}
	}
	want := map[string]State{"a/c9:eth0": Interrupted, "net/c1:eth0": Interrupted, "net/c1:eth1": Interrupted, "net/c2:eth0": Unreadable, "net/c3:eth0": Unreadable}
	if diff := cmp.Diff(want, got); diff != "" || len(all) != len(want) {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
