package delegates

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/trace/read"
)

// TestStatus: the plugin's own error and code; one that is older than STATUS has
// no say.
func TestStatus(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		err          string
		code         uint // of the plugin's own error
	}{
		{"good", `true`, "", 0},
		{"good, with what it should not print", `echo '{"cniVersion":"1.1.0"}'`, "", 0},
		{"not available", `echo '{"cniVersion":"1.1.0","code":50,"msg":"agent is not ready"}'; exit 1`, "exec: delegated plugin failed: fake: agent is not ready (code 50)", 50},
		{"limited", `echo '{"cniVersion":"1.1.0","code":51,"msg":"no way out","details":"yet"}'; exit 1`, "exec: delegated plugin failed: fake: no way out; yet (code 51)", 51},
		{"any other code", `echo '{"code":999,"msg":"oops"}'; exit 1`, "exec: delegated plugin failed: fake: oops (code 999)", 999},
		{"no error printed", `exit 3`, `exec: delegated plugin failed: fake: exit status 3: no error printed: """"`, 0},
		{"an unknown command", `echo '{"cniVersion":"1.0.0","code":4,"msg":"unknown CNI_COMMAND: STATUS"}'; exit 1`, "", 0},
		{"a variable that STATUS need not have", `echo '{"code":4,"msg":"required env variables [CNI_IFNAME] missing"}'; exit 1`, "", 0},
		{"a plugin of older versions", `echo '{"code":1,"msg":"plugin version does not allow STATUS"}'; exit 1`, "", 0},
		{"an older skel's words", `echo '{"code":1,"msg":"incompatible CNI versions"}'; exit 1`, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := plugins(t, map[string]string{"fake": tt.script})
			var err error
			op := record(t, func(ctx context.Context) { err = leases("fake").Status(ctx, f.call()) })
			if said := fmt.Sprint(err); said != tt.err && (err != nil || tt.err != "") {
				t.Errorf("error %s\nwant  %s", said, tt.err)
			}
			var answer *types.Error
			_ = errors.As(err, &answer)
			if (answer != nil) != (tt.code != 0) || answer != nil && answer.Code != tt.code {
				t.Errorf("code of %v, want %d", answer, tt.code)
			}
			want := "cni.ADD\n  exec [error]\n"
			if strings.HasPrefix(tt.name, "good") {
				want = "cni.ADD\n  exec\n"
			}
			if diff := cmp.Diff(want, read.Tree(op)); diff != "" {
				t.Errorf("spans (-want +got)\n%s", diff)
			}
		})
	}
	if err := leases("fake").Status(t.Context(), Call{Path: []string{"/none"}}); !errors.Is(err, ErrPlugin) {
		t.Errorf("a missing plugin: %v", err)
	}
}

// TestStatusIsGiven: the complete configuration, and CNI_* of a STATUS.
func TestStatusIsGiven(t *testing.T) {
	f := plugins(t, map[string]string{"fake": `cat > "${0%/*}/stdin"; env | grep ^CNI_ | grep -v CNI_PATH | sort > "${0%/*}/env"`})
	c := f.call()
	c.Attachment, c.NetNS, c.Args = Attachment{Network: "net"}, "", ""
	if err := leases("fake").Status(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"stdin": conf,
		"env":   "CNI_ARGS=IgnoreUnknown=1\nCNI_COMMAND=STATUS\nCNI_CONTAINERID=\nCNI_IFNAME=\nCNI_NETNS=\n",
	} {
		if diff := cmp.Diff(want, f.read(t, name)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}
