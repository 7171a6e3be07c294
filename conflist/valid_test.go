package conflist

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestValid: no list is not an empty one, and a list that cannot be read whole
// is neither.
func TestValid(t *testing.T) {
	const key, draft = `"cni.dev/valid-attachments"`, `"cni.dev/attachments"`
	one := []Attachment{{"c1", "eth0"}}
	for _, tt := range []struct {
		name, conf string
		want       []Attachment
		given      bool
		err        string
	}{
		{"absent", `{"name":"net"}`, nil, false, ""},
		{"null", `{` + key + `:null}`, nil, false, ""},
		{"both null", `{` + key + `:null,` + draft + `:null}`, nil, false, ""},
		{"empty", `{` + key + `:[]}`, nil, true, ""},
		{"one", `{` + key + `:[{"containerID":"c1","ifname":"eth0"}]}`, one, true, ""},
		{"another spelling", `{` + key + `:[{"containerId":"c1","ifName":"eth0"}]}`, one, true, ""},
		{"two", `{` + key + `:[{"containerID":"c1","ifname":"eth0"},{"containerID":"c1","ifname":"net1"}]}`, []Attachment{{"c1", "eth0"}, {"c1", "net1"}}, true, ""},
		{"the draft's name", `{` + draft + `:[{"containerID":"c1","ifname":"eth0"}]}`, one, true, ""},
		{"the draft's name, the other null", `{` + key + `:null,` + draft + `:[{"containerID":"c1","ifname":"eth0"}]}`, one, true, ""},
		{"both", `{` + draft + `:[],` + key + `:[{"containerID":"c1","ifname":"eth0"}]}`, one, true, ""},
		{"no array", `{` + key + `:{}}`, nil, true, "invalid network configuration: cni.dev/valid-attachments: must be an array, got {}"},
		{"an entry that is null", `{` + key + `:[null]}`, []Attachment{{}}, true, "invalid network configuration: cni.dev/valid-attachments[0].containerID: must be a container id, got null\ninvalid network configuration: cni.dev/valid-attachments[0].ifname: must be an interface name, got null"},
		{"no interface", `{` + key + `:[{"containerID":"c1"}]}`, []Attachment{{"c1", ""}}, true, "invalid network configuration: cni.dev/valid-attachments[0].ifname: must be an interface name, got null"},
		{"a number", `{` + key + `:[{"containerID":1,"ifname":"eth0"}]}`, []Attachment{{"", "eth0"}}, true, "invalid network configuration: cni.dev/valid-attachments[0].containerID: must be a string, got 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, given, err := Valid([]byte(tt.conf))
			if diff := cmp.Diff(tt.want, got); diff != "" || given != tt.given {
				t.Errorf("given %t, (-want +got)\n%s", given, diff)
			}
			if diff := cmp.Diff(tt.err, text(err)); diff != "" {
				t.Errorf("error (-want +got)\n%s", diff)
			}
		})
	}
}

func FuzzValid(f *testing.F) {
	const key = `{"cni.dev/valid-attachments":`
	for _, conf := range []string{
		`{}`, `null`, ``, `[]`, key + `null}`, key + `[]}`, key + `[null]}`, key + `[[]]}`, key + `"all"}`, key + `[{"containerID":"../../c1","ifname":"a/b"}]}`,
		key + `[{"containerID":"c1","ifname":"eth0"}],"cni.dev/attachments":[]}`, key + `[{"containerID":"c1","ifname":"eth0"},{"containerID":"\u0000","IFNAME":1}]}`,
		key + `[{"containerID":"c1","ifname":"eth0"`, "{\"cni.dev/attachments\":[{\"containerid\":\"\xff\",\"ifName\":\"\xfe\"}]}",
	} {
		f.Add([]byte(conf))
	}
	f.Fuzz(func(t *testing.T, conf []byte) {
		list, given, err := Valid(conf)
		if err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("unnamed error: %v", err)
		}
		if !given && len(list) > 0 {
			t.Errorf("no list was given, and it has %v", list)
		}
		for _, a := range list { // what is missing would be taken for stale
			if err == nil && (a.ContainerID == "" || a.IfName == "") {
				t.Errorf("%+v is no attachment, and there is no error", a)
			}
		}
	})
}
