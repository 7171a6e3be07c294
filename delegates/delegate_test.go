package delegates

import (
	"testing"
)

func TestAttachment(t *testing.T) {
	a := Attachment{Network: "podnet", ContainerID: "1635e8", IfName: "eth0"}
	if got, want := a.String(), "podnet/1635e8:eth0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestFindings(t *testing.T) {
	for _, tt := range []struct {
		name string
		f    Findings
		want string
	}{
		{"none", nil, ""},
		{"one", Findings{{Code: "veth.missing", Expected: "eth0", Found: "nothing"}}, "veth.missing: expected eth0, found nothing"},
		{"in the order found", Findings{{Code: "b", Expected: "1", Found: "2"}, {Code: "a", Expected: "3", Found: "4"}}, "b: expected 1, found 2; a: expected 3, found 4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.f.Error(); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestWatcherOfNoJournal(t *testing.T) {
	if w := (Call{}).Watcher(); w != nil {
		t.Errorf("%v watches", w)
	}
	j := &journal{}
	if w := (Call{Journal: j}).Watcher(); w != j {
		t.Errorf("%v watches", w)
	}
}
