package chain

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/trace/read"
)

func (h host) status(ctx context.Context, k kind, v *Verdict) error {
	c := h.chain(k)
	build := c.Build
	c.Build = func(conf []byte, args string) (Steps, error) {
		s, err := build(conf, args)
		s.Writes = []string{filepath.Join(h.records.Path, "net")}
		return s, err
	}
	return c.Status(ctx, delegates.Call{Attachment: delegates.Attachment{Network: "net"}, Conf: []byte(conf), Uptime: time.Second}, v)
}

// TestStatus: all are asked, past failures, without a lock, a record or a span.
func TestStatus(t *testing.T) {
	full, limited, busy := types.NewError(50, "full", ""), types.NewError(51, "no way out", ""), types.NewError(11, "busy", "")
	for _, tt := range []struct {
		name  string
		kind  kind
		spoil func(host)
		said  []string
		err   string
		is    error
	}{
		{"good", kind{}, nil, []string{"bridge STATUS", "ipam STATUS"}, "", nil},
		{"without addresses", kind{none: true}, nil, []string{"bridge STATUS"}, "", nil},
		{"the configuration has errors", kind{}, func(h host) { h.broken["build"] = errBroken }, nil, "broken", errBroken},
		{"a step fails", kind{}, func(h host) { h.broken["bridge STATUS"] = errBroken }, []string{"bridge STATUS", "ipam STATUS"}, "the next ADD would fail: bridge: broken", ErrUnavailable},
		{"not available", kind{}, func(h host) { h.broken["ipam STATUS"] = full }, []string{"bridge STATUS", "ipam STATUS"}, "the next ADD would fail: ipam: full", ErrUnavailable},
		{"limited connectivity", kind{}, func(h host) { h.broken["ipam STATUS"] = limited }, []string{"bridge STATUS", "ipam STATUS"}, "the next ADD would fail, and pods may have limited connectivity: ipam: no way out", ErrLimited},
		{"any other code", kind{}, func(h host) { h.broken["ipam STATUS"] = busy }, []string{"bridge STATUS", "ipam STATUS"}, "the next ADD would fail: ipam: busy", ErrUnavailable},
		{"one of each", kind{}, func(h host) { h.broken["ipam STATUS"], h.broken["bridge STATUS"] = limited, errBroken }, []string{"bridge STATUS", "ipam STATUS"},
			"the next ADD would fail: bridge: broken\nipam: no way out", ErrUnavailable},
		{"a mistake", kind{}, func(h host) { h.panics = "ipam STATUS" }, []string{"bridge STATUS", "ipam STATUS"}, "the next ADD would fail: ipam: panic: a mistake", ErrPanic},
		{"a file in the records' place", kind{}, func(h host) { _ = os.WriteFile(h.records.Path, nil, 0o600) }, []string{"bridge STATUS", "ipam STATUS"},
			"the next ADD would fail: write RECORDS: not a directory", ErrUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			if tt.spoil != nil {
				tt.spoil(h)
			}
			var err error
			op := record(t, "cni.STATUS", func(ctx context.Context) { err = h.status(ctx, tt.kind, ReadVerdict("/none")) })
			if got := strings.ReplaceAll(text(err), h.records.Path, "RECORDS"); got != tt.err || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("error %s\nwant  %s", got, tt.err)
			}
			if diff := cmp.Diff(tt.said, h.said); diff != "" {
				t.Errorf("calls (-want +got)\n%s", diff)
			}
			if got := read.Tree(op); got != "cni.STATUS\n" {
				t.Errorf("spans\n%s", got)
			}
			if _, err := os.ReadDir(h.records.Path); err == nil {
				t.Error("the records' folder was made")
			}
		})
	}
}

// TestStatusAsksDelegates: each in the order of the list.
func TestStatusAsksDelegates(t *testing.T) {
	h := newHost(t)
	c := h.chain(kind{})
	c.Build = func([]byte, string) (Steps, error) {
		return Steps{Name: "bridge", Main: bridge{h.node}, Delegates: []Step{{"delegate a", extra{h.node, "a"}}, {"delegate b", extra{h.node, "b"}}}}, nil
	}
	h.broken["a STATUS"] = errBroken
	err := c.Status(t.Context(), call(), ReadVerdict("/none"))
	if got := text(err); got != "the next ADD would fail: delegate a: broken" {
		t.Errorf("error %s", got)
	}
	if diff := cmp.Diff([]string{"bridge STATUS", "a STATUS", "b STATUS"}, h.said); diff != "" {
		t.Errorf("calls (-want +got)\n%s", diff)
	}
}
