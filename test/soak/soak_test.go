//go:build linux

// Package soak runs many operations on few attachments at once, kills some of
// them, watches all namespaces for an address that two pods have, and looks at
// the end for what is left. Its everyday run is short; `make soak` is the long one.
package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/test/netns"
)

var (
	turns  = flag.Int("turns", 400, "operations to run, 0 for as many as the time allows")
	span   = flag.Duration("time", 0, "how long to run, 0 for until all turns are over")
	kill   = flag.Float64("kill", 0.1, "share of operations that are killed")
	verbs  = flag.String("verbs", "ADD,ADD,ADD,DEL,DEL,CHECK,GC", "what is run, the more often the more likely")
	seed   = flag.Uint64("seed", 1, "of the random choices")
	report = flag.String("report", "", "file to write what was done into")
	pods   = flag.Int("pods", 50, "attachments, as many of each runtime")
)

// runtimes is what the attachments are made by: on two networks, the second of
// both families. The last one has a state folder of its own, and shares network,
// bridge and store of addresses with the first.
var runtimes = [...]struct{ network, state, keys string }{
	{"net0", "state", `"bridge": "tb0", "isGateway": true, "ipam": {"type": "host-local", "dataDir": "@DIR@/ipam", "ranges": [[{"subnet": "10.77.0.0/24"}]]}`},
	{"net1", "state", `"bridge": "tb1", "isGateway": true, "ipMasq": true,
		"ipam": {"type": "host-local", "dataDir": "@DIR@/ipam", "ranges": [[{"subnet": "10.78.0.0/24"}], [{"subnet": "fd78::/64"}]]}`},
	{"net0", "state/second", `"bridge": "tb0", "isGateway": true, "ipam": {"type": "host-local", "dataDir": "@DIR@/ipam", "ranges": [[{"subnet": "10.77.0.0/24"}]]}`},
}

// workers is how many operations run at once.
const workers = 8

// patience bounds one operation.
const patience = 30 * time.Second

// world is a node, its runtimes, and what was seen.
type world struct {
	*attach.Node
	t        *testing.T
	networks [len(runtimes)]string // configuration of the plugin
	bin      string
	begun    atomic.Int64
	stop     atomic.Bool

	mu       sync.Mutex
	rng      *rand.Rand
	outcomes map[string]int // by verb and code
	spooled  int            // operations
	seen     int            // addresses that the observer looked at
}

// TestSoak: no address is two pods' at any moment, no operation fails for
// another reason than that it was too early, and nothing is left.
func TestSoak(t *testing.T) {
	bin, reference := os.Getenv("TRACEWIRE_BIN"), os.Getenv("TRACEWIRE_REFERENCE")
	if bin == "" || reference == "" {
		t.Skip("needs the program tracewire: run make test")
	}
	netns.Enter(t)
	n, err := attach.NewNode(t.TempDir(), bin, reference)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	w := &world{Node: n, t: t, bin: bin, rng: rand.New(rand.NewPCG(*seed, 0)), outcomes: map[string]int{}}
	for i, r := range runtimes {
		w.networks[i] = strings.ReplaceAll(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "type": "tracewire", %s,
			"tracewire": {"stateDir": "@DIR@/%s", "log": {"path": "@DIR@/log"}, "spool": {"dir": "@DIR@/state/spool"}}}`, r.network, r.keys, r.state), attach.Dir, n.Dir)
	}
	for i := range *pods {
		if _, err := n.Pod(fmt.Sprintf("p%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	w.run()
	w.end()
	w.worth()
	said := fmt.Sprintf("seed %d, %.2f killed: %s\nthe observer looked at %d addresses of pods, %d operations are in the spool\n", *seed, *kill, w.told(), w.seen, w.spooled)
	if *report == "" {
		t.Log(said)
		return
	}
	if err := os.WriteFile(*report, []byte(said), 0o644); err != nil {
		t.Error(err)
	}
}

// worth is an error where nothing was tried: a soak whose ADDs all fail finds nothing.
func (w *world) worth() {
	all := 0
	for _, n := range w.outcomes {
		all += n
	}
	if adds := w.outcomes["ADD ok"]; adds < all/50 || w.seen == 0 {
		w.t.Errorf("%d ADDs of %d operations succeeded, and %d addresses were seen", adds, all, w.seen)
	}
}

// run runs the workers, a host-local of the reference's beside them, and the
// observer, until the turns or the time are over.
func (w *world) run() {
	end := time.Now().Add(10 * time.Minute)
	if *span > 0 {
		end = time.Now().Add(*span)
	}
	var running, watching sync.WaitGroup
	for range workers {
		running.Go(func() {
			for (*turns == 0 || w.begun.Add(1) <= int64(*turns)) && time.Now().Before(end) {
				if *turns == 0 {
					w.begun.Add(1)
				}
				w.turn()
			}
		})
	}
	watching.Go(w.watch)
	watching.Go(w.neighbour)
	running.Wait()
	w.stop.Store(true)
	watching.Wait()
}

// pick is a random number below n.
func (w *world) pick(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(n)
}

// turn is one random operation on one random attachment.
func (w *world) turn() {
	all := strings.Split(*verbs, ",")
	verb, i := all[w.pick(len(all))], w.pick(*pods)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	if w.pick(1000) < int(*kill*1000) {
		ctx, cancel = context.WithTimeout(context.Background(), time.Duration(w.pick(9000))*time.Microsecond)
	}
	defer cancel()
	w.do(ctx, verb, i)
}

// may is the codes that an operation may end with while others are at work on
// its attachment: it is there, is locked or half removed, or differs.
var may = map[string][]uint{"ADD": {102, 11}, "DEL": {11}, "CHECK": {110, 4, 11, 107}, "GC": {11}}

// do runs one operation, and takes down how it ended.
func (w *world) do(ctx context.Context, verb string, i int) {
	code, text := w.call(ctx, verb, i)
	w.mu.Lock()
	w.outcomes[fmt.Sprintf("%s %s", verb, code)]++
	w.mu.Unlock()
	ok := code == "ok" || code == "killed" || slices.ContainsFunc(may[verb], func(c uint) bool { return code == fmt.Sprint(c) })
	if !ok {
		w.t.Errorf("%s p%d: %s: %s", verb, i, code, text)
	}
}

// call runs the plugin and returns "ok", "killed" or the code, and what it said.
func (w *world) call(ctx context.Context, verb string, i int) (code, text string) {
	a := attach.Attachment{ContainerID: fmt.Sprintf("p%d", i), IfName: "eth0", NetNS: w.PodPath(fmt.Sprintf("p%d", i))}
	conf := w.networks[i%len(runtimes)]
	switch verb {
	case "CHECK":
		conf = with(w.t, conf, "prevResult", `{"cniVersion": "1.1.0"}`)
	case "GC":
		conf, a = with(w.t, conf, "cni.dev/valid-attachments", w.half(i%len(runtimes))), attach.Attachment{}
	}
	var out, stderr bytes.Buffer
	err := w.In("host", func() error {
		cmd := exec.CommandContext(ctx, filepath.Join(w.bin, "tracewire"))
		cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = w.Environment(verb, a), strings.NewReader(conf), &out, &stderr
		return cmd.Run()
	})
	var exit *exec.ExitError
	var answer types.Error
	switch {
	case err == nil:
		return "ok", ""
	case ctx.Err() != nil, errors.As(err, &exit) && exit.ExitCode() < 0:
		return "killed", ""
	case json.Unmarshal(out.Bytes(), &answer) != nil:
		return "no error object", fmt.Sprintf("%v %s%s", err, out.Bytes(), stderr.Bytes())
	}
	return fmt.Sprint(answer.Code), answer.Msg
}

// half is a list of valid attachments that has about half of a runtime's, and all
// of the others' and the neighbour's.
func (w *world) half(of int) string {
	list := []types.GCAttachment{{ContainerID: "neighbour", IfName: "eth0"}}
	for i := range *pods {
		if i%len(runtimes) != of || w.pick(2) == 0 {
			list = append(list, types.GCAttachment{ContainerID: fmt.Sprintf("p%d", i), IfName: "eth0"})
		}
	}
	b, _ := json.Marshal(list)
	return string(b)
}

// with is a configuration with one more key.
func with(t *testing.T, conf, key, value string) string {
	m := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(conf), &m); err != nil {
		t.Fatal(err)
	}
	m[key] = json.RawMessage(value)
	b, _ := json.Marshal(m)
	return string(b)
}

// watch looks at the addresses of all pods again and again. Two that seem to
// share one are looked at once more: it may have gone from one to the other.
func (w *world) watch() {
	for !w.stop.Load() {
		owner := map[string]string{}
		for i := range *pods {
			pod := fmt.Sprintf("p%d", i)
			for _, a := range w.addresses(pod) {
				if other := owner[a]; other != "" && slices.Contains(w.addresses(other), a) && slices.Contains(w.addresses(pod), a) {
					w.t.Errorf("%s and %s have %s", other, pod, a)
				}
				owner[a] = pod
			}
		}
		w.seen += len(owner)
	}
}

// addresses is a pod's, without the kernel's own.
func (w *world) addresses(pod string) (out []string) {
	_ = w.In(pod, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		all, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		for _, a := range all {
			if !a.IP.IsLinkLocalUnicast() {
				out = append(out, a.IPNet.String())
			}
		}
		return err
	})
	return out
}

// neighbour is the reference's host-local at work in the same folders, of each
// network in its turn: what it is given no pod may have.
func (w *world) neighbour() {
	for turn := 0; !w.stop.Load(); turn++ {
		conf := strings.Replace(w.networks[turn%len(w.networks)], `"tracewire"`, `"host-local"`, 1)
		for _, verb := range []string{"ADD", "DEL"} {
			out, err := w.hostLocal(verb, conf)
			if err != nil {
				w.t.Errorf("host-local %s: %v: %s", verb, err, out)
				return
			}
			if verb == "ADD" {
				w.alone(out)
			}
		}
	}
}

func (w *world) hostLocal(verb, conf string) (out []byte, err error) {
	err = w.In("host", func() error {
		cmd := exec.Command(filepath.Join(os.Getenv("TRACEWIRE_REFERENCE"), "host-local"))
		cmd.Env = w.Environment(verb, attach.Attachment{ContainerID: "neighbour", IfName: "eth0", NetNS: "/none"})
		cmd.Stdin = strings.NewReader(conf)
		out, err = cmd.Output()
		return err
	})
	return out, err
}

// alone looks for a pod that has an address of an answer.
func (w *world) alone(answer []byte) {
	for i := range *pods {
		for _, a := range w.addresses(fmt.Sprintf("p%d", i)) {
			if bytes.Contains(answer, []byte(`"`+a+`"`)) {
				w.t.Errorf("p%d has %s, which host-local gave another", i, a)
			}
		}
	}
}

// end removes every attachment and looks for what is left.
func (w *world) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for i := range *pods {
		if code, text := w.call(ctx, "DEL", i); code != "ok" {
			w.t.Errorf("the last DEL of p%d: %s: %s", i, code, text)
		}
	}
	left, err := w.Left()
	if err != nil || len(left) > 0 {
		w.t.Errorf("left: %q, %v", left, err)
	}
	ops, err := w.Operations()
	if err != nil {
		w.t.Error(err)
	}
	ids := map[string]bool{}
	w.spooled = len(ops)
	for _, o := range ops {
		if ids[o.Root.SpanID] {
			w.t.Errorf("%s %s is told twice", o.Root.Name, o.Root.SpanID)
		}
		ids[o.Root.SpanID] = true
	}
}

// told is how often each outcome was.
func (w *world) told() string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(w.outcomes)) {
		out = append(out, fmt.Sprintf("%s %d", k, w.outcomes[k]))
	}
	return strings.Join(out, ", ")
}
