package main

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/tracewire/tracewire/trace/read"
)

// cut is s in at most width columns: a sign where its middle was, and behind
// it the last letters, as many as are asked for and fit.
func cut(s string, width, last int) string {
	r := []rune(s)
	if len(r) <= width {
		return s
	}
	last = min(last, max(0, width-1)*2/3)
	return string(r[:max(0, width-1-last)]) + "…" + string(r[len(r)-last:])
}

// shortPod leaves a pod's name its end, which tells the pods of one owner apart.
func shortPod(s string, width int) string { return cut(s, width, len("-x7v2k")) }

// mendedBy stands between what a repair mended and how.
const mendedBy = ": "

// shortDone is a pod, or what a repair mended, if need be without how.
func shortDone(s string, width int) string {
	if kind, _, ok := strings.Cut(s, mendedBy); ok && utf8.RuneCountInString(s) > width {
		return cut(kind, width, 0)
	}
	return shortPod(s, width)
}

// leastID is how many letters of a container id are worth more than what stands
// around it.
const leastID = 6

// shortAttachment cuts the container id, whose begin names it, then leaves out
// the network, then the interface.
func shortAttachment(s string, width int) string {
	network, rest, _ := strings.Cut(s, "/")
	id, ifname, ok := strings.Cut(rest, ":")
	if !ok { // a network alone
		return cut(s, width, 0)
	}
	for _, around := range [][2]string{{network + "/", ":" + ifname}, {"", ":" + ifname}, {}} {
		room := width - len(around[0]) - len(around[1])
		if room > leastID || room >= len(id) {
			return around[0] + cut(id, room, 0) + around[1]
		}
	}
	return cut(id, width, 0)
}

// firstOf stands between how many attachments there are and the name of the first.
const firstOf = ", first "

// leastName is the columns of "1635e8…:eth0".
const leastName = 12

// shortAttachments is an attachment, or how many there are and the first of them, on
// two lines where one has no room.
func shortAttachments(s string, width int) string {
	many, one, ok := strings.Cut(s, firstOf)
	if !ok {
		return shortAttachment(s, width)
	}
	if room := width - len(many) - len(firstOf); room >= leastName {
		return many + firstOf + shortAttachment(one, room)
	}
	return cut(many, width, 0) + "\n" + shortAttachment(one, width)
}

// shortAddresses tells how many there are besides the first, or only that there
// are more.
func shortAddresses(s string, width int) string {
	first, others, more := strings.Cut(s, ",")
	if !more {
		return cut(s, width, len(":1234"))
	}
	sum := fmt.Sprintf(" +%d", 1+strings.Count(others, ","))
	if len(first)+len(sum) > width {
		sum = "…"
	}
	return cut(first, width-utf8.RuneCountInString(sum), len(":1234")) + sum
}

// containerID is one as most runtimes make them.
var containerID = regexp.MustCompile(`\b[0-9a-f]{64}\b`)

// short is a text whose container ids are as runtimes' tools show them, on a
// terminal.
func (c *command) short(s string) string {
	if c.width() == 0 {
		return s
	}
	return containerID.ReplaceAllStringFunc(s, read.ShortID)
}
