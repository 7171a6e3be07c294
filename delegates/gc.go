package delegates

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tracewire/tracewire/trace"
)

// Kept is the attachments of a network that a GC leaves alone.
type Kept struct {
	// All is what the runtime calls valid, what was spared, and what could not be
	// removed.
	All []Attachment
	// Leases is the addresses of attachments that do not stay, where IPAM can tell.
	Leases []Lease
	// Recorded tells whether an attachment has a record by now: it may be made at
	// this moment. An IfName of "" stands for any interface of the container.
	Recorded func(Attachment) bool
}

// Lease is an address that is reserved for an attachment. Its IfName is "" in a
// reservation of an old host-local.
type Lease struct {
	Address netip.Addr
	Attachment
}

// Has tells whether an attachment stays. An IfName of "", as in a reservation of
// an old host-local, stands for any interface of the container.
func (k Kept) Has(a Attachment) bool {
	return slices.ContainsFunc(k.All, func(b Attachment) bool {
		return a.ContainerID == b.ContainerID && (a.IfName == "" || a.IfName == b.IfName)
	}) || k.Recorded(a)
}

// valid is the attachments as the configuration of a GC has them (CNI spec
// 1.1.0, "GC").
func (k Kept) valid() json.RawMessage {
	list := make([]types.GCAttachment, len(k.All))
	for i, a := range k.All {
		list[i] = types.GCAttachment{ContainerID: a.ContainerID, IfName: a.IfName}
	}
	b, _ := json.Marshal(list) // strings can always be written
	return b
}

// GC implements Delegate. A plugin that does not know the command has nothing
// to collect.
func (p Plugin) GC(ctx context.Context, c Call, k Kept) error {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(p.conf(c), &m); err != nil {
		return p.failed("configuration: %w", err)
	}
	// The spec's draft had the second name, and plugins may know that one alone.
	m["cni.dev/valid-attachments"], m["cni.dev/attachments"] = k.valid(), k.valid()
	conf, err := json.Marshal(m)
	if err != nil {
		return p.failed("configuration: %w", err)
	}
	_, err = p.run(ctx, "GC", c, conf)
	return ignoreUnknownVerb(ctx, p.Type, "GC", err)
}

// ignoreUnknownVerb passes over the error of a plugin that is older than a
// command: skel's codes for it are 1 and 4.
func ignoreUnknownVerb(ctx context.Context, plugin, verb string, err error) error {
	var e *types.Error
	if errors.As(err, &e) && (e.Code == types.ErrIncompatibleCNIVersion || e.Code == types.ErrInvalidEnvironmentVariables) {
		trace.SpanOf(ctx).Event(plugin+" does not know "+verb, trace.KeyError.String(e.Error()))
		return nil
	}
	return err
}
