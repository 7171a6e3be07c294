//go:build linux

package reference

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"
)

// collecting is the scenarios of GC.
var collecting = []scenario{
	{
		name: "GC of pods that the runtime lost, masquerade by iptables", keys: iptables, needs: rules,
		play: gcOfLost, want: []string{"GC ok", "left: nothing"},
	},
	{
		name: "GC of pods that the runtime lost, masquerade by nftables", keys: nftables, needs: rules,
		play: gcOfLost, want: []string{"GC ok", "left: nothing"},
	},
	{
		name: "GC of pods that the runtime lost, ptp", ptp: true,
		play: gcOfLost, want: []string{"GC ok", "left: nothing"},
	},
	{
		name: "GC of a pod whose result of libcni is an empty file", keys: iptables, needs: rules,
		play: gcOfEmptyResult, want: []string{"GC ok", "left: result of libcni"},
	},
	{
		name: "GC without a list, and what it leaves of a reservation and of a file that is none", keys: gateway,
		play: gcWithoutList, want: []string{"GC ok", "the reservation is there", "the other file is there"},
	},
	{
		name: "GC without a list, to host-local", keys: gateway, extra: `"ipamExec": true`,
		play: gcOfIPAMWithoutList, want: []string{"GC ok", "the reservation is there", "the other file is there"},
	},
}

func (w *world) collect(valid ...types.GCAttachment) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	if valid == nil {
		valid = []types.GCAttachment{}
	}
	w.see("GC %s", answered(w.GC(ctx, valid)))
}

// gcOfLost ends five pods, whose namespaces are gone and whose results too.
func gcOfLost(w *world) {
	before := w.have()
	for _, id := range []string{"c1", "c2", "c3", "c4", "c5"} {
		w.made(id)
		must(w.t, os.Remove(filepath.Join(w.Dir, "cache", "results", "net-"+id+"-eth0")))
	}
	w.collect()
	w.left(before)
}

func gcOfEmptyResult(w *world) {
	before := w.have()
	w.made("c1")
	must(w.t, os.Truncate(filepath.Join(w.Dir, "cache", "results", "net-c1-eth0"), 0))
	w.collect()
	w.left(before)
}

// gcWithoutList asks the list's plugin, as cnitool does: without the keys.
func gcWithoutList(w *world) { w.askWithoutList("") }

// gcOfIPAMWithoutList asks host-local itself in the reference's place, which has
// no GC of its own.
func gcOfIPAMWithoutList(w *world) { w.askWithoutList("host-local") }

func (w *world) askWithoutList(program string) {
	w.made("c1")
	store := filepath.Join(w.Dir, "ipam", "net")
	must(w.t, os.WriteFile(filepath.Join(store, "notes"), []byte("kept by hand\n"), 0o600))
	first, stdin, err := w.First(nil)
	must(w.t, err)
	if program == "" || first == ours.bridge {
		program = first
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	a := w.pod("c1")
	a.ContainerID, a.IfName, a.NetNS = "", "", ""
	_, err = w.Run(ctx, program, stdin, w.Environment("GC", a))
	w.see("GC %s", answered(err))
	w.see("the reservation is %s", present(filepath.Join(store, "10.77.0.2")))
	w.see("the other file is %s", present(filepath.Join(store, "notes")))
}

func present(path string) string {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return "gone"
	}
	return "there"
}
