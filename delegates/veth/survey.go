package veth

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/delegates/netlink"
)

// Survey is what this machine's kernel has, namespace by namespace.
type Survey struct {
	Links      []Link // of the host, of all kinds
	Addresses  map[netip.Addr][]Place
	Namespaces map[string]Space // by the paths that were asked for; where no namespace is there is none
	Spaces     []Space          // the first is the host's
	Blind      bool             // the host's own interfaces or addresses could not be listed
	Partial    bool             // a namespace could not be looked at
	Everyone   bool             // the processes of the whole machine were seen

	host     *Conn
	numbered map[int]int     // index of a Space by the host's number for it
	indexed  map[int]int     // index in Links by the interface's
	aliases  map[string]bool // of Links
	peers    map[place]int   // index in Links by where the other end is
}

// place is a Place without its label.
type place struct{ space, index int }

// Place is where an address is: an interface of a namespace.
type Place struct {
	Space int    // index in Spaces
	Index int    // of the interface
	Label string // its name, for IPv4
}

// Space is one network namespace.
type Space struct {
	Path   string // one that leads to it; empty where it is known as the other end of a pair alone
	Number int    // the host's number for it, -1 where it has none: nothing of the host's leads there
	Cookie uint64 // 0 where it is known as the other end of a pair alone
	// Inhabited tells that a process is in it.
	Inhabited bool
}

// Take looks at the host, and at every namespace that a process is in, that is
// mounted here, that is the other end of one of the host's pairs, or that one of
// the paths leads to. What cannot be looked at is in errs, and passed over.
func Take(paths []string) (s *Survey, errs []error) {
	s = &Survey{Addresses: map[netip.Addr][]Place{}, Namespaces: map[string]Space{}, numbered: map[int]int{}, indexed: map[int]int{}, aliases: map[string]bool{}, peers: map[place]int{}}
	host, err := Dial()
	if s.Blind = err != nil; s.Blind {
		return s, []error{err}
	}
	defer host.Close()
	s.host = host
	s.Links, err = host.interfaces("")
	for i, l := range s.Links {
		s.indexed[l.Index], s.aliases[l.Alias] = i, true
	}
	s.Spaces = []Space{{Path: ownPath, Number: own, Cookie: host.Cookie()}}
	errs = append(errs, err, s.list(host, own, 0))
	s.Blind = errors.Join(errs...) != nil
	for i, l := range s.Links {
		if _, known := s.numbered[l.PeerNS]; l.PeerNS >= 0 && !known {
			err := s.list(host, l.PeerNS, s.add(Space{Number: l.PeerNS}))
			if errors.Is(err, unix.EINVAL) {
				s.numbered[l.PeerNS], err = -1, nil
			}
			errs = append(errs, err)
		}
		if at := s.Peer(l); at >= 0 {
			s.peers[place{at, l.Peer}] = i
		}
	}
	errs = append(errs, s.visit(paths)...)
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	s.Partial = len(errs) > 0
	return s, errs
}

// Peer is the index in Spaces of the namespace that has a pair's other end; -1
// where it has none, or one that the kernel is about to remove, with the pair.
func (s *Survey) Peer(l Link) int {
	if at, known := s.numbered[l.PeerNS]; known {
		return at
	}
	return -1
}

// WithCookie is the namespace that has a cookie; ok is false where none of those
// that were looked at has it, and for 0, which an older kernel has for all.
func (s *Survey) WithCookie(cookie uint64) (space Space, ok bool) {
	for _, x := range s.Spaces {
		if cookie != 0 && x.Cookie == cookie {
			return x, true
		}
	}
	return space, false
}

// Dying tells that nobody holds the namespace of a pair's other end any more.
func (s *Survey) Dying(l Link) bool {
	at, known := s.numbered[l.PeerNS]
	return known && at < 0
}

// Link is the host's interface with an index.
func (s *Survey) Link(index int) (l Link, ok bool) {
	i, ok := s.indexed[index]
	if !ok {
		return l, false
	}
	return s.Links[i], true
}

// HostEnd is the host's end of a pair whose other end is at a place.
func (s *Survey) HostEnd(p Place) (l Link, ok bool) {
	i, ok := s.peers[place{p.Space, p.Index}]
	if !ok {
		return l, false
	}
	return s.Links[i], true
}

// Marked tells whether an interface of the host has the alias of an attachment,
// network/containerID:ifname.
func (s *Survey) Marked(attachment string) bool { return s.aliases[Alias(attachment)] }

func (s *Survey) add(space Space) int {
	s.Spaces = append(s.Spaces, space)
	if space.Number >= 0 {
		s.numbered[space.Number] = len(s.Spaces) - 1
	}
	return len(s.Spaces) - 1
}

// list adds the addresses of a namespace: the connection's own, or another by
// its number. EINVAL tells that no such one is held.
func (s *Survey) list(c *Conn, namespace, space int) error {
	var m batch
	m.Add("list addresses", unix.RTM_GETADDR, 0)
	m.Raw(make([]byte, unix.SizeofIfAddrmsg)...)
	if namespace != own {
		m.U32(targetAddr, uint32(namespace))
	}
	m.End()
	type found struct {
		netip.Addr
		Place
	}
	var all []found
	err := c.Dump(&m.Batch, func() { all = all[:0] }, func(body []byte) {
		if len(body) < unix.SizeofIfAddrmsg {
			return
		}
		if p := readAddress(body); p.IsValid() && !p.Addr().IsLinkLocalUnicast() && !p.Addr().IsLoopback() {
			all = append(all, found{p.Addr(), Place{space, int(netlink.Order.Uint32(body[4:])), label(body)}})
		}
	})
	for _, f := range all {
		s.Addresses[f.Addr] = append(s.Addresses[f.Addr], f.Place)
	}
	return err
}

// label is an address's (IFA_LABEL): the interface's name, for IPv4.
func label(body []byte) (text string) {
	netlink.Walk(body[unix.SizeofIfAddrmsg:], func(kind uint16, d []byte) {
		if kind == unix.IFA_LABEL {
			text = netlink.String(d)
		}
	})
	return text
}

// interfaces lists those of a kind, "" for all.
func (c *Conn) interfaces(kind string) (out []Link, err error) {
	var m batch
	m.Add("list interfaces", unix.RTM_GETLINK, 0)
	m.IfInfo(0, 0, 0)
	m.U32(unix.IFLA_EXT_MASK, skipStats)
	if kind != "" {
		info := m.Nest(unix.IFLA_LINKINFO)
		m.Str(unix.IFLA_INFO_KIND, kind)
		info()
	}
	m.End()
	err = c.Dump(&m.Batch, func() { out = nil }, func(body []byte) { out = append(out, readLink(body)) })
	return out, err
}

// visit looks into the namespaces that have a path, each once.
func (s *Survey) visit(paths []string) (errs []error) {
	visited := map[uint64]int{} // by inode, which no two have at one time
	for _, path := range paths {
		at, err := s.once(visited, path)
		if errs = append(errs, err); at >= 0 {
			s.Namespaces[path] = s.Spaces[at]
		}
	}
	mounted, err := mounts()
	errs = append(errs, err)
	running, _ := filepath.Glob("/proc/[0-9]*/ns/net") // the pattern is right
	all, _ := os.Readlink("/proc/self/ns/pid")         // without one not all are seen
	s.Everyone = all == firstOfProcesses
	for _, path := range mounted {
		_, err := s.once(visited, path)
		errs = append(errs, err)
	}
	for _, path := range running {
		at, err := s.once(visited, path)
		if errs = append(errs, err); at >= 0 {
			s.Spaces[at].Inhabited = true
		}
	}
	return errs
}

// firstOfProcesses is the machine's first namespace of processes, in which all are
// seen (PROC_PID_INIT_INO of linux/proc_ns.h).
const firstOfProcesses = "pid:[4026531836]"

// once looks into the namespace at a path, unless that was done, and returns its
// index in Spaces; -1 where none is, or is any more.
func (s *Survey) once(visited map[uint64]int, path string) (at int, err error) {
	var st unix.Stat_t
	if StateOf(path) != "" || unix.Stat(path, &st) != nil {
		return -1, nil
	}
	at, known := visited[st.Ino]
	if known {
		return at, nil
	}
	at, err = s.enter(path)
	visited[st.Ino] = at
	if errors.Is(err, ErrNoNamespace) {
		return at, nil
	}
	if err != nil {
		return at, fmt.Errorf("%s: %w", path, err)
	}
	return at, nil
}

// enter looks into one namespace, and returns its index in Spaces, -1 where there
// is none.
func (s *Survey) enter(path string) (int, error) {
	p, err := Open(path)
	if err != nil {
		return -1, err
	}
	defer p.Close()
	if p.Own {
		return 0, nil
	}
	number, err := s.host.namespaceID(p)
	if err != nil {
		return -1, err
	}
	if at := s.numbered[number]; at > 0 {
		s.Spaces[at].Path, s.Spaces[at].Cookie = path, p.Cookie
		return at, nil
	}
	at := s.add(Space{Path: path, Number: number, Cookie: p.Cookie})
	return at, s.list(p.conn, own, at)
}

// mounts is where network namespaces are mounted (proc_pid_mountinfo(5)):
//
//	590 24 0:4 net:[4026532278] /run/netns/pod rw shared:300 - nsfs nsfs rw
func mounts() (paths []string, err error) {
	b, err := os.ReadFile("/proc/thread-self/mountinfo")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[3], "net:[") {
			paths = append(paths, unescaped.Replace(f[4]))
		}
	}
	return paths, err
}

// unescaped reads what mountinfo writes in octal.
var unescaped = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
