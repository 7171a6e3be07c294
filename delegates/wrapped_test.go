package delegates

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/trace/read"
)

// wrapped is a delegate that is given a configuration of its own.
func wrapped(version string) Wrapped {
	return Wrapped{Plugin: Plugin{Type: "fake", Step: "delegates[0] fake", Conf: json.RawMessage(`{"cniVersion":"` + version + `","name":"net","type":"fake"}`)}}
}

// TestWrappedAnswers: an answer replaces the result so far, and has to keep
// our interfaces, addresses, and whose they are.
func TestWrappedAnswers(t *testing.T) {
	const (
		ifs     = `"interfaces":[{"name":"b0"},{"name":"veth1"},{"name":"eth0","sandbox":"/n"}]`
		ips     = `"ips":[{"address":"10.1.0.2/24","interface":2}]`
		before  = `{"cniVersion":"1.1.0",` + ifs + `,` + ips + `}`
		answers = "delegated plugin failed: fake: answer "
	)
	for _, tt := range []struct{ name, before, version, answer, want, err string }{
		{"the same", before, "1.1.0", before, before, ""},
		{"more", before, "1.1.0", `{"cniVersion":"1.1.0","interfaces":[{"name":"ifb0"},{"name":"b0"},{"name":"veth1"},{"name":"eth0","sandbox":"/n"}],"ips":[{"address":"10.1.0.2/24","interface":3}],"routes":[{"dst":"0.0.0.0/0"}]}`,
			`{"cniVersion":"1.1.0","interfaces":[{"name":"ifb0"},{"name":"b0"},{"name":"veth1"},{"name":"eth0","sandbox":"/n"}],"ips":[{"address":"10.1.0.2/24","interface":3}],"routes":[{"dst":"0.0.0.0/0"}]}`, ""},
		{"another MAC", before, "1.1.0", strings.Replace(before, `"name":"eth0"`, `"name":"eth0","mac":"02:00:00:00:00:01"`, 1), strings.Replace(before, `"name":"eth0"`, `"name":"eth0","mac":"02:00:00:00:00:01"`, 1), ""},
		{"an older version", before, "0.4.0", `{"cniVersion":"0.4.0",` + ifs + `,"ips":[{"version":"4","address":"10.1.0.2/24","interface":2}]}`, before, ""},
		{"an older version, which cannot hold all", `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/n","mtu":1400,"mac":"02:00:00:00:00:01"}],"routes":[{"dst":"0.0.0.0/0","mtu":1300,"priority":7,"table":9,"scope":0},{"dst":"10.9.0.0/16","mtu":1200}]}`, "0.4.0",
			`{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","sandbox":"/n","mac":"02:00:00:00:00:02"},{"name":"ifb0"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"10.9.0.0/16","gw":"10.1.0.1"}]}`,
			`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/n","mtu":1400,"mac":"02:00:00:00:00:02"},{"name":"ifb0"}],"routes":[{"dst":"0.0.0.0/0","mtu":1300,"priority":7,"table":9,"scope":0},{"dst":"10.9.0.0/16","gw":"10.1.0.1"}]}`, ""},
		{"a version without interfaces", before, "0.2.0", `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24"}}`, before, ""},
		{"a version without interfaces, that it is not told", before, "0.2.0", `{"ip4":{"ip":"10.1.0.2/24"}}`, before, ""},
		{"null", before, "1.1.0", "null", "", answers + "is null, not a result"},
		{"empty", before, "1.1.0", "{}", "", answers + "lost interface b0 of the host"},
		{"the pod's interface is lost", before, "1.1.0", `{"cniVersion":"1.1.0","interfaces":[{"name":"b0"},{"name":"veth1"},{"name":"eth1","sandbox":"/n"}],` + ips + `}`, "", answers + "lost interface eth0 in /n"},
		{"it is another sandbox's", before, "1.1.0", `{"cniVersion":"1.1.0","interfaces":[{"name":"b0"},{"name":"veth1"},{"name":"eth0"}],` + ips + `}`, "", answers + "lost interface eth0 in /n"},
		{"the address is lost", before, "1.1.0", `{"cniVersion":"1.1.0",` + ifs + `}`, "", answers + "lost address 10.1.0.2/24"},
		{"another prefix length", before, "1.1.0", `{"cniVersion":"1.1.0",` + ifs + `,"ips":[{"address":"10.1.0.2/16","interface":2}]}`, "", answers + "lost address 10.1.0.2/24"},
		{"whose it is, is lost", before, "1.1.0", `{"cniVersion":"1.1.0",` + ifs + `,"ips":[{"address":"10.1.0.2/24"}]}`, "", answers + "lost the interface of address 10.1.0.2/24, eth0 in /n"},
		{"it is another's", before, "1.1.0", `{"cniVersion":"1.1.0",` + ifs + `,"ips":[{"address":"10.1.0.2/24","interface":0}]}`, "", answers + "lost the interface of address 10.1.0.2/24, eth0 in /n"},
		{"it is nobody's", before, "1.1.0", `{"cniVersion":"1.1.0",` + ifs + `,"ips":[{"address":"10.1.0.2/24","interface":7}]}`, "", answers + "lost the interface of address 10.1.0.2/24, eth0 in /n"},
		{"an address of its own, of nobody", before, "1.1.0", `{"cniVersion":"1.1.0",` + ifs + `,"ips":[{"address":"10.1.0.2/24","interface":2},{"address":"10.2.0.2/24","interface":-1}]}`, "",
			answers + "has address 10.2.0.2/24 of interface -1, but 3 interfaces"},

		{"the first", "", "1.1.0", before, before, ""},
		{"the first, without anything", "", "1.1.0", `{"cniVersion":"1.1.0"}`, `{"cniVersion":"1.1.0"}`, ""},
		{"the first, with null", "", "1.1.0", "null", "", answers + "is null, not a result"},
		{"the first, with an address of nobody", "", "1.1.0", `{"cniVersion":"1.1.0",` + ips + `}`, "", answers + "has address 10.1.0.2/24 of interface 2, but 0 interfaces"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := plugins(t, map[string]string{"fake": "echo '" + tt.answer + "'"})
			c := f.call()
			var err error
			if c.Before, err = Previous(json.RawMessage(tt.before)); err != nil {
				t.Fatal(err)
			}
			got, err := wrapped(tt.version).Add(t.Context(), c)
			if said := fmt.Sprint(err); said != tt.err && (err != nil || tt.err != "") {
				t.Fatalf("error %s\nwant  %s", said, tt.err)
			}
			if err != nil {
				return
			}
			if diff := cmp.Diff(canonical(t, tt.want), canonical(t, asJSON(t, got))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestWrappedIsGiven: its own configuration, and on ADD the result so far in
// that one's version.
func TestWrappedIsGiven(t *testing.T) {
	before := &types100.Result{CNIVersion: "1.1.0", Interfaces: []*types100.Interface{{Name: "eth0", Sandbox: "/n"}}}
	for _, tt := range []struct {
		verb, version, prev string
		before, made        *types100.Result
		want                string
	}{
		{"ADD", "1.0.0", "", nil, nil, `{"cniVersion":"1.0.0","name":"net","type":"fake"}`},
		{"ADD", "1.0.0", "", before, nil, `{"cniVersion":"1.0.0","name":"net","type":"fake","prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/n"}]}}`},
		{"ADD", "1.0.0", `{"x":1}`, before, nil, `{"cniVersion":"1.0.0","name":"net","type":"fake","prevResult":{"x":1}}`},
		{"DEL", "1.0.0", `{"x":1}`, nil, before, `{"cniVersion":"1.0.0","name":"net","type":"fake","prevResult":{"x":1}}`},
		{"DEL", "0.3.1", "", nil, before, `{"cniVersion":"0.3.1","name":"net","type":"fake","prevResult":{"cniVersion":"0.3.1","interfaces":[{"name":"eth0","sandbox":"/n"}],"dns":{}}}`},
	} {
		f := plugins(t, map[string]string{"fake": `cat >"${0%/*}/stdin"; echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/n"}]}'`})
		c := f.call()
		c.Prev, c.Before, c.Made.Result = json.RawMessage(tt.prev), tt.before, tt.made
		var err error
		if tt.verb == "ADD" {
			_, err = wrapped(tt.version).Add(t.Context(), c)
		} else {
			err = wrapped(tt.version).Del(t.Context(), c)
		}
		if diff := cmp.Diff(canonicalJSON(t, tt.want), canonicalJSON(t, f.read(t, "stdin"))); diff != "" || err != nil {
			t.Errorf("%s %s: %v (-want +got)\n%s", tt.verb, tt.version, err, diff)
		}
	}
}

// warning is the name of the one event, "" for none.
func warning(events []read.Event) (names string) {
	for _, e := range events {
		names += e.Name
	}
	return names
}

func canonicalJSON(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// TestDelThatIsExcused: a DEL that fails is none where nothing can be left of
// what ADD made.
func TestDelThatIsExcused(t *testing.T) {
	const (
		fails = `echo '{"code":999,"msg":"no such device"}'; exit 1`
		later = `echo '{"code":11,"msg":"busy"}'; exit 1`
	)
	asked := Made{Known: true, Steps: map[string]Ran{"delegates[0] fake": Asked}}
	begun := Made{Known: true, Steps: map[string]Ran{"delegates[0] fake": Freeing}}
	prev := &types100.Result{}
	for _, tt := range []struct {
		name, script string
		main, absent bool
		made         Made
		before       *types100.Result
		warning      string // "" where it is an error
	}{
		{"nothing is known", fails, false, false, Made{}, nil, "fake failed, and nothing is known that it made"},
		{"nothing is known, busy", later, false, false, Made{}, nil, ""},
		{"nothing is known, missing", "", false, false, Made{}, nil, "fake is missing, and nothing is known that it made"},
		{"a prevResult", fails, false, true, Made{}, prev, ""},
		{"a prevResult, missing", "", true, false, Made{}, prev, ""},
		{"a prevResult, of the interface that is gone", fails, true, true, Made{}, prev, "fake failed, and the interface is gone: an earlier DEL removed it"},
		{"a prevResult, of the interface that is there", fails, true, false, Made{}, prev, ""},
		{"a record", fails, true, true, asked, nil, ""},
		{"a record, its DEL was begun", fails, true, true, begun, nil, "fake failed, and the interface is gone: an earlier DEL removed it"},
		{"a record, its DEL was begun, the interface is there", fails, true, false, begun, nil, ""},
		{"a record, its DEL was begun, busy", later, true, true, begun, nil, ""},
		{"a record, its DEL was begun, not of the interface", fails, false, true, begun, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			scripts := map[string]string{"fake": tt.script}
			if tt.script == "" {
				scripts = nil
			}
			f := plugins(t, scripts)
			c, j := f.call(), &journal{}
			c.Made, c.Before, c.Absent, c.Journal = tt.made, tt.before, tt.absent, j
			w := wrapped("1.0.0")
			w.Main = tt.main
			var err error
			op := record(t, func(ctx context.Context) { err = w.Del(ctx, c) })
			if got := warning(op.Root.Events); got != tt.warning || (err == nil) != (tt.warning != "") {
				t.Errorf("error %v, warning %q", err, got)
			}
			if freed := strings.Contains(strings.Join(j.phases, " "), "freed"); freed != (err == nil) {
				t.Errorf("the record has %q", j.phases)
			}
		})
	}
}

// TestDelAfterTheNamespace: a plugin that makes nothing outside of the pod's
// namespace, as sbr, has nothing to remove when that is gone.
func TestDelAfterTheNamespace(t *testing.T) {
	for script, scripts := range map[string]map[string]string{"fails": {"fake": "exit 1"}, "is missing": nil} {
		for netns, want := range map[string]bool{"": true, "/run/netns/c1": false} {
			for _, inPod := range []bool{true, false} {
				w, c := wrapped("1.0.0"), plugins(t, scripts).call()
				w.InPod, c.NetNS = inPod, netns
				c.Made = Made{Known: true, Steps: map[string]Ran{"delegates[0] fake": Asked}}
				if err := w.Del(t.Context(), c); (err == nil) != (want && inPod) {
					t.Errorf("%s, namespace %q, in the pod %t: error %v", script, netns, inPod, err)
				}
			}
		}
	}
}

// TestAddressAfterTheNamespace: the address is freed, and first, where the
// plugin might end before it.
func TestAddressAfterTheNamespace(t *testing.T) {
	known := Made{Known: true, Steps: map[string]Ran{"delegates[0] fake": Asked}}
	for _, tt := range []struct {
		name, netns, leases string
		made                Made
		want                string // what was run
		failed              bool
	}{
		{"gone", "", "exit 0", known, "leases\nfake\n", false},
		{"there", "/run/netns/c1", "exit 0", known, "fake\n", false},
		{"freed already", "", "exit 0", Made{Known: true, Steps: map[string]Ran{"delegates[0] fake": Freed}}, "", false},
		{"IPAM fails", "", "exit 1", known, "leases\n", true},
		{"IPAM fails, and nothing is known", "", "exit 1", Made{}, "leases\nfake\n", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const note = `echo ${0##*/} >> ${0%/*}/runs; `
			f := plugins(t, map[string]string{"fake": note, "leases": note + tt.leases, "runs": ""})
			if err := os.WriteFile(filepath.Join(string(f), "runs"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			w, c := wrapped("1.0.0"), f.call()
			w.Main, w.IPAM, c.NetNS, c.Made = true, "leases", tt.netns, tt.made
			if err := w.Del(t.Context(), c); (err != nil) != tt.failed {
				t.Errorf("error %v", err)
			}
			if got := f.read(t, "runs"); got != tt.want {
				t.Errorf("ran %q, want %q", got, tt.want)
			}
		})
	}
}

// TestDelIsWrittenDown before and after: what is done is not done again.
func TestDelIsWrittenDown(t *testing.T) {
	f := plugins(t, map[string]string{"fake": "exit 0"})
	c, j := f.call(), &journal{}
	c.Journal, c.Made = j, Made{Known: true, Steps: map[string]Ran{"delegates[0] fake": Asked}}
	if err := wrapped("1.0.0").Del(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	want := []string{"freeing delegates[0] fake durable false", "begin exec", "end exec", "freed delegates[0] fake durable false"}
	if diff := cmp.Diff(want, j.phases); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if err := wrapped("1.0.0").Del(t.Context(), Call{Journal: &journal{full: unix.ENOSPC}, Made: c.Made, Path: []string{string(f)}}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a journal that is full: %v", err)
	}
}

// TestCheckOfAPlugin: what a plugin found is a finding, and that it could not
// look is an error of another kind.
func TestCheckOfAPlugin(t *testing.T) {
	for script, want := range map[string]string{
		"exit 0": "<nil>",
		`echo '{"code":999,"msg":"no rule"}'; exit 1`:         "delegate.check: expected fake to find nothing, found no rule",
		`echo '{"code":107,"msg":"a","details":"b"}'; exit 1`: "delegate.check: expected fake to find nothing, found a; b",
		`echo '{"code":7,"msg":"bad key"}'; exit 1`:           "exec: delegated plugin failed: fake: bad key",
		`echo '{"code":11,"msg":"busy"}'; exit 1`:             "exec: delegated plugin failed: fake: busy",
		"exit 1": `exec: delegated plugin failed: fake: exit status 1: no error printed: """"`,
	} {
		f := plugins(t, map[string]string{"fake": script})
		if got := fmt.Sprint(wrapped("1.0.0").Check(t.Context(), f.call())); got != want {
			t.Errorf("%s: %s, want %s", script, got, want)
		}
	}
}

// TestExecutableThatNeverRan: one that the kernel does not start has made
// nothing, and is not asked to remove it.
func TestExecutableThatNeverRan(t *testing.T) {
	f := plugins(t, map[string]string{"fake": "exit 0"})
	if err := os.Chmod(filepath.Join(string(f), "fake"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, j := f.call(), &journal{}
	c.Journal = j
	if _, err := wrapped("1.0.0").Add(t.Context(), c); !errors.Is(err, unix.EACCES) {
		t.Errorf("error %v", err)
	}
	want := []string{"asked delegates[0] fake durable false", "begin exec", "freed delegates[0] fake durable false"}
	if diff := cmp.Diff(want, j.phases); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
