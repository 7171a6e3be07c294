package codes

// Reason is one of CHECK's findings: stable, to be matched by programs.
type Reason struct {
	Name    string
	Meaning string
	Hint    string // what an operator does; where DEL and ADD mend it, what else is worth a look
	Mends   bool   // DEL and a new ADD would put it right
	// Restores tells that a CHECK which is asked to puts it right in place, while the
	// pod goes on.
	Restores bool
}

// Reasons is every reason that CHECK knows.
var Reasons = []Reason{
	{"netns.other", "CNI_NETNS names another network namespace than ADD was given", "the pod was made anew under the same id, or the runtime has a wrong path: DEL takes the interface out of the first one", false, false},
	{"pod.missing", "the pod has no interface of that name", "something in the pod, or a DEL, removed or renamed it", true, false},
	{"pod.down", "the pod's interface is down", "`ip link set` in the pod turns it on again; its IPv4 routes are gone by then", true, true},
	{"pod.mac", "the pod's interface has a MAC that neither ADD nor a later plugin gave it", "macspoofchk drops its frames, and neighbours keep the old one for a while", true, true},
	{"pod.mtu", "the two ends have different MTUs, and the pod's is one that neither ADD nor a later plugin gave it", "the kernel drops packets that the smaller end does not take: set both alike", true, true},
	{"host.missing", "the host end of the pair is gone", "it was renamed, or moved to another namespace, as the pod's end is there: DEL does not find it", false, false},
	{"host.peer", "the host end and the pod's interface are not one pair", "look at what else makes interfaces in the pod: DEL leaves them, and ADD refuses", false, false},
	{"host.down", "the host end is down", "`ip link set` turns it on again", true, true},
	{"host.mtu", "the two ends have different MTUs, and the host end's is not the one that ADD gave it", "the kernel drops packets that the smaller end does not take: set both alike", true, true},
	{"host.master", "the host end is not a port of the bridge", "look at what else manages bridges on the node", true, true},
	{"port.state", "the bridge's port is disabled or blocking, though both ends are up", "spanning tree blocks a loop, or somebody set the state: `bridge link` shows it", true, true},
	{"port.hairpin", "`hairpinMode` is set, and the port does not send back what came from it", "a pod cannot reach itself by a service's address", true, true},
	{"port.isolation", "the port is isolated and `portIsolation` is not set, or the other way round", "isolated ports do not reach each other", true, true},
	{"port.learning", "the bridge does not learn where the pod is", "its frames are flooded to all ports", true, true},
	{"port.vlan", "the port lacks a VLAN that `vlan` or `vlanTrunk` asks for, or has VLAN 1 again", "`bridge vlan` shows them", true, true},
	{"bridge.missing", "the bridge is gone, was renamed, or something else has its name", "where it was renamed the next ADD makes another: give it its name back", true, true},
	{"bridge.down", "the bridge is down", "`ip link set` turns it on again; its IPv6 addresses are gone by then", true, true},
	{"bridge.mtu", "the bridge has a smaller MTU than the pod: than `mtu` says, or than any of its ports", "set the bridge's; ADD refuses one that has pods", false, true},
	{"bridge.vlan", "`vlan` or `vlanTrunk` is set, and the bridge does not filter VLANs", "turn its vlan_filtering on: ADD refuses it", false, false},
	{"gateway.missing", "the host end, the bridge, or the VLAN's gateway on it, lacks the gateway's address", "any ADD of the network gives it back; look at what else manages addresses on the node", true, true},
	{"gateway.conflict", "the bridge lacks the gateway's address and has another in its place", "take that one away, or set `forceAddress`: ADD refuses it", false, false},
	{"hostroute.missing", "the host lacks its route to the pod", "look at what else manages routes on the node", true, true},
	{"forwarding.off", "the host does not pass packets on, though it is the pods' gateway", "any ADD turns it on; look for what turned it off, a sysctl file or a firewall", true, true},
	{"address.missing", "the pod's interface lacks an address", "something in the pod took it away", true, true},
	{"route", "the pod lacks a route, or has it by another gateway, metric, mtu, advmss or scope", "something in the pod changed it", true, true},
	{"masquerade.missing", "a rule that gives the pod's packets the host's address is gone, or does something else", "any ADD of the network makes a shared rule that is gone; look for what flushes rules", true, true},
	{"macspoofchk.missing", "the rules that drop the pod's frames of another MAC are gone, or others, or in another order", "look for what flushes rules", true, true},
	{"delegate.check", "a delegated plugin's own CHECK found something", "the finding has its words", false, false},
	{"ipam.reservation", "an address is not reserved for the attachment", "until then it may be given to another pod", true, true},
}

// ReasonOf is the reason of a name, and false for an unknown one.
func ReasonOf(name string) (Reason, bool) {
	for _, r := range Reasons {
		if r.Name == name {
			return r, true
		}
	}
	return Reason{}, false
}

// Mends tells that DEL and a new ADD would put a reason's finding right; false for an
// unknown one.
func Mends(name string) bool {
	r, _ := ReasonOf(name)
	return r.Mends
}

// Difference is what CHECK sees, or could, and makes no finding of.
type Difference struct{ What, Why string }

// Harmless is every such difference that was thought about.
var Harmless = []Difference{
	{"promiscuous bridge", "`promiscMode` shares its count with every sniffer"},
	{"sniffer on the bridge", "it makes the bridge promiscuous while it runs"},
	{"extra address in the pod", "the workload's own"},
	{"extra route in the pod", "the workload's own"},
	{"route with metrics in the pod", "the workload's own, beside ADD's"},
	{"extra interface in the pod", "another network's, or a tunnel of the workload"},
	{"MAC by a later plugin", "prevResult has it"},
	{"MTU by a later plugin", "prevResult has it"},
	{"MAC, MTU and routes by a delegated plugin", "the record has them"},
	{"MTU alike on both ends", "no packet is lost between them"},
	{"routes in another table", "sbr and vrf move them"},
	{"route by a later plugin", "prevResult has it with another gateway or metric"},
	{"route taken by a later plugin", "prevResult lacks it"},
	{"address taken by a later plugin", "prevResult lacks it"},
	{"ports that come and go", "the MAC and the MTU of a bridge without gateway may follow them"},
	{"smaller MTU of another port", "a bridge whose MTU the configuration does not name may follow it"},
	{"MAC of the bridge", "nobody keeps it across a change but neighbours, for a while"},
	{"MAC of the host end", "udev and others set it (plugins#805); frames to it are rare"},
	{"extra address of the bridge", "others' networks may share it"},
	{"alternative name of the bridge", "the kernel finds it by either"},
	{"alias of the host end", "traffic does not need it. DEL and audit do: DEL leaves an end that has another's"},
	{"alternative name of the host end", "the kernel finds it by either"},
	{"transmit queue of the host end", "txqueuelen is the operator's to tune"},
	{"queueing discipline of the host end", "the bandwidth plugin's, or an operator's"},
	{"allmulticast", "multicast routing sets it"},
	{"hairpin that was not asked for", "kubelet and operators turn it on"},
	{"neighbour entries", "they come and go"},
	{"another network's rules", "its own table"},
	{"other tables of rules", "kube-proxy, firewalls"},
	{"rules that were saved and loaded again", "they do the same"},
	{"unrelated sysctls", "conntrack, buffers, rp_filter"},
	{"forwarding off without a gateway", "the configuration asks for none, and packets stay on the bridge"},
	{"pod's interface that was left down", "`disableContainerInterface`: the workload may turn it on"},
	{"forwarding that was not asked for", "others on the node need it"},
	{"IPv6 link-local addresses", "missing or more than one: no route of ADD needs them"},
	{"temporary IPv6 addresses", "autoconfiguration in the pod is the workload's choice"},
	{"spanning tree on its way", "a port in listening or learning will forward"},
}
