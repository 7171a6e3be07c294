package house

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/tracewire/tracewire/chain/codes"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates/bridge"
	"github.com/tracewire/tracewire/ipam"
)

func file(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("../../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestReadmeTables: the front door says what the code does.
func TestReadmeTables(t *testing.T) {
	readme := file(t, "README.md")
	rows := []string{}
	for _, c := range codes.Table {
		rows = append(rows, fmt.Sprintf("| %d | %s | %s |", c.Number, c.Name, c.Meaning))
	}
	for room := range imports {
		if !strings.HasPrefix(room, "test/") {
			rows = append(rows, fmt.Sprintf("| [%s](%s) |", room, room))
		}
	}
	for _, key := range []string{"stateDir", "log.path", "log.level", "spool.dir", "spool.maxBytes", "timeout", "ipamExec", "sync", "syncDelete", "removeBridge", "statusGrace", "statusOnExhaustion", "mode",
		"bridge", "isGateway", "isDefaultGateway", "forceAddress", "mtu", "hairpinMode", "promiscMode", "portIsolation", "enabledad", "macspoofchk",
		"ipMasq", "ipMasqBackend", "vlan", "vlanTrunk", "preserveDefaultVlan", "disableContainerInterface", "dns", "ipam", "delegates", "capabilities"} {
		rows = append(rows, "| `"+key+"` |")
	}
	for _, row := range rows {
		if !strings.Contains(readme, row) {
			t.Errorf("README.md has no row %s", row)
		}
	}
}

// TestReadmePicture: the phases in the picture are the phases of an ADD, in
// the order of the case that pins them.
func TestReadmePicture(t *testing.T) {
	readme := file(t, "README.md")
	at, roots := strings.Index(readme, "## How one ADD runs"), 0
	for line := range strings.Lines(file(t, "test/cases/v4/spans.txt")) {
		name := strings.Fields(line)[0]
		if strings.HasPrefix(name, "cni.") {
			roots++
		}
		if roots > 1 {
			break
		}
		next := strings.Index(readme[at:], name+" ")
		if next < 0 {
			t.Fatalf("%s is not in the picture, or not in its place", name)
		}
		at += next
	}
}

// TestSample: the conflist that make install lays down is one that we take.
func TestSample(t *testing.T) {
	list := conflist.Read([]byte(file(t, "contrib/10-tracewire.conflist")))
	first := list.At("plugins").Each()[0]
	doc := conflist.Read(first.Raw)
	n := conflist.Parse(doc)
	bridge.Parse(doc, nil)
	ipam.Parse(doc, nil)
	if err := doc.Err(); err != nil || n.Type != "tracewire" || n.IPAM != "host-local" {
		t.Errorf("%+v, error %v", n, err)
	}
}
