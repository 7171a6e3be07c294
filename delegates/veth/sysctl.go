package veth

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Sysctl is one setting below /proc/sys/net of the calling thread's namespace.
type Sysctl struct {
	Path  string // "ipv4/conf/eth0/arp_notify"; dots in an interface's name stay
	Value string
	// Must makes a kernel that lacks the setting an error: it was asked for.
	Must bool
}

// Write sets each. What the kernel lacks (IPv6 turned
// off) is no error unless it must be there.
func Write(settings ...Sysctl) error {
	for _, s := range settings {
		path := "/proc/sys/net/" + s.Path
		err := write(path, s.Value)
		if errors.Is(err, fs.ErrNotExist) && !s.Must {
			continue
		}
		if err != nil && read(path) != s.Value { // a read-only /proc/sys that has it already
			return fmt.Errorf("sysctl net/%s=%s: %w", s.Path, s.Value, err)
		}
	}
	return nil
}

// on tells whether a setting is not 0. A kernel that lacks it has it off; what
// cannot be read is an error.
func (s Sysctl) on() (bool, error) {
	b, err := os.ReadFile("/proc/sys/net/" + s.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return strings.TrimSpace(string(b)) != "0", err
}

// Ensure sets each that has another value, and reads first: for settings that
// nearly always are right, and whose writing is heard by others.
func Ensure(settings ...Sysctl) error {
	for _, s := range settings {
		if read("/proc/sys/net/"+s.Path) == s.Value {
			continue
		}
		if err := Write(s); err != nil {
			return err
		}
	}
	return nil
}

func write(path, value string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(value))
	return err
}

// read is a setting's value, "" where there is none.
func read(path string) string {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var b [64]byte
	n, _ := unix.Read(fd, b[:])
	return strings.TrimSpace(string(b[:max(0, n)]))
}
