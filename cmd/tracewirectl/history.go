package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tracewire/tracewire/trace"
	"github.com/tracewire/tracewire/trace/read"
)

// filters is what history is asked for. Zero values ask for nothing.
type filters struct {
	pod, ip, at, container, since string
	failed, follow, all           bool
}

// poll is how often a log that is followed is looked at.
const poll = 250 * time.Millisecond

func (c *command) history() *cobra.Command {
	var f filters
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Lists the operations that the log tells of",
		Long: `history lists ADD, DEL and the other operations from the plugin's log, the file
it was rotated to last included. A DEL is shown with the pod and the addresses
of the ADD before it.

With --at it shows who held what at that time: the ADD that made each
attachment, and what ended it where something did. That is a DEL, or a GC of the
network; after a reboot it may be a RECLAIM by an ADD that had no address left.

A CHECK that tracewirectl had run, for check or audit, is left out but with
--all; where it is a table, the last line tells how many were.

TIME is RFC 3339, "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02",
"01-02 15:04:05", "15:04:05" or "15:04". Where the year or the day is missing,
the latest such time that has passed is meant. DURATION is an age such as 90s,
10m, 2h or 7d; --at takes one too. Of the second, minute or day that is named,
--at means the end and --since the beginning.`,
		Example: `  tracewirectl history --failed --since 1h
  tracewirectl history --ip 10.22.0.5 --at "2026-03-01 14:05"
  tracewirectl history --pod default/web-0 -o json
  tracewirectl history -f`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.possible(); err != nil {
				return err
			}
			keep, err := c.filter(f)
			if err != nil {
				return err
			}
			p, err := c.places()
			if err != nil {
				return err
			}
			if f.follow {
				return c.follow(cmd.Context(), p.log, &sieve{keep: keep, all: f.all}, f.since != "")
			}
			return c.list(cmd.OutOrStdout(), p, f, &sieve{keep: keep, all: f.all})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.pod, "pod", "", "Shows only operations on the pod `NAMESPACE/NAME`; a NAME alone may be in any namespace")
	flags.StringVar(&f.ip, "ip", "", "Shows only operations on attachments with this `ADDRESS`")
	flags.StringVar(&f.at, "at", "", "Shows who held what at this `TIME`")
	flags.StringVar(&f.container, "container", "", "Shows only operations on containers whose id begins with `ID`")
	flags.StringVar(&f.since, "since", "", "Shows only operations that began since `DURATION|TIME`, such as 1h or 14:05")
	flags.BoolVar(&f.failed, "failed", false, "Shows only operations that failed")
	flags.BoolVar(&f.all, "all", false, "Shows the CHECKs that tracewirectl had run, too")
	flags.BoolVarP(&f.follow, "follow", "f", false, "Shows the last ten, or all of --since, and then each new one until interrupted")
	for _, name := range []string{"pod", "ip", "at", "container", "since"} {
		complete(cmd, name, cobra.NoFileCompletions)
	}
	return cmd
}

// possible tells that the flags ask for one thing.
func (f filters) possible() error {
	for _, other := range []struct {
		name  string
		given bool
	}{{"--follow", f.follow}, {"--since", f.since != ""}, {"--failed", f.failed}} {
		if f.at != "" && other.given {
			return fmt.Errorf("--at shows who held what at a time: it does not go with %s", other.name)
		}
	}
	return nil
}

// filter tells which operations the flags ask for.
func (c *command) filter(f filters) (func(read.Entry) bool, error) {
	ip, ok := address(f.ip)
	if f.ip != "" && !ok {
		return nil, fmt.Errorf("--ip: %q is no address", f.ip)
	}
	since, _, err := c.when("--since", f.since)
	if err != nil {
		return nil, err
	}
	return func(e read.Entry) bool {
		return (f.pod == "" || f.pod == e.PodNamespace+"/"+e.Pod || f.pod == e.Pod) &&
			(f.ip == "" || slices.ContainsFunc(e.Addresses, func(p netip.Prefix) bool { return p.Addr().Unmap() == ip })) &&
			strings.HasPrefix(e.ContainerID, f.container) &&
			!e.Time.Before(since) &&
			(!f.failed || e.Outcome == read.Failed)
	}, nil
}

// sieve passes the operations that are asked for, and counts the operator's own
// CHECKs among them, which it holds back unless all are asked for.
type sieve struct {
	keep func(read.Entry) bool
	all  bool
	held int
}

func (s *sieve) passes(e read.Entry) bool {
	switch {
	case !s.keep(e):
		return false
	case s.all || !owned(e):
		return true
	}
	s.held++
	return false
}

// owned tells that an operation is a CHECK which tracewirectl had run.
func owned(e read.Entry) bool { return e.Command == "CHECK" && e.Operators() }

// heldBack tells of what was left out, "" for nothing.
func heldBack(n int) string {
	if n == 0 {
		return ""
	}
	return "left out: " + count(n, "CHECK") + " that tracewirectl had run (--all)"
}

const day = 24 * time.Hour

// clocks is the ways to write a time, and how much of it each names. One
// without year or day is the last that was.
var clocks = []struct {
	layout string
	names  time.Duration
	lacks  string
}{
	{time.RFC3339, time.Second, ""},
	{"2006-01-02T15:04:05", time.Second, ""},
	{"2006-01-02 15:04:05", time.Second, ""},
	{"2006-01-02 15:04", time.Minute, ""},
	{"2006-01-02", day, ""},
	{"01-02 15:04:05", time.Second, "year"},
	{"01-02 15:04", time.Minute, "year"},
	{"15:04:05", time.Second, "day"},
	{"15:04", time.Minute, "day"},
}

// when reads a time or an age: the first and the last moment of what it names.
// They are zero for an empty text.
func (c *command) when(flag, text string) (first, last time.Time, err error) {
	if text == "" {
		return first, last, nil
	}
	now := c.now().In(c.zone)
	if d, ok := age(text); ok {
		return now.Add(-d), now.Add(-d), nil
	}
	for _, k := range clocks {
		t, err := time.ParseInLocation(k.layout, text, c.zone)
		if err != nil {
			continue
		}
		t = latest(t, now, k.lacks)
		if k.names == day { // which summer time makes longer or shorter
			return t, t.AddDate(0, 0, 1).Add(-1), nil
		}
		return t, t.Add(fraction(text, k.names) - 1), nil
	}
	return first, last, fmt.Errorf(`%s: %q is neither a duration nor a time: `+
		`want 90s, 10m, 2h, 7d, "15:04", "15:04:05", "01-02 15:04:05", "2006-01-02", "2006-01-02 15:04:05" or RFC 3339`, flag, text)
}

// latest gives a time the year or the day that it lacks: the last that was.
func latest(t, now time.Time, lacks string) time.Time {
	year, month, date := t.Date()
	years, days := 0, 0
	switch lacks {
	case "":
		return t
	case "year":
		year, years = now.Year(), -1
	case "day":
		year, month, date = now.Date()
		days = -1
	}
	t = time.Date(year, month, date, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), t.Location())
	if t.After(now) {
		t = t.AddDate(years, 0, days)
	}
	return t
}

// fraction is how much a time names that may have digits behind its second.
func fraction(text string, names time.Duration) time.Duration {
	_, behind, _ := strings.Cut(strings.ReplaceAll(text, ",", "."), ".")
	digits := len(behind) - len(strings.TrimLeft(behind, "0123456789"))
	for range min(digits, 9) {
		names /= 10
	}
	return names
}

// age reads a duration, which may also be in days.
func age(text string) (time.Duration, bool) {
	var days int
	var rest string
	if n, _ := fmt.Sscanf(text, "%d%s", &days, &rest); n == 2 && rest == "d" && days >= 0 {
		return time.Duration(days) * 24 * time.Hour, true
	}
	d, err := time.ParseDuration(text)
	return d, err == nil && d >= 0
}

// list writes the operations of all logs as one table, by time.
func (c *command) list(w io.Writer, p places, f filters, s *sieve) error {
	all, err := c.entries(p.log)
	if err != nil {
		return err
	}
	if f.at != "" {
		_, at, err := c.when("--at", f.at)
		if err != nil {
			return err
		}
		all = around(all, at)
	}
	all = slices.DeleteFunc(all, func(e read.Entry) bool { return !s.passes(e) })
	if len(all) == 0 {
		return nothingBut(s.held, fmt.Errorf("%w: no such operation in %s", errNothing, strings.Join(p.log, ", ")))
	}
	if c.asJSON() {
		return printJSON(w, all)
	}
	rows := c.historyRows(all)
	g := &grid{columns: historyColumns}
	g.fit(rows, c.width())
	return errors.Join(c.write(w, g, rows, true), c.tellHeld(w, s.held))
}

// tellHeld writes the line of what was left out, where something was.
func (c *command) tellHeld(w io.Writer, n int) error {
	if n == 0 {
		return nil
	}
	_, err := io.WriteString(w, "\n"+c.paint(heldBack(n), dim)+"\n")
	return err
}

// nothingBut is the error of finding nothing, with what was left out.
func nothingBut(held int, err error) error {
	if held == 0 {
		return err
	}
	return fmt.Errorf("%w; %s", err, heldBack(held))
}

// entries is the operations of all logs, by time, each with what is known of
// its attachment.
func (c *command) entries(logs []string) (all []read.Entry, err error) {
	torn, missing := 0, error(nil)
	for _, path := range logs {
		n, err := read.Log(path, func(e read.Entry) bool { all = append(all, e); return true })
		if errors.Is(err, fs.ErrNotExist) {
			missing = fmt.Errorf("%w: %w", errNothing, err)
		} else if err != nil {
			return nil, err
		}
		torn += n
	}
	if torn > 0 {
		c.complain(fmt.Errorf("%s of the log cannot be read", count(torn, "line")))
	}
	if len(all) == 0 && missing != nil {
		return nil, missing
	}
	slices.SortStableFunc(all, func(a, b read.Entry) int { return a.Time.Compare(b.Time) })
	known := held{}
	for i := range all {
		all[i] = known.complete(all[i])
	}
	return all, nil
}

// held is the ADD that made each attachment which is there.
type held map[string]read.Entry

// complete gives an operation what the ADD of its attachment told and it does
// not tell itself: pod and addresses.
func (h held) complete(e read.Entry) read.Entry {
	key := e.Attachment()
	if key == "" {
		return e
	}
	if add, ok := h[key]; ok && e.Command != "ADD" {
		if e.Pod == "" {
			e.PodNamespace, e.Pod, e.PodUID = add.PodNamespace, add.Pod, add.PodUID
		}
		if len(e.Addresses) == 0 {
			e.Addresses = add.Addresses
		}
	}
	switch {
	case e.Outcome != read.OK:
	case e.Command == "ADD":
		h[key] = e
	case slices.Contains(endings, e.Command):
		delete(h, key)
	}
	return e
}

// endings is what an attachment ends by.
var endings = []string{"DEL", trace.ByGC, trace.ByReclaim}

// around is the ADD of every attachment that was there at a time, and what
// ended it: its DEL, a GC, the ADD that took its address after a reboot, or the
// one that replaced it. all is by time.
func around(all []read.Entry, at time.Time) (out []read.Entry) {
	there := map[string]int{} // index of the ADD in all
	end := map[string]int{}
	for i, e := range all {
		key := e.Attachment()
		_, ended := end[key]
		switch {
		case key == "" || e.Outcome != read.OK || e.Command != "ADD" && !slices.Contains(endings, e.Command):
		case e.Time.After(at):
			if _, ok := there[key]; ok && !ended {
				end[key] = i
			}
		case e.Command == "ADD":
			there[key] = i
		default:
			delete(there, key)
		}
	}
	for i, e := range all {
		key := e.Attachment()
		begin, ok := there[key]
		last, ended := end[key]
		if ok && (i == begin || ended && i == last) {
			out = append(out, e)
		}
	}
	return out
}

// historyColumns fit into 60 columns in the end, without a date. Narrowed first
// they show podnet/1635e8…:eth0, kube-system/c…-x7v2k and 255.255.255.255 +1.
var historyColumns = []column{
	{head: "TIME", last: len("15:04:05")},
	{head: "CMD"},
	{head: "ATTACHMENT", shorten: shortAttachment, first: 19, least: 12, last: 10},
	{head: "POD", shorten: shortDone, first: 20, least: 12, last: 10},
	{head: "ADDRESSES", shorten: shortAddresses, first: 18, least: 14, last: 10},
	{head: "TOOK", right: true, leftOut: 1},
	{head: "OUTCOME"},
	{head: "TRACE", leftOut: 2},
}

func (c *command) historyRows(all []read.Entry) (rows [][]cell) {
	for _, e := range all {
		clock, id := c.clock(e.Time), e.TraceID[:min(len(e.TraceID), traceDigits)]
		if c.width() == 0 {
			clock, id = e.Time.In(c.zone).Format(time.DateTime), e.TraceID
		}
		took := read.Human(e.Duration)
		if e.Duration == 0 { // another operation's
			took = ""
		}
		command := cell{text: e.Command}
		if owned(e) {
			command.colour = dim
		}
		rows = append(rows, []cell{
			{text: clock}, command, {text: c.on(e)}, {text: podOf(e)}, {text: addressesOf(e)}, {text: took}, ended(e), {text: id, colour: dim},
		})
	}
	return rows
}

// on is what an operation was on: an attachment, else a network.
func (c *command) on(e read.Entry) string {
	switch {
	case e.ContainerID == "":
		return e.Network
	case c.width() == 0:
		return e.Attachment()
	}
	return read.ShortAttachment(e)
}

// podOf is the pod of an operation; of a repair, what it mended and how.
func podOf(e read.Entry) string {
	if e.Kind == "" {
		return read.PodName(e)
	}
	return e.Kind + mendedBy + e.Repair
}

// addressesOf is the addresses of an operation's attachment.
func addressesOf(e read.Entry) string {
	var texts []string
	for _, a := range e.Addresses {
		texts = append(texts, a.Addr().String())
	}
	return strings.Join(texts, ",")
}

// ended is how an operation ended.
func ended(e read.Entry) cell {
	switch {
	case e.Outcome != read.Failed:
		return cell{e.Outcome, green}
	case e.ErrorCode == 0:
		return cell{e.Outcome, red}
	}
	return cell{fmt.Sprintf("%s %d", e.Outcome, e.ErrorCode), red}
}

// clock is a time, of today without its date, of this year without its year.
func (c *command) clock(t time.Time) string {
	now := c.now().In(c.zone)
	switch t = t.In(c.zone); {
	case t.Format(time.DateOnly) == now.Format(time.DateOnly):
		return t.Format(time.TimeOnly)
	case t.Year() == now.Year():
		return t.Format("01-02 15:04:05")
	}
	return t.Format(time.DateTime)
}

// follow writes the last operations, or all since a time, and then new ones as
// they come, until ctx ends. The widths of the first table stay.
func (c *command) follow(ctx context.Context, logs []string, keep *sieve, all bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	batches, failed := make(chan []read.Entry), make(chan error, len(logs))
	for _, path := range logs {
		go func() {
			failed <- read.Follow(ctx, path, poll, func(b []read.Entry) {
				select {
				case batches <- b:
				case <-ctx.Done():
				}
			})
		}()
	}
	s := stream{c: c, known: held{}, keep: keep, all: all, first: len(logs)}
	for {
		select {
		case b := <-batches:
			if err := s.add(b); err != nil {
				return err
			}
		case err := <-failed:
			if err == nil && !c.asJSON() {
				err = c.tellHeld(c.out, keep.held)
			}
			return err
		}
	}
}

// stream is a history that goes on.
type stream struct {
	c     *command
	known held
	keep  *sieve
	all   bool         // all that the logs have, not only the last ten
	first int          // logs whose past is still to come
	past  []read.Entry // of the others
	grid  *grid
}

// lastShown is how much of the past a followed history begins with.
const lastShown = 10

func (s *stream) add(batch []read.Entry) error {
	if s.first > 0 {
		s.first--
		if s.past = append(s.past, batch...); s.first > 0 {
			return nil
		}
		slices.SortStableFunc(s.past, func(a, b read.Entry) int { return a.Time.Compare(b.Time) })
		batch, s.past = s.past, nil
	}
	var shown []read.Entry
	for _, e := range batch {
		if e = s.known.complete(e); s.keep.passes(e) {
			shown = append(shown, e)
		}
	}
	if s.grid == nil && !s.all {
		shown = shown[max(0, len(shown)-lastShown):]
	}
	return s.print(shown)
}

// print writes straight to the output: a reader waits for each line.
func (s *stream) print(shown []read.Entry) error {
	if s.c.asJSON() {
		e := json.NewEncoder(s.c.out)
		e.SetEscapeHTML(false)
		for _, x := range shown {
			if err := e.Encode(x); err != nil {
				return err
			}
		}
		return nil
	}
	rows := s.c.historyRows(shown)
	head := s.grid == nil
	if head {
		s.grid = &grid{columns: historyColumns}
		s.grid.fit(append(rows, usual), s.c.width())
	}
	return s.c.write(s.c.out, s.grid, rows, head)
}

// usual is a row of usual widths, for rows that are still to come.
var usual = []cell{
	{text: "15:04:05"}, {text: "CHECK"}, {text: "podnet/1635e8a1b2c3:eth0"}, {text: "namespace/name-5d4b9c7f6-abcde"},
	{text: "10.22.222.222"}, {text: "4.38 ms"}, {text: "error 100"}, {text: "4eb491f3"},
}
