package trace

import "go.opentelemetry.io/otel/attribute"

// Attribute keys, of spans and of log lines alike. Where go-cni or
// OpenTelemetry's semantic conventions have a name it is theirs.
const (
	KeyID     = attribute.Key("cni.id")     // container id, "1635e8…": go-cni
	KeyName   = attribute.Key("cni.name")   // network, "podnet": go-cni
	KeyIfName = attribute.Key("cni.ifname") // interface in the pod, "eth0": go-cni

	KeyContainer    = attribute.Key("container.id")           // the same id: semantic conventions
	KeyPod          = attribute.Key("k8s.pod.name")           // "web-0"
	KeyPodUID       = attribute.Key("k8s.pod.uid")            // "5b1c…"
	KeyPodNamespace = attribute.Key("k8s.namespace.name")     // "default"
	KeyNetworkType  = attribute.Key("network.type")           // address families: "ipv4", "ipv6" or "ipv4,ipv6"
	KeyInterface    = attribute.Key("network.interface.name") // the host end, "veth0a1b2c3d4e5"
	KeyError        = attribute.Key("error.message")          // text of an error that did not end the operation
	KeyErrorType    = attribute.Key("error.type")             // name of the CNI error code, "addresses exhausted"

	KeyCommand     = attribute.Key("cni.command")       // CNI_COMMAND, "ADD"
	KeyVersion     = attribute.Key("cni.version")       // cniVersion of the configuration, "1.1.0"
	KeyNetNS       = attribute.Key("cni.netns")         // CNI_NETNS, a path
	KeyNetNSState  = attribute.Key("cni.netns.state")   // of DEL, where it is not there: "missing" or "not a namespace"
	KeyConfigHash  = attribute.Key("cni.config.hash")   // of the network configuration without prevResult and runtimeConfig, 16 hex digits
	KeyBridge      = attribute.Key("cni.bridge")        // "cni0"
	KeyMAC         = attribute.Key("cni.mac")           // of the pod's end, "0a:58:0a:16:00:05"
	KeyAddresses   = attribute.Key("cni.addresses")     // with prefix length, ["10.22.0.5/16"]
	KeyErrorCode   = attribute.Key("cni.error.code")    // the CNI error code, 11
	KeyRecord      = attribute.Key("cni.record")        // what the journal told: "none", "attached", "interrupted", "deleting"
	KeyRecordSize  = attribute.Key("cni.record.bytes")  // size of the journal in bytes
	KeyPath        = attribute.Key("cni.path")          // entries of CNI_PATH, ["bin"]
	KeyQuarantine  = attribute.Key("cni.quarantine")    // where a broken record is kept, a path; or why it is not
	KeyPlugin      = attribute.Key("cni.plugin")        // executable of a delegated plugin, a path
	KeyReaped      = attribute.Key("cni.reaped")        // the wait of the interface's removal was left to a child, true
	KeyProcesses   = attribute.Key("cni.plugin.left")   // programs that delegated plugins left running, ["host-local"]
	KeyStderr      = attribute.Key("cni.plugin.stderr") // what a delegated plugin wrote there, bounded
	KeySysctl      = attribute.Key("cni.sysctl")        // below net/, "ipv4/conf/eth0/arp_notify"
	KeyRuntime     = attribute.Key("cni.runtime")       // executable that called the plugin, "/usr/bin/containerd"
	KeyRemoved     = attribute.Key("cni.gc.removed")    // attachments that a GC removed, or an ADD for want of an address, 2
	KeySpared      = attribute.Key("cni.gc.spared")     // attachments that the runtime did not name and that stay, 1
	KeyStack       = attribute.Key("exception.stacktrace")
	KeyLockWait    = attribute.Key("cni.lock.wait_ms")   // time waited for a lock in milliseconds, 1.25
	KeyReservation = attribute.Key("cni.reservation")    // reservation files released, 2
	KeyReclaimed   = attribute.Key("cni.ipam.reclaimed") // reservations of an earlier boot that were given back, 5
	KeyRanges      = attribute.Key("cni.ipam.ranges")    // a range set, "10.22.0.1-10.22.0.254"
	KeyUsed        = attribute.Key("cni.ipam.used")      // its addresses in use, 230
	KeyTotal       = attribute.Key("cni.ipam.total")     // all its addresses, 253
	KeyFinding     = attribute.Key("cni.audit.kind")     // what a repair mends, "leaked-address"
	KeyReason      = attribute.Key("cni.check.reason")   // a finding of CHECK that was put right, "host.down"
	KeyRepair      = attribute.Key("cni.audit.repair")   // what it does, "del"
)

// Keys of the resource.
const (
	keySegment     = attribute.Key("tracewire.segment")   // spool segment of the line, "20261129T2056Z"
	keyService     = attribute.Key("service.name")        // "tracewire"
	keyServiceVer  = attribute.Key("service.version")     // "0.1.0"
	keyServiceInst = attribute.Key("service.instance.id") // boot id of the node
	keyHost        = attribute.Key("host.name")           // "node1"
	keyNode        = attribute.Key("k8s.node.name")       // "node1", where the environment has it
)
