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

	"github.com/tracewire/tracewire/trace/read"
)

// filters is what history is asked for. Zero values ask for nothing.
type filters struct {
	pod, ip, at, container, since string
	failed, follow                bool
}

// poll is how often a log that is followed is looked at.
const poll = 250 * time.Millisecond

func (c *command) history() *cobra.Command {
	var f filters
	cmd := &cobra.Command{
		Use:   "history",
		Short: "lists the operations that the log tells of",
		Long: `history lists ADD, DEL and the other operations from the plugin's log, the file it was rotated to last
included. A DEL is shown with the pod and the addresses of the ADD before it.

With --at it shows who held what at that time: the ADD that made each attachment, and the DEL that ended it where
there was one. TIME is RFC 3339, "2006-01-02 15:04:05", "15:04:05" or "15:04" (the last one that was), or an age such
as 90s, 10m, 2h or 7d.`,
		Example: `  tracewirectl history --failed --since 1h
  tracewirectl history --ip 10.22.0.5 --at "2026-03-01 14:05"
  tracewirectl history --pod default/web-0 -o json
  tracewirectl history -f`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			keep, err := c.filter(f)
			if err != nil {
				return err
			}
			p, err := c.places()
			if err != nil {
				return err
			}
			if f.follow {
				return c.follow(cmd.Context(), p.log, keep, f.since != "")
			}
			return c.list(cmd.OutOrStdout(), p, f, keep)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.pod, "pod", "", "of this pod, NAMESPACE/NAME, or NAME in any namespace")
	flags.StringVar(&f.ip, "ip", "", "of attachments with this address")
	flags.StringVar(&f.at, "at", "", "who held what at this time")
	flags.StringVar(&f.container, "container", "", "of this container id, or of those that begin so")
	flags.StringVar(&f.since, "since", "", "that began after this time")
	flags.BoolVar(&f.failed, "failed", false, "that failed")
	flags.BoolVarP(&f.follow, "follow", "f", false, "go on with new ones until interrupted; begins with the last ten")
	for _, other := range []string{"follow", "since", "failed"} {
		cmd.MarkFlagsMutuallyExclusive("at", other)
	}
	return cmd
}

// filter tells which operations the flags ask for.
func (c *command) filter(f filters) (func(read.Entry) bool, error) {
	ip, ok := address(f.ip)
	if f.ip != "" && !ok {
		return nil, fmt.Errorf("--ip: %q is no address", f.ip)
	}
	since, err := c.when("--since", f.since)
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

// clocks is the ways to write a time. One without a date is the last that was.
var clocks = []struct {
	layout string
	dated  bool
}{
	{time.RFC3339, true},
	{"2006-01-02T15:04:05", true},
	{"2006-01-02 15:04:05", true},
	{"2006-01-02 15:04", true},
	{"2006-01-02", true},
	{"15:04:05", false},
	{"15:04", false},
}

// when reads a time or an age; the zero Time for an empty text.
func (c *command) when(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	now := c.now().In(c.zone)
	if d, ok := age(text); ok {
		return now.Add(-d), nil
	}
	for _, k := range clocks {
		t, err := time.ParseInLocation(k.layout, text, c.zone)
		if err != nil {
			continue
		}
		if k.dated {
			return t, nil
		}
		t = time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), c.zone)
		if t.After(now) {
			t = t.AddDate(0, 0, -1)
		}
		return t, nil
	}
	return time.Time{}, fmt.Errorf(`%s: %q is no time: want "2006-01-02 15:04:05", "15:04" or an age such as 10m`, flag, text)
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
func (c *command) list(w io.Writer, p places, f filters, keep func(read.Entry) bool) error {
	all, err := c.entries(p.log)
	if err != nil {
		return err
	}
	if f.at != "" {
		at, err := c.when("--at", f.at)
		if err != nil {
			return err
		}
		all = around(all, at)
	}
	all = slices.DeleteFunc(all, func(e read.Entry) bool { return !keep(e) })
	if len(all) == 0 {
		return fmt.Errorf("%w: no such operation in %s", errNothing, strings.Join(p.log, ", "))
	}
	if c.asJSON() {
		return printJSON(w, all)
	}
	rows := c.historyRows(all)
	g := &grid{columns: historyColumns}
	g.fit(rows, c.width())
	return c.write(w, g, rows, true)
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
		c.complain(fmt.Errorf("%d lines of the log can not be read", torn))
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
	case e.Command == "DEL":
		delete(h, key)
	}
	return e
}

// around is the ADD of every attachment that was there at a time, and what
// ended it: its DEL, or the ADD that replaced it. all is by time.
func around(all []read.Entry, at time.Time) (out []read.Entry) {
	there := map[string]int{} // index of the ADD in all
	end := map[string]int{}
	for i, e := range all {
		key := e.Attachment()
		_, ended := end[key]
		switch {
		case key == "" || e.Outcome != read.OK || e.Command != "ADD" && e.Command != "DEL":
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

// historyColumns fit into 100 columns at their least.
var historyColumns = []column{
	{head: "TIME"},
	{head: "CMD"},
	{head: "ATTACHMENT", least: len("1635e8a1b2c3:eth0")},
	{head: "POD", first: 13, least: 10},
	{head: "ADDRESSES", least: len("255.255.255.255")},
	{head: "TOOK", right: true},
	{head: "OUTCOME"},
	{head: "TRACE"},
}

func (c *command) historyRows(all []read.Entry) (rows [][]cell) {
	for _, e := range all {
		var addresses []string
		for _, a := range e.Addresses {
			addresses = append(addresses, a.Addr().String())
		}
		outcome := cell{e.Outcome, green}
		if e.Outcome == read.Failed {
			outcome.colour = red
			if e.ErrorCode > 0 {
				outcome.text = fmt.Sprintf("%s %d", e.Outcome, e.ErrorCode)
			}
		}
		rows = append(rows, []cell{
			{text: c.clock(e.Time)}, {text: e.Command}, {text: read.ShortAttachment(e)}, {text: read.PodName(e)},
			{text: strings.Join(addresses, "\n")}, {text: read.Human(e.Duration)}, outcome,
			{text: e.TraceID[:min(len(e.TraceID), traceDigits)], colour: dim},
		})
	}
	return rows
}

// clock is a time, of today without its date.
func (c *command) clock(t time.Time) string {
	now := c.now().In(c.zone)
	switch t = t.In(c.zone); {
	case t.Format(time.DateOnly) == now.Format(time.DateOnly):
		return t.Format(time.TimeOnly)
	case t.Year() == now.Year():
		return t.Format("01-02 15:04:05")
	}
	return t.Format("2006-01-02\n15:04:05")
}

// follow writes the last operations, or all since a time, and then new ones as
// they come, until ctx ends. The widths of the first table stay.
func (c *command) follow(ctx context.Context, logs []string, keep func(read.Entry) bool, all bool) error {
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
			return err
		}
	}
}

// stream is a history that goes on.
type stream struct {
	c     *command
	known held
	keep  func(read.Entry) bool
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
		if e = s.known.complete(e); s.keep(e) {
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
