package ipam

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain/lock"
	"github.com/tracewire/tracewire/delegates"
)

// files is a network's folder: content by name. The lock file is left out.
type files map[string]string

func (f files) write(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range f {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, dir string) files {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	f := files{}
	for _, e := range entries {
		if e.Name() == lockName || !e.Type().IsRegular() {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		f[e.Name()] = string(b)
	}
	return f
}

// serve is a HostLocal of ipam keys, its data directory and the folder of net1.
func serve(t *testing.T, keys, args string) (h HostLocal, dir string) {
	t.Helper()
	data := t.TempDir()
	conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net1","ipam":{"type":"host-local","dataDir":%q,%s}}`, data, keys)
	h, err := parse(conf, args)
	if err != nil {
		t.Fatal(err)
	}
	return h, filepath.Join(data, "net1")
}

func call(id string) delegates.Call {
	return delegates.Call{Attachment: delegates.Attachment{Network: "net1", ContainerID: id, IfName: "eth0"}}
}

func leased(r *types100.Result) []string {
	var all []string
	for _, ip := range r.IPs {
		all = append(all, ip.Address.String()+" via "+ip.Gateway.String())
	}
	return all
}

// result is an answer with addresses, some of them nil.
func result(addrs ...string) *types100.Result {
	r := &types100.Result{}
	for _, a := range addrs {
		if a == "" {
			r.IPs = append(r.IPs, nil)
			continue
		}
		ip := &types100.IPConfig{}
		ip.Address.IP = netip.MustParseAddr(a).AsSlice()
		r.IPs = append(r.IPs, ip)
	}
	return r
}

func TestAdd(t *testing.T) {
	const me, you = "c1\r\neth0", "c2\r\neth0"
	for _, tt := range []struct {
		name, keys, args string
		before           files
		want             []string
		err              string
		after            files // what is added or changed
	}{
		{"an empty folder", `"subnet":"10.1.0.0/24"`, "", nil,
			[]string{"10.1.0.2/24 via 10.1.0.1"}, "",
			files{"10.1.0.2": me, "last_reserved_ip.0": "10.1.0.2"}},
		{"after the last one", `"subnet":"10.1.0.0/24"`, "", files{"last_reserved_ip.0": "10.1.0.7"},
			[]string{"10.1.0.8/24 via 10.1.0.1"}, "",
			files{"10.1.0.8": me, "last_reserved_ip.0": "10.1.0.8"}},
		{"a shorter cursor", `"subnet":"10.1.0.0/24"`, "", files{"last_reserved_ip.0": "10.1.0.254"},
			[]string{"10.1.0.2/24 via 10.1.0.1"}, "",
			files{"10.1.0.2": me, "last_reserved_ip.0": "10.1.0.2"}},
		{"a foreign cursor", `"subnet":"10.1.0.0/24"`, "", files{"last_reserved_ip.0": "10.2.0.7"},
			[]string{"10.1.0.2/24 via 10.1.0.1"}, "",
			files{"10.1.0.2": me, "last_reserved_ip.0": "10.1.0.2"}},
		{"a broken cursor", `"subnet":"fd00::/64"`, "", files{"last_reserved_ip.0": "fd00::5%eth0 and more"},
			[]string{"fd00::2/64 via fd00::1"}, "",
			files{"fd00::2": me, "last_reserved_ip.0": "fd00::2"}},
		{"a cursor with a zone", `"subnet":"fd00::/64"`, "", files{"last_reserved_ip.0": "fd00::5%eth0"},
			[]string{"fd00::2/64 via fd00::1"}, "",
			files{"fd00::2": me, "last_reserved_ip.0": "fd00::2"}},
		{"passes over what is taken", `"subnet":"10.1.0.0/24"`, "", files{"10.1.0.2": you, "10.1.0.3": you},
			[]string{"10.1.0.4/24 via 10.1.0.1"}, "",
			files{"10.1.0.4": me, "last_reserved_ip.0": "10.1.0.4"}},
		{"goes round to the start", `"subnet":"10.1.0.0/29"`, "", files{"10.1.0.5": you, "10.1.0.6": you, "last_reserved_ip.0": "10.1.0.4"},
			[]string{"10.1.0.2/29 via 10.1.0.1"}, "",
			files{"10.1.0.2": me, "last_reserved_ip.0": "10.1.0.2"}},
		{"the last one itself is tried at the end", `"subnet":"10.1.0.0/30","gateway":"10.1.0.1"`, "", files{"last_reserved_ip.0": "10.1.0.2"},
			[]string{"10.1.0.2/30 via 10.1.0.1"}, "",
			files{"10.1.0.2": me, "last_reserved_ip.0": "10.1.0.2"}},
		{"the gateway in the middle", `"subnet":"10.1.0.0/29","gateway":"10.1.0.3"`, "", files{"last_reserved_ip.0": "10.1.0.2"},
			[]string{"10.1.0.4/29 via 10.1.0.3"}, "",
			files{"10.1.0.4": me, "last_reserved_ip.0": "10.1.0.4"}},
		{"the next range of the set", `"ranges":[[{"subnet":"10.1.0.0/30"},{"subnet":"10.2.0.0/30"}]]`, "", files{"10.1.0.2": you, "last_reserved_ip.0": "10.1.0.2"},
			[]string{"10.2.0.2/30 via 10.2.0.1"}, "",
			files{"10.2.0.2": me, "last_reserved_ip.0": "10.2.0.2"}},
		{"a gateway in another range of the set", `"ranges":[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.9"},{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.2","rangeEnd":"10.1.0.5","gateway":"10.1.0.10"}]]`, "", files{"10.1.0.9": you},
			[]string{"10.1.0.11/24 via 10.1.0.1"}, "",
			files{"10.1.0.11": me, "last_reserved_ip.0": "10.1.0.11"}},
		{"one of each set, in order", `"ranges":[[{"subnet":"fd00::/64"}],[{"subnet":"10.1.0.0/24"}]]`, "", files{"last_reserved_ip.1": "10.1.0.4"},
			[]string{"fd00::2/64 via fd00::1", "10.1.0.5/24 via 10.1.0.1"}, "",
			files{"fd00::2": me, "10.1.0.5": me, "last_reserved_ip.0": "fd00::2", "last_reserved_ip.1": "10.1.0.5"}},
		{"an IPv4 mapped cursor", `"subnet":"10.1.0.0/24"`, "", files{"last_reserved_ip.0": "::ffff:10.1.0.7"},
			[]string{"10.1.0.8/24 via 10.1.0.1"}, "",
			files{"10.1.0.8": me, "last_reserved_ip.0": "10.1.0.8"}},
		{"requested", `"subnet":"10.1.0.0/24"`, "IP=10.1.0.9", files{"last_reserved_ip.0": "10.1.0.2"},
			[]string{"10.1.0.9/24 via 10.1.0.1"}, "",
			files{"10.1.0.9": me, "last_reserved_ip.0": "10.1.0.9"}},
		{"requested and taken", `"ranges":[[{"subnet":"fd00::/64"}],[{"subnet":"10.1.0.0/24"}]]`, "IP=10.1.0.9", files{"10.1.0.9": you},
			nil, "requested address is taken: 10.1.0.9 is held by container c2 eth0",
			files{"last_reserved_ip.0": "fd00::2"}},
		{"requested, debris", `"subnet":"10.1.0.0/24"`, "IP=10.1.0.9", files{"10.1.0.9": ""},
			[]string{"10.1.0.9/24 via 10.1.0.1"}, "",
			files{"10.1.0.9": me, "last_reserved_ip.0": "10.1.0.9"}},
		{"debris is taken over (plugins#498)", `"subnet":"10.1.0.0/24"`, "", files{"10.1.0.2": ""},
			[]string{"10.1.0.2/24 via 10.1.0.1"}, "",
			files{"10.1.0.2": me, "last_reserved_ip.0": "10.1.0.2"}},
		{"another spelling is another file", `"subnet":"fd00::/64"`, "", files{"FD00::2": you, "fd00:0::2": you},
			[]string{"fd00::2/64 via fd00::1"}, "",
			files{"fd00::2": me, "last_reserved_ip.0": "fd00::2"}},
		{"exhausted", `"subnet":"10.1.0.0/30","gateway":"10.1.0.3","rangeEnd":"10.1.0.2"`, "", files{"10.1.0.1": you, "10.1.0.2": "torn"},
			nil, "no addresses available in range set 10.1.0.1-10.1.0.2: 2 of 2 in use", nil},
		{"the second set is exhausted", `"ranges":[[{"subnet":"fd00::/64"}],[{"subnet":"10.1.0.0/30"}]]`, "", files{"10.1.0.2": you},
			nil, "no addresses available in range set 10.1.0.1-10.1.0.2: 1 of 1 in use",
			files{"last_reserved_ip.0": "fd00::2"}},
		{"a large range", `"subnet":"fd00::/8"`, "", nil,
			[]string{"fd00::2/8 via fd00::1"}, "",
			files{"fd00::2": me, "last_reserved_ip.0": "fd00::2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, dir := serve(t, tt.keys, tt.args)
			tt.before.write(t, dir)
			res, err := h.Add(t.Context(), call("c1"))
			if got := fmt.Sprint(err); got != tt.err && (err != nil || tt.err != "") {
				t.Fatalf("error %s, want %s", got, tt.err)
			}
			if res != nil {
				if diff := cmp.Diff(tt.want, leased(res)); diff != "" {
					t.Errorf("addresses (-want +got)\n%s", diff)
				}
			}
			want := files{}
			for _, f := range []files{tt.before, tt.after} {
				for name, content := range f {
					want[name] = content
				}
			}
			if diff := cmp.Diff(want, read(t, dir)); diff != "" {
				t.Errorf("folder (-want +got)\n%s", diff)
			}
		})
	}
}

func TestAddAnswersWhole(t *testing.T) {
	dns := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(dns, []byte("nameserver 10.1.0.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h, dir := serve(t, fmt.Sprintf(`"subnet":"10.1.0.0/24","routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1","priority":7}],"resolvConf":%q`, dns), "")
	res, err := h.Add(t.Context(), call("c1"))
	if err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(res)
	const want = `{"cniVersion":"1.1.0","dns":{"nameservers":["10.1.0.1"]},"ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1","priority":7}]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for name, mode := range map[string]os.FileMode{"": 0o755 | os.ModeDir, "lock": 0o600, "10.1.0.2": 0o600, "last_reserved_ip.0": 0o600} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode() != mode {
			t.Errorf("%q: %v %v, want mode %v", name, st, err, mode)
		}
	}
}

func TestAddSentinels(t *testing.T) {
	h, dir := serve(t, `"subnet":"10.1.0.0/30"`, "")
	files{"10.1.0.2": "c2\r\neth0"}.write(t, dir)
	if _, err := h.Add(t.Context(), call("c1")); !errors.Is(err, ErrExhausted) {
		t.Errorf("%v is no ErrExhausted", err)
	}
	h.Sets[0].Requested = netip.MustParseAddr("10.1.0.2")
	if _, err := h.Add(t.Context(), call("c1")); !errors.Is(err, ErrTaken) {
		t.Errorf("%v is no ErrTaken", err)
	}
	h.Sets = nil
	if _, err := h.Add(t.Context(), call("c1")); !errors.Is(err, ErrNoRanges) {
		t.Errorf("%v is no ErrNoRanges", err)
	}
	for _, network := range []string{"", ".", "..", "a/b", "../net1"} {
		c := call("c1")
		c.Network = network
		for verb, do := range map[string]func(context.Context, delegates.Call) error{
			"add": func(ctx context.Context, c delegates.Call) error { _, err := h.Add(ctx, c); return err }, "del": h.Del, "check": h.Check,
		} {
			if err := do(t.Context(), c); err == nil || !strings.Contains(err.Error(), "name: must be one path element") {
				t.Errorf("%s of network %q: %v", verb, network, err)
			}
		}
	}
}

func TestAddGivesBack(t *testing.T) {
	const keys = `"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00::/64"}]]`
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, dir string)
		err   string
	}{
		{"the cursor cannot be written", func(t *testing.T, dir string) {
			if err := os.MkdirAll(filepath.Join(dir, "last_reserved_ip.1"), 0o755); err != nil {
				t.Fatal(err)
			}
		}, "open DIR/last_reserved_ip.1: is a directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, dir := serve(t, keys, "")
			tt.spoil(t, dir)
			_, err := h.Add(t.Context(), call("c1"))
			if got := strings.ReplaceAll(fmt.Sprint(err), dir, "DIR"); got != tt.err {
				t.Errorf("error %s, want %s", got, tt.err)
			}
			for name := range read(t, dir) {
				if !strings.HasPrefix(name, cursorPrefix) {
					t.Errorf("%s is left", name)
				}
			}
		})
	}
}

func TestAddOnAFullDisk(t *testing.T) {
	h, dir := serve(t, `"subnet":"10.1.0.0/24"`, "")
	if err := unix.Mount("tmpfs", h.DataDir, "tmpfs", 0, "size=64k,nr_inodes=64"); err != nil {
		t.Skipf("needs to mount a tmpfs: %v: run make test as root", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(h.DataDir, unix.MNT_DETACH) })
	if _, err := h.Add(t.Context(), call("c1")); err != nil {
		t.Fatal(err)
	}
	big, err := os.Create(filepath.Join(h.DataDir, "big"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = big.Write(make([]byte, 4096))
	}
	_ = big.Close()
	_, err = h.Add(t.Context(), call("c2"))
	if got := fmt.Sprint(err); got != "write "+dir+"/10.1.0.3: no space left on device" {
		t.Errorf("error %s", got)
	}
	if diff := cmp.Diff(files{"10.1.0.2": "c1\r\neth0", "last_reserved_ip.0": "10.1.0.2"}, read(t, dir)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if err := h.Del(t.Context(), call("c1")); err != nil {
		t.Errorf("DEL on a full disk: %v", err)
	}
	if err := unix.Mount("", h.DataDir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	_, err = h.Add(t.Context(), call("c3"))
	if got := fmt.Sprint(err); got != "open "+dir+"/10.1.0.3: read-only file system" {
		t.Errorf("error %s", got)
	}
}

// TestCursorThatIsNoFile: what has the cursor's name and is no file is neither
// waited for nor written through: it gives way, and where it cannot the address is
// given back.
func TestCursorThatIsNoFile(t *testing.T) {
	for name, tt := range map[string]struct {
		make func(path string) error
		want string
	}{
		"a pipe":   {func(p string) error { return unix.Mkfifo(p, 0o600) }, ""},
		"a folder": {func(p string) error { return os.Mkdir(p, 0o700) }, "is a directory"},
		"a link":   {func(p string) error { return os.Symlink("/none", p) }, ""},
		"zeros":    {func(p string) error { return os.WriteFile(p, make([]byte, 2_000_000), 0o600) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h, dir := serve(t, `"subnet":"10.1.0.0/24"`, "")
			path := filepath.Join(dir, "last_reserved_ip.0")
			if err := errors.Join(os.MkdirAll(dir, 0o700), tt.make(path)); err != nil {
				t.Fatal(err)
			}
			_, err := h.Add(t.Context(), call("c1"))
			status := (&memo{}).status(h, 0)
			if tt.want == "" {
				if diff := cmp.Diff(files{"10.1.0.2": "c1\r\neth0", "last_reserved_ip.0": "10.1.0.2"}, read(t, dir)); diff != "" || err != nil || status != "" {
					t.Errorf("error %v, STATUS %q (-want +got)\n%s", err, status, diff)
				}
				return
			}
			if got, want := fmt.Sprint(err), "open "+path+": "+tt.want; got != want || status != strings.ReplaceAll(want, h.DataDir, "DATA") {
				t.Errorf("error %s, STATUS %s, want %s", got, status, want)
			}
			if left, err := filepath.Glob(filepath.Join(dir, "10.*")); len(left) > 0 || err != nil {
				t.Errorf("left %q, %v", left, err)
			}
		})
	}
}

// opens counts how often a folder is opened, to be listed, while do runs.
func opens(t *testing.T, dir string, do func()) int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Skipf("needs inotify: %v", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	do()
	n, buf := 0, make([]byte, 1<<20)
	for {
		got, err := unix.Read(fd, buf)
		if err != nil || got <= 0 {
			return n
		}
		for b := buf[:got]; len(b) > 0; {
			mask, name := binary.NativeEndian.Uint32(b[4:]), binary.NativeEndian.Uint32(b[12:])
			if mask&unix.IN_ISDIR != 0 {
				n++
			}
			b = b[unix.SizeofInotifyEvent+name:]
		}
	}
}

func TestAddListsOnlyAfterItsProbes(t *testing.T) {
	for _, tt := range []struct {
		name, keys, last string
		from, to         int // the hosts taken before, of 10.1.0.0/16
		want             string
		opens            int
	}{
		{"5000 taken, next is free", `"subnet":"10.1.0.0/16"`, "10.1.19.136", 2, 5000, "10.1.19.137", 0},
		{"64th is free", `"subnet":"10.1.0.0/16"`, "10.1.0.1", 2, 64, "10.1.0.65", 0},
		{"65th is free", `"subnet":"10.1.0.0/16"`, "10.1.0.1", 2, 65, "10.1.0.66", 1},
		{"5000 taken, no cursor", `"subnet":"10.1.0.0/16"`, "", 2, 5000, "10.1.19.137", 1},
		{"a full /22 but one", `"subnet":"10.1.0.0/22"`, "10.1.2.0", 3, 1022, "10.1.0.2", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, dir := serve(t, tt.keys, "")
			before := files{}
			if tt.last != "" {
				before["last_reserved_ip.0"] = tt.last
			}
			for i := tt.from; i <= tt.to; i++ {
				before[fmt.Sprintf("10.1.%d.%d", i/256, i%256)] = "c2\r\neth0"
			}
			before.write(t, dir)
			var res *types100.Result
			var err error
			n := opens(t, dir, func() { res, err = h.Add(t.Context(), call("c1")) })
			if err != nil {
				t.Fatal(err)
			}
			if got := res.IPs[0].Address.IP.String(); got != tt.want || n != tt.opens {
				t.Errorf("%s after %d listings, want %s after %d", got, n, tt.want, tt.opens)
			}
		})
	}
}

func TestAddOfAFullFolder(t *testing.T) {
	h, dir := serve(t, `"subnet":"10.1.0.0/24"`, "")
	full := files{}
	for i := 2; i <= 254; i++ {
		full[fmt.Sprint("10.1.0.", i)] = "c2\r\neth0"
	}
	full["10.1.0.200"] = ""
	full.write(t, dir)
	res, err := h.Add(t.Context(), call("c1"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"10.1.0.200/24 via 10.1.0.1"}, leased(res)); diff != "" {
		t.Errorf("debris was not taken over (-want +got)\n%s", diff)
	}
	_, err = h.Add(t.Context(), call("c3"))
	if got := fmt.Sprint(err); got != "no addresses available in range set 10.1.0.1-10.1.0.254: 253 of 253 in use" {
		t.Errorf("error %s", got)
	}
}

func TestDel(t *testing.T) {
	const me, you, other = "c1\r\neth0", "c2\r\neth0", "c1\r\neth1"
	for _, tt := range []struct {
		name   string
		before files
		made   delegates.Made
		prev   string
		gone   []string
	}{
		{"no folder", nil, delegates.Made{}, "", nil},
		{"by its record", files{"10.1.0.2": me, "10.1.0.3": me, "fd00::2": me},
			delegates.Made{Known: true, Reserved: result("10.1.0.2", "", "fd00::2"), Result: result("10.1.0.2", "10.1.0.9")}, "", []string{"10.1.0.2", "fd00::2"}},
		{"what the result lists too", files{"10.1.0.2": me, "10.1.0.3": me},
			delegates.Made{Known: true, Reserved: result("10.1.0.2"), Result: result("10.1.0.3")}, "", []string{"10.1.0.2", "10.1.0.3"}},
		{"listed, of others", files{"10.1.0.2": you, "10.1.0.3": other, "10.1.0.5": "junk"},
			delegates.Made{Known: true, Reserved: result("10.1.0.2", "10.1.0.3", "10.1.0.5")}, "", nil},
		{"listed, broken off", files{"10.1.0.2": "c", "10.1.0.3": "c1\r\net", "10.1.0.4": "c1\r\neth01"},
			delegates.Made{Known: true, Reserved: result("10.1.0.2", "10.1.0.3", "10.1.0.4")}, "", []string{"10.1.0.2", "10.1.0.3"}},
		{"listed, in the old form", files{"10.1.0.2": "c1\n"}, delegates.Made{Known: true, Reserved: result("10.1.0.2")}, "", []string{"10.1.0.2"}},
		{"the record ends before the addresses", files{"10.1.0.2": me, "10.1.0.3": you}, delegates.Made{Known: true}, "", []string{"10.1.0.2"}},
		{"killed before it wrote who holds the address", files{"10.1.0.2": me, "10.1.0.3": you, "fd00::2": ""}, delegates.Made{Known: true}, "", []string{"10.1.0.2", "fd00::2"}},
		{"the record lists none", files{"10.1.0.2": me}, delegates.Made{Known: true, Reserved: result(), Result: result("")}, "", []string{"10.1.0.2"}},
		{"no record", files{"10.1.0.2": me + "\n", "10.1.0.3": you, "10.1.0.4": other, "10.1.0.5": "", "10.1.0.6": "c1", "fd00::2": me, "lost": me,
			"last_reserved_ip.0": me, "last_reserved_ip.9": "10.1.0.2"}, delegates.Made{}, "", []string{"10.1.0.2", "10.1.0.5", "fd00::2", "lost"}},
		{"no record, in the old form", files{"10.1.0.2": "c1\r\n", "10.1.0.3": "c1", "10.1.0.4": "c2", "10.1.0.5": other, "10.1.0.6": ""}, delegates.Made{}, "", []string{"10.1.0.2", "10.1.0.3", "10.1.0.6"}},
		{"prevResult", files{"10.1.0.2": me, "10.1.0.3": you, "fd00::2": me}, delegates.Made{},
			`{"ips":[null,{"address":"10.1.0.2/24"},{"address":"10.1.0.3/24"}]}`, []string{"10.1.0.2", "fd00::2"}},
		{"prevResult of 0.2.0", files{"10.1.0.2": "c1", "fd00::2": "c1"}, delegates.Made{},
			`{"ip4":{"ip":"10.1.0.2/24"},"ip6":{"ip":"fd00::2/64"}}`, []string{"10.1.0.2", "fd00::2"}},
		{"prevResult is garbage", files{"10.1.0.2": me}, delegates.Made{},
			`{"ips":[5,"x",{"address":7},{"address":"../10.1.0.3"},{"address":null}],"ip4":[]}`, []string{"10.1.0.2"}},
		{"prevResult is no object", files{"10.1.0.2": me}, delegates.Made{}, `[`, []string{"10.1.0.2"}},
		{"prevResult with nulls", files{"10.1.0.2": me}, delegates.Made{}, `{"ips":null,"ip4":null}`, []string{"10.1.0.2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, dir := serve(t, `"subnet":"10.1.0.0/24"`, "")
			if tt.before != nil {
				tt.before.write(t, dir)
			}
			h.Sets = nil // a configuration that lost its ranges
			c := call("c1")
			c.Made, c.Prev = tt.made, json.RawMessage(tt.prev)
			if err := h.Del(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			want := files{}
			for name, content := range tt.before {
				want[name] = content
			}
			for _, name := range tt.gone {
				delete(want, name)
			}
			if diff := cmp.Diff(want, read(t, dir)); diff != "" {
				t.Errorf("folder (-want +got)\n%s", diff)
			}
			if _, err := os.Stat(dir); tt.before == nil && !os.IsNotExist(err) {
				t.Errorf("DEL made the folder: %v", err)
			}
			if err := h.Del(t.Context(), c); err != nil {
				t.Errorf("again: %v", err)
			}
		})
	}
}

func TestDelWithARecordListsNothing(t *testing.T) {
	h, dir := serve(t, `"subnet":"10.1.0.0/24"`, "")
	c := call("c1")
	res, err := h.Add(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	c.Made = delegates.Made{Known: true, Reserved: res}
	if n := opens(t, dir, func() { err = h.Del(t.Context(), c) }); n != 0 || err != nil {
		t.Errorf("%d listings, error %v", n, err)
	}
}

// strange puts what is no regular file where reservations are.
func strange(t *testing.T, dir string) {
	t.Helper()
	files{"10.1.0.9": "c9\r\neth0"}.write(t, dir)
	for name, err := range map[string]error{
		"a folder":        os.Mkdir(filepath.Join(dir, "10.1.0.2"), 0o755),
		"a FIFO":          unix.Mkfifo(filepath.Join(dir, "10.1.0.3"), 0o600),
		"a symbolic link": os.Symlink("10.1.0.9", filepath.Join(dir, "10.1.0.4")),
		"a broken link":   os.Symlink("none", filepath.Join(dir, "10.1.0.5")),
	} {
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func TestStrangeFiles(t *testing.T) {
	h, dir := serve(t, `"subnet":"10.1.0.0/24"`, "")
	strange(t, dir)
	res, err := h.Add(t.Context(), call("c1"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"10.1.0.6/24 via 10.1.0.1"}, leased(res)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, made := range []delegates.Made{{}, {Known: true, Reserved: result("10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5")}} {
		c := call("c9")
		c.Made = made
		err := h.Check(t.Context(), c)
		if found, _ := errors.AsType[delegates.Findings](err); made.Reserved != nil && len(found) != 4 {
			t.Errorf("CHECK: %v", err)
		}
		if err := h.Del(t.Context(), c); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	for name, stays := range map[string]bool{"10.1.0.2": true, "10.1.0.3": false, "10.1.0.4": false, "10.1.0.5": false, "10.1.0.9": false} {
		if _, err := os.Lstat(filepath.Join(dir, name)); (err == nil) != stays {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheck(t *testing.T) {
	const me, you = "c1\r\neth0", "c2\r\neth0"
	finding := func(expected, found string) delegates.Findings {
		return delegates.Findings{{Code: "ipam.reservation", Expected: expected, Found: found}}
	}
	one := delegates.Made{Known: true, Reserved: result("10.1.0.2"), Result: result("10.1.0.2", "10.9.9.9")}
	final := result("10.1.0.2", "10.9.9.9") // another plugin's address is not of the ranges
	for _, tt := range []struct {
		name   string
		before files
		made   delegates.Made
		want   error
	}{
		{"as it was", files{"10.1.0.2": me}, one, nil},
		{"in the old form", files{"10.1.0.2": "c1"}, one, nil},
		{"no folder", nil, one, finding("10.1.0.2 held by c1 eth0", "no reservation")},
		{"another address is no substitute", files{"10.1.0.3": me}, one, finding("10.1.0.2 held by c1 eth0", "no reservation")},
		{"held by another", files{"10.1.0.2": you}, one, finding("10.1.0.2 held by c1 eth0", "held by c2 eth0")},
		{"empty", files{"10.1.0.2": ""}, one, finding("10.1.0.2 held by c1 eth0", "a file without a holder")},
		{"of a plan", files{}, delegates.Made{Known: true, Result: result("fd00::2")}, finding("fd00::2 held by c1 eth0", "no reservation")},
		{"two", files{}, delegates.Made{Known: true, Reserved: result("10.1.0.2", "fd00::2")},
			append(finding("10.1.0.2 held by c1 eth0", "no reservation"), finding("fd00::2 held by c1 eth0", "no reservation")...)},
		{"no record", files{"10.1.0.3": me}, delegates.Made{}, nil},
		{"no record, in the old form", files{"10.1.0.3": "c1"}, delegates.Made{}, nil},
		{"no record, of others", files{"10.1.0.3": you, "10.1.0.4": ""}, delegates.Made{}, finding("an address held by c1 eth0", "no reservation")},
		{"no record, the final result", files{"10.1.0.2": me}, delegates.Made{}, nil},
		{"no record, another than in the final result", files{"10.1.0.3": me}, delegates.Made{}, finding("10.1.0.2 held by c1 eth0", "no reservation")},
		{"no record, no folder", nil, delegates.Made{}, finding("an address held by c1 eth0", "no reservation")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, dir := serve(t, `"subnet":"10.1.0.0/24"`, "")
			if tt.before != nil {
				tt.before.write(t, dir)
			}
			c := call("c1")
			c.Made = tt.made
			if strings.Contains(tt.name, "final result") {
				c.Before = final
			}
			if diff := cmp.Diff(tt.want, h.Check(t.Context(), c)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(tt.before, read(t, dir), cmp.Comparer(func(a, b files) bool { return fmt.Sprint(a) == fmt.Sprint(b) })); diff != "" {
				t.Errorf("CHECK wrote (-want +got)\n%s", diff)
			}
		})
	}
}

// childLock makes this test binary a process that holds a file's flock until
// its standard input ends.
const childLock = "TRACEWIRE_TEST_FLOCK"

func TestMain(m *testing.M) {
	if path := os.Getenv(childLock); path != "" {
		if _, err := lock.Flock(context.Background(), path); err != nil {
			os.Exit(1)
		}
		_, _ = os.Stdout.WriteString("held\n")
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func holdLock(t *testing.T, path string) (pid int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childLock+"="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("the holder said %q", line)
	}
	return cmd.Process.Pid
}

func TestLockHeldByAnotherProcess(t *testing.T) {
	h, dir := serve(t, `"subnet":"10.1.0.0/24"`, "")
	before := files{"10.1.0.2": "c1\r\neth0"}
	before.write(t, dir)
	pid := holdLock(t, filepath.Join(dir, lockName))
	for _, tt := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"add", func(ctx context.Context) error { _, err := h.Add(ctx, call("c2")); return err }},
		{"del", func(ctx context.Context) error { return h.Del(ctx, call("c1")) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			err := tt.do(ctx)
			got, _ := errors.AsType[*lock.Held](err)
			if diff := cmp.Diff(&lock.Held{What: filepath.Join(dir, lockName), PID: pid}, got); diff != "" {
				t.Errorf("%v (-want +got)\n%s", err, diff)
			}
			if diff := cmp.Diff(before, read(t, dir)); diff != "" {
				t.Errorf("folder (-want +got)\n%s", diff)
			}
		})
	}
	if err := h.Check(t.Context(), call("c1")); err != nil {
		t.Errorf("CHECK takes no lock: %v", err)
	}
}

func TestAtTheSameTime(t *testing.T) {
	h, dir := serve(t, `"ranges":[[{"subnet":"10.1.0.0/22"}],[{"subnet":"fd00::/64"}]]`, "")
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 100 {
				if _, err := h.Add(t.Context(), call(fmt.Sprintf("c%d-%d", w, i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	holders := map[string]int{}
	for name, content := range read(t, dir) {
		if !strings.HasPrefix(name, cursorPrefix) {
			holders[content]++
		}
	}
	if len(holders) != 800 {
		t.Errorf("%d holders, want 800", len(holders))
	}
	for holder, n := range holders {
		if n != 2 {
			t.Errorf("%q holds %d addresses", holder, n)
		}
	}
}
