package read

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// ShortID is the begin of a container id that is too long to read: 12 letters
// of hex digits, as runtimes' own commands show them, 16 of anything else.
func ShortID(id string) string {
	switch {
	case len(id) <= 20:
		return id
	case strings.Trim(id, "0123456789abcdef") == "":
		return id[:12]
	}
	return id[:16]
}

// ShortAttachment is an entry's attachment with its container id shortened.
func ShortAttachment(e Entry) string {
	e.ContainerID = ShortID(e.ContainerID)
	return e.Attachment()
}

// PodName is namespace/name, "" where the runtime told of no pod.
func PodName(e Entry) string {
	if e.Pod == "" {
		return ""
	}
	return e.PodNamespace + "/" + e.Pod
}

// Human is a duration as people read it: "103 µs", "4.38 ms", "1.25 s".
func Human(d time.Duration) string {
	us := float64(d.Nanoseconds()) / 1e3
	switch {
	case us < 999.5:
		return fmt.Sprintf("%.0f µs", us)
	case us < 9995:
		return fmt.Sprintf("%.2f ms", us/1e3)
	case us < 99950:
		return fmt.Sprintf("%.1f ms", us/1e3)
	case us < 999500:
		return fmt.Sprintf("%.0f ms", us/1e3)
	case us < 99.995e6:
		return fmt.Sprintf("%.2f s", us/1e6)
	}
	return d.Round(time.Second).String()
}

// Printable is text that cannot steer a terminal: names and messages come
// from others. Control characters, line feeds too, become blanks.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsControl(r) || unicode.IsSpace(r):
			return ' '
		case unicode.IsPrint(r) && r != utf8.RuneError:
			return r
		}
		return '?' // no character, or one that changes how others are written
	}, s)
}

func texts(addresses []netip.Prefix) (out []string) {
	for _, a := range addresses {
		out = append(out, a.String())
	}
	return out
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}

func padLeft(s string, width int) string {
	return strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s))) + s
}

// clip is s in at most width columns, with a sign where something is missing.
func clip(s string, width int) string {
	r := []rune(s)
	if len(r) <= width {
		return s
	}
	return string(r[:max(0, width-1)]) + "…"
}

// wrap breaks text between its words, and in a word that is longer than a line.
func wrap(s string, width int) (out []string) {
	line := []rune(nil)
	for _, word := range strings.Fields(s) {
		w := []rune(word)
		if len(line) > 0 && len(line)+1+len(w) > width {
			out, line = append(out, string(line)), nil
		}
		if len(line) > 0 {
			line = append(line, ' ')
		}
		for line = append(line, w...); len(line) > width; line = line[width:] {
			out = append(out, string(line[:width]))
		}
	}
	return append(out, string(line))
}
