package house

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnit: systemd understands the agent's unit, and finds it hardened.
func TestUnit(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("needs the program systemd-analyze")
	}
	text := file(t, "contrib/tracewire-agent.service")
	path := filepath.Join(t.TempDir(), "tracewire-agent.service")
	if err := os.WriteFile(path, []byte(strings.Replace(text, "/usr/local/bin/tracewire-agent", "/bin/true", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"verify", "--man=no", path}, {"security", "--offline=yes", "--threshold=20", path}} { // 2.0 of 10
		if out, err := exec.Command("systemd-analyze", args...).CombinedOutput(); err != nil || args[0] == "verify" && len(out) > 0 {
			t.Errorf("%s: %v\n%s", args[0], err, out)
		}
	}
}
