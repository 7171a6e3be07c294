package cache

import (
	"bytes"
	"testing"

	"github.com/tracewire/tracewire/delegates"
)

// FuzzEntry: whatever stands in libcni's place, its name counts, and its content
// never makes two of one.
func FuzzEntry(f *testing.F) {
	const result = `{"cniVersion":"1.0.0","interfaces":[{"name":"veth0"},{"name":"eth0","sandbox":"/run/netns/c1"}],"ips":[{"address":"10.1.0.2/24"}]}`
	for _, content := range []string{
		`{"kind":"cniCacheV1","containerId":"c1","config":"e30=","ifName":"eth0","networkName":"net","netns":"/run/netns/c1","result":` + result + `}`,
		result, ``, `null`, `{}`, `[]`, `{"kind":"cniCacheV1"}`, `{"kind":"cniCacheV1","result":null}`, `{"kind":"cniCacheV1","result":{"ips":[null],"interfaces":[null]}}`,
		`{"interfaces":null,"ips":[null]}`, `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24"}}`, `{"kind":7}`, result[:40], "\x00\x00\x00",
	} {
		f.Add("net-c1-eth0", []byte(content))
	}
	f.Fuzz(func(t *testing.T, name string, b []byte) {
		before := bytes.Clone(b)
		e, _ := readEntry(name, b)
		if e.Name != name || !bytes.Equal(before, b) {
			t.Errorf("%q became %+v", name, e)
		}
		for _, a := range e.Addresses {
			if !a.IsValid() {
				t.Errorf("address %v", a)
			}
		}
		_ = e.is(delegates.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"})
	})
}

// FuzzLine: a line that is whole, its sum right, may hold anything all the same:
// another version of ours wrote it. The lines around it are read.
func FuzzLine(f *testing.F) {
	for _, body := range []string{
		`{"v":1,"kind":"result","result":{"ips":[null]}}`, `{"v":1,"kind":"plan","result":7}`, `{"v":1,"kind":"asked","phase":"ipam"}`, `{"v":1,"kind":"freed"}`,
		`{"v":1,"kind":"begin","phase":"exec","after":-1}`, `{"v":1,"kind":"end","phase":"none"}`, `{"v":1,"kind":"deleting","span":"x"}`, `{"v":9,"kind":"other","new":[]}`,
		`{"v":"1","kind":"told"}`, `{"kind":7}`, `{"v":1}`, `{"v":1,"kind":"intent","at":"x"}`, `[]`, `null`, `{`, `x"kind":"begin"`, "{\"v\":1,\"kind\":\"told\",\"x\":\"\xff\"}",
	} {
		f.Add([]byte(body))
	}
	in, err := encode(entry{Kind: "intent", Intent: intent})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if bytes.ContainsRune(body, '\n') || len(body) < 2 {
			return
		}
		line := sealed(string(body))
		r := Replay(append(bytes.Clone(in), line...))
		if r.State == Unreadable || r.Damaged || r.good != r.Size {
			t.Errorf("%s: %s, damaged %t, good to %d of %d", body, r.State, r.Damaged, r.good, r.Size)
		}
		_, _ = r.Made("boot-1"), r.Phases()
		_, _ = r.Untold()
	})
}
