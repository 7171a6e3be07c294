package ptp

import (
	"github.com/containernetworking/cni/pkg/types"

	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates/veth"
)

// Conf is the keys of the reference ptp plugin, read.
type Conf struct {
	MTU int        // bytes, 0 for the kernel's own
	DNS *types.DNS // instead of IPAM's; nil when there is none
}

// Parse reads the keys. What is wrong is in doc.Err; what could not be read
// has its default.
func Parse(doc *conflist.Value) Conf {
	return Conf{MTU: veth.MTU(doc.At("mtu")), DNS: veth.DNS(doc.At("dns"))}
}
