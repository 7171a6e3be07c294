package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/chain"
	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/chain/codes"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
	"github.com/tracewire/tracewire/delegates/veth"
	"github.com/tracewire/tracewire/trace"
)

// operation is one CNI command, from its first moment to its lines in spool
// and log.
type operation struct {
	stdin   []byte
	doc     *conflist.Value // stdin, read
	net     conflist.Network
	netErr  error
	args    conflist.Args
	argsErr error
	boot    string
	runtime string // executable that called us, "" when it is gone
	name    string // of the root span, "cni.ADD"
	start   time.Time

	rec   *trace.Recorder
	root  trace.Root
	funcs skel.CNIFuncs

	chain   *chain.Chain   // nil until a verb needs one
	result  types.Result   // nil unless ADD has one
	mute    bool           // standard output takes no more
	verdict *chain.Verdict // nil unless the verb is STATUS
	err     error
}

// begin reads the configuration and starts the root span. What is wrong with
// the configuration is the verb's to judge.
func begin(start time.Time, verb string, stdin []byte) *operation {
	o := &operation{rec: trace.NewRecorder(start), start: start, boot: cache.BootID(), runtime: runtimeExe(), name: "cni." + verb}
	o.stdin, o.doc = stdin, conflist.Read(stdin)
	o.net, o.netErr = conflist.Parse(o.doc), o.doc.Err()
	o.args, o.argsErr = conflist.ParseArgs(os.Getenv("CNI_ARGS"))
	var ctx context.Context
	ctx, o.root = o.rec.Begin(o.name, start, o.origin())
	o.describe(verb)
	o.funcs = skel.CNIFuncs{
		Add: o.verb(ctx, o.add), Del: o.verb(ctx, o.del), Check: o.verb(ctx, o.check), GC: o.verb(ctx, o.gc), Status: o.verb(ctx, o.status),
	}
	if verb == "STATUS" {
		o.verdict = chain.ReadVerdict(o.verdictFile())
	}
	return o
}

// origin is the span that the operation comes from.
func (o *operation) origin() trace.Origin {
	annotation := func(k string) string { return conflist.Annotation(o.doc, k) }
	return trace.From(os.Getenv, annotation, func(traceparent string) bool {
		return trace.Leftover(os.Getppid(), traceparent)
	})
}

// describe gives the root span what is known of the operation from outside.
// What the runtime did not say is left out.
func (o *operation) describe(verb string) {
	id := os.Getenv("CNI_CONTAINERID")
	o.root.Set(trace.Given(
		trace.KeyCommand.String(verb),
		trace.KeyName.String(o.net.Name),
		trace.KeyID.String(id),
		trace.KeyContainer.String(id),
		trace.KeyIfName.String(os.Getenv("CNI_IFNAME")),
		trace.KeyNetNS.String(os.Getenv("CNI_NETNS")),
		trace.KeyVersion.String(o.net.CNIVersion),
		trace.KeyRuntime.String(o.runtime),
		trace.KeyConfigHash.String(shortHash(conflist.Lasting(o.doc))))...)
	o.root.Set(trace.OfPod(o.args)...)
}

// tell writes the operation that a record's last writer, which was killed, did
// not tell of.
func (o *operation) tell(ctx context.Context, r cache.Record) {
	args, _ := conflist.ParseArgs(r.Args)
	if written, err := r.Tell(o.sink, trace.OfPod(args)...); !written || err != nil {
		return
	}
	trace.Warn(ctx, "an earlier operation was killed: its span is written now", trace.KeyRecord.String(string(r.State)))
}

// verb bounds a verb in time, catches its panics and keeps its error whole.
func (o *operation) verb(ctx context.Context, do func(context.Context, *skel.CmdArgs) error) func(*skel.CmdArgs) error {
	return func(a *skel.CmdArgs) error {
		ctx := withDeadline(ctx, o.start.Add(o.net.Tracewire.Timeout))
		o.err = chain.Guard(ctx, func() error { return do(ctx, a) })
		return o.err
	}
}

func (o *operation) add(ctx context.Context, a *skel.CmdArgs) error {
	deaf := deafness(unix.Stdout)
	o.mute = deaf != nil
	if err := errors.Join(deaf, o.netErr, o.argsErr); err != nil {
		return err
	}
	if !veth.ValidName(a.IfName) {
		return fmt.Errorf("%w: %s is no interface name", errIfName, conflist.Shown(a.IfName))
	}
	before, err := o.before(ctx, a)
	if err != nil {
		return err
	}
	ns, err := open(a)
	if err != nil {
		return err
	}
	defer ns.Close()
	o.chain = o.assemble(ns)
	call := o.call(ctx, a)
	call.Before = before
	in := cache.Intent{
		Attachment: call.Attachment, Conf: a.StdinData, Args: a.Args, NetNS: a.Netns, Inode: ns.Inode, Cookie: ns.Cookie,
		Boot: o.boot, Runtime: o.runtime, Span: o.root.Traceparent(), Parent: o.root.Parent(),
	}
	r, err := o.chain.Add(ctx, in, call)
	if err != nil {
		return err
	}
	o.outcome(r)
	return o.tellResult(ctx)
}

// tellResult prints the result. A runtime that cannot read it takes the ADD for
// failed: all is taken back.
func (o *operation) tellResult(ctx context.Context) error {
	err := document(unix.Stdout, o.result)
	if err == nil {
		return nil
	}
	o.mute = true // half a result may be out
	return errors.Join(err, o.chain.Undo(ctx))
}

// before is the result of the plugins before us in the list. Only what makes no
// interface itself can go on from it, and none of them may be an entry of ours.
func (o *operation) before(ctx context.Context, a *skel.CmdArgs) (*types100.Result, error) {
	if len(o.net.Prev) == 0 {
		return nil, nil
	}
	if err := o.second(ctx, o.call(ctx, a).Attachment); err != nil {
		return nil, err
	}
	if o.net.Tracewire.Mode != "delegate" {
		return nil, conflist.Invalid("prevResult", o.net.Prev, "must be absent: in mode "+o.net.Tracewire.Mode+" tracewire is the first plugin of its list, and has one entry in it")
	}
	r, err := delegates.Previous(o.net.Prev)
	if err != nil {
		return nil, conflist.Invalid("prevResult", o.net.Prev, err.Error())
	}
	return r, nil
}

// second is an error when an entry before us in the list is ours too: the
// attachment has the record of its ADD. A record of our own entry, or one of
// what is dead, is the chain's to judge.
func (o *operation) second(ctx context.Context, a delegates.Attachment) error {
	r, err := o.records().Read(a)
	if err != nil || r.State != cache.Attached || r.Boot != o.boot {
		return nil
	}
	doc := conflist.Read(r.Conf)
	first := conflist.Parse(doc)
	if len(first.Prev) > 0 && bytes.Equal(conflist.Lasting(doc), conflist.Lasting(o.doc)) {
		return nil
	}
	if alive, err := o.alive(ctx, r); err != nil || !alive {
		return nil
	}
	return conflist.Invalid("type", o.net.Type, fmt.Sprintf("must stand once in a list: the entry in %s made this attachment, and one in %s comes behind it", entry(first), entry(o.net)))
}

// entry names an entry of ours in a list, by what it makes.
func entry(n conflist.Network) string {
	plugins := make([]string, len(n.Delegates))
	for i, d := range n.Delegates {
		plugins[i] = d.Type
	}
	return strings.TrimSuffix("mode "+n.Tracewire.Mode+" with "+strings.Join(plugins, ", "), " with ")
}

// accept turns ADD's result into the version that was asked for.
func (o *operation) accept(r *types100.Result) (err error) {
	version := o.net.CNIVersion
	if version == "" {
		version = "0.1.0" // what a configuration without one means, as skel has it
	}
	o.result, err = r.GetAsVersion(version)
	return err
}

// outcome tells the root span what ADD made.
func (o *operation) outcome(r *types100.Result) {
	addresses, families := []string{}, []string{}
	for _, ip := range r.IPs {
		family := "ipv6"
		if ip.Address.IP.To4() != nil {
			family = "ipv4"
		}
		if !strings.Contains(strings.Join(families, ","), family) {
			families = append(families, family)
		}
		addresses = append(addresses, ip.Address.String())
	}
	o.root.Set(trace.KeyAddresses.StringSlice(addresses), trace.KeyNetworkType.String(strings.Join(families, ",")))
	for i, pod := range r.Interfaces {
		if pod.Sandbox == "" || pod.Name != os.Getenv("CNI_IFNAME") {
			continue
		}
		o.root.Set(trace.KeyMAC.String(pod.Mac))
		if i > 0 && r.Interfaces[i-1].Sandbox == "" { // the host end stands before it
			o.root.Set(trace.KeyInterface.String(r.Interfaces[i-1].Name))
		}
	}
}

func (o *operation) del(ctx context.Context, a *skel.CmdArgs) error {
	if err := errors.Join(o.netErr, o.argsErr); err != nil {
		trace.Warn(ctx, "configuration has errors: what can be read of it is used", trace.KeyError.String(err.Error()))
	}
	if state := veth.StateOf(a.Netns); state != "" {
		o.root.Set(trace.KeyNetNSState.String(state))
	}
	o.chain = o.assemble(nil)
	return o.chain.Del(ctx, o.call(ctx, a))
}

func (o *operation) check(ctx context.Context, a *skel.CmdArgs) error {
	if err := errors.Join(o.netErr, o.argsErr); err != nil {
		return err
	}
	if len(o.net.Prev) == 0 {
		return conflist.Invalid("prevResult", nil, "must be the result of ADD")
	}
	before, err := delegates.Previous(o.net.Prev)
	if err != nil {
		return conflist.Invalid("prevResult", o.net.Prev, err.Error())
	}
	ns, err := open(a)
	if err != nil {
		return err
	}
	defer ns.Close()
	o.chain = o.assemble(ns)
	call := o.call(ctx, a)
	call.Before, call.Restore = before, os.Getenv(chain.EnvRestore) == "1"
	return o.chain.Check(ctx, call)
}

// gc keeps its hands off everything unless the runtime said what is valid: a
// list that is absent or null is not an empty one.
func (o *operation) gc(ctx context.Context, a *skel.CmdArgs) error {
	list, given, err := conflist.Valid(o.stdin)
	if err != nil {
		return err
	}
	if !given {
		trace.Warn(ctx, "no list of valid attachments: nothing is done")
		return nil
	}
	if o.netErr != nil {
		trace.Warn(ctx, "configuration has errors: what can be read of it is used", trace.KeyError.String(o.netErr.Error()))
	}
	o.chain = o.assemble(nil)
	call := o.call(ctx, a)
	valid := make([]delegates.Attachment, len(list))
	for i, v := range list {
		valid[i] = delegates.Attachment{Network: call.Network, ContainerID: v.ContainerID, IfName: v.IfName}
	}
	return o.chain.GC(ctx, call, valid, o.runtime)
}

// open opens the pod's network namespace, which is our own only where the
// runtime says that this is meant.
func open(a *skel.CmdArgs) (*veth.Namespace, error) {
	ns, err := veth.Open(a.Netns)
	if err != nil {
		return nil, fmt.Errorf("CNI_NETNS: %w", err)
	}
	if meant := a.NetnsOverride == "1" || strings.EqualFold(a.NetnsOverride, "true"); ns.Own && !meant {
		ns.Close()
		return nil, fmt.Errorf("CNI_NETNS: %w", veth.ErrOwnNamespace)
	}
	return ns, nil
}

// folders is the entries of CNI_PATH that a plugin may be taken from, and the
// relative ones. An empty entry is none.
func folders(path string) (absolute, relative []string) {
	for _, dir := range filepath.SplitList(path) {
		switch {
		case filepath.IsAbs(dir):
			absolute = append(absolute, dir)
		case dir != "":
			relative = append(relative, dir)
		}
	}
	return absolute, relative
}

func (o *operation) call(ctx context.Context, a *skel.CmdArgs) delegates.Call {
	path, relative := folders(a.Path)
	if len(relative) > 0 {
		// What they name is the choice of whoever started the runtime where it runs.
		trace.Warn(ctx, "relative entries of CNI_PATH are passed over", trace.KeyPath.StringSlice(relative))
	}
	return delegates.Call{
		Attachment: delegates.Attachment{Network: o.net.Name, ContainerID: a.ContainerID, IfName: a.IfName},
		Conf:       a.StdinData, Prev: o.net.Prev, NetNS: a.Netns, Args: a.Args, Path: path, Operation: o.root.Traceparent(),
	}
}

// finish prints an error, where there is one, then writes spool and log, and
// returns the exit code.
func (o *operation) finish(failed *types.Error) (code int) {
	if failed != nil {
		code = o.answer(failed)
	}
	o.root.End()
	_ = o.heard(failed).Write(o.rec) // a loss is counted
	if o.chain == nil {
		return code
	}
	// The record goes last: who finds it after a kill tells of the operation.
	ctx := withDeadline(context.Background(), time.Now().Add(closeTime))
	if err := o.chain.Close(ctx); err != nil && failed == nil {
		code = o.answer(toCNI(fmt.Errorf("%w: %w", chain.ErrLeft, err)))
	}
	return code
}

// closeTime bounds what comes after spool and log.
const closeTime = 5 * time.Second

// answer prints an error, and returns the exit code.
func (o *operation) answer(failed *types.Error) int {
	o.fail(failed)
	return printed(explain(failed, o.net.CNIVersion, o.traceOf(failed), o.rec.Failed()), o.mute)
}

// nameOf is a code in words.
func nameOf(code uint) string {
	if c, ok := codes.Of(code); ok {
		return c.Name
	}
	return "error " + strconv.FormatUint(uint64(code), 10)
}

func (o *operation) fail(e *types.Error) {
	o.root.Set(trace.KeyErrorCode.Int64(int64(e.Code)), trace.KeyErrorType.String(nameOf(e.Code)))
	if o.verdict != nil {
		o.root.FailMildly(e.Msg)
		return
	}
	o.root.Fail(e.Msg)
}

func (o *operation) sink() trace.Sink {
	t := o.net.Tracewire
	return trace.Sink{
		Resource: trace.Resource(version, o.boot, os.Getenv),
		Spool:    trace.Spool{Dir: t.SpoolDir, MaxBytes: t.SpoolBytes, Closed: o.closed(t.SpoolDir)},
		Log:      trace.Log{Path: t.LogPath, Level: t.LogLevel, Closed: o.closed(t.LogPath)},
	}
}

// closed is why nothing may be written at a path: it is below a state directory
// that is not ours alone, and whoever can swap that chooses where it would be.
func (o *operation) closed(path string) error {
	below, err := filepath.Rel(o.net.Tracewire.StateDir, path)
	if err != nil || !filepath.IsLocal(below) {
		return nil
	}
	return o.records().Trusted()
}

// runtimeExe is the executable that called us, empty when it is gone or pid 1.
func runtimeExe() string {
	ppid := os.Getppid()
	if ppid <= 1 {
		return ""
	}
	exe, err := os.Readlink("/proc/" + strconv.Itoa(ppid) + "/exe")
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(exe, " (deleted)")
}

// shortHash stands for a configuration, which may hold secrets, in spans and
// log: the same for all operations of a network that has not changed.
func shortHash(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:8])
}
