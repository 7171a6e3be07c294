package masquerade

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/nft"
)

// The reference plugins' nf_tables backend (plugins v1.10.0,
// pkg/ip/ipmasq_nftables_linux.go): rules of all attachments in one chain,
// which stays, known by what their comments begin with.
var referenceChain = nft.Chain{Table: nft.Table{Family: nft.Inet, Name: "cni_plugins_masquerade"}, Name: "masq_checks"}

// RemoveReference removes what the reference plugins made for the attachment,
// with either backend: its iptables chain, and its rules by their comments.
// What is not there is success. See Rules.Remove for wait.
func (c Chains) RemoveReference(ctx context.Context, addresses []netip.Prefix, wait bool) error {
	comment := referenceComment(delegates.Attachment(c))
	err := remove(ctx, wait, func(conn *nft.Conn) ([]nft.Object, error) {
		return rulesOf(conn, referenceChain, func(s string) bool { return strings.HasPrefix(s, comment) })
	})
	return errors.Join(err, c.Remove(ctx, addresses))
}

// referenceComment is what the comments of an attachment's rules begin with.
func referenceComment(a delegates.Attachment) string {
	return referenceHash(a.Network) + "-" + referenceHash(a.IfName+":"+a.ContainerID)
}

func referenceHash(s string) string {
	sum := sha512.Sum512([]byte(s))
	return hex.EncodeToString(sum[:8])
}
