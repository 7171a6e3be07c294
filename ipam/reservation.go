package ipam

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tracewire/tracewire/delegates"
)

// lineBreak stands between the two lines of a reservation.
const lineBreak = "\r\n"

// Reservation is who holds an address.
type Reservation struct {
	ContainerID string
	IfName      string // empty in a file of host-local before plugins v0.8, which did not write it
}

// ParseReservation reads the content of a reservation file. It is none where it is
// empty, or names what cannot be a holder.
func ParseReservation(content string) (Reservation, bool) {
	id, ifName, _ := strings.Cut(strings.TrimSpace(content), lineBreak)
	if r := (Reservation{id, ifName}); id != "" && r.plausible() {
		return r, true
	}
	return Reservation{}, false
}

// Text is the content of a reservation file.
func (r Reservation) Text() string {
	if r.IfName == "" {
		return r.ContainerID
	}
	return r.ContainerID + lineBreak + r.IfName
}

// plausible tells that the holder can be one: a container id and an interface
// name are text without blanks and control characters (CNI spec 1.1.0, section 2).
func (r Reservation) plausible() bool {
	odd := func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) }
	return utf8.ValidString(r.ContainerID+r.IfName) && !strings.ContainsFunc(r.ContainerID+r.IfName, odd)
}

// String is for people: its end is left out where it is longer than any id is.
func (r Reservation) String() string {
	const most = 300
	text := strings.TrimSpace(r.ContainerID + " " + r.IfName)
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

func of(a delegates.Attachment) Reservation {
	return Reservation{strings.TrimSpace(a.ContainerID), a.IfName}
}

// is tells that both are one holder, one of which may be bare.
func (r Reservation) is(o Reservation) bool {
	return r.ContainerID == o.ContainerID && (r.IfName == o.IfName || r.IfName == "" || o.IfName == "")
}

// bare is the same holder in a file of an old host-local.
func (r Reservation) bare() Reservation { return Reservation{ContainerID: r.ContainerID} }
