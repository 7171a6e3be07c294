//go:build linux

package kill

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/trace/point"
)

// worker plays one mode on a node of its own.
type worker struct {
	mode
	dir    string // of all its nodes
	node   *attach.Node
	nodes  int
	boot   int
	ids    int
	points map[string][]string // of each verb, by name
	files  []string            // below shared that were there before
	mounts int
	ended  chan os.Signal // a child did
}

// shared is the folders beside the node's own that plugins write to. A worker
// has its own.
var shared = []string{"/run", "/var/lib/cni"}

// work plays every cell of a mode and writes what it saw to standard output.
func work(name, dir string) error {
	at := slices.IndexFunc(modes, func(m mode) bool { return m.name == name })
	if at < 0 {
		return fmt.Errorf("no mode %q", name)
	}
	runtime.LockOSThread() // its network namespace is the node's
	w := &worker{mode: modes[at], dir: dir, points: map[string][]string{}, ended: make(chan os.Signal, 1)}
	signal.Notify(w.ended, unix.SIGCHLD)
	if err := w.begin(); err != nil {
		return err
	}
	for _, verb := range w.verbs() {
		for i, name := range w.points[verb] {
			s := seen{Verb: verb, N: i + 1, Point: name, Left: map[string]string{}}
			for j, f := range w.follows() {
				if turn(w.points[verb], i, j) {
					s.Left[f.name] = w.cell(verb, i+1, f)
				}
			}
			// At once for all cells: the kernel takes 20 to 50 ms to forget what was removed.
			if err := w.wait(); err != nil {
				s.After = err.Error()
			}
			b, _ := json.Marshal(s) // strings can always be written
			fmt.Println(string(b))
		}
	}
	if wrong := w.next(); wrong != "" {
		return errors.New(wrong)
	}
	return nil
}

// turn tells that a point has its turn with the j-th thing that follows. Where
// nothing is done between the end of one and the beginning of the next, the two
// are one moment, and share what follows.
func turn(points []string, i, j int) bool {
	is := func(i int, when string) bool { return i >= 0 && i < len(points) && strings.HasPrefix(points[i], when) }
	switch {
	case is(i, point.After) && is(i+1, point.Before):
		return j%2 == 0
	case is(i-1, point.After) && is(i, point.Before):
		return j%2 == 1
	}
	return true
}

// begin makes the worker's surroundings, and the first node.
func (w *worker) begin() error {
	// What a killed plugin leaves running becomes our child.
	err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	for _, own := range shared {
		err = errors.Join(err, unix.Mount("tmpfs", own, "tmpfs", 0, "mode=0755"))
	}
	if err == nil {
		err = errors.Join(os.MkdirAll("/run/netns", 0o755), w.renew())
	}
	if err != nil {
		return err
	}
	return w.profile()
}

// profile learns the points, and what there is when nothing is.
func (w *worker) profile() error {
	if err := w.empty(); err != nil {
		return err
	}
	a, list := w.attachment(), filepath.Join(w.dir, "points")
	add := w.run(call{verb: "ADD", a: a, points: list})
	w.points["ADD"] = lines(list)
	if err := errors.Join(add.err, w.sees()); err != nil {
		return err
	}
	del := w.run(call{verb: "DEL", a: a, prev: add.answer, points: list})
	w.points["DEL"] = lines(list)
	if err := errors.Join(del.err, w.wait()); err != nil {
		return err
	}
	if w.fails != "" {
		if o := w.run(call{verb: "ADD", a: a, points: list, delegates: w.fails}); o.code == 0 {
			return fmt.Errorf("ADD did not fail: %w", o.err)
		}
		w.points["ADD"] = lines(list)
	}
	w.files, w.mounts = w.shared(), mounts()
	if left := w.left(); left != "" {
		return fmt.Errorf("left without a kill: %s", left)
	}
	return nil
}

// lines reads the points' names, and forgets them.
func lines(path string) []string {
	b, _ := os.ReadFile(path)
	_ = os.Remove(path)
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// renew makes a fresh node in a fresh network namespace. From the second ADD on
// it has the bridge and the chains of all.
func (w *worker) renew() error {
	if w.node != nil {
		w.node.Close()
	}
	w.nodes++
	if err := w.start(filepath.Join(w.dir, fmt.Sprint(w.nodes))); err != nil {
		return err
	}
	a := w.attachment()
	o := w.run(call{verb: "ADD", a: a})
	if o.err != nil {
		return o.err
	}
	return w.del(a, o.answer)
}

// empty makes the next ADD the first, where the mode asks for that.
func (w *worker) empty() error {
	if !w.first {
		return nil
	}
	return errors.Join(os.RemoveAll(filepath.Join(w.node.Dir, "state")), os.RemoveAll(filepath.Join(w.node.Dir, "ipam")))
}

// start makes a node in a fresh network namespace, on what is on disk.
func (w *worker) start(dir string) (err error) {
	w.boot++
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if w.node, err = attach.NewNode(dir, os.Getenv(envBin), os.Getenv("TRACEWIRE_REFERENCE")); err != nil {
		return err
	}
	if w.uplink {
		if err := w.node.Outside("out", nil, nil); err != nil {
			return err
		}
	}
	if _, err := w.node.Pod("pod"); err != nil {
		return err
	}
	return w.node.Load(w.list())
}

// sees is an error when the look at an attachment that is there misses a part.
func (w *worker) sees() error {
	files, errFiles := w.node.Files()
	links, errLinks := w.links()
	rules, errRules := rules()
	if len(files) == 0 || len(links) == 0 || w.rules != (len(rules) > 0) {
		return fmt.Errorf("of an attachment the look sees files %q, interfaces %q, rules %q", files, links, rules)
	}
	return errors.Join(errFiles, errLinks, errRules)
}

// idPrefix begins the containers' ids.
const idPrefix = "killed-"

// attachment is one of a new container.
func (w *worker) attachment() attach.Attachment {
	w.ids++
	return attach.Attachment{ContainerID: fmt.Sprint(idPrefix, w.ids), IfName: "eth0", NetNS: w.node.PodPath("pod")}
}

// cell kills the verb at its point n, does what follows, and tells what was
// wrong, "" for nothing. The node goes on unless something was.
func (w *worker) cell(verb string, n int, f follow) (wrong string) {
	k, err := w.kill(verb, n)
	if err == nil {
		err = f.do(w, k)
	}
	if err != nil {
		wrong = err.Error()
	} else if wrong = w.left(); wrong == "" && w.goesOn(verb, n, f) {
		wrong = w.next()
	}
	if wrong != "" {
		_ = w.wait()
		if err := w.renew(); err != nil {
			wrong += "; no new node: " + err.Error()
		}
	}
	return wrong
}

// goesOn tells that another attachment comes after a cell: not where the next
// cell begins with one, and in a slow mode after one follow-up a point, in turns.
func (w *worker) goesOn(verb string, n int, f follow) bool {
	all := w.follows()
	return verb == "ADD" && (!w.slow || all[n%len(all)].name == f.name)
}

// kill kills an ADD, or the DEL after one, at its point n.
func (w *worker) kill(verb string, n int) (k killed, err error) {
	k = killed{Attachment: w.attachment(), n: n}
	if err := w.empty(); err != nil {
		return k, err
	}
	at := n
	if verb == "DEL" {
		at = 0
	}
	o := w.run(call{verb: "ADD", a: k.Attachment, at: at, delegates: w.fails})
	k.prev, k.whole = o.answer, w.fails == "" && n > slices.Index(w.points["ADD"], "after result")
	if verb == "DEL" && o.err == nil {
		o = w.run(call{verb: "DEL", a: k.Attachment, prev: k.prev, at: n})
		k.whole = n <= slices.Index(w.points["DEL"], "after deleting")
	}
	if !o.killed {
		return k, fmt.Errorf("%s was not killed at point %d: %w", verb, n, o.err)
	}
	return k, nil
}

// next is another attachment, which has to work and to leave nothing.
func (w *worker) next() string {
	a := w.attachment()
	o := w.run(call{verb: "ADD", a: a})
	if o.err == nil {
		o.err = w.del(a, o.answer)
	}
	if o.err != nil {
		return "the next one: " + o.err.Error()
	}
	if left := w.left(); left != "" {
		return "the next one left " + left
	}
	return ""
}

func (w *worker) del(a attach.Attachment, prev string) error {
	return w.run(call{verb: "DEL", a: a, prev: prev}).err
}

// bare is a DEL that knows no more than network, container and interface name.
func (w *worker) bare(a attach.Attachment) error {
	a.NetNS = ""
	return w.run(call{verb: "DEL", a: a}).err
}

// gc is a GC to which nothing is valid.
func (w *worker) gc() error { return w.run(call{verb: "GC"}).err }

// reboot takes the kernel away and keeps the disk.
func (w *worker) reboot() error {
	if err := w.wait(); err != nil {
		return err
	}
	w.node.Close()
	if err := errors.Join(os.RemoveAll("/run/cni"), w.start(w.node.Dir)); err != nil {
		return err
	}
	return w.gc()
}

// again is a new ADD of the same attachment, and its DEL. It is refused where
// the attachment stands.
func (w *worker) again(k killed) error {
	o := w.run(call{verb: "ADD", a: k.Attachment})
	if k.whole && o.code == exists {
		o.err, o.answer = nil, k.prev
	}
	if o.err != nil {
		return o.err
	}
	return w.del(k.Attachment, o.answer)
}

// exists is the code of an ADD of an attachment that is there.
const exists = 102

// twice is a DEL that is killed too, and another: from point to point at another
// place of it, so that all of them have their turn.
func (w *worker) twice(k killed, turn int) error {
	all := len(w.points["DEL"])
	at := (k.n*7+turn*all/2)%all + 1
	if o := w.run(call{verb: "DEL", a: k.Attachment, prev: k.prev, at: at}); !o.killed && o.err != nil {
		return o.err
	}
	return w.del(k.Attachment, k.prev)
}
