package conflist

import (
	"encoding/json"
	"maps"
	"strings"
)

// Delegate is one entry of delegates: a plugin that is run after our own steps.
type Delegate struct {
	Type string
	// Conf is the entry as a runtime would hand it over, JSON: with the network's
	// name and cniVersion, the args, and those capability args that both the entry
	// and ours declare (CNI spec 1.1.0, "Deriving request configuration").
	Conf json.RawMessage
	// Durable tells that what it makes may outlive this kernel: it is not known to
	// make nothing but kernel state, or has an IPAM plugin that writes files.
	Durable bool
	// InPod tells that it makes nothing outside of the pod's namespace.
	InPod bool
}

// delegated reads delegates. An entry that cannot be read is left out.
func delegated(doc *Value) (all []Delegate) {
	list := doc.At("delegates")
	if !list.Given() {
		return nil
	}
	for _, v := range list.Each() {
		d := Delegate{}
		rule{"must be the name of a plugin, without a path", plainName}.set(v.At("type"), &d.Type)
		switch own := doc.At("type").Text(); {
		case v.object() == nil:
			v.Fail("must be an object")
			continue
		case d.Type == "":
			v.At("type").Fail("must be the name of a plugin")
			continue
		case d.Type == own:
			v.At("type").Fail("must not be the plugin itself: a list has one entry of it")
			continue
		}
		d.Conf, d.Durable, d.InPod = derive(doc, v), durable(d.Type, v), inPod[d.Type]
		all = append(all, d)
	}
	return all
}

// derive is an entry's configuration: what libcni would make of it.
func derive(doc, entry *Value) json.RawMessage {
	m := maps.Clone(entry.object())
	for key, raw := range doc.object() {
		_, own := m[key]
		switch {
		case key == "name", key == "cniVersion", strings.HasPrefix(key, "cni.dev/"), key == "args" && !own:
			m[key] = raw
		}
	}
	delete(m, "prevResult")
	if args := capable(doc, entry); len(args) > 0 {
		m["runtimeConfig"], _ = json.Marshal(args) // was read as part of the document
	}
	b, _ := json.Marshal(m) // likewise
	return b
}

// capable is the capability args that both entries declare, as they came: Go's
// spelling of their keys, or JSON's, is the runtime's.
func capable(doc, entry *Value) map[string]json.RawMessage {
	args := map[string]json.RawMessage{}
	own, theirs := declared(doc), declared(entry)
	for key, raw := range doc.At("runtimeConfig").object() {
		if own[key] && theirs[key] {
			args[key] = raw
		}
	}
	return args
}

func declared(v *Value) (caps map[string]bool) {
	v.At("capabilities").Into(&caps)
	return caps
}

// kernelOnly is the reference plugins whose own state goes with the kernel's.
var kernelOnly = map[string]bool{
	"bandwidth": true, "bridge": true, "dummy": true, "firewall": true, "host-device": true, "ipvlan": true, "loopback": true, "macvlan": true,
	"portmap": true, "ptp": true, "sbr": true, "tap": true, "tuning": true, "vlan": true, "vrf": true,
}

// inPod is those of them whose state is in the pod's namespace alone.
var inPod = map[string]bool{"loopback": true, "sbr": true, "tuning": true, "vrf": true}

func durable(plugin string, v *Value) bool {
	if v.At("ipam").object() == nil {
		return !kernelOnly[plugin]
	}
	leases := v.At("ipam").At("type").Text()
	return !kernelOnly[plugin] || leases != "" && leases != "static"
}
