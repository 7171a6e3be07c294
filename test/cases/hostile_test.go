//go:build linux

package cases

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/test/attach"
)

// tree is everything below a folder: names, kinds, and what files hold.
func tree(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		line := strings.TrimPrefix(path, dir) + " " + d.Type().String()
		if d.Type().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + string(b)
		}
		out = append(out, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestHostileNames: no name leads out of the folders it names a file in,
// whichever verb it comes with.
func TestHostileNames(t *testing.T) {
	needSandbox(t)
	long := strings.Repeat("n", 300)
	for _, name := range []string{"..", ".", "../../evil", "/evil", "a/b", "a\x00b", "évil", "net\n", "", long, "../" + long} {
		for _, verb := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
			t.Run(fmt.Sprintf("%.12q %s", name, verb), func(t *testing.T) {
				n := node(t)
				quoted, err := json.Marshal(name)
				if err != nil {
					t.Fatal(err)
				}
				network := conf(t, n, map[string]string{"name": string(quoted), "ipam.ranges": `"wrong"`}) // so that STATUS fails
				plain := conf(t, n, nil)
				pod := pod1(t, n)
				before, run := outsideOf(t, n), slices.Concat(tree(t, "/run"), tree(t, "/var/lib/cni"))
				for _, call := range []struct {
					stdin      string
					id, ifName string
					refused    bool
				}{
					{network, pod.ContainerID, pod.IfName, verb == "ADD" || verb == "CHECK"},
					{plain, name, pod.IfName, verb == "ADD" && name != long},
					{plain, pod.ContainerID, name, verb == "ADD" && name != "évil"}, // the kernel takes it
				} {
					if strings.ContainsRune(call.id+call.ifName, 0) {
						continue // no environment has it
					}
					a := attach.Attachment{ContainerID: call.id, IfName: call.ifName, NetNS: pod.NetNS}
					got := raw(t, n, verb, call.stdin, n.Environment(verb, a))
					if call.refused && got.Exit == 0 {
						t.Errorf("%s of container %q, interface %q: success", verb, call.id, call.ifName)
					}
				}
				if diff := cmp.Diff(before, outsideOf(t, n)); diff != "" {
					t.Errorf("-before +after:\n%s", diff)
				}
				after := slices.DeleteFunc(slices.Concat(tree(t, "/run"), tree(t, "/var/lib/cni")), func(f string) bool { return strings.HasPrefix(f, "/tracewire") })
				if diff := cmp.Diff(slices.DeleteFunc(run, func(f string) bool { return strings.HasPrefix(f, "/tracewire") }), after); diff != "" {
					t.Errorf("-before +after:\n%s", diff)
				}
				for _, escaped := range []string{"evil", "/evil", "/run/evil"} {
					if found, _ := filepath.Glob(escaped + "*"); len(found) > 0 {
						t.Errorf("written: %q", found)
					}
				}
			})
		}
	}
}

// outsideOf is the node's files but for those of state, log and store.
func outsideOf(t *testing.T, n *attach.Node) []string {
	t.Helper()
	return slices.DeleteFunc(files(t, n.Dir), func(f string) bool {
		return strings.HasPrefix(f, "state/") || strings.HasPrefix(f, "log/") || strings.HasPrefix(f, "ipam/")
	})
}

// TestHostileLinks: nothing is written or removed behind a symbolic link that
// somebody planted, and no DEL or GC is stuck on it.
func TestHostileLinks(t *testing.T) {
	needSandbox(t)
	const refused = "5 too many levels of symbolic links"
	for _, tt := range []struct {
		name string
		// plant puts a link where path is, below the node's folder; its target exists.
		path   string
		target string // below outside
		broken bool   // the record is, too
		add    string // error of the next ADD
	}{
		{"records of the network", "state/attachments/net", "net", false, refused},
		{"records", "state/attachments", "", false, refused},
		{"one record", recordPath, "net/c1:eth0", false, ""},
		{"quarantine", "state/quarantine", "net", true, ""},
		{"lock", "state/lock", "file", false, refused},
		{"marks of networks", "state/networks", "", false, refused},
		{"the network's mark", "state/networks/net", "file", false, ""},           // DEL removes the link
		{"cursor of addresses", "ipam/net/last_reserved_ip.0", "file", false, ""}, // ADD removes the link
		{"lock of addresses", "ipam/net/lock", "file", false, "11 ipam/net/lock: too many levels of symbolic links"},
		{"an address", "ipam/net/10.77.0.3", "file", false, ""},
		{"an old segment", "state/spool/19700101T0000Z.jsonl", "file", false, ""},
		{"a folder as an old segment", "state/spool/19700101T0001Z.jsonl", "net", false, ""},
	} {
		for _, e := range endings {
			t.Run(tt.name+", "+e.name, func(t *testing.T) {
				l := newRounds(t, map[string]string{"ipMasq": "true", "tracewire.spool.maxBytes": "1"})
				b := l.begin(t)
				outside := filepath.Join(l.Dir, "outside")
				for name, text := range map[string]string{"net/c1:eth0": string(b), "net/c9:eth0": "", "file": "as it was"} {
					if err := errors.Join(os.MkdirAll(filepath.Join(outside, "net"), 0o700), os.WriteFile(filepath.Join(outside, name), []byte(text), 0o600)); err != nil {
						t.Fatal(err)
					}
				}
				if tt.broken {
					if err := os.WriteFile(l.record, nil, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				path := filepath.Join(l.Dir, tt.path)
				before := tree(t, outside)
				if err := errors.Join(os.RemoveAll(path), os.MkdirAll(filepath.Dir(path), 0o700), os.Symlink(filepath.Join(outside, tt.target), path)); err != nil {
					t.Fatal(err)
				}
				wantEnd := ""
				if tt.name == "lock of addresses" {
					wantEnd = "11 ipam: open @DIR@/ipam/net/lock: too many levels of symbolic links"
				}
				status := ""
				if tt.name == "lock of addresses" {
					status = "50 ipam: open @DIR@/ipam/net/lock: too many levels of symbolic links"
				}
				if strings.HasPrefix(tt.path, "state/") && tt.add == refused && tt.name != "marks of networks" {
					status = "50 too many levels of symbolic links"
				}
				if problem := expected(poll(t, l.Node, l.stdin).Err(), status, l.Normal); problem != nil {
					t.Errorf("STATUS: %v", problem)
				}
				if problem := expected(l.end(t, e).Err(), wantEnd, l.Normal); problem != nil {
					t.Error(problem)
				}
				if links, err := l.Links(); len(links) > 0 || err != nil {
					t.Errorf("interfaces %q, %v", links, err)
				}
				err := raw(t, l.Node, "ADD", l.stdin, l.Environment("ADD", l.pod)).Err()
				if problem := expected(err, tt.add, l.Normal); problem != nil {
					t.Errorf("the next ADD: %v", problem)
				}
				if err == nil {
					_ = l.end(t, endings[1])
				}
				if diff := cmp.Diff(before, tree(t, outside)); diff != "" {
					t.Errorf("outside: -before +after:\n%s", diff)
				}
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
				l.ended(t, "without the link", endings[1])
			})
		}
	}
}

// TestHostileSegments: a DEL that has to look into the spool, whether an ADD told
// of itself, is not stopped by what stands there in the place of segments.
func TestHostileSegments(t *testing.T) {
	l := newRounds(t, nil)
	b := l.begin(t)
	spool := filepath.Join(l.Dir, "state", "spool")
	told := bytes.LastIndexByte(b[:len(b)-1], '\n') + 1
	if err := errors.Join(os.WriteFile(l.record, b[:told], 0o600), os.RemoveAll(spool),
		eachFile(spool, func(p string) error { return unix.Mkfifo(p, 0o600) })); err != nil {
		t.Fatal(err)
	}
	l.ended(t, "pipes", endings[1])
}

// TestHostileModes: where others could swap the state directory, or what is in
// it, no ADD begins, the second as little as the first, and nothing of ours comes
// there, a spool neither; what is there is taken back with a warning.
func TestHostileModes(t *testing.T) {
	const open = 0o777
	for _, tt := range []struct {
		name, path string // below the node's folder
		mode       uint32
		owner      int
		made       bool // the state directory is there already
		refused    string
	}{
		{"all may write to it", "up/state", open, 0, true, "mode 0777 lets others write to it"},
		{"all may write to it, sticky", "up/state", open | unix.S_ISVTX, 0, true, ""},
		{"all may write above it", "up", open, 0, false, "mode 0777 lets others write to it"},
		{"all may write above it, which is ours", "up", open, 0, true, "mode 0777 lets others write to it"},
		{"all may write above it, sticky, which is ours", "up", open | unix.S_ISVTX, 0, true, ""},
		{"all may write above it, sticky", "up", open | unix.S_ISVTX, 0, false, ""},
		{"its group may, which is root's", "up/state", 0o770, 0, true, ""},
		{"another's", "up/state", 0o700, 1000, true, "it is owned by user 1000"},
		{"another's above it", "up", 0o755, 1000, false, "it is owned by user 1000"},
		{"all may read it", "up/state", 0o755, 0, true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			needSandbox(t)
			l := newRounds(t, map[string]string{"tracewire.stateDir": `"@DIR@/up/state"`})
			l.stdin = strings.ReplaceAll(l.stdin, attach.Dir, l.Dir)
			l.record = filepath.Join(l.Dir, "up", recordPath)
			state, path := filepath.Join(l.Dir, "up", "state"), filepath.Join(l.Dir, tt.path)
			if err := os.MkdirAll(filepath.Dir(state), 0o700); err != nil {
				t.Fatal(err)
			}
			if tt.made {
				if err := os.Mkdir(state, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(os.Chown(path, tt.owner, 0), unix.Chmod(path, tt.mode)); err != nil {
				t.Skipf("%v: run make test as root", err)
			}
			before, want := tree(t, filepath.Join(l.Dir, "up")), ""
			if tt.refused != "" {
				want = "5 state directory is not ours alone: trust @DIR@/" + tt.path + ": " + tt.refused
				if problem := expected(raw(t, l.Node, "ADD", l.stdin, l.Environment("ADD", l.pod)).Err(), want, l.Normal); problem != nil {
					t.Errorf("the first ADD: %v", problem)
				}
			}
			if problem := expected(raw(t, l.Node, "ADD", l.stdin, l.Environment("ADD", l.pod)).Err(), want, l.Normal); problem != nil {
				t.Error(problem)
			}
			if tt.refused == "" {
				if err := l.end(t, endings[1]).Err(); err != nil {
					t.Error(describe(err))
				}
				return
			}
			if problem := expected(poll(t, l.Node, l.stdin).Err(), "50 "+tt.refused, l.Normal); problem != nil {
				t.Errorf("STATUS: %v", problem)
			}
			if diff := cmp.Diff(before, tree(t, filepath.Join(l.Dir, "up"))); diff != "" {
				t.Errorf("-before +after:\n%s", diff)
			}
			for _, e := range endings {
				if err := l.end(t, e).Err(); err != nil {
					t.Errorf("%s: %s", e.name, describe(err))
				}
			}
			w := slices.DeleteFunc(l.warned(t), func(w [2]string) bool { return w[0] != "the next ADD will fail" })
			if len(w) != len(endings) {
				t.Errorf("%d warnings, want %d", len(w), len(endings))
			}
		})
	}
}

// TestHostileInterfaces: an interface that has a name of ours and is a stranger's
// is never touched.
func TestHostileInterfaces(t *testing.T) {
	for _, strangers := range []int{1, 2} {
		for _, alias := range []string{"", "tracewire:net/c9:eth0", "somebody's"} {
			t.Run(fmt.Sprintf("%d %q", strangers, alias), func(t *testing.T) {
				l := newRounds(t, map[string]string{"tracewire.syncDelete": "true"})
				names := veth.HostNames("net/c1:eth0")
				for i := range strangers {
					link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: names[i]}, PeerName: fmt.Sprint("other", i)}
					if err := netlink.LinkAdd(link); err != nil {
						t.Fatal(err)
					}
					made, err := netlink.LinkByName(names[i])
					if err == nil && alias != "" {
						err = netlink.LinkSetAlias(made, alias)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				before := indexes(t, names[:strangers])
				err := raw(t, l.Node, "ADD", l.stdin, l.Environment("ADD", l.pod)).Err()
				want := ""
				if strangers == len(names) {
					want = "102 both names of the host end are taken"
				}
				if problem := expected(err, want, l.Normal); problem != nil {
					t.Error(problem)
				}
				for _, e := range endings {
					if e.verb == "GC" && alias == "tracewire:net/c9:eth0" {
						continue // it says of itself that it is ours, and no list names it
					}
					if err := l.end(t, e).Err(); err != nil {
						t.Errorf("%s: %s", e.name, describe(err))
					}
				}
				if diff := cmp.Diff(before, indexes(t, names[:strangers])); diff != "" {
					t.Errorf("-before +after:\n%s", diff)
				}
			})
		}
	}
}

func indexes(t *testing.T, names []string) (out []int) {
	t.Helper()
	for _, name := range names {
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out = append(out, l.Attrs().Index)
	}
	return out
}

// TestHostileValues: whatever bytes a value has, log and spool stay one JSON
// document a line, without control characters, and answers one document.
func TestHostileValues(t *testing.T) {
	const odd = "a\nb\r\x1b[31mc\x7f\u0085\u2028\xff\"\\{}"
	n := node(t, plugin(t, "leases", "[ \"$CNI_COMMAND\" = DEL ] && exit 0\nprintf '"+`evil\nline\033[2J\377`+"' >&2; printf '"+`{"code": 7, "msg": "a\\nb\\u001b[31m", "details": "\\u0007"}`+"'; exit 1\n"))
	pod := pod1(t, n)
	pod.Args = [][2]string{{"K8S_POD_NAME", odd}, {"K8S_POD_NAMESPACE", odd}, {"K8S_POD_UID", odd}, {"IgnoreUnknown", "1"}}
	for name, set := range map[string]map[string]string{
		"attached":    {"tracewire.log.level": `"debug"`},
		"odd value":   {"tracewire.mode": `"a\n\u001b[31m\u0000"`},
		"odd key":     {"tracewire.a\nb\x1b": `1`},
		"odd bridge":  {"bridge": `"b\n\u001b"`},
		"odd plugin":  {"ipam": `{"type": "a\n\u001b"}`},
		"odd answer":  {"ipam": `{"type": "leases"}`},
		"odd network": {"name": `"n\n\u001b\u0000"`},
	} {
		stdin := conf(t, n, set)
		for _, verb := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
			env := n.Environment(verb, pod)
			call := raw(t, n, verb, stdin, append(env, "TRACEPARENT="+odd, "TRACESTATE="+odd))
			if bytes.ContainsFunc(bytes.TrimSpace(call.Stdout), func(r rune) bool { return r != '\n' && unicode.IsControl(r) }) {
				t.Errorf("%s, %s: standard output %q", name, verb, call.Stdout)
			}
		}
	}
	logSound(t, n)
	for _, path := range append(glob(t, n, "state/spool/*"), filepath.Join(n.Dir, "log", "tracewire.jsonl")) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			text := strings.TrimSuffix(line, "\n")
			if !utf8.ValidString(text) || !json.Valid([]byte(text)) || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' }) {
				t.Errorf("%s has the line %q", filepath.Base(path), line)
			}
		}
	}
	nothingLeft(t, n)
}

func glob(t *testing.T, n *attach.Node, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(n.Dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// plugin is a folder with an executable of that name, a shell script.
func plugin(t *testing.T, name, script string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestHostilePath: no plugin is taken from a folder that the entry of CNI_PATH
// names only together with where the runtime happens to run.
func TestHostilePath(t *testing.T) {
	evil := plugin(t, "leases", "echo run >>\"${0%/*}/ran\"; "+`echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.77.0.9/24"}]}'`+"\n")
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(here, evil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, path string }{
		{"relative", relative},
		{"relative, among others", "/nowhere:" + relative + ":/none"},
		{"this folder", "."},
		{"empty entries", ":/nowhere:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := node(t)
			stdin := conf(t, n, map[string]string{"ipam": `{"type": "leases"}`})
			env := func(verb string) []string {
				return append(slices.DeleteFunc(n.Environment(verb, pod1(t, n)), func(kv string) bool { return strings.HasPrefix(kv, "CNI_PATH=") }), "CNI_PATH="+tt.path)
			}
			if problem := expected(raw(t, n, "ADD", stdin, env("ADD")).Err(), "105 leases: no executable in CNI_PATH", n.Normal); problem != nil {
				t.Error(problem)
			}
			if problem := expected(raw(t, n, "STATUS", stdin, env("STATUS")).Err(), "50 leases: no executable in CNI_PATH", n.Normal); problem != nil {
				t.Errorf("STATUS: %v", problem)
			}
			if err := raw(t, n, "DEL", stdin, env("DEL")).Err(); err != nil {
				t.Error(describe(err))
			}
			log, err := os.ReadFile(filepath.Join(n.Dir, "log", "tracewire.jsonl"))
			if passed := strings.Contains(string(log), "relative entries of CNI_PATH are passed over"); err != nil || passed != (tt.name != "empty entries") {
				t.Errorf("warned: %t, %v", passed, err)
			}
			if exists(filepath.Join(evil, "ran")) {
				t.Error("the plugin was run")
			}
			nothingLeft(t, n)
		})
	}
}

// TestHostileExecutables: what has a plugin's name and is none.
func TestHostileExecutables(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(path string) error
		want string
	}{
		{"not executable", func(p string) error { return os.WriteFile(p, []byte("#!/bin/sh\n"), 0o600) }, "leases: fork/exec @DIR@/plugins/leases: permission denied"},
		{"a folder", func(p string) error { return os.Mkdir(p, 0o700) }, "leases: no executable in CNI_PATH"},
		{"a pipe", func(p string) error { return unix.Mkfifo(p, 0o700) }, "leases: no executable in CNI_PATH"},
		{"a socket", func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o700, 0) }, "leases: no executable in CNI_PATH"},
		{"a link to nothing", func(p string) error { return os.Symlink("none", p) }, "leases: no executable in CNI_PATH"},
		{"a link to itself", func(p string) error { return os.Symlink(p, p) }, "leases: no executable in CNI_PATH"},
		{"empty", func(p string) error { return os.WriteFile(p, nil, 0o700) }, "leases: fork/exec @DIR@/plugins/leases: exec format error"},
		{"no program", func(p string) error { return os.WriteFile(p, []byte{0, 1, 2}, 0o700) }, "leases: fork/exec @DIR@/plugins/leases: exec format error"},
		{"a script of no shell", func(p string) error { return os.WriteFile(p, []byte("#!/none\n"), 0o700) }, "leases: fork/exec @DIR@/plugins/leases: no such file or directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := node(t)
			path := filepath.Join(n.Dir, "plugins", "leases")
			if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), tt.make(path)); err != nil {
				t.Fatal(err)
			}
			stdin := conf(t, n, map[string]string{"ipam": `{"type": "leases"}`})
			env := append(slices.DeleteFunc(n.Environment("ADD", pod1(t, n)), func(kv string) bool { return strings.HasPrefix(kv, "CNI_PATH=") }), "CNI_PATH="+filepath.Dir(path))
			if problem := expected(raw(t, n, "ADD", stdin, env).Err(), "105 "+tt.want, n.Normal); problem != nil {
				t.Error(problem)
			}
			nothingLeft(t, n)
			if err := raw(t, n, "DEL", stdin, append(env, "CNI_COMMAND=DEL")).Err(); err != nil {
				t.Error(describe(err))
			}
		})
	}
}

// TestHostileSecrets: what only the runtime and the plugins are to know is in
// neither log nor spool, whatever the operation comes to.
func TestHostileSecrets(t *testing.T) {
	const secret = "hunter2-c2VjcmV0Cg=="
	leases := plugin(t, "leases", `[ "$CNI_COMMAND" = CHECK ] && exit 1`+"\n"+`echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.77.0.9/24"}]}'`+"\n")
	n := node(t, leases)
	pod := pod1(t, n)
	pod.Args = [][2]string{{"K8S_POD_NAME", "web-0"}, {"TOKEN", "hunter2-c2VjcmV0Cg"}, {"PASSWORD", secret}}
	whole := pod
	whole.Args = pod.Args[:2]
	stdin := conf(t, n, map[string]string{
		"ipam": `{"type": "leases", "password": "` + secret + `"}`, "password": `"` + secret + `"`, "args.cni.token": `"` + secret + `"`,
		"runtimeConfig.token": `"` + secret + `"`, "tracewire.log.level": `"debug"`,
	})
	for _, a := range []attach.Attachment{whole, pod} { // the second one's are malformed
		for _, verb := range []string{"ADD", "CHECK", "STATUS", "GC", "DEL"} {
			_ = raw(t, n, verb, stdin, n.Environment(verb, a))
		}
	}
	for _, path := range append(glob(t, n, "state/spool/*"), glob(t, n, "log/*")...) {
		if b, err := os.ReadFile(path); err != nil || bytes.Contains(b, []byte("hunter2")) {
			t.Errorf("%s has it, %v:\n%s", path, err, b)
		}
	}
	nothingLeft(t, n)
}
