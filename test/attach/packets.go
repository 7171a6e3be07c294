//go:build linux

package attach

import (
	"bufio"
	"encoding/binary"
	"errors"
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
	c, err := n.Connect(from, address, pod, listen)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return c.Say("hello from " + from)
}

// Conversation is a TCP connection that stays open.
type Conversation struct {
	// Peer is the client's address as the server sees it.
	Peer netip.AddrPort

	server         string // pod
	client, accept net.Conn
	fromClient     *bufio.Reader
	fromServer     *bufio.Reader
}

// Connect opens a connection as TCP does. The server takes no other one.
func (n *Node) Connect(from, address, pod, listen string) (*Conversation, error) {
	at, err := net.ResolveTCPAddr("tcp", listen)
	if err != nil {
		return nil, err
	}
	var server *net.TCPListener
	err = n.In(pod, func() (err error) { server, err = net.ListenTCP("tcp", at); return err })
	if err != nil {
		return nil, err
	}
	defer func() { _ = server.Close() }()
	c := &Conversation{server: pod}
	err = n.In(from, func() (err error) { c.client, err = net.DialTimeout("tcp", address, patience); return err })
	if err != nil {
		return nil, err
	}
	if err := server.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, errors.Join(err, c.client.Close())
	}
	if c.accept, err = server.Accept(); err != nil {
		return nil, errors.Join(err, c.client.Close())
	}
	peer, err := netip.ParseAddrPort(c.accept.RemoteAddr().String())
	if err != nil {
		return nil, errors.Join(err, c.client.Close(), c.accept.Close())
	}
	c.Peer = netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
	c.fromClient, c.fromServer = bufio.NewReader(c.accept), bufio.NewReader(c.client)
	return c, nil
}

// Close ends the connection.
func (c *Conversation) Close() { _, _ = c.client.Close(), c.accept.Close() }

// Say sends a line to the server and returns its answer, which tells what it heard.
func (c *Conversation) Say(line string) (string, error) {
	end := time.Now().Add(patience)
	if err := errors.Join(c.client.SetDeadline(end), c.accept.SetDeadline(end)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(c.client, line); err != nil {
		return "", err
	}
	heard, err := c.fromClient.ReadString('\n')
	if err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(c.accept, "%s heard: %s", c.server, heard); err != nil {
		return "", err
	}
	return c.fromServer.ReadString('\n')
}
