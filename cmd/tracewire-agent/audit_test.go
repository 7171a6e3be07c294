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

// leaky is a node with a leaked address, whose file is returned, and an agent on it.
func leaky(t *testing.T) (a *agent, log *strings.Builder, leaked string) {
	t.Helper()
	if os.Getenv("TRACEWIRE_SANDBOX") == "" {
		t.Skip("needs a sandbox: run make test")
	}
	netns.Enter(t)
	dir := t.TempDir()
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
	log = &strings.Builder{}
	a = &agent{log: zerolog.New(log), getenv: os.Getenv, flags: flags{confDir: filepath.Join(dir, "net.d"), audit: auditFlags{interval: time.Minute}}}
	return a, log, filepath.Join(dir, "ipam", "podnet", "10.22.0.9")
}

const leakedMetric = `tracewire_audit_findings{kind="leaked-address"`

// TestAudit: a leaked address is counted and told of once, and then is no more.
func TestAudit(t *testing.T) {
	a, log, leaked := leaky(t)
	for turn, want := range []string{"1", "1", "0"} {
		if want == "0" {
			_ = os.Remove(leaked)
		}
		if err := a.auditOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := values(scrape(t, "", &a.audits), leakedMetric)
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

// TestAuditAfterARestart: what was told of is not told of again, with a folder to
// remember it in, until it went and came again.
func TestAuditAfterARestart(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   func(state string) string // --state
		want int                       // lines of three agents, the third after the leak went and came
	}{
		{"with --state", func(state string) string { return state }, 2},
		{"without", func(string) string { return "" }, 3},
		{"one that cannot be read", func(state string) string {
			_ = os.WriteFile(filepath.Join(state, toldFile), []byte("["), 0o600)
			return state
		}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before, log, leaked := leaky(t)
			before.flags.state = tt.in(t.TempDir())
			look := func() {
				a := &agent{log: before.log, getenv: before.getenv, flags: before.flags}
				if err := a.auditOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			look()
			look()
			if err := os.Rename(leaked, leaked+".away"); err != nil {
				t.Fatal(err)
			}
			look()
			if err := os.WriteFile(leaked, []byte("again\r\neth0"), 0o600); err != nil {
				t.Fatal(err)
			}
			look()
			if n := strings.Count(log.String(), `"kind":"leaked-address"`); n != tt.want {
				t.Errorf("%d lines, want %d\n%s", n, tt.want, log)
			}
		})
	}
}

// TestAuditThatCannotLook: what it knew still counts, and what it could not look at
// is said, once, and is a metric.
func TestAuditThatCannotLook(t *testing.T) {
	a, log, leaked := leaky(t)
	store := filepath.Dir(leaked)
	hide := func() {
		if err := os.Rename(store, store+".away"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(store, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	show := func() {
		if err := os.Remove(store); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(store+".away", store); err != nil {
			t.Fatal(err)
		}
	}
	silent := func() { a.flags.audit.sockets = []string{filepath.Join(t.TempDir(), "none.sock")} }
	for _, tt := range []struct {
		name   string
		do     func()
		unread string
		said   int
	}{
		{"all is read", func() {}, "0", 0}, {"a store cannot be", hide, "1", 1}, {"nor again", func() {}, "1", 1},
		{"well again", show, "0", 1}, {"a runtime does not answer", silent, "1", 2}, {"nor again", func() {}, "1", 2},
	} {
		tt.do()
		a.sayUnread(a.auditOnce(t.Context()))
		want := []string{leakedMetric + `,severity="error"} 1`, "tracewire_audit_unread " + tt.unread}
		got := append(values(scrape(t, "", &a.audits), leakedMetric), values(scrape(t, "", &a.audits), "tracewire_audit_unread")...)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
		if n := strings.Count(log.String(), "audit could not look at everything"); n != tt.said {
			t.Errorf("%s: said %d times, want %d\n%s", tt.name, n, tt.said, log)
		}
	}
	if n := strings.Count(log.String(), `"kind":"leaked-address"`); n != 1 {
		t.Errorf("told of %d times\n%s", n, log)
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
