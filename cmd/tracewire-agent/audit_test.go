//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/tracewire/tracewire/test/netns"
)

// TestAudit: a leaked address is counted and told of once, and then is no more.
func TestAudit(t *testing.T) {
	if os.Getenv("TRACEWIRE_SANDBOX") == "" {
		t.Skip("needs a sandbox: run make test")
	}
	netns.Enter(t)
	dir := t.TempDir()
	leaked := filepath.Join(dir, "ipam", "podnet", "10.22.0.9")
	for path, text := range map[string]string{
		"net.d/10.conflist": fmt.Sprintf(`{"name":"podnet","cniVersion":"1.1.0","plugins":[{"type":"tracewire",
			"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.22.0.0/24"}]]},"tracewire":{"stateDir":%q}}]}`, dir+"/ipam", dir+"/state"),
		"ipam/podnet/10.22.0.9": "gone\r\neth0",
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log strings.Builder
	a := &agent{log: zerolog.New(&log), getenv: os.Getenv, flags: flags{confDir: filepath.Join(dir, "net.d"), audit: auditFlags{interval: time.Minute}}}
	for turn, want := range []string{"1", "1", "0"} {
		if want == "0" {
			_ = os.Remove(leaked)
		}
		if err := a.auditOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := values(scrape(t, "", &a.audits), `tracewire_audit_findings{kind="leaked-address"`)
		if diff := cmp.Diff([]string{`tracewire_audit_findings{kind="leaked-address",severity="error"} ` + want}, got); diff != "" {
			t.Errorf("audit %d: %s", turn, diff)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || a.audits.ended.IsZero() {
		t.Errorf("%d lines, ended at %v", n, a.audits.ended)
	}
	if !strings.Contains(log.String(), `"kind":"leaked-address","severity":"error","about":"10.22.0.9","network":"podnet"`) {
		t.Errorf("not told of:\n%s", log.String())
	}
}

func TestAuditFlags(t *testing.T) {
	for _, tt := range []struct {
		flags auditFlags
		want  string
	}{
		{auditFlags{interval: time.Millisecond}, "--audit-interval is 0 or at least 1s, not 1ms"},
		{auditFlags{interval: -time.Hour}, "--audit-interval is 0 or at least 1s, not -1h0m0s"},
		{auditFlags{sockets: []string{"crio.sock"}}, "--cri crio.sock: want PATH or unix://PATH, and an absolute path"},
		{auditFlags{interval: time.Minute, sockets: []string{"unix:///run/crio/crio.sock"}}, ""},
	} {
		got := ""
		if err := tt.flags.possible(); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.flags, got, tt.want)
		}
	}
}
