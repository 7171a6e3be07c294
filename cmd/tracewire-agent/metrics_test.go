package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace"
)

// line is what the spool has of one operation with two phases.
func line(t *testing.T, name, network, id string, failed error) []byte {
	t.Helper()
	r := trace.NewRecorder(time.Now())
	ctx, root := r.Begin(name, time.Now(), trace.Origin{})
	root.Set(trace.KeyName.String(network), trace.KeyID.String(id), trace.KeyPod.String("web-0"))
	_ = trace.Run(ctx, "ipam", func(context.Context) error { return failed })
	_ = trace.Run(ctx, "bridge", func(context.Context) error { return nil })
	if failed != nil {
		root.Set(trace.KeyErrorCode.Int64(101))
		root.Fail(failed.Error())
	}
	root.End()
	return r.OTLP(nil)
}

// observed counts operations of lines.
func observed(o *operations, lines ...[]byte) {
	for _, l := range lines {
		o.read(l)
	}
}

// scrape is what a scraper is told.
func scrape(t *testing.T, accept string, c ...prometheus.Collector) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c...)
	return get(t, pages(registry, func() []string { return nil }), "/metrics", accept, http.StatusOK)
}

func get(t *testing.T, h http.Handler, path, accept string, status int) string {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	b, err := io.ReadAll(w.Result().Body)
	if w.Code != status || err != nil {
		t.Errorf("%s: %d, %v", path, w.Code, err)
	}
	return string(b)
}

// values is the lines of a scrape that begin with one of names.
func values(text string, names ...string) (out []string) {
	for l := range strings.Lines(text) {
		for _, n := range names {
			if strings.HasPrefix(l, n) {
				out = append(out, strings.TrimSpace(l))
			}
		}
	}
	return out
}

func killed() []byte {
	const span = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	return trace.Past{Name: "cni.ADD", Span: span, Began: time.Now(), Attributes: []trace.KeyValue{trace.KeyName.String("podnet")}}.Recorder().OTLP(nil)
}

// TestOddLines: what is no operation counts as none, and does no harm.
func TestOddLines(t *testing.T) {
	o := newOperations()
	observed(o, nil, []byte("{"), []byte("[]"), []byte(`{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"x"}]}]}]}`))
	if got := values(scrape(t, "", o), "tracewire_operations_total"); len(got) != 1 {
		t.Errorf("%s", got)
	}
}

func TestOperations(t *testing.T) {
	o := newOperations()
	observed(o, line(t, "cni.ADD", "podnet", "c1", nil), line(t, "cni.ADD", "podnet", "c2", nil),
		line(t, "cni.ADD", "podnet", "c3", errors.New("no addresses")), line(t, "cni.DEL", "podnet", "c1", nil), killed())
	text := scrape(t, "", o)
	want := []string{
		`tracewire_operation_duration_seconds_count{network="podnet",verb="ADD"} 4`,
		`tracewire_operation_duration_seconds_count{network="podnet",verb="DEL"} 1`,
		`tracewire_operations_total{code="0",network="podnet",outcome="interrupted",verb="ADD"} 1`,
		`tracewire_operations_total{code="0",network="podnet",outcome="ok",verb="ADD"} 2`,
		`tracewire_operations_total{code="0",network="podnet",outcome="ok",verb="DEL"} 1`,
		`tracewire_operations_total{code="101",network="podnet",outcome="error",verb="ADD"} 1`,
		`tracewire_phase_duration_seconds_count{phase="bridge",verb="ADD"} 3`,
		`tracewire_phase_duration_seconds_count{phase="bridge",verb="DEL"} 1`,
		`tracewire_phase_duration_seconds_count{phase="ipam",verb="ADD"} 3`,
		`tracewire_phase_duration_seconds_count{phase="ipam",verb="DEL"} 1`,
	}
	if diff := cmp.Diff(want, values(text, "tracewire_operations_total", "tracewire_operation_duration_seconds_count", "tracewire_phase_duration_seconds_count")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if open := scrape(t, "application/openmetrics-text;version=1.0.0", o); !strings.Contains(open, `# {trace_id="4bf92f3577b34da6a3ce929d0e0e4736"}`) {
		t.Errorf("no exemplar:\n%s", open)
	}
}

// TestLabelsAreBounded: whatever networks and phases are called, and however
// many there are, a label has few values, and none is a container's or a pod's.
func TestLabelsAreBounded(t *testing.T) {
	o := newOperations()
	for i := range 300 {
		observed(o, line(t, fmt.Sprint("cni.X", i), fmt.Sprint("net", i), fmt.Sprint("container", i), nil))
	}
	observed(o, line(t, "cni.ADD", "b\xffd\n\"", "c1", nil))
	text := scrape(t, "", o)
	if n := len(values(text, "tracewire_operations_total")); n > maxPhases+1 {
		t.Errorf("%d series", n)
	}
	for _, secret := range []string{"container", "web-0"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s is a label", secret)
		}
	}
}

// plant makes a record in each state.
func plant(t *testing.T, state string) {
	t.Helper()
	dir := cache.Dir{Path: filepath.Join(state, "attachments"), Sync: "never"}
	conf := fmt.Sprintf(`{"name":"old","type":"tracewire","ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.9.0.0/30"}]]}}`, state)
	for i, network := range []string{"podnet", "podnet", "old"} {
		j, err := dir.Begin(cache.Intent{Attachment: delegates.Attachment{Network: network, ContainerID: fmt.Sprint("c", i), IfName: "eth0"}, Conf: []byte(conf)}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			err = j.Result(&types100.Result{CNIVersion: "1.1.0"})
		}
		if err = errors.Join(err, j.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// onNode is a node with a network that has a list, and one that has only records
// any more.
func onNode(t *testing.T) node {
	t.Helper()
	dir := t.TempDir()
	state, data := filepath.Join(dir, "state"), filepath.Join(dir, "ipam")
	for name, text := range map[string]string{
		"net.d/10.conflist": fmt.Sprintf(`{"name":"podnet","cniVersion":"1.1.0","plugins":[{"type":"tracewire",
			"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.22.0.0/29"}],[{"subnet":"fd00::/124"}]]},"tracewire":{"stateDir":%q}}]}`, data, state),
		"net.d/20.conflist":                `{`,
		"ipam/podnet/10.22.0.2":            "c1",
		"ipam/podnet/10.22.0.3":            "c2",
		"ipam/podnet/lock":                 "",
		"state/spool/20260101T0000Z.jsonl": "12345",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	plant(t, state)
	return node{lists: (&agent{flags: flags{confDir: filepath.Join(dir, "net.d")}}).entries, spools: []string{filepath.Join(state, "spool")}}
}

// TestNode: what is there at the moment of a scrape.
func TestNode(t *testing.T) {
	n := onNode(t)
	want := []string{
		`tracewire_attachments{network="old",state="attached"} 1`,
		`tracewire_attachments{network="podnet",state="attached"} 1`,
		`tracewire_attachments{network="podnet",state="interrupted"} 1`,
		`tracewire_ipam_capacity_addresses{network="old",range="10.9.0.1-10.9.0.2"} 1`,
		`tracewire_ipam_capacity_addresses{network="podnet",range="10.22.0.1-10.22.0.6"} 5`,
		`tracewire_ipam_capacity_addresses{network="podnet",range="fd00::1-fd00::f"} 14`,
		`tracewire_ipam_used_addresses{network="old",range="10.9.0.1-10.9.0.2"} 0`,
		`tracewire_ipam_used_addresses{network="podnet",range="10.22.0.1-10.22.0.6"} 2`,
		`tracewire_ipam_used_addresses{network="podnet",range="fd00::1-fd00::f"} 0`,
		`tracewire_unreadable_sources{source="conflists"} 0`,
		`tracewire_unreadable_sources{source="records"} 0`,
		`tracewire_unreadable_sources{source="reservations"} 0`,
		`tracewire_unreadable_sources{source="spool"} 0`,
	}
	text := scrape(t, "", n)
	if diff := cmp.Diff(want, values(text, "tracewire_attachments", "tracewire_ipam", "tracewire_unreadable")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := values(text, "tracewire_spool_bytes"); !cmp.Equal([]string{"tracewire_spool_bytes 5"}, got) {
		t.Errorf("%v", got)
	}
	plain := filepath.Join(n.spools[0], "20260101T0000Z.jsonl")
	if text := scrape(t, "", node{lists: (&agent{flags: flags{confDir: plain}}).entries, spools: []string{plain}}); strings.Count(text, "} 1\n") != 2 {
		t.Errorf("a file in the place of folders:\n%s", text)
	}
}

// TestNewest: of a network that has no list the newest record counts, and of one
// that has one none is held.
func TestNewest(t *testing.T) {
	dir := cache.Dir{Path: filepath.Join(t.TempDir(), "attachments"), Sync: "never"}
	for i, network := range []string{"old", "old", "old", "told"} {
		in := cache.Intent{Attachment: delegates.Attachment{Network: network, ContainerID: fmt.Sprint("c", 9-i), IfName: "eth0"}, Conf: []byte("{}")}
		j, err := dir.Begin(in, time.Now()) // the last one, c7, is listed first
		if err := errors.Join(err, j.Close()); err != nil {
			t.Fatal(err)
		}
	}
	ch := make(chan prometheus.Metric, 9)
	newest, err := node{}.records(ch, []string{filepath.Dir(dir.Path)}, map[string]bool{"told": true})
	if len(newest) != 1 || newest["old"].ContainerID != "c7" || err != nil || len(ch) != 2 {
		t.Errorf("%v, %v, %d metrics", newest, err, len(ch))
	}
}

// TestNames: Prometheus' own tool finds nothing wrong with names and units.
func TestNames(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is missing (Debian: prometheus)")
	}
	o := newOperations()
	observed(o, line(t, "cni.ADD", "podnet", "c1", nil))
	check := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	check.Stdin = strings.NewReader(scrape(t, "", o, node{lists: (&agent{flags: flags{confDir: t.TempDir()}}).entries}, exports{(&agent{}).signals}))
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestHealth(t *testing.T) {
	h := pages(prometheus.NewRegistry(), func() []string { return []string{"collector: connection refused since 10:04", "spool: no such folder"} })
	if got := get(t, h, "/healthz", "", http.StatusOK); got != "ok\n" {
		t.Errorf("%q", got)
	}
	if got := get(t, h, "/readyz", "", http.StatusServiceUnavailable); got != "collector: connection refused since 10:04\nspool: no such folder\n" {
		t.Errorf("%q", got)
	}
	if got := get(t, h, "/", "", http.StatusNotFound); got == "" {
		t.Error("nothing is said")
	}
}
