package ipam

import (
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tracewire/tracewire/conflist"
)

// resolv reads a resolv.conf(5). Without a path there is no DNS.
func resolv(path string) (types.DNS, error) {
	if path == "" {
		return types.DNS{}, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return types.DNS{}, conflist.Invalid("ipam.resolvConf", path, err.Error())
	}
	return parseResolv(string(b)), nil
}

func parseResolv(text string) types.DNS {
	var dns types.DNS
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, f[1])
		case "domain":
			dns.Domain = f[1]
		case "search":
			dns.Search = append(dns.Search, f[1:]...)
		case "options":
			dns.Options = append(dns.Options, f[1:]...)
		}
	}
	return dns
}
