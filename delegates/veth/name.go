package veth

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// aliasPrefix begins the alias of every interface we make.
const aliasPrefix = "tracewire:"

// maxAlias is the longest alias in bytes (IFALIASZ less one, linux/if.h).
const maxAlias = 255

// hash is of words that hold no NUL.
func hash(words ...string) []byte {
	s := sha256.Sum256([]byte(strings.Join(words, "\x00")))
	return s[:]
}

// Alias is the mark on the host end that proves whose it is. attachment is
// network/containerID:ifname.
func Alias(attachment string) string {
	if a := aliasPrefix + attachment; len(a) <= maxAlias {
		return a
	}
	return aliasPrefix + hex.EncodeToString(hash(attachment))
}

// Owner is the attachment that an alias of ours names, "" for any other alias.
func Owner(alias string) string {
	owner, ours := strings.CutPrefix(alias, aliasPrefix)
	if !ours {
		return ""
	}
	return owner
}

// HostNames is the names the host end may have, in order of preference: "veth"
// and 11 hex digits of a hash of the attachment. The second is for a name that
// somebody else has.
func HostNames(attachment string) [2]string {
	name := func(round string) string {
		return "veth" + hex.EncodeToString(hash(attachment, round))[:11]
	}
	return [2]string{name("1"), name("2")}
}

// hostMACs is how all host ends' MACs begin.
var hostMACs = []byte{0x0a, 0x57}

// HostMAC is the host end's: 0a:57 and four bytes of a hash of the attachment.
func HostMAC(attachment string) net.HardwareAddr { return mac(0x57, hash(attachment, "host")) }

// Ours tells that an interface is a host end of ours, also where its alias is
// not set yet.
func (l Link) Ours() bool { return Owner(l.Alias) != "" || bytes.HasPrefix(l.MAC, hostMACs) }

// PodMAC is the pod end's. Where the address is known it follows from the
// address, so that a neighbour entry which outlived the last pod of that
// address is right at once: 0a:58 and the IPv4 address, or 0a:59 and a hash of
// network and IPv6 address. Else it is 0a:5a and a hash of the attachment.
func PodMAC(attachment string, addresses []netip.Prefix) net.HardwareAddr {
	for _, a := range addresses {
		if ip := a.Addr(); ip.Is4() {
			return mac(0x58, ip.AsSlice())
		}
	}
	if len(addresses) > 0 {
		network, _, _ := strings.Cut(attachment, "/")
		return mac(0x59, hash(network, addresses[0].Addr().String()))
	}
	return mac(0x5a, hash(attachment, "pod"))
}

// BridgeMAC is a bridge's that we make: 0a:56 and a hash of this boot and its
// name, so that two nodes of one segment differ.
func BridgeMAC(bridge, boot string) net.HardwareAddr { return mac(0x56, hash(bridge, boot)) }

func mac(second byte, tail []byte) net.HardwareAddr {
	return append(net.HardwareAddr{0x0a, second}, tail[:4]...)
}

// ValidName tells whether an interface can have a name: 1 to 15 bytes of UTF-8
// without slash, colon, percent sign (the kernel's own template), white space
// or control characters, and no name that means something else to the kernel
// (dev_valid_name, net/core/dev.c; /proc/sys/net/ipv4/conf).
func ValidName(name string) bool {
	switch name {
	case "", ".", "..", "all", "default":
		return false
	}
	odd := func(r rune) bool { return strings.ContainsRune("/:%", r) || unicode.IsSpace(r) || unicode.IsControl(r) }
	return len(name) < unix.IFNAMSIZ && utf8.ValidString(name) && !strings.ContainsFunc(name, odd)
}
