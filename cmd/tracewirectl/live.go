package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/tracewire/tracewire/delegates/veth"
)

// The words for a network namespace at the path that ADD was given.
const (
	nsThere   = "there"
	nsMissing = "missing"
	nsAnother = "another namespace"
)

// live is what the kernel has of an attachment.
type live struct {
	host      veth.Link // zero where there is none
	bridge    string    // that the host end is a port of
	netns     string    // one of the words, "" where it could not be looked at
	cookie    uint64
	pod       veth.Link // zero where there is none
	addresses []netip.Prefix
	routes    []veth.Route // through the pod's end
	err       error        // what could not be looked at
}

// look asks the kernel for an attachment's interfaces and addresses. hosts is
// the names that the host end may have.
func look(r stored, hosts []string) (l live) {
	l.err = errors.Join(l.lookHost(r.String(), hosts), l.lookPod(r))
	return l
}

func (l *live) lookHost(attachment string, names []string) error {
	conn, err := veth.Dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, name := range names {
		found, err := conn.LinkByName(name)
		if veth.Gone(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		if ours := found.Alias == veth.Alias(attachment); l.host.Name == "" || ours {
			l.host = found
		}
	}
	if l.host.Master == 0 {
		return nil
	}
	master, err := conn.LinkByIndex(l.host.Master)
	l.bridge = master.Name
	if veth.Gone(err) {
		return nil
	}
	return err
}

// lookPod looks into the pod's namespace, if it is still the one of ADD.
func (l *live) lookPod(r stored) error {
	if r.NetNS == "" {
		return nil
	}
	ns, err := veth.Open(r.NetNS)
	if errors.Is(err, veth.ErrNoNamespace) {
		l.netns = nsMissing
		return nil
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	l.netns, l.cookie = nsThere, ns.Cookie
	if r.Cookie != 0 && r.Cookie != ns.Cookie {
		l.netns = nsAnother
		return nil
	}
	found, err := ns.Conn().LinkByName(r.IfName)
	if veth.Gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("interface %s in the pod: %w", r.IfName, err)
	}
	l.pod = found
	if l.addresses, err = ns.Conn().Addresses(found.Index); err != nil {
		return err
	}
	all, err := ns.Conn().Routes(0)
	for _, i := range all {
		if i.Index == found.Index {
			l.routes = append(l.routes, i.Route)
		}
	}
	return err
}
