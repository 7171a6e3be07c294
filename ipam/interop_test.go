package ipam

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// side leases and releases for a container: our own code, or the reference's
// executable.
type side struct {
	name string
	add  func(id string) ([]string, error)
	del  func(id string) error
}

// sides are both of them on one folder.
func sides(t *testing.T, keys string) (ours, theirs side, dir string) {
	t.Helper()
	bin := filepath.Join(os.Getenv("TRACEWIRE_REFERENCE"), "host-local")
	if _, err := os.Stat(bin); os.Getenv("TRACEWIRE_REFERENCE") == "" || err != nil {
		t.Skip("needs the reference plugins: run make test")
	}
	data := t.TempDir()
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net1","type":"bridge","ipam":{"type":"host-local","dataDir":%q,%s}}`, data, keys)
	h, err := parse(conf, "")
	if err != nil {
		t.Fatal(err)
	}
	ours = side{"ours", func(id string) ([]string, error) {
		res, err := h.Add(t.Context(), call(id))
		if err != nil {
			return nil, err
		}
		return leased(res), nil
	}, func(id string) error { return h.Del(t.Context(), call(id)) }}
	theirs = side{"theirs", func(id string) ([]string, error) { return reference(bin, "ADD", id, conf) },
		func(id string) error { _, err := reference(bin, "DEL", id, conf); return err }}
	return ours, theirs, filepath.Join(data, "net1")
}

func reference(bin, command, id, conf string) ([]string, error) {
	cmd := exec.Command(bin)
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0", "CNI_NETNS=/none", "CNI_PATH=" + filepath.Dir(bin)}
	cmd.Stdin = strings.NewReader(conf)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out.String())
	}
	var res struct {
		IPs []struct {
			Address string
			Gateway net.IP
		}
	}
	_ = json.Unmarshal(out.Bytes(), &res)
	var all []string
	for _, ip := range res.IPs {
		all = append(all, ip.Address+" via "+ip.Gateway.String())
	}
	return all, nil
}

const dual = `"ranges":[[{"subnet":"10.1.0.0/28","gateway":"10.1.0.4"},{"subnet":"10.2.0.0/29","rangeStart":"10.2.0.2"}],[{"subnet":"fd00:0:0:0:1::/80"}]]`

// TestSameAsTheReference does the same with each side, on folders of their own.
func TestSameAsTheReference(t *testing.T) {
	var got [2][]string
	for i := range got {
		ours, theirs, dir := sides(t, dual)
		s := [...]side{ours, theirs}[i]
		note := func(f string, a ...any) { got[i] = append(got[i], fmt.Sprintf(f, a...)) }
		for n := range 20 {
			ips, err := s.add(fmt.Sprint("c", n))
			note("c%d %v %t %v", n, ips, err == nil, read(t, dir))
			if n%3 == 1 {
				note("del %v", s.del(fmt.Sprint("c", n-1)))
			}
		}
	}
	if diff := cmp.Diff(got[1], got[0]); diff != "" {
		t.Errorf("(-theirs +ours)\n%s", diff)
	}
}

func TestTakesTurnsWithTheReference(t *testing.T) {
	ours, theirs, dir := sides(t, dual)
	for i, step := range []struct {
		by        side
		verb, id  string
		addresses []string
	}{
		{theirs, "add", "c1", []string{"10.1.0.1/28 via 10.1.0.4", "fd00::1:0:0:2/80 via fd00::1:0:0:1"}},
		{ours, "add", "c2", []string{"10.1.0.2/28 via 10.1.0.4", "fd00::1:0:0:3/80 via fd00::1:0:0:1"}},
		{theirs, "add", "c3", []string{"10.1.0.3/28 via 10.1.0.4", "fd00::1:0:0:4/80 via fd00::1:0:0:1"}},
		{ours, "del", "c3", nil},
		{ours, "add", "c4", []string{"10.1.0.5/28 via 10.1.0.4", "fd00::1:0:0:5/80 via fd00::1:0:0:1"}},
		{theirs, "del", "c2", nil},
		{theirs, "add", "c5", []string{"10.1.0.6/28 via 10.1.0.4", "fd00::1:0:0:6/80 via fd00::1:0:0:1"}},
		{theirs, "del", "c4", nil},
		{ours, "del", "c5", nil},
		{ours, "del", "c1", nil},
	} {
		var got []string
		var err error
		if step.verb == "add" {
			got, err = step.by.add(step.id)
		} else {
			err = step.by.del(step.id)
		}
		if diff := cmp.Diff(step.addresses, got); diff != "" || err != nil {
			t.Fatalf("step %d, %s %s %s: %v (-want +got)\n%s", i, step.by.name, step.verb, step.id, err, diff)
		}
	}
	if diff := cmp.Diff(files{"last_reserved_ip.0": "10.1.0.6", "last_reserved_ip.1": "fd00::1:0:0:6"}, read(t, dir)); diff != "" {
		t.Errorf("folder (-want +got)\n%s", diff)
	}
}

// ledger is who holds which address, by what the sides answered.
type ledger struct {
	mu    sync.Mutex
	holds map[string]string
}

func (l *ledger) enter(t *testing.T, id string, ips []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ip := range ips {
		name, _, _ := strings.Cut(ip, "/")
		if other := l.holds[name]; other != "" {
			t.Errorf("%s for %s, %s has it", ip, id, other)
		}
		l.holds[name] = id + "\r\neth0"
	}
}

func (l *ledger) strike(ips []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ip := range ips {
		name, _, _ := strings.Cut(ip, "/")
		delete(l.holds, name)
	}
}

// work adds a hundred attachments and gives every other one back at once.
func (l *ledger) work(t *testing.T, s side, worker int) {
	for i := range 100 {
		id := fmt.Sprintf("c%d-%d", worker, i)
		ips, err := s.add(id)
		if err != nil || len(ips) != 2 {
			t.Errorf("%s: %s has %v: %v", s.name, id, ips, err)
			return
		}
		l.enter(t, id, ips)
		if i%2 == 0 {
			continue
		}
		l.strike(ips)
		if err := s.del(id); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
	}
}

// TestAtTheSameTimeAsTheReference has four workers a side. At the end each side
// releases what the other made.
func TestAtTheSameTimeAsTheReference(t *testing.T) {
	ours, theirs, dir := sides(t, `"ranges":[[{"subnet":"10.1.0.0/23"}],[{"subnet":"fd00::/64"}]]`)
	l := ledger{holds: map[string]string{}}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() { l.work(t, [...]side{ours, theirs}[w%2], w) })
	}
	wg.Wait()
	got := read(t, dir)
	for _, cursor := range []string{"last_reserved_ip.0", "last_reserved_ip.1"} {
		delete(got, cursor)
	}
	if diff := cmp.Diff(files(l.holds), got); diff != "" || len(got) != 800 {
		t.Errorf("%d files (-want +got)\n%s", len(got), diff)
	}
	for w := range 8 {
		for i := 0; i < 100; i += 2 {
			if err := [...]side{theirs, ours}[w%2].del(fmt.Sprintf("c%d-%d", w, i)); err != nil {
				t.Error(err)
			}
		}
	}
	if left := read(t, dir); len(left) != 2 {
		t.Errorf("left: %v", left)
	}
}
