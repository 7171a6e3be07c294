package conflist

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"10-list.conflist":          `{"name":"podnet","cniVersion":"1.1.0","plugins":[{"type":"tracewire","tracewire":{"stateDir":"/a"}},{"type":"portmap"},null]}`,
		"20-one.conf":               `{"name":"single","type":"tracewire"}`,
		"30-none.conflist":          `{"name":"empty","plugins":[]}`,
		"40-torn.json":              `{"name":"torn","plugins":[`,
		"50-odd.conflist":           `{"name":"odd","plugins":{"type":"tracewire"}}`,
		"60-sample.conflist.sample": `{"name":"sample","type":"tracewire"}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "70-folder.conflist"), 0o700); err != nil {
		t.Fatal(err)
	}
	entries, broken, err := Folder(dir)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name+" "+e.CNIVersion+" "+e.Type+" "+e.Tracewire.StateDir)
	}
	want := []string{"podnet 1.1.0 tracewire /a", "podnet 1.1.0 portmap " + DefaultStateDir, "single  tracewire " + DefaultStateDir}
	if diff := cmp.Diff(want, got); diff != "" || len(broken) != 2 || err != nil {
		t.Errorf("%v, %v, (-want +got)\n%s", broken, err, diff)
	}
	if _, _, err := Folder(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("a folder that is not there: %v", err)
	}
}
