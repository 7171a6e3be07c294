package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/spf13/cobra"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/trace/read"
)

func (c *command) show() *cobra.Command {
	var p plugins
	cmd := &cobra.Command{
		Use:   "show ATTACHMENT",
		Short: "Shows an attachment, recorded and live, side by side",
		Long: `show tells what the record of an attachment says and what the kernel has of it,
side by side. What differs is marked with ≠, and the last line tells how much
does. It looks into the pod's network namespace, which takes root.

Exit codes: 0 attached and both agree, 1 they differ or there is no such
attachment, 2 it could not look.`,
		Example: `  tracewirectl show default/web-0
  tracewirectl show 1635e8 -o json
  tracewirectl show podnet/1635e8:eth0
  tracewirectl show 10.22.0.5`,
		Args:              oneAttachment,
		ValidArgsFunction: c.completeAttachments,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := c.find(args[0])
			if errors.Is(err, errNothing) {
				c.open(&p)
				err = p.orEntry(args[0], err)
			}
			if err != nil {
				return err
			}
			v := c.view(r)
			if c.asJSON() {
				err = printJSON(cmd.OutOrStdout(), v)
			} else {
				err = c.print(cmd.OutOrStdout(), v)
			}
			switch {
			case err != nil:
				return err
			case v.err != nil:
				return fmt.Errorf("could not look at all of it: %w", v.err)
			case v.Differs:
				return errFindings
			}
			return nil
		},
	}
	cacheFlag(cmd, &p)
	return cmd
}

// orEntry is an error of finding no record, or that libcni has an entry at least.
func (p *plugins) orEntry(text string, err error) error {
	n, _ := named(text) // was read before
	for _, s := range p.keeps() {
		if n.fits(s) {
			return nothing("no record of " + s.String() + "; libcni has an entry: tracewirectl audit tells more")
		}
	}
	return err
}

// oneAttachment tells how the command is used where it is not used so.
func oneAttachment(cmd *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return fmt.Errorf("ATTACHMENT is missing; usage: %s", cmd.UseLine())
	case 1:
		return nil
	}
	return fmt.Errorf("one ATTACHMENT, not %d; usage: %s", len(args), cmd.UseLine())
}

// find is the one record of a name. An attachment that is named in full and
// has no record is looked for in the kernel alone.
func (c *command) find(text string) (stored, error) {
	n, err := named(text)
	if err != nil {
		return stored{}, err
	}
	p, err := c.places()
	if err != nil {
		return stored{}, err
	}
	all, err := records(p.state)
	if err != nil {
		return stored{}, err
	}
	picked, err := pick(all, n)
	switch {
	case errors.Is(err, errNothing):
		if r, ok := unrecorded(text); ok {
			return r, nil
		}
		return stored{}, err
	case err != nil:
		return stored{}, err
	case len(picked) > 1:
		return stored{}, n.ambiguous(subjects(picked))
	}
	return picked[0], nil
}

// pick is the records that a name fits.
func pick(all []stored, n name) (out []stored, err error) {
	byKey := map[delegates.Attachment]stored{}
	for _, r := range all {
		byKey[r.Attachment] = r
	}
	picked, err := n.pick(subjects(all))
	for _, s := range picked {
		out = append(out, byKey[s.Attachment])
	}
	return out, err
}

func subjects(all []stored) (out []subject) {
	for _, r := range all {
		out = append(out, r.subject())
	}
	return out
}

// unrecorded is an attachment that only the kernel knows.
func unrecorded(text string) (r stored, ok bool) {
	network, rest, _ := strings.Cut(text, "/")
	id, ifname, _ := strings.Cut(rest, ":")
	r = stored{cache.Stored{Record: cache.Record{State: cache.None}}}
	r.Attachment = delegates.Attachment{Network: network, ContainerID: id, IfName: ifname}
	if network == "" || id == "" || ifname == "" {
		return r, false
	}
	l := look(r, hostNames(r, ends{host: &types100.Interface{}}))
	return r, l.host.Alias == veth.Alias(r.String())
}

// hostNames is the names that the host end may have: the recorded one, and
// those that follow from the attachment.
func hostNames(r stored, e ends) []string {
	names := veth.HostNames(r.String())
	if e.host.Name != "" {
		return []string{e.host.Name}
	}
	return names[:]
}

// view is what show tells.
type view struct {
	Attachment  string      `json:"attachment"`
	Pod         string      `json:"pod,omitempty"`
	State       cache.State `json:"state"`
	Since       *time.Time  `json:"since,omitempty"`
	Boot        string      `json:"boot,omitempty"` // id of the boot that ADD ran in
	EarlierBoot bool        `json:"earlierBoot"`    // than this one; false where it is not known
	Runtime     string      `json:"runtime,omitempty"`
	NetNS       string      `json:"netns,omitempty"`
	NetNSState  string      `json:"netnsState,omitempty"`
	Phases      []phase     `json:"phases,omitempty"`
	Path        string      `json:"path,omitempty"`
	Bytes       int64       `json:"bytes,omitempty"`
	Damaged     bool        `json:"damaged,omitempty"`
	Compared    []compared  `json:"compared"`
	Differs     bool        `json:"differs"`           // or the record is not that of an attachment
	NotSeen     string      `json:"notSeen,omitempty"` // what could not be looked at

	err error
}

type phase struct {
	Name     string        `json:"name"`
	Duration time.Duration `json:"durationNanos"`
	Open     bool          `json:"open,omitempty"` // it did not end
}

// compared is one thing, recorded and live. Where the record does not tell, it
// does not differ.
type compared struct {
	What    string `json:"what"` // host.mac
	Record  string `json:"record"`
	Live    string `json:"live"`
	Differs bool   `json:"differs"`

	label string // of What, in a table
}

// view puts together what a record and the kernel tell.
func (c *command) view(r stored) view {
	e := endsOf(r.Attachment, r.told())
	l := look(r, hostNames(r, e))
	v := view{
		Attachment: r.String(), Pod: podName(r), State: r.State, Runtime: r.Runtime, NetNS: r.NetNS,
		NetNSState: l.netns, Path: r.Path, Bytes: r.Size, Damaged: r.Damaged,
		Compared: compare(r, e, l), Differs: r.State != cache.Attached || r.Damaged, err: l.err,
		Boot: r.Boot, EarlierBoot: r.Boot != "" && r.Boot != c.boot,
	}
	if !r.Began.IsZero() {
		began := r.Began.In(c.zone)
		v.Since = &began
	}
	for _, p := range r.Phases() {
		v.Phases = append(v.Phases, phase{p.Name, max(0, p.End-p.Begin), p.End == 0})
	}
	for _, x := range v.Compared {
		v.Differs = v.Differs || x.Differs
	}
	if l.err != nil {
		v.NotSeen = l.err.Error()
	}
	return v
}

func podName(r stored) string {
	s := r.subject()
	if s.pod == "" {
		return ""
	}
	return s.namespace + "/" + s.pod
}

func routeText(r veth.Route) string {
	if !r.Gateway.IsValid() {
		return r.Dst.String()
	}
	return r.Dst.String() + " via " + r.Gateway.String()
}

// compare sets what was recorded beside what is live.
func compare(r stored, e ends, l live) (out []compared) {
	row := func(what, label, record, live string) {
		if record == "" && (live == "" || live == none) {
			return // nobody knows of it
		}
		out = append(out, compared{what, record, live, record != "" && record != live && live != unseen, label})
	}
	host, pod := seen(l.host), seen(l.pod)
	if l.err != nil && l.netns == "" {
		pod = func(string) string { return unseen }
	}
	mark := ""
	if e.host.Name != "" && !r.wraps() || r.State == cache.None {
		mark = "of this attachment"
	}
	row("netns.cookie", "netns cookie", number(r.Cookie), namespace(l))
	row("host.name", "host end", e.host.Name, host(l.host.Name))
	row("host.alias", "  alias", mark, host(alias(r, l.host)))
	row("host.bridge", "  port of", e.bridge.Name, host(l.bridge))
	row("host.state", "  state", known(e.host, "up"), host(updown(l.host.Up)))
	row("host.mtu", "  MTU", number(uint64(e.host.Mtu)), host(number(uint64(l.host.MTU))))
	row("host.mac", "  MAC", e.host.Mac, host(l.host.MAC.String()))
	row("pod.name", "pod end", e.pod.Name, pod(l.pod.Name))
	row("pod.state", "  state", known(e.pod, "up"), pod(updown(l.pod.Up)))
	row("pod.mtu", "  MTU", number(uint64(e.pod.Mtu)), pod(number(uint64(l.pod.MTU))))
	row("pod.mac", "  MAC", e.pod.Mac, pod(l.pod.MAC.String()))
	for _, a := range addresses(r.told()) {
		row("pod.address", "  address", a.String(), pod(addressOf(l, a)))
	}
	for _, want := range routes(r.told()) {
		row("pod.route", "  route", routeText(want), pod(route(l.routes, want)))
	}
	return out
}

// The words for what is not there and for what could not be looked at.
const (
	none   = "none"
	unseen = "?"
)

// seen makes an interface's values none where there is no interface.
func seen(l veth.Link) func(string) string {
	return func(s string) string {
		if l.Name == "" || s == "" {
			return none
		}
		return s
	}
}

// addressOf is an address that is live, else "".
func addressOf(l live, a netip.Prefix) string {
	if slices.Contains(l.addresses, a) {
		return a.String()
	}
	return ""
}

// route is the live route that was recorded, else another to the same
// destination, else "".
func route(live []veth.Route, want veth.Route) (other string) {
	for _, r := range live {
		if r.Dst == want.Dst && r.Gateway == want.Gateway {
			return routeText(r)
		}
		if r.Dst == want.Dst {
			other = routeText(r)
		}
	}
	return other
}

// namespace is its cookie, or why there is none.
func namespace(l live) string {
	switch l.netns {
	case nsThere, nsAnother:
		return number(l.cookie)
	case nsMissing:
		return none
	}
	if l.err != nil {
		return unseen
	}
	return ""
}

// alias tells whose the host end is.
func alias(r stored, l veth.Link) string {
	if l.Alias == veth.Alias(r.String()) {
		return "of this attachment"
	}
	return l.Alias
}

// known is a word of an interface that the record tells of.
func known(i *types100.Interface, word string) string {
	if i.Name == "" {
		return ""
	}
	return word
}

func updown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

// number is a value of which 0 means that it is not known.
func number(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// print writes the view: what is told once, then the comparison.
func (c *command) print(w io.Writer, v view) error {
	told := &grid{columns: []column{{}, {least: 30}}}
	var rows [][]cell
	for _, t := range c.told(v) {
		k := plain
		if t[0] == "state" && (v.State != cache.Attached || v.EarlierBoot) {
			k = red
		}
		if t[1] != "" {
			rows = append(rows, []cell{{text: t[0], colour: dim}, {text: t[1], colour: k}})
		}
	}
	told.fit(rows, c.width())
	if err := c.write(w, told, rows, false); err != nil {
		return err
	}
	if _, err := io.WriteString(w, "\n"); err != nil {
		return err
	}
	side := &grid{columns: []column{{}, {head: " "}, {head: "RECORD", least: 20}, {head: "LIVE", least: 20}}}
	rows = nil
	for _, x := range v.Compared {
		mark, k := "", plain
		if x.Differs {
			mark, k = "≠", red
		}
		rows = append(rows, []cell{{mark, k}, {text: x.label}, {text: x.Record}, {x.Live, k}})
	}
	side.fit(rows, c.width())
	if err := c.write(w, side, rows, true); err != nil {
		return err
	}
	k := green
	if v.Differs || v.err != nil {
		k = red
	}
	_, err := io.WriteString(w, "\n"+c.paint(v.verdict(), k)+"\n")
	return err
}

// states is what a record tells that is not of an attachment.
var states = map[cache.State]string{
	cache.None:        "there is no record",
	cache.Interrupted: "the ADD did not end",
	cache.Deleting:    "the DEL did not end",
	cache.Ended:       "nothing is left of it, but the record itself could not be removed",
	cache.Unreadable:  "the record cannot be read",
}

// verdict is the view in one line.
func (v view) verdict() string {
	var parts []string
	if state := states[v.State]; state != "" {
		parts = append(parts, state)
	} else if v.Damaged {
		parts = append(parts, "the record is damaged")
	}
	n := 0
	for _, x := range v.Compared {
		if x.Differs {
			n++
		}
	}
	switch {
	case v.err != nil:
		parts = append(parts, count(n, "difference")+" in what could be seen")
	case n > 0:
		parts = append(parts, count(n, "difference"))
	case len(parts) == 0:
		return "record and kernel agree"
	}
	return strings.Join(parts, ", ")
}

func (c *command) told(v view) [][2]string {
	since, record := string(v.State), v.Path
	if v.Since != nil {
		since += fmt.Sprintf(", since %s (%s)", v.Since.Format(time.DateTime), ago(c.now().Sub(*v.Since)))
	}
	if v.EarlierBoot {
		since += ", of an earlier boot"
	}
	if v.Damaged {
		record += " (damaged)"
	}
	netns := v.NetNS
	if v.NetNSState != "" {
		netns += " (" + v.NetNSState + ")"
	}
	var phases []string
	for _, p := range v.Phases {
		took := read.Human(p.Duration)
		if p.Open {
			took = "did not end"
		}
		phases = append(phases, p.Name+" "+took)
	}
	return [][2]string{
		{"attachment", v.Attachment}, {"pod", v.Pod}, {"state", since}, {"runtime", v.Runtime}, {"netns", netns},
		{"phases", strings.Join(phases, ", ")}, {"record", record},
	}
}

// ago is an age in its two largest units.
func ago(d time.Duration) string {
	d = max(0, d)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds ago", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm ago", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh ago", int(d.Hours())/24, int(d.Hours())%24)
}
