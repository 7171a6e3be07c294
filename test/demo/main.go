//go:build linux

// Command demo shows one pod's life with tracewire: a network namespace is
// attached through a real configuration list, packets are exchanged, the
// attachment is checked and removed, and each operation's trace is drawn. All
// of it happens in namespaces of its own, which end with it. `make demo` runs it.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/test/attach"
	"github.com/tracewire/tracewire/trace/read"
)

//go:embed demo.conflist
var conflist []byte

// inside is the argument of the demo in its own namespaces.
const inside = "--inside"

func main() {
	run := outside
	if len(os.Args) == 3 && os.Args[1] == inside {
		run = func() error { return life(os.Args[2]) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// outside runs the demo again in network and mount namespaces of its own, and
// looks afterwards whether anything is left here.
func outside() error {
	if os.Geteuid() != 0 {
		return errors.New("needs root, to make network namespaces: sudo make demo")
	}
	if os.Getenv("TRACEWIRE_BIN") == "" {
		return errors.New("needs the program tracewire: run make demo")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "tracewire-demo-")
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	cmd := exec.CommandContext(ctx, self, inside, dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	runtime.LockOSThread() // the child dies with the thread that made it
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	err = cmd.Run()
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("may not make namespaces here, try outside of this container: %w", err)
	}
	return errors.Join(err, clean(dir))
}

// clean removes the demo's folder, which is empty: what was in it was in
// memory. It tells what else is left.
func clean(dir string) error {
	if err := os.Remove(dir); err != nil {
		return err
	}
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Alias, "tracewire:demo/") {
			return fmt.Errorf("left behind: interface %s", l.Attrs().Name)
		}
	}
	fmt.Println("  The namespaces are gone by now, and the bridge with them: nothing is left on this machine.")
	return nil
}

// life is the pod's, from ADD to DEL.
func life(dir string) error {
	if err := private(dir); err != nil {
		return err
	}
	n, err := attach.NewNode(dir, os.Getenv("TRACEWIRE_BIN"))
	if err != nil {
		return err
	}
	defer n.Close()
	if _, err := n.Pod("pod"); err != nil {
		return err
	}
	if err := n.Load(conflist); err != nil {
		return err
	}
	s := &stage{Node: n, screen: screenOf(os.Stdout)}
	s.call = attach.Attachment{
		ContainerID: "hello", IfName: "eth0", NetNS: n.PodPath("pod"),
		Args: [][2]string{{"K8S_POD_NAMESPACE", "demo"}, {"K8S_POD_NAME", "hello"}},
	}
	fmt.Printf("The configuration list, test/demo/demo.conflist; @DIR@ is a folder in memory:\n\n%s\n", indented(string(conflist)))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i, act := range []struct {
		title string
		do    func(*stage, context.Context) error
		trace bool
	}{
		{"ADD: the pod gets its interface", (*stage).add, true},
		{"Packets go through it", (*stage).packets, false},
		{"CHECK: the interface is as ADD made it", (*stage).check, true},
		{"DEL: the pod ends", (*stage).del, true},
		{"What is left", (*stage).left, false},
	} {
		s.title(fmt.Sprintf("%d. %s", i+1, act.title))
		if err := act.do(s, ctx); err != nil {
			return fmt.Errorf("%s: %w", act.title, err)
		}
		if act.trace {
			if err := s.waterfall(); err != nil {
				return err
			}
		}
	}
	return nil
}

// private hides what is mounted from now on from the machine: the demo's
// folder and /run are in memory.
func private(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, d := range []string{"/run", dir} {
		if err := unix.Mount("tmpfs", d, "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("mount a tmpfs on %s: %w", d, err)
		}
	}
	return nil
}

// stage is where the acts play.
type stage struct {
	*attach.Node
	screen
	call attach.Attachment
}

func (s *stage) add(ctx context.Context) error {
	r, err := s.Add(ctx, s.call)
	if err != nil {
		return err
	}
	made, err := types100.GetResult(r)
	if err != nil {
		return err
	}
	s.ran("ADD")
	for _, i := range made.Interfaces {
		where := "on the host"
		if i.Sandbox != "" {
			where = "in the pod "
		}
		fmt.Printf("  %s  %-15s  %s  mtu %d\n", where, i.Name, i.Mac, i.Mtu)
	}
	for _, ip := range made.IPs {
		fmt.Printf("  address      %s, gateway %s\n", ip.Address.String(), ip.Gateway)
	}
	for _, r := range made.Routes {
		fmt.Printf("  route        %s\n", r.Dst.String())
	}
	return nil
}

func (s *stage) packets(context.Context) error {
	for _, p := range []struct{ from, to string }{{"pod", "10.88.0.1"}, {"pod", "fd88::1"}, {"host", "10.88.0.2"}, {"host", "fd88::2"}} {
		start := time.Now()
		if err := s.Ping(p.from, p.to); err != nil {
			return err
		}
		fmt.Printf("  ping  from the %-4s to %-10s answered after %s\n", p.from, p.to, read.Human(time.Since(start)))
	}
	answer, err := s.TCP("host", "10.88.0.2:8080", "pod", ":8080")
	if err != nil {
		return err
	}
	fmt.Printf("  tcp   the host sent \"hello from host\" to 10.88.0.2:8080\n")
	fmt.Printf("        the pod answered %q\n\n", strings.TrimSpace(answer))
	return nil
}

func (s *stage) check(ctx context.Context) error {
	if err := s.Check(ctx, s.call); err != nil {
		return err
	}
	s.ran("CHECK")
	fmt.Println("  pair, addresses, routes and reservations are as they were made")
	return nil
}

func (s *stage) del(ctx context.Context) error {
	if err := s.Del(ctx, s.call); err != nil {
		return err
	}
	s.ran("DEL")
	fmt.Println("  interface, addresses, reservations and record are gone")
	return nil
}

func (s *stage) left(context.Context) error {
	left, err := s.Left()
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("left behind: %q", left)
	}
	fmt.Println("  No interface but the bridge tw0, which is the network's; no reservation, no record.")
	return nil
}

// ran tells how the plugin was run.
func (s *stage) ran(verb string) {
	for _, c := range s.Exec.Calls() {
		fmt.Printf("  libcni ran CNI_COMMAND=%s %s, which took %s and exited with %d\n", verb, c.Plugin, read.Human(c.Took), c.Exit)
	}
}

// waterfall draws the last operation of the spool.
func (s *stage) waterfall() error {
	ops, err := s.Operations()
	if err != nil || len(ops) == 0 {
		return errors.Join(err, errors.New("no trace"))
	}
	last := ops[len(ops)-1]
	last.Root.Start = last.Root.Start.Local()
	for i, l := range last.Root.Links {
		for _, o := range ops {
			if o.Root.SpanID == l.SpanID {
				last.Root.Links[i].Target = o.Entry().Command + " of " + o.Entry().Attachment()
			}
		}
	}
	var b bytes.Buffer
	if err := read.Waterfall(&b, last, s.width-2, s.colour); err != nil {
		return err
	}
	fmt.Printf("\n%s\n", indented(b.String()))
	return nil
}

func indented(text string) string {
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		if strings.TrimSpace(line) != "" {
			lines[i] = "  " + line
		}
	}
	return strings.Join(lines, "")
}

// screen is what the demo is printed on.
type screen struct {
	width  int
	colour bool
}

// screenOf asks the terminal; what is none has a hundred columns and no colour.
func screenOf(f *os.File) screen {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return screen{width: 100}
	}
	return screen{width: int(size.Col), colour: os.Getenv("NO_COLOR") == ""}
}

func (s screen) title(text string) {
	if s.colour {
		text = "\x1b[1m" + text + "\x1b[0m"
	}
	fmt.Printf("%s\n\n", text)
}
