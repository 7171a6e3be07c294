//go:build linux

package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/test/attach"
)

// scene is an attachment of c1's eth0 in pod1, made by the plugin.
type scene struct {
	*attach.Node
	t    *testing.T
	a    attach.Attachment
	set  map[string]string // of its configuration, beside plain
	made *types100.Result
	prev func(*types100.Result) // makes the final result of ADD's, nil for none
	host string                 // the host end
	env  []string               // of the plugin, beside the runtime's
	wrap string                 // of a shell, before the plugin's path; "" runs it as it is
}

// attached adds one; keys are as conf has them. A /24 and isGateway are given.
func attached(t *testing.T, set map[string]string) *scene {
	t.Helper()
	n := node(t)
	s := &scene{Node: n, t: t, a: pod1(t, n), set: set}
	if err := s.add(); err != nil {
		t.Fatal(describe(err))
	}
	for _, i := range s.made.Interfaces {
		if i.Sandbox == "" && strings.HasPrefix(i.Name, "veth") {
			s.host = i.Name
		}
	}
	return s
}

func (s *scene) add() error {
	s.t.Helper()
	call := raw(s.t, s.Node, "ADD", conf(s.t, s.Node, s.set), s.Environment("ADD", s.a))
	if err := call.Err(); err != nil {
		return err
	}
	r, err := types100.NewResult(call.Stdout)
	if err != nil {
		return err
	}
	s.made, err = types100.GetResult(r)
	return err
}

// final is the final result.
func (s *scene) final() string {
	s.t.Helper()
	r, err := types100.NewResultFromResult(s.made)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.prev != nil {
		s.prev(r)
	}
	b, err := json.Marshal(r)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

// input is the configuration with the final result.
func (s *scene) input() string {
	with := map[string]string{"prevResult": s.final()}
	for k, v := range s.set {
		with[k] = v
	}
	return conf(s.t, s.Node, with)
}

// run is CHECK or DEL with the final result.
func (s *scene) run(verb string) error {
	s.t.Helper()
	stdin, env := s.input(), append(s.Environment(verb, s.a), s.env...)
	if s.wrap == "" {
		return raw(s.t, s.Node, verb, stdin, env).Err()
	}
	wrapper := filepath.Join(s.t.TempDir(), "wrapper")
	script := "#!/bin/sh\n" + s.wrap + " " + filepath.Join(os.Getenv("TRACEWIRE_BIN"), "tracewire") + "\n"
	if err := os.WriteFile(wrapper, []byte(script), 0o700); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	_, err := s.Exec.ExecPlugin(ctx, wrapper, []byte(stdin), env)
	return err
}

// finding is one of CHECK's.
type finding struct{ Code, Expected, Found string }

// findings is what an error of CHECK lists. It is code 110's alone.
func findings(err error) (out []finding) {
	var answer *types.Error
	var details struct {
		Findings []finding
		Action   string
		Trace    string
	}
	if !errors.As(err, &answer) || answer.Code != 110 || json.Unmarshal([]byte(answer.Details), &details) != nil || details.Action == "" || details.Trace == "" {
		return nil
	}
	return details.Findings
}

// act is something that happens to a scene.
type act func(*scene) error

// all is acts in order.
func all(acts ...act) act {
	return func(s *scene) (err error) {
		for _, do := range acts {
			err = errors.Join(err, do(s))
		}
		return err
	}
}

// hostEnd stands for the host end's name.
const hostEnd = "HOST"

// on does something to an interface; where is "host" or a pod.
func on(where, name string, do func(netlink.Link) error) act {
	return func(s *scene) error {
		if name == hostEnd {
			name = s.host
		}
		return s.In(where, func() error {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return do(l)
		})
	}
}

// linked is change of link_test.go as an act.
func linked(where, name, what, value string) act {
	return func(s *scene) error {
		if name == hostEnd {
			name = s.host
		}
		return s.In(where, func() error { return change(name, what, value) })
	}
}

// renamed is down for as long as that takes.
func renamed(where, from, to string) act {
	return func(s *scene) error {
		if from == hostEnd {
			from = s.host
		}
		if to == hostEnd {
			to = s.host
		}
		return on(where, from, func(l netlink.Link) error {
			return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, to), netlink.LinkSetUp(l))
		})(s)
	}
}

func sysctl(where, path, value string) act {
	return func(s *scene) error {
		return s.In(where, func() error { return os.WriteFile("/proc/sys/net/"+path, []byte(value), 0) })
	}
}

// program runs one in the host, its words apart by spaces.
func program(line string) act {
	return func(s *scene) error {
		return s.In("host", func() error {
			words := strings.Fields(strings.ReplaceAll(line, hostEnd, s.host))
			if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", line, err, out)
			}
			return nil
		})
	}
}

// reload replaces all rules by what they were, as save lists them.
func reload(save, restore string) (keep, back act) {
	path := func(s *scene) string { return filepath.Join(s.Dir, "rules") }
	return func(s *scene) error {
			return s.In("host", func() error {
				words := strings.Fields(save)
				out, err := exec.Command(words[0], words[1:]...).Output()
				if strings.HasPrefix(save, "nft") {
					out = append([]byte("flush ruleset\n"), out...)
				}
				return errors.Join(err, os.WriteFile(path(s), out, 0o600))
			})
		}, func(s *scene) error {
			return program(restore + " " + path(s))(s)
		}
}

// route is one of the pod's, replaced or removed.
func route(do func(*netlink.Route) error, dst, gateway string, more func(*netlink.Route)) act {
	return on("pod1", "eth0", func(l netlink.Link) error {
		_, to, err := net.ParseCIDR(dst)
		if err != nil {
			return err
		}
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: to, Gw: net.ParseIP(gateway)}
		if more != nil {
			more(r)
		}
		return do(r)
	})
}

// movedFile renames a file of the node.
func movedFile(from, to string) act {
	return func(s *scene) error { return os.Rename(filepath.Join(s.Dir, from), filepath.Join(s.Dir, to)) }
}

func written(name, text string) act {
	return func(s *scene) error { return os.WriteFile(filepath.Join(s.Dir, name), []byte(text), 0o600) }
}

// portState sets a bridge port's state (linux/if_bridge.h), as a spanning tree
// of user space does.
func portState(state uint8) act {
	return on("host", hostEnd, func(l netlink.Link) error {
		set := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
		head := nl.NewIfInfomsg(unix.AF_BRIDGE)
		head.Index = int32(l.Attrs().Index)
		port := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
		port.AddRtAttr(unix.IFLA_BRPORT_STATE, []byte{state})
		set.AddData(head)
		set.AddData(port)
		_, err := set.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
}
