package bridge

import (
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates/veth"
)

// Conf is the keys of the reference bridge plugin, read.
type Conf struct {
	Bridge         string
	Gateway        bool
	DefaultGateway bool // implies Gateway
	ForceAddress   bool
	MTU            int // bytes, 0 for the kernel's own
	Hairpin        bool
	Promisc        bool
	Isolated       bool
	MACSpoof       bool // drops the pod's frames of another MAC
	DAD            bool // IPv6 duplicate address detection in the pod
	Down           bool // the pod's end stays down
	RemoveBridge   bool // the bridge goes with the network's last attachment
	VLANs          VLANs
	MAC            net.HardwareAddr // asked for; nil when none is
	DNS            *types.DNS       // instead of IPAM's; nil when there is none
}

// DefaultBridge is the bridge of a configuration that names none.
const DefaultBridge = "cni0"

// Parse reads the keys. What is wrong is in doc.Err; what could not be read
// has its default.
func Parse(doc *conflist.Value, args conflist.Args) Conf {
	c := Conf{Bridge: DefaultBridge, MAC: askedMAC(doc, args), DNS: veth.DNS(doc.At("dns")), MTU: veth.MTU(doc.At("mtu"))}
	for _, key := range []struct {
		name string
		into any
	}{
		{"isGateway", &c.Gateway},
		{"isDefaultGateway", &c.DefaultGateway},
		{"forceAddress", &c.ForceAddress},
		{"hairpinMode", &c.Hairpin},
		{"promiscMode", &c.Promisc},
		{"portIsolation", &c.Isolated},
		{"enabledad", &c.DAD},
		{"macspoofchk", &c.MACSpoof},
		{"disableContainerInterface", &c.Down},
	} {
		doc.At(key.name).Into(key.into)
	}
	doc.At("tracewire").At("removeBridge").Into(&c.RemoveBridge)
	c.VLANs = readVLANs(doc)
	c.Gateway = c.Gateway || c.DefaultGateway
	c.check(doc)
	return c
}

// check reads the bridge's name, and looks at values that have bounds.
func (c *Conf) check(doc *conflist.Value) {
	name := doc.At("bridge")
	if s := name.Text(); veth.ValidName(s) {
		c.Bridge = s
	} else if s != "" {
		name.Fail("must be an interface name of 1 to 15 bytes without slash, colon, percent sign or white space")
	}
	if c.Down && doc.At("ipam").At("type").Text() != "" {
		doc.At("disableContainerInterface").Fail("cannot be set together with ipam")
	}
	if gw := vlanGateway(c.Bridge, *c); gw != "" && !veth.ValidName(gw) {
		name.Fail("must leave room for the gateway's interface " + gw)
	}
	if c.Hairpin && c.Promisc {
		doc.At("promiscMode").Fail("cannot be set together with hairpinMode")
	}
}

// askedMAC is the MAC that was asked for: runtimeConfig before args.cni before
// CNI_ARGS (CNI conventions, dynamic plugin specific fields).
func askedMAC(doc *conflist.Value, args conflist.Args) net.HardwareAddr {
	const why = "must be a unicast MAC of 6 bytes"
	for _, from := range []*conflist.Value{doc.At("runtimeConfig").At("mac"), doc.At("args").At("cni").At("mac")} {
		text := from.Text()
		if text == "" {
			continue
		}
		mac := unicast(text)
		if mac == nil {
			from.Fail(why)
		}
		return mac
	}
	text := args["MAC"]
	if text == "" {
		return nil
	}
	mac := unicast(text)
	if mac == nil {
		doc.Add(fmt.Errorf("%w: MAC: %s, got %s", conflist.ErrArgs, why, conflist.Shown(text)))
	}
	return mac
}

// unicast is nil for what an interface cannot have.
func unicast(text string) net.HardwareAddr {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 || mac.String() == "00:00:00:00:00:00" {
		return nil
	}
	return mac
}

// port is what the host end is as a port of the bridge.
func (c Conf) port() *veth.Port { return &veth.Port{Hairpin: c.Hairpin, Isolated: c.Isolated} }
