package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace/read"
)

// subject is what an attachment can be named by.
type subject struct {
	delegates.Attachment
	namespace, pod string
	addresses      []netip.Addr
}

// name is an attachment as an operator named it.
type name struct {
	text      string
	container string // that a container id has to begin with, "" where it was named otherwise
	pod       string // that a pod may be called, "" where it was named otherwise
	fits      func(subject) bool
}

// named reads ATTACHMENT. Neither a network's name, a container id nor a pod's
// name holds a slash or a colon, so the forms differ; without either it is the
// begin of a container id, or a pod's name in any namespace.
func named(text string) (name, error) {
	if text == "" {
		return name{}, errors.New("ATTACHMENT is empty")
	}
	if a, ok := address(text); ok {
		return name{text: text, fits: func(s subject) bool { return slices.Contains(s.addresses, a) }}, nil
	}
	first, rest, slash := strings.Cut(text, "/")
	if !slash {
		return name{text: text, container: text, pod: text, fits: func(s subject) bool {
			return strings.HasPrefix(s.ContainerID, text) || s.pod == text
		}}, nil
	}
	id, ifname, colon := strings.Cut(rest, ":")
	if colon {
		return byContainer(text, id, func(s subject) bool { return s.Network == first && s.IfName == ifname })
	}
	if first == "" || rest == "" {
		return name{}, fmt.Errorf("%q is no attachment: want a container id, [NAMESPACE/]POD, NETWORK/CONTAINER:IFNAME or an address", text)
	}
	return name{text: text, fits: func(s subject) bool { return s.namespace == first && s.pod == rest }}, nil
}

func byContainer(text, id string, also func(subject) bool) (name, error) {
	if id == "" {
		return name{}, fmt.Errorf("the container id of %q is empty", text)
	}
	return name{text: text, container: id, fits: func(s subject) bool {
		return strings.HasPrefix(s.ContainerID, id) && also(s)
	}}, nil
}

// address reads an address, with a prefix length or without.
func address(text string) (netip.Addr, bool) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Addr().Unmap(), true
	}
	a, err := netip.ParseAddr(text)
	return a.Unmap(), err == nil
}

// pick is the subjects that a name fits. A container id goes before those that
// only begin with it; the begin of several, or the pods of several namespaces, is
// an error that lists them.
func (n name) pick(all []subject) ([]subject, error) {
	var fit, exact []subject
	owners := map[string]bool{}
	for _, s := range all {
		if !n.fits(s) {
			continue
		}
		fit = append(fit, s)
		owners[n.owner(s)] = true
		if s.ContainerID == n.container {
			exact = append(exact, s)
		}
	}
	switch {
	case len(fit) == 0:
		return nil, fmt.Errorf("%w: no attachment %s", errNothing, n.text)
	case len(exact) > 0:
		return exact, nil
	case n.container != "" && len(owners) > 1:
		return nil, n.ambiguous(fit)
	}
	return fit, nil
}

// owner is whose a subject is by the way it was named: a pod's or a container's.
func (n name) owner(s subject) string {
	if n.pod != "" && s.pod == n.pod {
		return s.namespace + "/" + s.pod
	}
	return s.ContainerID
}

// listed bounds what an error lists.
const listed = 10

func (n name) ambiguous(fit []subject) error {
	var names []string
	for _, s := range fit {
		name := s.String()
		if n.pod != "" && s.pod == n.pod {
			name += " of " + n.owner(s)
		}
		names = append(names, name)
	}
	return ambiguous(n.text, names)
}

// ambiguous is the error that lists what a text may mean.
func ambiguous(text string, names []string) error {
	slices.Sort(names)
	more := ""
	if len(names) > listed {
		more = fmt.Sprintf(" and %d more", len(names)-listed)
		names = names[:listed]
	}
	return fmt.Errorf("%s is ambiguous: %s%s", text, strings.Join(names, ", "), more)
}

// subjectOf is an operation's.
func subjectOf(e read.Entry) subject {
	s := subject{
		Attachment: delegates.Attachment{Network: e.Network, ContainerID: e.ContainerID, IfName: e.IfName},
		namespace:  e.PodNamespace, pod: e.Pod,
	}
	for _, a := range e.Addresses {
		s.addresses = append(s.addresses, a.Addr())
	}
	return s
}

// add takes over what another operation on the attachment tells of it.
func (s *subject) add(o subject) {
	if o.pod != "" {
		s.namespace, s.pod = o.namespace, o.pod
	}
	for _, a := range o.addresses {
		if !slices.Contains(s.addresses, a) {
			s.addresses = append(s.addresses, a)
		}
	}
}
