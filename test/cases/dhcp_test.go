//go:build linux

package cases

import (
	"bufio"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// serveDHCP starts dnsmasq in a namespace at the other end of up-out, and the
// reference's dhcp daemon in the node.
func serveDHCP(t *testing.T, l *life) {
	t.Helper()
	outside(t, l)
	leases := filepath.Join(l.Dir, "leases")
	t.Cleanup(func() { // after dnsmasq ended
		if b, err := os.ReadFile(leases); err != nil || len(b) > 0 {
			t.Errorf("leases in the end: %q, %v", b, err)
		}
	})
	err := l.In("out", func() error {
		l.dnsmasq = started(t, nil, "dnsmasq", "--no-daemon", "--conf-file=/dev/null", "--port=0", "--interface=up0", "--no-ping",
			// In the foreground for good: to give up rights, as it does else, would also let it outlive us.
			"--dhcp-authoritative", "--dhcp-range=10.77.0.2,10.77.0.99", "--log-dhcp", "--dhcp-leasefile="+leases)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	awaits(t, l.dnsmasq, "DHCP, IP range")
	// One packet that is lost is one too many: the next would go after 10 s.
	// The socket is ours, as systemd's would be, so that nobody has to wait for it.
	at, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(l.Dir, "dhcp.sock")})
	if err != nil {
		t.Fatal(err)
	}
	socket, err := at.File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	started(t, socket, "sh", "-c", `LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" daemon -socketpath /none -resendtimeout 5s`, filepath.Join(os.Getenv("TRACEWIRE_REFERENCE"), "dhcp"))
}

// started is the lines that a program writes, until the test ends it.
func started(t *testing.T, socket *os.File, name string, args ...string) <-chan string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if socket != nil {
		cmd.ExtraFiles = []*os.File{socket}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 10000)
	go follow(r, lines)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = cmd.Wait()
	})
	return lines
}

func follow(r io.ReadCloser, lines chan<- string) {
	defer close(lines)
	defer func() { _ = r.Close() }()
	for s := bufio.NewScanner(r); s.Scan(); {
		lines <- s.Text()
	}
}

// awaits waits for a line with a text.
func awaits(t *testing.T, lines <-chan string, text string) {
	t.Helper()
	late := time.After(stepTime)
	var before []string
	for {
		select {
		case line, going := <-lines:
			if before = append(before, line); strings.Contains(line, text) {
				return
			}
			if !going {
				t.Fatalf("ended without %q:\n%s", text, strings.Join(before, "\n"))
			}
		case <-late:
			t.Fatalf("never said %q:\n%s", text, strings.Join(before, "\n"))
		}
	}
}
