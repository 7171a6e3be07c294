package audit

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/proc"
	"github.com/tracewire/tracewire/test/netns"
)

// TestIdle: what a plugin may be at work for is no suspect, but a GC that hangs
// does not keep everything from being told.
func TestIdle(t *testing.T) {
	since := func(id string, age time.Duration) delegates.Running {
		return delegates.Running{Process: 1, ContainerID: id, Began: proc.Now() - proc.Ticks(age/proc.Tick)}
	}
	for _, tt := range []struct {
		name string
		busy []delegates.Running
		want string
	}{
		{"nobody", nil, "c1 c2 -"},
		{"an ADD", []delegates.Running{since("c1", 0)}, "c2 -"},
		{"a DEL that hangs", []delegates.Running{since("c1", time.Hour)}, "c2 -"},
		{"a GC", []delegates.Running{since("", 0)}, ""},
		{"a GC that takes long", []delegates.Running{since("", hangs-time.Second)}, ""},
		{"a GC that has just ended", []delegates.Running{{Process: 1}}, ""},
		{"a GC that hangs", []delegates.Running{since("", hangs)}, "c1+ c2+ -+"},
		{"a GC that hangs, and an ADD", []delegates.Running{since("", hangs), since("c2", 0)}, "c1+ -+"},
		{"a GC that hangs, and one", []delegates.Running{since("", hangs), since("", 0)}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, s := range idle([]suspect{{id: "c1"}, {id: "c2"}, {}}, tt.busy) {
				s.beside(tt.busy)
				word := s.id
				if word == "" {
					word = "-"
				}
				if len(s.Evidence) > 0 {
					word += "+"
				}
				got = append(got, word)
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestHung: a GC that has just begun does not hang, and one says for how long.
func TestHung(t *testing.T) {
	netns.Enter(t)
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	cmd.Env = append(os.Environ(), "CNI_COMMAND=GC")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	busy := delegates.Busy()
	if len(busy) != 1 || busy[0].Process != cmd.Process.Pid || hung(busy[0]) || busy[0].Age() >= hangs {
		t.Fatalf("busy: %+v", busy)
	}
	busy[0].Began -= proc.Ticks(90 * time.Second / proc.Tick)
	var s suspect
	s.beside(busy)
	if len(s.Evidence) != 1 || s.Evidence[0].Source != Processes || !strings.HasPrefix(s.Evidence[0].Says, "a GC has been at work for 1m30s, process ") {
		t.Errorf("%+v", s.Evidence)
	}
}
