package conflist

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDelegateIsGiven: a delegate has what a runtime would have given it as an
// entry of the list of its own.
func TestDelegateIsGiven(t *testing.T) {
	const ours = `"cniVersion":"1.0.0","name":"net","type":"tracewire"`
	for _, tt := range []struct{ name, conf, want string }{
		{"name and version", `{` + ours + `,"bridge":"b0","ipam":{"type":"static"},"tracewire":{"sync":"never"},"dns":{"domain":"d"},"delegates":[{"type":"sbr","table":7}]}`,
			`{"cniVersion":"1.0.0","name":"net","type":"sbr","table":7}`},
		{"its own do not count", `{` + ours + `,"delegates":[{"type":"sbr","name":"other","cniVersion":"0.1.0","prevResult":{"a":1}}]}`, `{"cniVersion":"1.0.0","name":"net","type":"sbr"}`},
		{"prevResult is the caller's", `{` + ours + `,"prevResult":{"ips":[]},"delegates":[{"type":"sbr"}]}`, `{"cniVersion":"1.0.0","name":"net","type":"sbr"}`},
		{"args", `{` + ours + `,"args":{"cni":{"mac":"m"}},"delegates":[{"type":"tuning"}]}`, `{"cniVersion":"1.0.0","name":"net","type":"tuning","args":{"cni":{"mac":"m"}}}`},
		{"args of its own", `{` + ours + `,"args":{"cni":{"mac":"m"}},"delegates":[{"type":"tuning","args":{}}]}`, `{"cniVersion":"1.0.0","name":"net","type":"tuning","args":{}}`},
		{"the list of GC", `{` + ours + `,"cni.dev/valid-attachments":[],"cni.dev/attachments":null,"delegates":[{"type":"sbr"}]}`,
			`{"cniVersion":"1.0.0","name":"net","type":"sbr","cni.dev/valid-attachments":[],"cni.dev/attachments":null}`},
		{"both declare it", `{` + ours + `,"capabilities":{"bandwidth":true,"mac":true},"runtimeConfig":{"bandwidth":{"IngressRate":1,"odd":null},"mac":"m"},"delegates":[{"type":"bandwidth","capabilities":{"bandwidth":true}}]}`,
			`{"cniVersion":"1.0.0","name":"net","type":"bandwidth","capabilities":{"bandwidth":true},"runtimeConfig":{"bandwidth":{"IngressRate":1,"odd":null}}}`},
		{"we do not declare it", `{` + ours + `,"runtimeConfig":{"mac":"m"},"delegates":[{"type":"tuning","capabilities":{"mac":true}}]}`, `{"cniVersion":"1.0.0","name":"net","type":"tuning","capabilities":{"mac":true}}`},
		{"it does not", `{` + ours + `,"capabilities":{"mac":true},"runtimeConfig":{"mac":"m"},"delegates":[{"type":"tuning","capabilities":{"mac":false}}]}`, `{"cniVersion":"1.0.0","name":"net","type":"tuning","capabilities":{"mac":false}}`},
		{"a runtimeConfig of its own", `{` + ours + `,"delegates":[{"type":"tuning","runtimeConfig":{"mac":"m"}}]}`, `{"cniVersion":"1.0.0","name":"net","type":"tuning","runtimeConfig":{"mac":"m"}}`},
		{"and the runtime's instead", `{` + ours + `,"capabilities":{"mac":true},"runtimeConfig":{"mac":"n"},"delegates":[{"type":"tuning","capabilities":{"mac":true},"runtimeConfig":{"mac":"m"}}]}`,
			`{"cniVersion":"1.0.0","name":"net","type":"tuning","capabilities":{"mac":true},"runtimeConfig":{"mac":"n"}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			doc := Read([]byte(tt.conf))
			all := Parse(doc).Delegates
			if doc.Err() != nil || len(all) != 1 {
				t.Fatalf("%d delegates: %v", len(all), doc.Err())
			}
			if diff := cmp.Diff(value(t, tt.want), value(t, string(all[0].Conf))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func value(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestDurable: what is not known to make kernel state alone may outlive a
// power cut.
func TestDurable(t *testing.T) {
	for entry, want := range map[string]bool{
		`{"type":"bandwidth"}`:                                false,
		`{"type":"macvlan"}`:                                  false,
		`{"type":"macvlan","ipam":{}}`:                        false,
		`{"type":"macvlan","ipam":{"type":"static"}}`:         false,
		`{"type":"macvlan","ipam":{"type":"host-local"}}`:     true,
		`{"type":"ptp","ipam":{"type":"dhcp"}}`:               true,
		`{"type":"calico"}`:                                   true,
		`{"type":"calico","ipam":{"type":"calico-ipam"}}`:     true,
		`{"type":"tuning","sysctl":{"net.core.somaxconn":1}}`: false,
	} {
		if all := Parse(Read([]byte(`{"delegates":[` + entry + `]}`))).Delegates; len(all) != 1 || all[0].Durable != want {
			t.Errorf("%s: %+v, want %t", entry, all, want)
		}
	}
}

// TestInPod: of the reference plugins a few make nothing on the node.
func TestInPod(t *testing.T) {
	for plugin, want := range map[string]bool{"sbr": true, "tuning": true, "bandwidth": false, "macvlan": false, "calico": false} {
		if all := Parse(Read([]byte(`{"delegates":[{"type":"` + plugin + `"}]}`))).Delegates; len(all) != 1 || all[0].InPod != want {
			t.Errorf("%s: %+v, want %t", plugin, all, want)
		}
	}
}
