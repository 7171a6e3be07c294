//go:build linux

package cases

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/trace/read"
)

// DEL leaves a child behind, which waits for the kernel in its place. Who becomes
// the child's parent is not ours to choose, so these tests have a pid namespace
// with a pid 1 of their own: this program, which envInit tells what to be.
const envInit = "TRACEWIRE_TEST_INIT"

var turns = flag.Int("turns", 50, "ADDs and DELs of each of the two loops of TestOrphans; make soak has 1000")

// runtime is a runtime that attaches and detaches two interfaces, again and again
// and at once.
const runtime = `turns() {
	i=0; while [ $i -lt $TURNS ]; do
		CNI_COMMAND=ADD "$PLUGIN" <"$CONF" >/dev/null && CNI_COMMAND=DEL "$PLUGIN" <"$CONF" || exit 1
		i=$((i+1))
	done
}
turns & one=$!
CNI_IFNAME=eth1 CNI_CONTAINERID=c2; turns && wait $one`

// inits is what pid 1 can be.
var inits = map[string]func() error{
	"reaps nobody":   neglecting,
	"reaps orphans":  reaping,
	"is the runtime": calling,
}

// neglecting waits for the runtime alone. After some turns the time is over in
// which an init should have looked.
func neglecting() error {
	some := exec.Command("sh", "-c", runtime)
	some.Env = append(os.Environ(), "TURNS=5")
	if err := some.Run(); err != nil {
		return err
	}
	const memory = "/run/tracewire/reaped"
	var pid, made int64
	b, err := os.ReadFile(memory)
	if err == nil {
		_, err = fmt.Sscan(string(b), &pid, &made)
	}
	if err == nil {
		err = os.WriteFile(memory, fmt.Appendf(nil, "%10d %19d\n", pid, made-1000), 0o600)
	}
	return errors.Join(err, exec.Command("sh", "-c", runtime).Run())
}

// reaping waits for whoever ends, as an init does, until nobody is left.
func reaping() error {
	p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", runtime}, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil //nolint:nilerr // nobody is left
		case pid == p.Pid && status != 0:
			return fmt.Errorf("the runtime ended with %d", status)
		}
	}
}

// calling runs the plugin itself.
func calling() error {
	for range 50 {
		for _, verb := range []string{"ADD", "DEL"} {
			conf, err := os.Open(os.Getenv("CONF"))
			if err != nil {
				return err
			}
			cmd := exec.Command(os.Getenv("PLUGIN"))
			cmd.Stdin, cmd.Env = conf, append(os.Environ(), "CNI_COMMAND="+verb)
			if out, err := cmd.Output(); err != nil {
				return fmt.Errorf("%s: %w: %s", verb, err, out)
			}
			_ = conf.Close()
		}
	}
	return nil
}

// TestInit is no test: it is pid 1 where envInit says so, and prints how many
// processes have no parent that waits for them.
func TestInit(t *testing.T) {
	be := inits[os.Getenv(envInit)]
	if be == nil {
		t.Skip("is run by the other tests")
	}
	// The pod's namespace is at a path below /proc, of the numbers of outside.
	path := os.Getenv("CONF") + ".netns"
	err := errors.Join(os.WriteFile(path, nil, 0o600), unix.Mount(os.Getenv("CNI_NETNS"), path, "", unix.MS_BIND, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""), os.Setenv("CNI_NETNS", path))
	if err == nil {
		err = be()
	}
	var zombies, living int
	await(t, "an end of all", func() bool { zombies, living = others(); return living == 0 })
	fmt.Println(zombies, err)
}

// others counts the processes beside us, those that ended and those that did not.
func others() (zombies, living int) {
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range all {
		b, _ := os.ReadFile(path)
		_, rest, found := strings.Cut(string(b), ") ")
		switch {
		case !found || path == "/proc/1/stat":
		case strings.HasPrefix(rest, "Z"):
			zombies++
		default:
			living++
		}
	}
	return zombies, living
}

// TestOrphans: an init that reaps nobody has the zombies of the DELs of the first
// ten seconds, however many there are.
func TestOrphans(t *testing.T) {
	needSandbox(t)
	for name, want := range map[string]struct {
		zombies int // at most
		reaped  bool
	}{"reaps nobody": {20, false}, "reaps orphans": {0, true}, "is the runtime": {0, false}} {
		t.Run(name, func(t *testing.T) {
			n := node(t)
			file, a := filepath.Join(n.Dir, "conf"), pod1(t, n)
			if err := os.WriteFile(file, []byte(conf(t, n, nil)), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(os.Args[0], "-test.run=^TestInit$")
			cmd.Env = append(n.Environment("", a), envInit+"="+name, "CONF="+file, "PLUGIN="+filepath.Join(os.Getenv("TRACEWIRE_BIN"), "tracewire"), fmt.Sprint("TURNS=", *turns))
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
			out, err := cmd.CombinedOutput()
			var zombies int
			said, _, _ := strings.Cut(string(out), "\n")
			if _, scan := fmt.Sscanf(said, "%d <nil>", &zombies); err != nil || scan != nil || zombies > want.zombies {
				t.Errorf("%v: want at most %d zombies: %s", err, want.zombies, out)
			}
			if reaped := reaped(t, n); reaped < *turns*3/2 == want.reaped {
				t.Errorf("%d of %d removals were left to a child", reaped, 2**turns)
			}
			nothingLeft(t, n)
		})
	}
}

// reaped is how many removals were left to a child.
func reaped(t *testing.T, n *attach.Node) (count int) {
	t.Helper()
	ops, err := n.Operations()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range ops {
		o.Root.Walk(func(_ int, s read.Node) {
			if s.Attributes.Value("cni.reaped") == true {
				count++
			}
		})
	}
	return count
}

// envAlone is the program that TestAlone becomes.
const envAlone = "TRACEWIRE_TEST_ALONE"

// TestAlone is no test: where envAlone says so it becomes that program, which the
// kernel refuses each child, but no thread (seccomp(2)).
func TestAlone(t *testing.T) {
	program := os.Getenv(envAlone)
	if program == "" {
		t.Skip("is run by the other tests")
	}
	const load, equal, set = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	filter := []unix.SockFilter{
		{Code: load, K: 0}, // struct seccomp_data: the number, then at 16 the first argument
		{Code: equal, K: unix.SYS_CLONE3, Jt: 3},
		{Code: equal, K: unix.SYS_CLONE, Jf: 3},
		{Code: load, K: 16},
		{Code: set, K: unix.CLONE_THREAD, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAGAIN)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	goruntime.LockOSThread()
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if err == nil {
		_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
		if errno != 0 {
			err = errno
		}
	}
	if err == nil {
		err = unix.Exec(program, []string{program}, os.Environ())
	}
	t.Fatal(err)
}

// TestNoChildCanBeMade: DEL, of rules too, waits itself where the kernel refuses
// it a child.
func TestNoChildCanBeMade(t *testing.T) {
	n := node(t)
	stdin, a := conf(t, n, map[string]string{"ipMasq": "true", "ipMasqBackend": `"nftables"`, "macspoofchk": "true"}), pod1(t, n)
	for _, verb := range []string{"ADD", "DEL"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestAlone$")
		cmd.Stdin, cmd.Env = strings.NewReader(stdin), append(n.Environment(verb, a), envAlone+"="+filepath.Join(os.Getenv("TRACEWIRE_BIN"), "tracewire"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", verb, err, out)
		}
	}
	if reaped := reaped(t, n); reaped > 0 {
		t.Errorf("%d removals were left to a child", reaped)
	}
	nothingLeft(t, n)
}
