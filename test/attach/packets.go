//go:build linux

package attach

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// patience bounds each exchange of packets.
const patience = 3 * time.Second

// Ping sends one echo request from a pod or the host and waits for its answer:
// the first packet has to get through.
func (n *Node) Ping(from, address string) error { return n.PingFor(from, address, patience) }

// PingFor is Ping with another bound.
func (n *Node) PingFor(from, address string, bound time.Duration) error {
	to, err := netip.ParseAddr(address)
	if err != nil {
		return err
	}
	return n.In(from, func() error { return ping(to, bound) })
}

func ping(to netip.Addr, bound time.Duration) error {
	network, request, reply := "ip4:icmp", byte(8), byte(0)
	if to.Is6() {
		network, request, reply = "ip6:ipv6-icmp", 128, 129
	}
	c, err := net.DialIP(network, nil, &net.IPAddr{IP: to.AsSlice()})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(bound)); err != nil {
		return err
	}
	echo := []byte{request, 0, 0, 0, 't', 'w', 0, 1}
	if to.Is4() { // the kernel fills in the checksum of ICMPv6
		binary.BigEndian.PutUint16(echo[2:], checksum(echo))
	}
	if _, err := c.Write(echo); err != nil {
		return err
	}
	for answer := make([]byte, 128); ; {
		k, _, err := c.ReadFrom(answer) // Read would leave the IPv4 header in
		if err != nil {
			return fmt.Errorf("no answer from %s: %w", to, err)
		}
		if k >= len(echo) && answer[0] == reply && answer[4] == 't' && answer[5] == 'w' {
			return nil
		}
	}
}

// checksum is RFC 1071's, of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	return ^uint16(sum + sum>>16)
}

// TCP connects from a pod or the host to an address and port, where a server
// in another pod is expected, and exchanges a line each way. It returns what
// the server answered.
func (n *Node) TCP(from, address, pod, listen string) (answer string, err error) {
	var server net.Listener
	err = n.In(pod, func() (err error) { server, err = net.Listen("tcp", listen); return err })
	if err != nil {
		return "", err
	}
	defer func() { _ = server.Close() }()
	served := make(chan error, 1)
	go func() { served <- serve(server, pod) }()
	err = n.In(from, func() (err error) { answer, err = ask(address, "hello from "+from); return err })
	if err != nil {
		return "", err
	}
	return answer, <-served
}

// serve answers one connection with what it heard.
func serve(l net.Listener, pod string) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c, "%s heard: %s", pod, line)
	return err
}

func ask(address, line string) (string, error) {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(c, line); err != nil {
		return "", err
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	return answer, err
}
