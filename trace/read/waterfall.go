package read

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Waterfall draws an operation for a terminal of that many columns: what it
// was, then a line a span with a bar that is to scale with the whole. What went
// wrong stands below the span where it did. Times are told in the zone that
// the root's start is in. With 0 columns no text is folded or cut.
func Waterfall(w io.Writer, o Operation, width int, colour bool) error {
	d := newDrawing(o, width, colour)
	d.head(o)
	d.line()
	o.Root.Walk(d.span)
	_, err := io.WriteString(w, strings.Join(d.lines, "\n")+"\n")
	return err
}

// style is a terminal's attribute (ECMA-48, SGR), "" for none.
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	cyan   style = "36"
)

// piece is text in one style.
type piece struct {
	text  string
	style style
}

const (
	durationWidth = 8
	keyWidth      = 12 // of the head's keys
	leastWidth    = 50
	freeWidth     = 100 // where there are none to fit
	leastLane     = 10
	gap           = "  "
)

// drawing is a waterfall as it comes to be.
type drawing struct {
	width, names, lane int // columns: of the text, of the names, of the bars
	colour             bool
	start              time.Time
	total              time.Duration
	lines              []string
}

func newDrawing(o Operation, width int, colour bool) *drawing {
	d := &drawing{width: max(width, leastWidth), colour: colour, start: o.Root.Start}
	end := o.Root.End
	o.Root.Walk(func(depth int, n Node) {
		d.names = max(d.names, 2*depth+utf8.RuneCountInString(n.Name))
		if n.End.After(end) { // a child outlived its parent
			end = n.End
		}
	})
	d.total = end.Sub(d.start)
	if width > 0 {
		d.names = min(d.names, d.width*2/5)
	} else {
		d.width = freeWidth
	}
	d.lane = max(leastLane, d.width-d.names-durationWidth-utf8.RuneCountInString(" ││ "))
	if width == 0 {
		d.width = math.MaxInt
	}
	return d
}

// line adds a line of pieces.
func (d *drawing) line(pieces ...piece) {
	var b strings.Builder
	for _, p := range pieces {
		if d.colour && p.style != plain && strings.TrimSpace(p.text) != "" {
			fmt.Fprintf(&b, "\x1b[%sm%s\x1b[0m", p.style, p.text)
			continue
		}
		b.WriteString(p.text)
	}
	d.lines = append(d.lines, strings.TrimRight(b.String(), " "))
}

// flow adds pieces, two blanks between them, on as many lines as they need.
func (d *drawing) flow(pieces ...piece) {
	var line []piece
	used := 0
	for _, p := range pieces {
		n := utf8.RuneCountInString(p.text)
		if used > 0 && used+len(gap)+n > d.width {
			d.line(line...)
			line, used = nil, 0
		}
		if used > 0 || len(d.lines) > 0 && line == nil {
			line, used = append(line, piece{gap, plain}), used+len(gap)
		}
		line, used = append(line, p), used+n
	}
	d.line(line...)
}

// text adds words behind a margin, on as many lines as they need.
func (d *drawing) text(first, margin, words string, s style) {
	for _, l := range wrap(words, max(20, d.width-utf8.RuneCountInString(margin))) {
		d.line(piece{first, dim}, piece{l, s})
		first = margin
	}
}

// head tells what the operation was and how it ended.
func (d *drawing) head(o Operation) {
	e := o.Entry()
	outcome := piece{e.Outcome, green}
	if e.Outcome == Failed {
		outcome.style = red
	}
	pieces := []piece{{Printable(e.Command), bold}}
	for _, t := range []string{Printable(ShortAttachment(e)), Printable(PodName(e)), e.Time.Format("2006-01-02 15:04:05.000"), Human(e.Duration)} {
		if t != "" {
			pieces = append(pieces, piece{t, plain})
		}
	}
	d.flow(append(pieces, outcome)...)
	d.key("trace", e.TraceID, plain)
	if full := e.Attachment(); full != ShortAttachment(e) {
		d.key("attachment", full, plain)
	}
	if len(e.Addresses) > 0 {
		d.key("addresses", strings.Join(texts(e.Addresses), ", "), plain)
	}
	if e.Kind != "" {
		d.key("mends", e.Kind+": "+e.Repair, plain)
	}
	if e.Runtime != "" {
		d.key("called by", e.Runtime, plain)
	}
	for _, l := range o.Root.Links {
		d.key("links to", l.String(), plain)
	}
	if e.Outcome == Failed {
		d.key("error", failure(e), red)
	}
}

// key adds a line of the head.
func (d *drawing) key(key, value string, s style) {
	margin := strings.Repeat(" ", keyWidth+len(gap))
	d.text(gap+pad(key, keyWidth), margin, Printable(value), s)
}

// failure is the code, its name and the message.
func failure(e Entry) string {
	if e.ErrorCode == 0 {
		return e.Error
	}
	return fmt.Sprintf("code %d %s: %s", e.ErrorCode, e.ErrorType, e.Error)
}

// String is what a waterfall says of a link.
func (l Link) String() string {
	if l.Target == "" {
		return "trace " + l.TraceID
	}
	return "trace " + l.TraceID + ", " + l.Target
}

// span adds a span's line, and below it what happened in it.
func (d *drawing) span(depth int, n Node) {
	name, bar := plain, cyan
	switch {
	case n.Failed:
		name, bar = red, red
	case depth == 0:
		name = bold
	}
	label := clip(strings.Repeat("  ", depth)+Printable(n.Name), d.names)
	d.line(piece{pad(label, d.names), name}, piece{" │", dim}, piece{d.bar(n.Span), bar}, piece{"│", dim},
		piece{padLeft(Human(n.Duration()), durationWidth), plain})
	first := strings.Repeat("  ", depth+1)
	for _, e := range n.Events {
		if e.Name != exception {
			d.text(first+"! ", first+"  ", Printable(e.String()), yellow)
		}
	}
	if depth == 0 {
		return // the head has its links and its error
	}
	for _, l := range n.Links {
		d.text(first+"→ ", first+"  ", Printable("links to "+l.String()), plain)
	}
	if n.Failed && !slices.ContainsFunc(n.Children, func(c Node) bool { return c.Failed }) {
		d.text(first+"✗ ", first+"  ", Printable(n.Message), red)
	}
}

// exception is the event of an error: the status says the same.
const exception = "exception"

// String is the event's name and attributes.
func (e Event) String() string {
	s := e.Name
	for _, a := range e.Attributes {
		s += fmt.Sprintf("  %s=%v", a.Key, a.Value)
	}
	return s
}

// bar is the span's time in the whole, d.lane columns wide.
func (d *drawing) bar(s Span) string {
	eighths := int64(d.lane) * 8
	from, to := d.scale(s.Start, eighths), d.scale(s.End, eighths)
	from = min(from, eighths-1)
	to = max(to, from+1)
	var b strings.Builder
	for cell := range int64(d.lane) {
		b.WriteRune(block(from-8*cell, to-8*cell))
	}
	return b.String()
}

// scale is where a time lies in the whole, in parts of it. A clock that
// stepped cannot lead out of it.
func (d *drawing) scale(t time.Time, parts int64) int64 {
	if d.total <= 0 {
		return 0
	}
	share := float64(t.Sub(d.start)) / float64(d.total)
	return int64(min(max(share, 0), 1)*float64(parts) + 0.5)
}

// left is the blocks that fill a cell from its left end, by eighths.
var left = [...]rune{' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'}

// block is the character of a cell that is filled between two of its eighths,
// which may lie outside of it. A part that begins inside can be drawn from its
// middle or from its last eighth.
func block(from, to int64) rune {
	switch {
	case to <= 0 || from >= 8:
		return ' '
	case from > 0 && to < 8: // all of it is inside: its length counts
		return left[to-from]
	case from <= 1:
		return left[min(to, 8)]
	case from <= 5:
		return '▐'
	}
	return '▕'
}
