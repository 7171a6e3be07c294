//go:build linux

package kill

import "github.com/tracewire/tracewire/test/attach"

// mode is one way to make an interface.
type mode struct {
	name    string
	conf    string   // keys of the list's one entry
	ours    string   // keys of its object tracewire
	runtime string   // runtimeConfig, "" for none
	needs   []string // programs
	bridge  bool     // a bridge that is left is a leak too
	first   bool     // each ADD is the node's first, on an empty disk
	rules   bool     // there are some while an attachment is
	slow    bool     // one second kill, and one next attachment a point, are enough
	uplink  bool     // the host has an interface up-out
	fails   string   // delegates of an ADD that fails, and is killed as it takes back; "" for ADDs that succeed
}

const (
	v4   = `"ipam": {"type": "host-local", "dataDir": "@DIR@/ipam", "ranges": [[{"subnet": "10.77.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}`
	dual = `"ipam": {"type": "host-local", "dataDir": "@DIR@/ipam", "ranges": [[{"subnet": "10.77.0.0/16"}], [{"subnet": "fd77::/64"}]]}`
	port = `"bridge": "tb0", "isGateway": true, `
)

// modes is in the order they are begun, the longest first.
var modes = []mode{
	{name: "tuning and portmap", rules: true, slow: true,
		conf: port + v4 + `, "capabilities": {"portMappings": true}, "delegates": [{"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.log_martians": "1"}, "mtu": 1400},
			{"type": "portmap", "backend": "nftables", "snat": true, "capabilities": {"portMappings": true}}]`,
		runtime: `{"portMappings": [{"hostPort": 18080, "containerPort": 80, "protocol": "tcp"}]}`},
	{name: "bridge", conf: port + v4, ours: `"removeBridge": true`, bridge: true, first: true},
	{name: "dual stack", conf: port + `"isDefaultGateway": true, ` + dual, ours: `"removeBridge": true`, bridge: true},
	{name: "ipMasq nftables", rules: true, conf: port + `"ipMasq": true, ` + v4},
	{name: "ipMasq iptables", rules: true, conf: port + `"ipMasq": true, "ipMasqBackend": "iptables", ` + v4, needs: []string{"iptables"}},
	{name: "macspoofchk", rules: true, conf: port + `"macspoofchk": true, ` + v4},
	{name: "ptp", rules: true, conf: `"ipMasq": true, ` + v4, ours: `"mode": "ptp"`},
	{name: "delegate macvlan", conf: `"delegates": [{"type": "macvlan", "master": "up-out", ` + v4 + `}]`, ours: `"mode": "delegate"`, uplink: true},
	{name: "delegate ptp", conf: `"delegates": [{"type": "ptp", ` + v4 + `}]`, ours: `"mode": "delegate"`},
	{name: "undo", rules: true, conf: port + `"ipMasq": true, ` + v4, fails: `[{"type": "tuning", "sysctl": {"net.ipv4.conf.none.log_martians": "1"}}]`},
	{name: "host-local executed", conf: port + dual, ours: `"ipamExec": true`},
	{name: "static", rules: true, conf: port + `"ipMasq": true, "ipam": {"type": "static", "addresses": [{"address": "10.77.0.9/24", "gateway": "10.77.0.1"}]}`},
}

func (m mode) list() []byte {
	ours := `"stateDir": "@DIR@/state", "log": {"path": "@DIR@/log/tracewire.jsonl"}`
	if m.ours != "" {
		ours += ", " + m.ours
	}
	return []byte(`{"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "tracewire", ` + m.conf + `, "tracewire": {` + ours + `}}]}`)
}

// follow is what a runtime does after the kill.
type follow struct {
	name string
	do   func(w *worker, k killed) error
}

// follows is those that have their turn.
func (m mode) follows() []follow {
	if m.slow {
		return follows[:len(follows)-1]
	}
	return follows
}

// verbs is what is killed.
func (m mode) verbs() []string {
	if m.fails != "" {
		return []string{"ADD"}
	}
	return []string{"ADD", "DEL"}
}

// killed is an operation that was.
type killed struct {
	attach.Attachment
	n     int    // of the point
	prev  string // the ADD's answer, "" where it had none
	whole bool   // the record says that the attachment stands
}

var follows = []follow{
	{"DEL", func(w *worker, k killed) error { return w.del(k.Attachment, k.prev) }},
	{"DEL bare", func(w *worker, k killed) error { return w.bare(k.Attachment) }},
	{"GC", func(w *worker, _ killed) error { return w.gc() }},
	{"reboot, GC", func(w *worker, _ killed) error { return w.reboot() }},
	{"ADD, DEL", (*worker).again},
	{"kill DEL, DEL", func(w *worker, k killed) error { return w.twice(k, 0) }},
	{"kill DEL, DEL 2", func(w *worker, k killed) error { return w.twice(k, 1) }},
}
