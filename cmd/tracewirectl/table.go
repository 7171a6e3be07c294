package main

import (
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/tracewire/tracewire/trace/read"
)

// colour is a terminal's attribute (ECMA-48, SGR).
type colour string

const (
	plain colour = ""
	bold  colour = "1"
	dim   colour = "2"
	red   colour = "31"
	green colour = "32"
)

// paint colours text where colours are on.
func (c *command) paint(s string, k colour) string {
	if k == plain || s == "" || !c.coloured() {
		return s
	}
	return "\x1b[" + string(k) + "m" + s + "\x1b[0m"
}

// column is one of a grid's.
type column struct {
	head  string
	right bool
	first int // columns it is narrowed to, its cells broken, before others are; 0 for not
	least int // columns it may be narrowed to at all; 0 for never
}

// cell is text of one colour. A line feed in it begins another line.
type cell struct {
	text   string
	colour colour
}

// grid is a table that fits the terminal.
type grid struct {
	columns []column
	widths  []int // nil until fit
}

const columnGap = 2

// fit gives each column the width of its longest cell, and narrows those that
// may be until all are within width. A column without any text has none.
func (g *grid) fit(rows [][]cell, width int) {
	g.widths = make([]int, len(g.columns))
	for i, col := range g.columns {
		for _, r := range rows {
			g.widths[i] = max(g.widths[i], longest(r[i].text))
		}
		if g.widths[i] > 0 {
			g.widths[i] = max(g.widths[i], len(col.head))
		}
	}
	g.narrow(width, func(c column) int { return c.first })
	g.narrow(width, func(c column) int { return c.least })
}

// narrow takes from the columns that have most to spare over a limit of theirs
// until all are within width.
func (g *grid) narrow(width int, limit func(column) int) {
	for g.total() > width {
		widest, spare := -1, 0
		for i, col := range g.columns {
			if l := limit(col); l > 0 && g.widths[i]-l > spare {
				widest, spare = i, g.widths[i]-l
			}
		}
		if widest < 0 {
			return
		}
		g.widths[widest]--
	}
}

func (g *grid) total() (n int) {
	for _, w := range g.widths {
		if w > 0 {
			n += w + columnGap
		}
	}
	return n - columnGap
}

func longest(s string) (n int) {
	for l := range strings.SplitSeq(s, "\n") {
		n = max(n, utf8.RuneCountInString(l))
	}
	return n
}

// write draws rows in the widths that fit gave, under a head where there is to
// be one.
func (c *command) write(w io.Writer, g *grid, rows [][]cell, head bool) error {
	t := table.NewWriter()
	t.SetStyle(style())
	var configs []table.ColumnConfig
	var top table.Row
	for i, col := range g.columns {
		if g.widths[i] == 0 {
			continue
		}
		align := text.AlignLeft
		if col.right {
			align = text.AlignRight
		}
		configs = append(configs, table.ColumnConfig{Number: len(configs) + 1, Align: align, AlignHeader: align, WidthMin: g.widths[i], WidthMax: g.widths[i]})
		top = append(top, c.paint(col.head, bold))
	}
	t.SetColumnConfigs(configs)
	if head {
		t.AppendHeader(top)
	}
	for _, r := range rows {
		t.AppendRow(c.cells(g, r))
	}
	var b strings.Builder
	for l := range strings.SplitSeq(t.Render(), "\n") {
		b.WriteString(strings.TrimRight(l, " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// cells is a row as it is drawn: broken to its widths, coloured line by line.
func (c *command) cells(g *grid, row []cell) (out table.Row) {
	for i, x := range row {
		if g.widths[i] == 0 {
			continue
		}
		var lines []string
		for l := range strings.SplitSeq(x.text, "\n") {
			for _, part := range broken(read.Printable(l), g.widths[i]) {
				lines = append(lines, c.paint(part, x.colour))
			}
		}
		out = append(out, strings.Join(lines, "\n"))
	}
	return out
}

// broken breaks a line into parts of at most width letters: behind a slash
// where the rest then fits, else behind a sign of punctuation where that leaves
// more than a third of the width.
func broken(s string, width int) (parts []string) {
	r := []rune(s)
	for len(r) > width {
		at := width
		for i := width; i > width/3; i-- {
			if strings.ContainsRune(" /-:,.", r[i-1]) {
				at = i
				break
			}
		}
		if slash := slices.Index(r, '/') + 1; slash > 0 && slash <= width && len(r)-slash <= width {
			at = slash
		}
		parts, r = append(parts, strings.TrimRight(string(r[:at]), " ")), r[at:]
	}
	return append(parts, string(r))
}

// style is a table without lines, two blanks between its columns.
func style() table.Style {
	s := table.StyleDefault
	s.Options = table.OptionsNoBordersAndSeparators
	s.Box.PaddingLeft, s.Box.PaddingRight = "", strings.Repeat(" ", columnGap)
	s.Format.Header = text.FormatDefault
	return s
}
