package main

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/chain/codes"
)

// outcome is what CHECK told of an attachment of the network podnet.
func outcomeOf(id, pod string, findings ...finding) checked {
	for i := range findings {
		r, _ := codes.ReasonOf(findings[i].Reason)
		findings[i].Hint = r.Hint
	}
	return checked{Attachment: "podnet/" + id + ":eth0", Pod: pod, Whole: true, Findings: findings}
}

func bridgeDown() finding {
	return finding{Plugin: "tracewire", Reason: "bridge.down", Expected: "cni0 up", Found: "down"}
}

// many is attachments that share a finding, and one that has another too.
func many() (done []checked) {
	for i := range 5 {
		done = append(done, outcomeOf(fmt.Sprintf("%d%s", i, web[1:]), fmt.Sprintf("default/web-%d", i), bridgeDown()))
	}
	done[1].Findings = append(done[1].Findings, outcomeOf(web, "", finding{Plugin: "tracewire", Reason: "pod.missing",
		Expected: "eth0 in /var/run/netns/cni-0a1b2c3d-1111-2222", Found: "nothing of that name in the namespace"}).Findings...)
	return done
}

func TestCheckTable(t *testing.T) {
	for _, tt := range []struct {
		columns string
		verbose bool
		want    string
	}{
		{"100", false, `
ATTACHMENT         POD            REASON       EXPECTED                               FOUND
5 attachments                     bridge.down  cni0 up                                down
0635e8a1b2c3:eth0
1635e8a1b2c3:eth0  default/web-1  pod.missing  eth0 in                                nothing of
                                               /var/run/netns/cni-0a1b2c3d-1111-2222  that name in
                                                                                      the namespace

bridge.down: 'ip link set' turns it on again; its IPv6 addresses are gone by then
pod.missing: something in the pod, or a DEL, removed or renamed it

5 attachments checked, 6 findings on 5 of them
`},
		{"80", false, `
ATTACHMENT     POD           REASON       EXPECTED                  FOUND
5 attachments                bridge.down  cni0 up                   down
0635e8a…:eth0
1635e8a…:eth0  defau…/web-1  pod.missing  eth0 in                   nothing of
                                          /var/run/netns/cni-       that name in
                                          0a1b2c3d-1111-2222        the
                                                                    namespace

bridge.down: 'ip link set' turns it on again; its IPv6 addresses are gone by
then
pod.missing: something in the pod, or a DEL, removed or renamed it

5 attachments checked, 6 findings on 5 of them
`},
		{"80", true, `
ATTACHMENT     POD           REASON       EXPECTED                  FOUND
0635e8a…:eth0  defau…/web-0  bridge.down  cni0 up                   down
1635e8a…:eth0  defau…/web-1  bridge.down  cni0 up                   down
1635e8a…:eth0  defau…/web-1  pod.missing  eth0 in                   nothing of
                                          /var/run/netns/cni-       that name in
                                          0a1b2c3d-1111-2222        the
                                                                    namespace
2635e8a…:eth0  defau…/web-2  bridge.down  cni0 up                   down
3635e8a…:eth0  defau…/web-3  bridge.down  cni0 up                   down
4635e8a…:eth0  defau…/web-4  bridge.down  cni0 up                   down

bridge.down: 'ip link set' turns it on again; its IPv6 addresses are gone by
then
pod.missing: something in the pod, or a DEL, removed or renamed it

5 attachments checked, 6 findings on 5 of them
`},
		{"", false, `
ATTACHMENT                                                                                         POD            REASON       EXPECTED                                       FOUND
5 attachments, first podnet/0635e8a1b2c3d4e51635e8a1b2c3d4e51635e8a1b2c3d4e51635e8a1b2c3d4e5:eth0                 bridge.down  cni0 up                                        down
podnet/1635e8a1b2c3d4e51635e8a1b2c3d4e51635e8a1b2c3d4e51635e8a1b2c3d4e5:eth0                       default/web-1  pod.missing  eth0 in /var/run/netns/cni-0a1b2c3d-1111-2222  nothing of that name in the namespace

bridge.down: 'ip link set' turns it on again; its IPv6 addresses are gone by then
pod.missing: something in the pod, or a DEL, removed or renamed it

5 attachments checked, 6 findings on 5 of them
`},
	} {
		t.Run(fmt.Sprint(tt.columns, tt.verbose), func(t *testing.T) {
			var out strings.Builder
			c := &command{getenv: func(k string) string { return map[string]string{"COLUMNS": tt.columns}[k] }}
			if err := c.printChecks(&out, many(), tt.verbose); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), strings.ReplaceAll(out.String(), "`", "'")); diff != "" {
				t.Error("(-want +got):\n" + diff)
			}
		})
	}
}

// TestSumOfChecks: what could not be looked at was not checked.
func TestSumOfChecks(t *testing.T) {
	failed, alone := outcomeOf(web, ""), outcomeOf(db, "")
	failed.Error, alone.Whole = "tracewire: gone", false
	for _, tt := range []struct {
		name string
		done []checked
		want string
	}{
		{"none", nil, "nothing to check: no attachment has a record\n"},
		{"all well", []checked{outcomeOf(web, ""), outcomeOf(db, "")}, "2 attachments checked, no findings\n"},
		{"none could", []checked{failed}, "1 attachment: 0 checked, 1 could not be looked at\n"},
		{"one not", []checked{outcomeOf(web, ""), failed, alone},
			"3 attachments: 2 checked, 1 could not be looked at; no findings\nof 1 only tracewire's part: libcni keeps nothing of the plugins behind it\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			c := &command{getenv: func(k string) string { return map[string]string{"COLUMNS": "100"}[k] }}
			if err := c.printChecks(&out, tt.done, false); err != nil || out.String() != tt.want {
				t.Errorf("%v\n%s", err, out.String())
			}
			for l := range strings.SplitSeq(out.String(), "\n") {
				if n := utf8.RuneCountInString(l); n > 80 {
					t.Errorf("%d columns: %s", n, l)
				}
			}
		})
	}
}
