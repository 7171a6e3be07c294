package delegates

import (
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Addresses lists the addresses of results, each once. Nil results have none.
func Addresses(results ...*types100.Result) []netip.Addr {
	var all []netip.Addr
	for _, r := range results {
		if r == nil {
			continue
		}
		for _, ip := range r.IPs {
			if ip == nil {
				continue
			}
			a, ok := netip.AddrFromSlice(ip.Address.IP)
			if a = a.Unmap(); ok && !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	return all
}
