package bridge

import (
	"errors"
	"net"
	"strings"
	"unicode"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tracewire/tracewire/conflist"
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
	DAD            bool             // IPv6 duplicate address detection in the pod
	MAC            net.HardwareAddr // asked for; nil when none is
	DNS            *types.DNS       // instead of IPAM's; nil when there is none
}

type text struct {
	Bridge           string    `json:"bridge"`
	IsGateway        bool      `json:"isGateway"`
	IsDefaultGateway bool      `json:"isDefaultGateway"`
	ForceAddress     bool      `json:"forceAddress"`
	MTU              int       `json:"mtu"`
	HairpinMode      bool      `json:"hairpinMode"`
	PromiscMode      bool      `json:"promiscMode"`
	PortIsolation    bool      `json:"portIsolation"`
	EnableDAD        bool      `json:"enabledad"`
	DNS              types.DNS `json:"dns"`
	RuntimeConfig    struct {
		MAC string `json:"mac"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			MAC string `json:"mac"`
		} `json:"cni"`
	} `json:"args"`
}

// DefaultBridge is the bridge of a configuration that names none.
const DefaultBridge = "cni0"

// later are the reference's keys that a coming version serves.
var later = []string{"ipMasq", "ipMasqBackend", "vlan", "vlanTrunk", "preserveDefaultVlan", "macspoofchk", "disableContainerInterface"}

// Parse reads the keys. The Conf is usable also beside an error: what could
// not be read has its default.
func Parse(conf []byte, args conflist.Args) (Conf, error) {
	var t text
	err := errors.Join(conflist.Decode(conf, &t), conflist.Asking(conf, later...))
	c := Conf{
		Bridge: t.Bridge, Gateway: t.IsGateway || t.IsDefaultGateway, DefaultGateway: t.IsDefaultGateway,
		ForceAddress: t.ForceAddress, MTU: t.MTU, Hairpin: t.HairpinMode, Promisc: t.PromiscMode,
		Isolated: t.PortIsolation, DAD: t.EnableDAD,
	}
	if c.Bridge == "" {
		c.Bridge = DefaultBridge
	}
	if d := t.DNS; d.Nameservers != nil || d.Search != nil || d.Options != nil || d.Domain != "" {
		c.DNS = &d
	}
	var macErr error
	c.MAC, macErr = askedMAC(&t, args)
	return c, errors.Join(err, c.check(), macErr)
}

func (c *Conf) check() error {
	if !interfaceName(c.Bridge) {
		return conflist.Invalid("bridge", c.Bridge, "must be an interface name of 1 to 15 bytes without slash, colon or white space")
	}
	if c.MTU != 0 && (c.MTU < 68 || c.MTU > 65535) {
		return conflist.Invalid("mtu", c.MTU, "must be 68 to 65535 bytes, or 0")
	}
	if c.Hairpin && c.Promisc {
		return conflist.Invalid("promiscMode", true, "can not be set together with hairpinMode")
	}
	return nil
}

func interfaceName(s string) bool {
	return len(s) > 0 && len(s) <= 15 && s != "." && s != ".." &&
		!strings.ContainsFunc(s, func(r rune) bool { return r == '/' || r == ':' || r == 0 || unicode.IsSpace(r) })
}

// askedMAC is the MAC that was asked for: runtimeConfig before args.cni before
// CNI_ARGS (CNI conventions, dynamic plugin specific fields).
func askedMAC(t *text, args conflist.Args) (net.HardwareAddr, error) {
	for _, from := range []struct{ key, value string }{
		{"runtimeConfig.mac", t.RuntimeConfig.MAC},
		{"args.cni.mac", t.Args.CNI.MAC},
		{"CNI_ARGS MAC", args["MAC"]},
	} {
		if from.value == "" {
			continue
		}
		mac, err := net.ParseMAC(from.value)
		if err != nil || len(mac) != 6 || mac[0]&1 != 0 || mac.String() == "00:00:00:00:00:00" {
			return nil, conflist.Invalid(from.key, from.value, "must be a unicast MAC of 6 bytes")
		}
		return mac, nil
	}
	return nil, nil
}
