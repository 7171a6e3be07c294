package veth

import (
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tracewire/tracewire/conflist"
)

// MTU reads an interface's MTU in bytes, 0 for the kernel's own.
func MTU(v *conflist.Value) (mtu int) {
	v.Into(&mtu)
	if mtu != 0 && (mtu < 68 || mtu > 65535) {
		v.Fail("must be 68 to 65535 bytes, or 0")
		return 0
	}
	return mtu
}

// minMTU6 is the least that IPv6 needs, in bytes (RFC 8200, section 5).
const minMTU6 = 1280

// FitsMTU is an error when a result has an address that an interface of that
// MTU cannot have.
func FitsMTU(mtu int, r *types100.Result) error {
	for _, ip := range r.IPs {
		if ip.Address.IP.To4() == nil && mtu != 0 && mtu < minMTU6 {
			return conflist.Invalid("mtu", mtu, fmt.Sprintf("must be %d or more for the IPv6 address %s", minMTU6, ip.Address.String()))
		}
	}
	return nil
}

// DNS is the configuration's own, nil when it says nothing.
func DNS(v *conflist.Value) *types.DNS {
	if !v.Asks() {
		return nil
	}
	return &types.DNS{
		Domain: v.At("domain").Text(), Nameservers: v.At("nameservers").Texts(),
		Search: v.At("search").Texts(), Options: v.At("options").Texts(),
	}
}
