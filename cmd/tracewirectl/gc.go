package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/spf13/cobra"

	"github.com/tracewire/tracewire/chain/audit/cri"
	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/ipam"
)

// collecting is what gc is asked for.
type collecting struct {
	plugins plugins
	ask     sockets
	network string
	grace   time.Duration
	empty   bool
	dry     bool
}

func (c *command) gc() *cobra.Command {
	var g collecting
	cmd := &cobra.Command{
		Use:   "gc --cri SOCKET",
		Short: "Ends the attachments of pods that the runtime no longer has",
		Long: `gc asks the container runtime for its pods' sandboxes, shows what stands on this
node for others, and has the plugins remove it, as a runtime would: DEL for what
libcni keeps, then GC of the whole list. Where the list is of a cniVersion that
has no GC, or is gone, tracewire alone is asked, from its records. Nobody calls
GC on most nodes: kubelet, containerd and CRI-O do not.

What a stopped sandbox has stays, until the runtime forgets it, and so does what
is younger than --grace: runtimes do not list a pod that they are making. Where
records name a runtime that is none of those asked, nothing is done: its pods
would all be taken for gone. Where the runtimes list no pod at all while
attachments live, nothing is done without --empty: that is another runtime's
socket more often than a node that lost all its pods.

Exit codes: 0 done or nothing to do, 1 there is no such network, 2 it could not
look, or not all could be removed.`,
		Example: `  tracewirectl gc --cri /run/containerd/containerd.sock --dry-run
  tracewirectl gc --cri unix:///run/crio/crio.sock --network podnet
  tracewirectl gc --cri /run/containerd/containerd.sock --cri /run/other.sock`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.collect(cmd.Context(), cmd.OutOrStdout(), &g) },
	}
	pluginFlags(cmd, &g.plugins)
	criFlag(cmd, &g.ask)
	networkFlag(cmd, &g.network)
	f := cmd.Flags()
	f.DurationVar(&g.grace, "grace", 2*time.Minute, "Leaves alone what is younger than this `DURATION`")
	complete(cmd, "grace", cobra.NoFileCompletions)
	f.BoolVar(&g.empty, "empty", false, "Goes on where the runtimes list no pod at all while attachments live")
	f.BoolVar(&g.dry, "dry-run", false, "Shows what would go, and does nothing")
	return cmd
}

// possible tells that the flags ask for something that can be done.
func (g *collecting) possible() error {
	if len(g.ask.paths) == 0 {
		return errors.New("--cri is missing: without the runtime's list nobody knows what is valid")
	}
	if g.grace < 0 {
		return fmt.Errorf("--grace is negative: %s", g.grace)
	}
	return nil
}

// collect shows what is stale, and has the plugins remove it.
func (c *command) collect(ctx context.Context, w io.Writer, g *collecting) error {
	if err := g.possible(); err != nil {
		return err
	}
	c.open(&g.plugins)
	if err := g.plugins.remember(); err != nil {
		return err
	}
	plan, err := c.planGC(ctx, g)
	if err != nil {
		return err
	}
	err = plan.emptied(g.empty)
	switch {
	case g.dry && err != nil:
		c.complain(err)
	case err != nil:
		return err
	case !g.dry:
		g.plugins.collect(ctx, plan.all)
	}
	if c.asJSON() {
		err = printJSON(w, plan.all)
	} else {
		err = c.printGC(w, plan.all, g.dry)
	}
	return errors.Join(err, failedGC(plan.all))
}

// sockets is the runtimes to ask.
type sockets struct{ paths []string }

func criFlag(cmd *cobra.Command, s *sockets) {
	cmd.Flags().StringArrayVar(&s.paths, "cri", nil, "Asks the container runtime at `SOCKET`; may be given again")
	complete(cmd, "cri", cobra.FixedCompletions([]string{"/run/containerd/containerd.sock", "/run/crio/crio.sock"}, cobra.ShellCompDirectiveDefault))
}

func networkFlag(cmd *cobra.Command, only *string) {
	cmd.Flags().StringVar(only, "network", "", "Looks at this network `NAME` alone")
	complete(cmd, "network", cobra.NoFileCompletions)
}

// ask asks each socket once.
func (s sockets) ask(ctx context.Context) (all []cri.Runtime, err error) {
	for _, socket := range s.paths {
		path, err := cri.Path(socket)
		if err != nil {
			return nil, fmt.Errorf("--cri %s: %w", socket, err)
		}
		if slices.ContainsFunc(all, func(r cri.Runtime) bool { return r.Socket == path }) {
			continue
		}
		r, err := cri.Ask(ctx, socket)
		if err != nil {
			return nil, fmt.Errorf("--cri: %w", err)
		}
		all = append(all, r)
	}
	return all, nil
}

// collection is what GC does on one network.
type collection struct {
	Network string  `json:"network"`
	List    string  `json:"list,omitempty"` // the file; empty where there are only records
	Valid   int     `json:"valid"`          // attachments that stay
	Young   int     `json:"young"`          // attachments that nobody lists, and that may be in the making
	Stale   []stale `json:"stale"`
	Done    bool    `json:"done"`
	Error   string  `json:"error,omitempty"`

	network *network
	stale   map[delegates.Attachment]cache.Stored // with its record, where it has one
}

// stale is one thing that stands for a pod that is no more.
type stale struct {
	What        string `json:"what"` // record, libcni entry or address
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName,omitempty"`
	Pod         string `json:"pod,omitempty"`
	Address     string `json:"address,omitempty"`

	made   time.Time
	record cache.Stored // the zero one without a record
}

// collections is what GC does on all networks.
type collections struct {
	all  []*collection
	pods int // that the runtimes list
}

// emptied is an error where the runtimes list no pod at all and some attachment
// that is to go lives: it has its namespace, and an interface in that. Asked again
// a runtime says the same, so somebody who knows has to: none.
func (cs collections) emptied(none bool) error {
	if cs.pods > 0 || none {
		return nil
	}
	n, one := 0, ""
	for _, col := range cs.all {
		for a, r := range col.stale {
			l := live{}
			if r.State == cache.Attached && l.lookPod(stored{r}) == nil && l.pod.Name != "" {
				n, one = n+1, a.String()
			}
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("nothing was done: the runtimes that were asked list no pod, and %s live, as %s: --empty ends them", count(n, "attachment"), one)
}

// planGC looks at what there is.
func (c *command) planGC(ctx context.Context, g *collecting) (plan collections, err error) {
	at, err := c.places()
	if err != nil {
		return plan, err
	}
	all, err := records(at.state)
	if err != nil {
		return plan, err
	}
	nets, err := c.nets(all)
	if err != nil {
		return plan, err
	}
	if nets, err = only(nets, g.network); err != nil {
		return plan, err
	}
	runtimes, err := g.ask.ask(ctx) // after the records: what is made meanwhile is in none
	if err != nil {
		return plan, err
	}
	there := map[string]bool{}
	for _, r := range runtimes {
		for _, s := range r.Sandboxes {
			there[s.ID] = true
		}
	}
	for _, n := range nets {
		n.states = at.state
		if err := c.onlyAsked(n, runtimes); err != nil {
			return plan, err
		}
		plan.all = append(plan.all, g.plugins.weigh(n, there, c.now().Add(-g.grace)))
	}
	plan.pods = len(there)
	return plan, nil
}

// onlyAsked is an error where a living record of a network names a runtime that was
// not asked. Programs are compared by their names, as an update may move them.
// Where a socket does not tell who listens, it stands for one.
func (c *command) onlyAsked(n *network, asked []cri.Runtime) error {
	unknown, names := 0, []string{}
	for _, r := range asked {
		if r.Executable == "" {
			unknown++
		}
		names = append(names, filepath.Base(r.Executable))
	}
	var others []string
	for _, r := range n.all {
		if r.State == cache.Attached && r.Runtime != "" && !r.Earlier(c.boot) &&
			!slices.Contains(names, filepath.Base(r.Runtime)) && !slices.Contains(others, r.Runtime) {
			others = append(others, r.Runtime)
		}
	}
	if len(others) <= unknown {
		return nil
	}
	slices.Sort(others)
	return fmt.Errorf("network %s has attachments that %s made, whose socket was not asked: give each runtime's by --cri", n.name, strings.Join(others, " and "))
}

// weigh tells what of a network stays and what goes. What is told of a sandbox that
// is there stays, whatever its interface is called; what was made after young, too.
func (p *plugins) weigh(n *network, there map[string]bool, young time.Time) *collection {
	out := &collection{Network: n.name, List: n.file, Stale: []stale{}, network: n, stale: map[delegates.Attachment]cache.Stored{}}
	told := map[delegates.Attachment]bool{}
	for a, s := range p.known(n) {
		if told[a] {
			continue
		}
		told[a] = true
		switch {
		case there[a.ContainerID]:
			out.Valid++
		case s.made.After(young):
			out.Young++
		default:
			out.Stale = append(out.Stale, s)
			out.stale[a] = s.record
		}
	}
	slices.SortFunc(out.Stale, func(a, b stale) int {
		return strings.Compare(a.What+a.ContainerID+a.IfName, b.What+b.ContainerID+b.IfName)
	})
	return out
}

// known is all that is told of a network's attachments: by records, libcni and
// reservations, in that order.
func (p *plugins) known(n *network) iter.Seq2[delegates.Attachment, stale] {
	return func(yield func(delegates.Attachment, stale) bool) {
		tell := func(a delegates.Attachment, s stale) bool {
			s.ContainerID, s.IfName = a.ContainerID, a.IfName
			return yield(a, s)
		}
		for _, r := range n.all {
			if !tell(r.Attachment, stale{What: "record", Pod: podName(stored{r}), record: r, made: r.Began}) {
				return
			}
		}
		for a := range p.cached {
			if a.Network != n.name {
				continue
			}
			f, _ := cache.ReadFile(p.entry(a)) // one that went is old
			if !tell(a, stale{What: "libcni entry", made: f.Changed}) {
				return
			}
		}
		for h := range n.held() {
			ifName := cmp.Or(h.Holder.IfName, "eth0") // an old host-local did not write it
			a := delegates.Attachment{Network: n.name, ContainerID: h.Holder.ContainerID, IfName: ifName}
			if !tell(a, stale{What: "address", Address: h.Address.String(), made: h.Changed}) {
				return
			}
		}
	}
}

// store is the folder of a network's reservations in host-local's form; "" where
// it has none.
func (n *network) store() string {
	doc := conflist.Read(n.conf)
	net := conflist.Parse(doc)
	if net.Tracewire.Mode == "delegate" && len(net.Delegates) > 0 {
		doc = conflist.Read(net.Delegates[0].Conf)
	}
	if doc.At("ipam").At("type").Text() != "host-local" {
		return ""
	}
	dir, err := ipam.Parse(doc, nil).Store(n.name)
	if err != nil {
		return "" // a name that is none has no store
	}
	return dir
}

// held is the reservations of a network in host-local's form.
func (n *network) held() func(func(ipam.Held) bool) {
	return func(yield func(ipam.Held) bool) {
		dir := n.store()
		if dir == "" {
			return
		}
		for h, err := range ipam.In(dir) {
			if err == nil && h.State == ipam.Reserved && !yield(h) {
				return
			}
		}
	}
}

// collect has the plugins remove what is stale.
func (p *plugins) collect(ctx context.Context, plan []*collection) {
	for _, col := range plan {
		err := p.collectOne(ctx, col)
		if col.Done = err == nil; err != nil {
			col.Error = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
	}
}

func (p *plugins) collectOne(ctx context.Context, col *collection) error {
	n := col.network
	if n.list != nil && n.list.DisableGC {
		return errors.New("disableGC is set in " + n.file)
	}
	var errs []error
	for a, r := range col.stale {
		if p.cached[a] != nil || r.State != "" && !stray(r) { // of whose record nobody knows, GC takes care
			r.Attachment = a
			if len(r.Conf) == 0 {
				r.Conf = n.conf
			}
			errs = append(errs, p.del(ctx, r))
		}
	}
	valid, err := p.others(col)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	if n.list != nil {
		errs = append(errs, p.collecting.GCNetworkList(ctx, n.list, &libcni.GCArgs{ValidAttachments: valid}))
	}
	if n.list == nil || !hasGC(n.list.CNIVersion) {
		errs = append(errs, p.run(ctx, "GC", invocation{conf: n.conf, keys: map[string]any{
			"cniVersion": firstGC, "cni.dev/valid-attachments": valid, "cni.dev/attachments": valid,
		}}))
	}
	return errors.Join(errs...)
}

// stray tells that a record is no attachment's.
func stray(r cache.Stored) bool {
	return r.State == cache.Unreadable && (cache.Dir{Path: filepath.Dir(filepath.Dir(r.Path))}).Stray(r)
}

// others is all of a network's attachments but those that go. It is asked at the
// last moment: pods are made meanwhile.
func (p *plugins) others(col *collection) (out []cnitypes.GCAttachment, err error) {
	if err := p.remember(); err != nil {
		return nil, err
	}
	n := *col.network
	n.all = nil
	for _, state := range n.states {
		some, err := cache.In(state).Of(n.name)
		if err != nil {
			return nil, err
		}
		n.all = append(n.all, some...)
	}
	out = []cnitypes.GCAttachment{}
	for a := range p.known(&n) {
		one := cnitypes.GCAttachment{ContainerID: a.ContainerID, IfName: a.IfName}
		if _, goes := col.stale[a]; !goes && !slices.Contains(out, one) {
			out = append(out, one)
		}
	}
	return out, nil
}

// firstGC is the first cniVersion that has GC.
const firstGC = "1.1.0"

func hasGC(version string) bool {
	major, minor, _ := strings.Cut(version, ".")
	minor, _, _ = strings.Cut(minor, ".")
	return major > "1" || major == "1" && minor >= "1"
}

// failedGC is the error that the exit code follows from.
func failedGC(plan []*collection) error {
	var errs []error
	for _, col := range plan {
		if col.Error != "" {
			errs = append(errs, fmt.Errorf("network %s: %s", col.Network, col.Error))
		}
	}
	return errors.Join(errs...)
}

var gcColumns = []column{
	{head: "NETWORK", least: 8}, {head: "WHAT"}, {head: "CONTAINER", shorten: func(s string, n int) string { return cut(s, n, 0) }, least: 12},
	{head: "INTERFACE"}, {head: "POD", shorten: shortPod, first: 28, least: 14}, {head: "ADDRESS"},
}

func (c *command) printGC(w io.Writer, plan []*collection, dry bool) error {
	if len(plan) == 0 {
		_, err := io.WriteString(w, "no network of tracewire's is on this node: its own plugins collect another's\n")
		return err
	}
	var rows [][]cell
	for _, col := range plan {
		for _, s := range col.Stale {
			rows = append(rows, []cell{{text: col.Network}, {text: s.What}, {text: c.short(s.ContainerID)}, {text: s.IfName}, {text: s.Pod}, {text: s.Address}})
		}
	}
	if len(rows) > 0 {
		g := &grid{columns: gcColumns}
		g.fit(rows, c.width())
		if err := c.write(w, g, rows, true); err != nil {
			return err
		}
		if _, err := io.WriteString(w, "\n"); err != nil {
			return err
		}
	}
	for _, col := range plan {
		if _, err := io.WriteString(w, col.sum(dry)+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// sum is a network in one line.
func (col *collection) sum(dry bool) string {
	s := fmt.Sprintf("%s: %s valid, %d stale", col.Network, count(col.Valid, "attachment"), len(col.Stale))
	if col.Young > 0 {
		s += fmt.Sprintf(", %d too young to tell (--grace)", col.Young)
	}
	switch {
	case dry && len(col.Stale) > 0:
		return s + "; nothing was done (--dry-run)"
	case dry:
		return s
	case col.Error != "":
		return s + "; not all could be removed"
	case len(col.Stale) > 0:
		return s + "; removed"
	}
	return s + "; GC has run"
}
