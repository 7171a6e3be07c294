package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain"
	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/chain/lock"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/trace/read"
)

// there tells that something is at a path.
func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// unneeded is what no DEL needs or writes.
func (c *command) unneeded(l *leaving) (out []belonging, err error) {
	for _, dir := range l.at.spool {
		out = append(out, follower(filepath.Join(dir, "agent"))...)
	}
	for _, path := range l.at.log {
		out = append(out, follower(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".agent"))...)
	}
	out = append(out, agentState()...)
	for _, dir := range l.at.state {
		out = append(out, file("broken records", filepath.Join(dir, quarantined), os.RemoveAll)...)
		out = append(out, file("audit's memory", filepath.Join(dir, memoryFile), func(path string) error {
			return removeAll(path, filepath.Join(dir, memoryAside))
		})...)
	}
	if all := matches(verdicts...); len(all) > 0 {
		out = append(out, belonging{What: "verdicts", Path: verdicts[0], remove: func(context.Context) error { return removeAll(all...) }})
	}
	return out, nil
}

// quarantined is the folder of a state directory's broken records.
const quarantined = "quarantine"

// verdicts is what STATUS leaves: its last, and how often it was asked.
var verdicts = []string{filepath.Join(chain.Volatile, "*", "status"), filepath.Join(chain.Volatile, "*", "status.new"), filepath.Join(chain.Volatile, "polled")}

// matches is the files of patterns of ours.
func matches(patterns ...string) (out []string) {
	for _, p := range patterns {
		some, _ := filepath.Glob(p) // the patterns are right
		out = append(out, some...)
	}
	return out
}

// removeAll removes files.
func removeAll(paths ...string) error {
	var errs []error
	for _, p := range paths {
		errs = append(errs, missing(os.Remove(p)))
	}
	return errors.Join(errs...)
}

// follower is the files that tracewire-agent keeps of what it follows.
func follower(base string) (out []belonging) {
	all := matches(base+".checkpoint", base+".checkpoint.new", base+".lock")
	if len(all) == 0 {
		return nil
	}
	return []belonging{{What: "agent's files", Path: base + ".checkpoint", Stays: atWork(all...), remove: func(context.Context) error { return removeAll(all...) }}}
}

// agentDir is where its unit has tracewire-agent keep them.
const agentDir = "/var/lib/tracewire-agent"

// agentState is that folder, which is nobody else's.
func agentState() []belonging {
	out := file("agent's files", agentDir, func(dir string) error {
		return emptied(dir, removeAll(agentFiles()...))
	})
	for i := range out {
		out[i].Stays = atWork(agentFiles()...)
	}
	return out
}

func agentFiles() []string { return matches(agentDir+"/*agent-*", agentDir+"/.*agent-*") }

// atWork tells which agent has a lock among its files; "" for none.
func atWork(paths ...string) string {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	for _, path := range paths {
		if filepath.Ext(path) != ".lock" {
			continue
		}
		unlock, err := lock.Flock(now, path)
		if held := (*lock.Held)(nil); errors.As(err, &held) {
			return fmt.Sprintf("tracewire-agent is at work, process %d: stop it first", held.PID)
		}
		if err == nil {
			unlock()
		}
	}
	return ""
}

// file is a file or folder of ours, where it is there.
func file(what, path string, remove func(string) error) (out []belonging) {
	if there(path) {
		out = append(out, belonging{What: what, Path: path, remove: func(context.Context) error { return missing(remove(path)) }})
	}
	return out
}

// missing makes success of an error that the thing is gone.
func missing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// ifEmpty removes a folder that nobody else has anything in.
func ifEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return missing(err)
	}
	if len(entries) > 0 {
		return othersFiles
	}
	err = os.Remove(dir)
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOTEMPTY) {
		return othersFiles
	}
	return missing(err)
}

// files is what DELs need and write, the deepest first.
func (c *command) files(l *leaving) (out []belonging, _ error) {
	out = slices.Concat(traces(l.at.spool), logs(l.at.log))
	for i := range out {
		if l.kept && l.attachments {
			out[i].Stays = "it tells why attachments could not be ended"
		}
	}
	out = append(out, file("counters and lists", chain.Volatile, emptyVolatile)...)
	for _, dir := range l.at.state {
		for _, b := range file("state", dir, emptyState) {
			if l.kept {
				b.Stays = "attachments need it"
			}
			out = append(out, b)
		}
	}
	return out, nil
}

func traces(dirs []string) (out []belonging) {
	for _, dir := range dirs {
		out = append(out, file("traces", dir, emptySpool)...)
	}
	return out
}

// logs is the logs, and what logrotate made of them.
func logs(paths []string) (out []belonging) {
	for _, path := range paths {
		for _, p := range append(matches(path+".[0-9]*", path+"-[0-9]*"), path) {
			out = append(out, file("log", p, os.Remove)...)
		}
		if dir := filepath.Dir(path); filepath.Base(dir) == conflist.PluginType { // made for it
			out = append(out, file("log", dir, ifEmpty)...)
		}
	}
	return out
}

// emptySpool removes segments.
func emptySpool(dir string) error {
	paths, err := read.Segments(dir)
	return emptied(dir, err, removeAll(paths...))
}

// emptied removes a folder whose own files were removed, unless that failed.
func emptied(dir string, errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return ifEmpty(dir)
}

// emptyVolatile removes all of this boot. systemd may have mounted it.
func emptyVolatile(dir string) error {
	var errs []error
	for _, path := range matches(dir + "/*") {
		errs = append(errs, os.RemoveAll(path))
	}
	return emptied(dir, errs...)
}

// emptyState removes what a state directory has. A record that was begun meanwhile
// needs the rest.
func emptyState(dir string) error {
	attachments := cache.In(dir).Path
	folders, err := os.ReadDir(attachments)
	errs := []error{missing(err)}
	for _, f := range folders {
		errs = append(errs, missing(os.Remove(filepath.Join(attachments, f.Name())))) // empty, or an error
	}
	if err := errors.Join(append(errs, missing(os.Remove(attachments)))...); err != nil {
		return err
	}
	for _, name := range []string{"networks", quarantined} {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, name)))
	}
	for _, name := range []string{memoryFile, memoryAside, memoryLock, stateLock} {
		errs = append(errs, removeAll(filepath.Join(dir, name)))
	}
	return emptied(dir, errs...)
}

// The files that an installation has beside the programs.
const (
	unit     = "/etc/systemd/system/tracewire-agent.service"
	enabled  = "/etc/systemd/system/multi-user.target.wants/tracewire-agent.service"
	settings = "/etc/default/tracewire-agent"
	sample   = "10-tracewire.conflist.sample"
)

// programs is the executables, and what was installed with them.
func (c *command) programs(l *leaving) (out []belonging, _ error) {
	add := func(what, path, needed string) {
		for _, b := range file(what, path, os.Remove) {
			if b.Stays = needed; !l.binaries {
				b.Stays = "--binaries removes it"
			}
			out = append(out, b)
		}
	}
	needed, again, on := "", "", ""
	if l.kept {
		needed = "attachments need it to be ended"
	}
	if l.failed {
		again = "not all could be removed: run it again"
	}
	if there(enabled) {
		on = "systemctl disable --now tracewire-agent first"
	}
	for _, dir := range l.plugins.dirs {
		add("program", filepath.Join(dir, conflist.PluginType), needed)
	}
	add("unit", unit, on)
	add("sample", filepath.Join(c.confDir(), sample), "")
	if self, err := os.Executable(); err == nil {
		add("program", filepath.Join(filepath.Dir(self), "tracewire-agent"), on)
		add("program", filepath.Join(filepath.Dir(self), "tracewirectl"), again)
	}
	return out, nil
}
