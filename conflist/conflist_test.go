package conflist

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// parsed is a Network with all its defaults, changed.
func parsed(change ...func(*Network)) Network {
	n := Network{Tracewire: Tracewire{
		Mode: "bridge", StateDir: "/var/lib/cni/tracewire", LogPath: "/var/log/tracewire/tracewire.jsonl", LogLevel: "info",
		SpoolDir: "/var/lib/cni/tracewire/spool", SpoolBytes: 64 << 20, Timeout: 30 * time.Second, Sync: "auto", StatusGrace: time.Minute, StatusOnExhaustion: "report",
	}}
	for _, c := range change {
		c(&n)
	}
	return n
}

// wraps gives a Network its delegates.
func wraps(d ...Delegate) func(*Network) { return func(n *Network) { n.Delegates = d } }

// text is an error's text, "" for none.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestParse(t *testing.T) {
	long := strings.Repeat("n", 256)
	mode := func(m string) func(*Network) { return func(n *Network) { n.Tracewire.Mode = m } }
	for _, tt := range []struct {
		name, conf string
		want       Network
		err        string
	}{
		{"nothing", `{}`, parsed(), ""},
		{"what all steps share", `{"cniVersion":"1.1.0","name":"net","type":"tracewire","ipam":{"type":"host-local"},"prevResult":{"ips":[]}}`, parsed(func(n *Network) {
			n.CNIVersion, n.Name, n.Type, n.IPAM, n.Prev = "1.1.0", "net", "tracewire", "host-local", json.RawMessage(`{"ips":[]}`)
		}), ""},
		{"all of our keys", `{"tracewire":{"mode":"bridge","stateDir":"/s","log":{"path":"/l","level":"debug"},"spool":{"dir":"/p","maxBytes":5},"timeout":"1m30s","ipamExec":true,"sync":"always","syncDelete":true,"statusGrace":"2m","statusOnExhaustion":"never"}}`,
			parsed(func(n *Network) {
				n.Tracewire = Tracewire{Mode: "bridge", StateDir: "/s", LogPath: "/l", LogLevel: "debug", SpoolDir: "/p", SpoolBytes: 5, Timeout: 90 * time.Second, IPAMExec: true, Sync: "always", SyncDelete: true, StatusGrace: 2 * time.Minute, StatusOnExhaustion: "never"}
			}), ""},
		{"null everywhere", `{"cniVersion":null,"name":null,"type":null,"ipam":null,"prevResult":null,"delegates":null,"tracewire":{"mode":null,"stateDir":null,"log":null,"spool":null,"timeout":null,"ipamExec":null,"sync":null,"syncDelete":null,"statusGrace":null}}`, parsed(), ""},
		{"null below", `{"ipam":{"type":null},"tracewire":{"log":{"path":null,"level":null},"spool":{"dir":null,"maxBytes":null}}}`, parsed(), ""},
		{"tracewire is null", `{"tracewire":null}`, parsed(), ""},
		{"empty strings are defaults", `{"tracewire":{"mode":"","stateDir":"","log":{"path":"","level":""},"spool":{"dir":""},"timeout":"","sync":""}}`, parsed(), ""},
		{"case does not count", `{"CNIVERSION":"0.4.0","Name":"net","TYPE":"tracewire","Ipam":{"Type":"dhcp"},"prevresult":{"a":1}}`, parsed(func(n *Network) {
			n.CNIVersion, n.Name, n.Type, n.IPAM, n.Prev = "0.4.0", "net", "tracewire", "dhcp", json.RawMessage(`{"a":1}`)
		}), ""},
		{"case counts where both are there", `{"NAME":"other","name":"net","Name":"another"}`, parsed(func(n *Network) { n.Name = "net" }), ""},
		{"the spool follows the state directory", `{"tracewire":{"stateDir":"/s/"}}`, parsed(func(n *Network) {
			n.Tracewire.StateDir, n.Tracewire.SpoolDir = "/s/", "/s/spool"
		}), ""},
		{"everything off", `{"tracewire":{"log":{"level":"off"},"spool":{"maxBytes":0},"sync":"never"}}`, parsed(func(n *Network) {
			n.Tracewire.LogLevel, n.Tracewire.SpoolBytes, n.Tracewire.Sync = "off", 0, "never"
		}), ""},

		{"name is a number", `{"name":5,"type":"tracewire"}`, parsed(func(n *Network) { n.Type = "tracewire" }), "invalid network configuration: name: must be a string, got 5"},
		{"a long name", `{"name":"` + long[:255] + `"}`, parsed(func(n *Network) { n.Name = long[:255] }), ""},
		{"a name that is too long", `{"name":"` + long + `"}`, parsed(func(n *Network) { n.Name = long }), "invalid network configuration: name: must be at most 255 bytes, got \"" + long[:maxShown-1] + "..."},
		{"version is a number", `{"cniVersion":1.1}`, parsed(), "invalid network configuration: cniVersion: must be a string, got 1.1"},
		{"type is an array", `{"type":["tracewire"]}`, parsed(), `invalid network configuration: type: must be a string, got ["tracewire"]`},
		{"ipam is a string", `{"ipam":"host-local"}`, parsed(), `invalid network configuration: ipam: must be an object, got "host-local"`},
		{"type of ipam is an object", `{"ipam":{"type":{}}}`, parsed(), "invalid network configuration: ipam.type: must be a string, got {}"},
		{"tracewire is a number", `{"tracewire":7}`, parsed(), "invalid network configuration: tracewire: must be an object, got 7"},
		{"log is a string", `{"tracewire":{"log":"/l"}}`, parsed(), `invalid network configuration: tracewire.log: must be an object, got "/l"`},
		{"spool is false", `{"tracewire":{"spool":false}}`, parsed(), "invalid network configuration: tracewire.spool: must be an object, got false"},
		{"mode", `{"tracewire":{"mode":"vpn"}}`, parsed(), `invalid network configuration: tracewire.mode: must be bridge, ptp or delegate, got "vpn"`},
		{"type of mode", `{"tracewire":{"mode":1}}`, parsed(), "invalid network configuration: tracewire.mode: must be a string, got 1"},
		{"stateDir", `{"tracewire":{"stateDir":"./s"}}`, parsed(), `invalid network configuration: tracewire.stateDir: must be an absolute path, got "./s"`},
		{"type of stateDir", `{"tracewire":{"stateDir":true}}`, parsed(), "invalid network configuration: tracewire.stateDir: must be a string, got true"},
		{"path of log", `{"tracewire":{"log":{"path":"l"}}}`, parsed(), `invalid network configuration: tracewire.log.path: must be an absolute path, got "l"`},
		{"level of log", `{"tracewire":{"log":{"level":"loud"}}}`, parsed(), `invalid network configuration: tracewire.log.level: must be debug, info, warn, error or off, got "loud"`},
		{"a level's case counts", `{"tracewire":{"log":{"level":"Info"}}}`, parsed(), `invalid network configuration: tracewire.log.level: must be debug, info, warn, error or off, got "Info"`},
		{"dir of spool", `{"tracewire":{"spool":{"dir":"p"}}}`, parsed(), `invalid network configuration: tracewire.spool.dir: must be an absolute path, got "p"`},
		{"negative budget", `{"tracewire":{"spool":{"maxBytes":-1}}}`, parsed(), "invalid network configuration: tracewire.spool.maxBytes: must not be negative, got -1"},
		{"budget is a string", `{"tracewire":{"spool":{"maxBytes":"64M"}}}`, parsed(), `invalid network configuration: tracewire.spool.maxBytes: must be a whole number, got "64M"`},
		{"budget is a fraction", `{"tracewire":{"spool":{"maxBytes":0.5}}}`, parsed(), "invalid network configuration: tracewire.spool.maxBytes: must be a whole number, got 0.5"},
		{"budget is too large", `{"tracewire":{"spool":{"maxBytes":9223372036854775808}}}`, parsed(), "invalid network configuration: tracewire.spool.maxBytes: must be a whole number, got 9223372036854775808"},
		{"timeout without a unit", `{"tracewire":{"timeout":"30"}}`, parsed(), `invalid network configuration: tracewire.timeout: must be a positive duration such as "30s", got "30"`},
		{"no time", `{"tracewire":{"timeout":"0s"}}`, parsed(), `invalid network configuration: tracewire.timeout: must be a positive duration such as "30s", got "0s"`},
		{"negative time", `{"tracewire":{"timeout":"-1s"}}`, parsed(), `invalid network configuration: tracewire.timeout: must be a positive duration such as "30s", got "-1s"`},
		{"time is a number", `{"tracewire":{"timeout":30}}`, parsed(), "invalid network configuration: tracewire.timeout: must be a string, got 30"},
		{"path as type of ipam", `{"ipam":{"type":"../x"}}`, parsed(), `invalid network configuration: ipam.type: must be the name of a plugin, without a path, got "../x"`},
		{"folder as type of ipam", `{"ipam":{"type":".."}}`, parsed(), `invalid network configuration: ipam.type: must be the name of a plugin, without a path, got ".."`},
		{"ipamExec", `{"tracewire":{"ipamExec":"yes"}}`, parsed(), `invalid network configuration: tracewire.ipamExec: must be a boolean, got "yes"`},
		{"sync", `{"tracewire":{"sync":"sometimes"}}`, parsed(), `invalid network configuration: tracewire.sync: must be auto, always or never, got "sometimes"`},
		{"sync is a boolean", `{"tracewire":{"sync":true}}`, parsed(), "invalid network configuration: tracewire.sync: must be a string, got true"},
		{"syncDelete", `{"tracewire":{"syncDelete":1}}`, parsed(), "invalid network configuration: tracewire.syncDelete: must be a boolean, got 1"},

		{"unknown in tracewire", `{"tracewire":{"colour":"red"}}`, parsed(), `invalid network configuration: tracewire.colour: unknown key, got "red"`},
		{"unknown in log", `{"tracewire":{"log":{"pth":"/l"}}}`, parsed(), `invalid network configuration: tracewire.log.pth: unknown key, got "/l"`},
		{"unknown in spool", `{"tracewire":{"spool":{"max":1}}}`, parsed(), "invalid network configuration: tracewire.spool.max: unknown key, got 1"},
		{"unknown and null", `{"tracewire":{"colour":null}}`, parsed(), "invalid network configuration: tracewire.colour: unknown key, got null"},
		{"unknown outside is a step's", `{"colour":"red"}`, parsed(), ""},

		{"mode ptp", `{"tracewire":{"mode":"ptp"}}`, parsed(mode("ptp")), ""},
		{"mode delegate", `{"tracewire":{"mode":"delegate"},"delegates":[{"type":"macvlan","ipam":{"type":"dhcp"}}]}`, parsed(mode("delegate"), wraps(
			Delegate{"macvlan", json.RawMessage(`{"ipam":{"type":"dhcp"},"type":"macvlan"}`), true, false})), ""},
		{"mode delegate without one", `{"tracewire":{"mode":"delegate"},"delegates":[]}`, parsed(mode("delegate")), "invalid network configuration: delegates: must have the plugin that mode delegate wraps, got []"},
		{"mode delegate with an ipam of ours", `{"ipam":{"type":"host-local"},"tracewire":{"mode":"delegate"},"delegates":[{"type":"macvlan"}]}`, parsed(mode("delegate"), func(n *Network) { n.IPAM = "host-local" }, wraps(
			Delegate{"macvlan", json.RawMessage(`{"type":"macvlan"}`), false, false})),
			`invalid network configuration: ipam: must stand in delegates[0]: in mode delegate tracewire makes no interface, got {"type":"host-local"}`},
		{"delegates that are no objects", `{"delegates":[null,3,"tuning",{"type":"sbr"}]}`, parsed(wraps(Delegate{"sbr", json.RawMessage(`{"type":"sbr"}`), false, true})),
			"invalid network configuration: delegates[0]: must be an object, got null\ninvalid network configuration: delegates[1]: must be an object, got 3\ninvalid network configuration: delegates[2]: must be an object, got \"tuning\""},
		{"delegates is no array", `{"delegates":{"type":"sbr"}}`, parsed(), `invalid network configuration: delegates: must be an array, got {"type":"sbr"}`},
		{"a delegate without a type", `{"delegates":[{}]}`, parsed(), "invalid network configuration: delegates[0].type: must be the name of a plugin, got null"},
		{"a delegate that is a path", `{"delegates":[{"type":"../sbr"}]}`, parsed(), `invalid network configuration: delegates[0].type: must be the name of a plugin, without a path, got "../sbr"`},
		{"a delegate that is ourselves", `{"type":"tracewire","delegates":[{"type":"tracewire"}]}`, parsed(func(n *Network) { n.Type = "tracewire" }), `invalid network configuration: delegates[0].type: must not be the plugin itself: a list has one entry of it, got "tracewire"`},
		{"capabilities of a delegate", `{"delegates":[{"type":"sbr","capabilities":["mac"]}]}`, parsed(wraps(Delegate{"sbr", json.RawMessage(`{"capabilities":["mac"],"type":"sbr"}`), false, true})),
			`invalid network configuration: delegates[0].capabilities: must be an object of booleans, got ["mac"]`},
		{"no grace", `{"tracewire":{"statusGrace":"0s"}}`, parsed(func(n *Network) { n.Tracewire.StatusGrace = 0 }), ""},
		{"negative grace", `{"tracewire":{"statusGrace":"-1s"}}`, parsed(), `invalid network configuration: tracewire.statusGrace: must be a duration such as "60s" that is not negative, got "-1s"`},
		{"grace without a unit", `{"tracewire":{"statusGrace":"60"}}`, parsed(), `invalid network configuration: tracewire.statusGrace: must be a duration such as "60s" that is not negative, got "60"`},
		{"grace is a number", `{"tracewire":{"statusGrace":60}}`, parsed(), "invalid network configuration: tracewire.statusGrace: must be a string, got 60"},
		{"statusOnExhaustion", `{"tracewire":{"statusOnExhaustion":"always"}}`, parsed(), `invalid network configuration: tracewire.statusOnExhaustion: must be report or never, got "always"`},
		{"keys that ask for nothing", `{"delegates":[ ],"tracewire":{"statusGrace":"","statusOnExhaustion":null}}`, parsed(), ""},

		{"what is good beside what is wrong", `{"name":"net","ipam":{"type":"dhcp"},"tracewire":{"stateDir":"/s","timeout":"5","sync":"always","nonsense":1}}`, parsed(func(n *Network) {
			n.Name, n.IPAM, n.Tracewire.StateDir, n.Tracewire.SpoolDir, n.Tracewire.Sync = "net", "dhcp", "/s", "/s/spool", "always"
		}), "invalid network configuration: tracewire.nonsense: unknown key, got 1\n" + `invalid network configuration: tracewire.timeout: must be a positive duration such as "30s", got "5"`},
		{"no JSON", `{"name":"net"`, parsed(), `invalid network configuration: network configuration: must be an object, got "{\"name\":\"net\""`},
		{"an array", `[]`, parsed(), "invalid network configuration: network configuration: must be an object, got []"},
		{"empty", ``, parsed(), `invalid network configuration: network configuration: must be an object, got ""`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			doc := Read([]byte(tt.conf))
			got := Parse(doc)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("network (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(tt.err, text(doc.Err())); diff != "" {
				t.Errorf("error (-want +got)\n%s", diff)
			}
		})
	}
}

func TestErrorsHaveTheirSentinel(t *testing.T) {
	for _, tt := range []struct {
		conf string
		want error
	}{
		{`{"tracewire":{"mode":"vpn"}}`, ErrInvalid},
		{`{"tracewire":{"mode":"delegate"}}`, ErrInvalid},
	} {
		doc := Read([]byte(tt.conf))
		Parse(doc)
		if err := doc.Err(); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v is no %q", tt.conf, err, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, conf := range []string{
		`{"cniVersion":"1.1.0","name":"net","type":"tracewire","ipam":{"type":"host-local"},"prevResult":{"ips":[null]},"delegates":[{}]}`,
		`{"tracewire":{"mode":"ptp","stateDir":"/s","log":{"path":"l","level":"off"},"spool":{"dir":"/p","maxBytes":-0},"timeout":"9223372036s","sync":"never"}}`,
		`{"TRACEWIRE":{"StateDir":"/s"},"tracewire":null}`, `[]`, `null`, "", "\x00", `{"a":{"b":`,
	} {
		f.Add([]byte(conf))
	}
	f.Fuzz(func(t *testing.T, conf []byte) {
		doc := Read(conf)
		n := Parse(doc)
		if err := doc.Err(); err != nil && !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrUnsupported) {
			t.Errorf("unnamed error: %v", err)
		}
		for _, path := range []string{n.Tracewire.StateDir, n.Tracewire.LogPath, n.Tracewire.SpoolDir} {
			if !filepath.IsAbs(path) {
				t.Errorf("%q is no absolute path", path)
			}
		}
		if n.Tracewire.Timeout <= 0 || n.Tracewire.SpoolBytes < 0 || n.Tracewire.Mode == "" || n.Tracewire.LogLevel == "" || n.Tracewire.Sync == "" {
			t.Errorf("unusable: %+v", n)
		}
		if len(n.Prev) > 0 && !json.Valid(n.Prev) {
			t.Errorf("prevResult %q", n.Prev)
		}
	})
}

// ExampleParse shows that what cannot be read has its default.
func ExampleParse() {
	doc := Read([]byte(`{"name": "podnet", "tracewire": {"timeout": "soon"}}`))
	n := Parse(doc)
	fmt.Println(n.Name, n.Tracewire.Timeout)
	fmt.Println(doc.Err())
	// Output:
	// podnet 30s
	// invalid network configuration: tracewire.timeout: must be a positive duration such as "30s", got "soon"
}

// TestLasting: what a runtime adds to a call, the order of the keys and white
// space change nothing; a key of the configuration does.
func TestLasting(t *testing.T) {
	of := func(doc string) string { return string(Lasting(Read([]byte(doc)))) }
	file := of(`{"name":"net","type":"tracewire","mtu":1400}`)
	for call, same := range map[string]bool{
		`{"type":"tracewire", "mtu": 1400, "name":"net","prevResult":{"ips":[]},"runtimeConfig":{"mac":"x"},"cni.dev/valid-attachments":[]}`: true,
		`{"name":"net","type":"tracewire","mtu":1401}`: false,
		`{"name":"net","type":"tracewire"}`:            false,
		`[]`:                                           false,
	} {
		if (of(call) == file) != same {
			t.Errorf("%s: same as the configuration: %t, want %t", call, !same, same)
		}
	}
}
