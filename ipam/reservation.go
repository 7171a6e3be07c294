package ipam

import (
	"strings"
	"unicode"

	"github.com/tracewire/tracewire/delegates"
)

// lineBreak stands between the two lines of a reservation.
const lineBreak = "\r\n"

// Reservation is who holds an address.
type Reservation struct {
	ContainerID string
	IfName      string // empty in a file of host-local before plugins v0.8, which did not write it
}

// ParseReservation reads the content of a reservation file. An empty one is no
// reservation.
func ParseReservation(content string) (Reservation, bool) {
	id, ifName, _ := strings.Cut(strings.TrimSpace(content), lineBreak)
	return Reservation{id, ifName}, id != ""
}

// Text is the content of a reservation file.
func (r Reservation) Text() string {
	if r.IfName == "" {
		return r.ContainerID
	}
	return r.ContainerID + lineBreak + r.IfName
}

// plausible tells that the holder can be one: a container id and an interface
// name have no blanks and no control characters (CNI spec 1.1.0, section 2).
func (r Reservation) plausible() bool {
	return !strings.ContainsFunc(r.ContainerID+r.IfName, func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) })
}

// String is for people.
func (r Reservation) String() string {
	return strings.TrimSpace(r.ContainerID + " " + r.IfName)
}

func of(a delegates.Attachment) Reservation {
	return Reservation{strings.TrimSpace(a.ContainerID), a.IfName}
}

// bare is the same holder in a file of an old host-local.
func (r Reservation) bare() Reservation { return Reservation{ContainerID: r.ContainerID} }
