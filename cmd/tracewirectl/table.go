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
	head    string
	right   bool
	first   int                                 // columns it is narrowed to before any to its least; 0 for not
	least   int                                 // columns it may be narrowed to; 0 for never
	shorten func(cell string, width int) string // what fits a narrowed one, line by line; nil to break cells into lines
	leftOut int                                 // where narrowing does not do: 1 goes first; 0 for never
	last    int                                 // columns it may be narrowed to when that did not do either; 0 for never
	words   bool                                // before that only to its longest word
}

// cell is text of one colour.
type cell struct {
	text   string
	colour colour
}

// grid is a table that fits the terminal.
type grid struct {
	columns []column
	widths  []int // nil until fit; 0 for a column that is not there
	free    bool  // nothing is shortened or broken
}

const columnGap = 2

// fit gives each column the width of its longest cell. Until all are within
// width, which 0 does not bound, it narrows those that may be, then leaves some
// out, then narrows some further. A column without any
// text has no width.
func (g *grid) fit(rows [][]cell, width int) {
	g.free = width == 0
	whole := g.whole(rows)
	g.widths = slices.Clone(whole)
	for out := 1; !g.free && g.total() > width; out++ {
		g.narrow(rows, width, func(i int) int { return g.unbroken(rows, i, g.columns[i].first) })
		g.narrow(rows, width, func(i int) int { return g.unbroken(rows, i, g.columns[i].least) })
		next := slices.IndexFunc(g.columns, func(c column) bool { return c.leftOut == out })
		if g.total() <= width || next < 0 {
			break
		}
		whole[next] = 0
		g.widths = slices.Clone(whole)
	}
	if g.free {
		return
	}
	g.narrow(rows, width, func(i int) int {
		if g.columns[i].shorten == nil {
			return 0 // lines are broken when nothing else is left
		}
		return g.columns[i].last
	})
	g.narrow(rows, width, func(i int) int { return g.columns[i].last })
}

// unbroken is a limit at which no word of a column that has words is broken.
func (g *grid) unbroken(rows [][]cell, column, limit int) int {
	if !g.columns[column].words {
		return limit
	}
	for _, r := range rows {
		for word := range strings.FieldsSeq(r[column].text) {
			limit = max(limit, utf8.RuneCountInString(word))
		}
	}
	return limit
}

// whole is the widths of the longest cells.
func (g *grid) whole(rows [][]cell) []int {
	widths := make([]int, len(g.columns))
	for i, col := range g.columns {
		for _, r := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(r[i].text))
		}
		if widths[i] > 0 {
			widths[i] = max(widths[i], len(col.head))
		}
	}
	return widths
}

// narrow takes from the columns that have most to spare over a limit of theirs
// until all are within width.
func (g *grid) narrow(rows [][]cell, width int, limit func(column int) int) {
	limits := make([]int, len(g.columns))
	for i := range limits {
		limits[i] = limit(i)
	}
	for g.total() > width {
		widest, spare := -1, 0
		for i, l := range limits {
			if l > 0 && g.widths[i]-l > spare {
				widest, spare = i, g.widths[i]-l
			}
		}
		if widest < 0 {
			return
		}
		g.widths[widest] = g.needs(rows, widest, g.widths[widest]-1)
	}
}

// needs is the width that a column takes in at most width: cells that are
// shortened may take less.
func (g *grid) needs(rows [][]cell, column, width int) int {
	shorten := g.columns[column].shorten
	if shorten == nil {
		return width
	}
	n := min(width, len(g.columns[column].head))
	for _, r := range rows {
		s := r[column].text
		if utf8.RuneCountInString(s) > width {
			s = shorten(s, width)
		}
		for l := range strings.SplitSeq(s, "\n") {
			n = max(n, utf8.RuneCountInString(l))
		}
	}
	return n
}

func (g *grid) total() (n int) {
	for _, w := range g.widths {
		if w > 0 {
			n += w + columnGap
		}
	}
	return n - columnGap
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
		configs = append(configs, table.ColumnConfig{Number: len(configs) + 1, Align: align, AlignHeader: align, WidthMin: g.widths[i]})
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

// cells is a row as it is drawn: made to fit its widths, coloured line by line.
func (c *command) cells(g *grid, row []cell) (out table.Row) {
	for i, x := range row {
		if g.widths[i] == 0 {
			continue
		}
		var lines []string
		for _, l := range g.lines(i, read.Printable(x.text)) {
			lines = append(lines, c.paint(l, x.colour))
		}
		out = append(out, strings.Join(lines, "\n"))
	}
	return out
}

// lines is the lines of a column's cell.
func (g *grid) lines(column int, s string) []string {
	switch shorten := g.columns[column].shorten; {
	case g.free || utf8.RuneCountInString(s) <= g.widths[column]:
		return []string{s}
	case shorten != nil:
		return strings.Split(shorten(s, g.widths[column]), "\n")
	}
	return broken(s, g.widths[column])
}

// broken breaks a line into parts of at most width letters.
func broken(s string, width int) (parts []string) {
	r := []rune(s)
	for len(r) > width {
		at := breakAt(r, width)
		parts = append(parts, strings.TrimRight(string(r[:at]), " "))
		r = []rune(strings.TrimLeft(string(r[at:]), " "))
	}
	return append(parts, string(r))
}

// breakAt is where a line is broken: at the last blank; without one behind a
// slash where the rest then fits, else behind a sign of punctuation where that
// leaves more than a third of the width.
func breakAt(r []rune, width int) int {
	for i := width; i > 0; i-- {
		if r[i] == ' ' {
			return i
		}
	}
	if slash := slices.Index(r, '/') + 1; slash > 1 && slash <= width && len(r)-slash <= width {
		return slash
	}
	for i := width; i > width/3; i-- {
		if strings.ContainsRune("/-:,.", r[i-1]) {
			return i
		}
	}
	return width
}

// style is a table without lines, two blanks between its columns.
func style() table.Style {
	s := table.StyleDefault
	s.Options = table.OptionsNoBordersAndSeparators
	s.Box.PaddingLeft, s.Box.PaddingRight = "", strings.Repeat(" ", columnGap)
	s.Format.Header = text.FormatDefault
	return s
}
