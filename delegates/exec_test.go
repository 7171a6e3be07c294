package delegates

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	api "go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"

	"github.com/tracewire/tracewire/trace"
	"github.com/tracewire/tracewire/trace/read"
)

// journal is one that keeps nothing but what it was told, and may be full.
type journal struct {
	phases []string
	full   error
}

func (j *journal) Reserved(*types100.Result) error { return nil }
func (j *journal) Plan(*types100.Result) error     { return nil }

func (j *journal) Ran(step string, how Ran, durable bool) error {
	j.phases = append(j.phases, fmt.Sprintf("%s %s durable %t", []string{Asked: "asked", Freeing: "freeing", Freed: "freed"}[how], step, durable))
	return j.full
}

func (j *journal) Begin(p, _ string) error { j.phases = append(j.phases, "begin "+p); return nil }
func (j *journal) End(p string) error      { j.phases = append(j.phases, "end "+p); return nil }

// folder is a folder of plugins, shell scripts.
type folder string

func plugins(t testing.TB, scripts map[string]string) folder {
	t.Helper()
	dir := t.TempDir()
	for name, body := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return folder(dir)
}

// read is a file that a plugin wrote beside itself.
func (f folder) read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(string(f), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// leases is an IPAM plugin.
func leases(name string) Plugin { return Plugin{Type: name, Step: "ipam", Durable: true} }

const conf = `{"cniVersion":"1.0.0","name":"net","type":"fake"}`

func (f folder) call() Call {
	return Call{
		Attachment: Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"}, Conf: []byte(conf),
		NetNS: "/run/netns/c1", Args: "K8S_POD_NAME=web-0", Path: []string{string(f)},
	}
}

// record runs do in a root span and returns the operation.
func record(t *testing.T, do func(context.Context)) read.Operation {
	t.Helper()
	r := trace.NewRecorder(time.Now())
	ctx, root := r.Tracer(trace.Scope).Start(t.Context(), "cni.ADD")
	do(ctx)
	root.End()
	dir := t.TempDir()
	if err := (trace.Spool{Dir: dir, MaxBytes: 1 << 30}).Write(r, nil); err != nil {
		t.Fatal(err)
	}
	var ops []read.Operation
	if _, err := read.Spool(dir, func(o read.Operation) bool { ops = append(ops, o); return true }); err != nil || len(ops) != 1 {
		t.Fatalf("%d operations: %v", len(ops), err)
	}
	return ops[0]
}

func TestFind(t *testing.T) {
	first, second := plugins(t, map[string]string{"both": "", "first": ""}), plugins(t, map[string]string{"both": "", "folder": "", "second": ""})
	if err := errors.Join(os.Mkdir(filepath.Join(string(first), "folder"), 0o700), os.Symlink("second", filepath.Join(string(second), "link")),
		os.Symlink("none", filepath.Join(string(first), "link")), os.WriteFile(filepath.Join(string(first), "second"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	path := []string{"/none", string(first), string(second)}
	for _, tt := range []struct {
		name, plugin string
		path         []string
		want, err    string
	}{
		{"the first of two", "both", path, "FIRST/both", ""},
		{"only the second", "link", path, "SECOND/link", ""},
		{"a folder is passed over", "folder", path, "SECOND/folder", ""},
		{"a file that cannot be executed counts", "second", path, "FIRST/second", ""},
		{"missing", "other", path, "", `delegated plugin failed: other: no executable in CNI_PATH "/none:FIRST:SECOND"`},
		{"no path", "both", nil, "", `delegated plugin failed: both: no executable in CNI_PATH ""`},
		{"no name", "", path, "", `delegated plugin failed: "" is no plugin's name`},
		{"a slash", "../first", path, "", `delegated plugin failed: "../first" is no plugin's name`},
		{"an absolute path", "/bin/sh", path, "", `delegated plugin failed: "/bin/sh" is no plugin's name`},
		{"this folder", ".", path, "", `delegated plugin failed: .: no executable in CNI_PATH "/none:FIRST:SECOND"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			short := strings.NewReplacer(string(first), "FIRST", string(second), "SECOND").Replace
			got, err := Find(tt.plugin, tt.path)
			said := ""
			if err != nil {
				said = short(err.Error())
			}
			if short(got) != tt.want || said != tt.err || err != nil && !errors.Is(err, ErrPlugin) {
				t.Errorf("got %s, %v, want %s, %s", got, err, tt.want, tt.err)
			}
			theirs, theirErr := invoke.FindInPath(tt.plugin, tt.path)
			if got != theirs || (err == nil) != (theirErr == nil) {
				t.Errorf("got %s, %v, invoke finds %s, %v", got, err, theirs, theirErr)
			}
		})
	}
}

// TestAnswers runs the same plugins by us and by the field's own package, which
// has to find the same in what they answer where the table does not say otherwise.
func TestAnswers(t *testing.T) {
	const address = `{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.2/24"}]}`
	for _, tt := range []struct {
		name, script string
		want         string // result as JSON
		err          string
		differs      string // why invoke finds something else
	}{
		{"1.1.0", `echo '{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}],"routes":[{"dst":"0.0.0.0/0","mtu":1400}]}'`,
			`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}],"routes":[{"dst":"0.0.0.0/0","mtu":1400}]}`, "", ""},
		{"1.0.0", "echo '" + address + "'", `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}]}`, "", ""},
		{"0.4.0", `echo '{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.0.2/24","interface":0}],"interfaces":[{"name":"eth0"}]}'`,
			`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"10.1.0.2/24","interface":0}]}`, "", ""},
		{"0.2.0", `echo '{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24","gateway":"10.1.0.1","routes":[{"dst":"0.0.0.0/0"}]}}'`,
			`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0"}]}`, "", ""},
		{"0.1.0", `echo '{"cniVersion":"0.1.0","ip4":{"ip":"10.1.0.2/24"}}'`, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}]}`, "", ""},
		{"keys that nobody knows", `echo '{"cniVersion":"1.0.0","colour":"red"}'`, `{"cniVersion":"1.1.0"}`, "", ""},
		{"standard error beside it", "echo noise >&2; echo '" + address + "'", `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}]}`, "", ""},
		{"standard input not read", "exec <&-; echo '" + address + "'", `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}]}`, "", ""},
		{"null", `echo null`, `{"cniVersion":"1.1.0"}`, "", "it panics"},

		{"no output", `true`, "", `delegated plugin failed: fake: answer is not one JSON document: unexpected end of JSON input: ""`, ""},
		{"noise before it", "echo 'hello'; echo '" + address + "'", "", `delegated plugin failed: fake: answer is not one JSON document: invalid character 'h' looking for beginning of value: "hello\n{\"cniVersion\":\"1.0.0\",\"ips\":[{\"address\":\"10.1.0.2/24\"}]}\n"`, ""},
		{"noise after it", "echo '{}'; echo hello", "", `delegated plugin failed: fake: answer is not one JSON document: invalid character 'h' after top-level value: "{}\nhello\n"`, ""},
		{"long noise", `head -c 1000 /dev/zero | tr '\0' x`, "", `delegated plugin failed: fake: answer is not one JSON document: invalid character 'x' looking for beginning of value: "` + strings.Repeat("x", 256) + `"...`, ""},
		{"an array", `echo '[]'`, "", `delegated plugin failed: fake: answer is not one JSON document: json: cannot unmarshal array into Go value of type struct { CNIVersion string "json:\"cniVersion\"" }: "[]\n"`, ""},
		{"a version that is not known", `echo '{"cniVersion":"9.0.0"}'`, "", `delegated plugin failed: fake: answer: unsupported CNI result version "9.0.0": "{\"cniVersion\":\"9.0.0\"}\n"`, ""},
		{"no address", `echo '{"cniVersion":"1.0.0","ips":[{"address":"x"}]}'`, "", `delegated plugin failed: fake: answer: invalid CIDR address: x: "{\"cniVersion\":\"1.0.0\",\"ips\":[{\"address\":\"x\"}]}\n"`, ""},
		{"an address that is null", `echo '{"cniVersion":"1.0.0","ips":[null]}'`, "", `delegated plugin failed: fake: answer: has an entry that is null: "{\"cniVersion\":\"1.0.0\",\"ips\":[null]}\n"`, "it lets it through"},
		{"no address in an entry", `echo '{"cniVersion":"1.1.0","ips":[{}]}'`, "", `delegated plugin failed: fake: answer: <nil> is no address with a prefix length: "{\"cniVersion\":\"1.1.0\",\"ips\":[{}]}\n"`, "it lets it through"},
		{"an address of no network", `echo '{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/0"}]}'`, "", `delegated plugin failed: fake: answer: 10.1.0.2/0 is no address with a prefix length: "{\"cniVersion\":\"1.1.0\",\"ips\":[{\"address\":\"10.1.0.2/0\"}]}\n"`, "it lets it through"},
		{"a gateway of another family", `echo '{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"fd00::1"}]}'`, "", `delegated plugin failed: fake: answer: gateway fd00::1 of address 10.1.0.2/24 is of another family: "{\"cniVersion\":\"1.1.0\",\"ips\":[{\"address\":\"10.1.0.2/24\",\"gateway\":\"fd00::1\"}]}\n"`, "it lets it through"},
		{"an address twice", `echo '{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"},{"address":"10.1.0.2/16"}]}'`, "", `delegated plugin failed: fake: answer: address 10.1.0.2 stands twice: "{\"cniVersion\":\"1.1.0\",\"ips\":[{\"address\":\"10.1.0.2/24\"},{\"address\":\"10.1.0.2/16\"}]}\n"`, "it lets it through"},
		{"5 MB", `head -c 5242880 /dev/zero | tr '\0' ' '; echo '{}'`, "", `exec: delegated plugin failed: fake: answer is longer than 4194304 bytes: "` + strings.Repeat(" ", 256) + `"...`, "it has no bound"},

		{"an error", `echo '{"cniVersion":"1.0.0","code":11,"msg":"no lease","details":"yet"}'; exit 1`, "", "exec: delegated plugin failed: fake: no lease; yet", ""},
		{"an error without details", `echo '{"code":107,"msg":"no"}'; exit 3`, "", "exec: delegated plugin failed: fake: no", ""},
		{"an error beside standard error", `echo noise >&2; echo '{"code":5,"msg":"no"}'; exit 1`, "", "exec: delegated plugin failed: fake: no", ""},
		{"exit without output", `exit 1`, "", `exec: delegated plugin failed: fake: exit status 1: no error printed: """"`, ""},
		{"exit with standard error", `echo "panic: oops" >&2; exit 2`, "", `exec: delegated plugin failed: fake: exit status 2: no error printed: """panic: oops\n"`, ""},
		{"exit with what is no error", `echo oops; exit 1`, "", `exec: delegated plugin failed: fake: exit status 1: no error printed: "oops\n"""`, ""},
		{"exit with a result", "echo '" + address + "'; exit 1", "", `exec: delegated plugin failed: fake: exit status 1: no error printed: "{\"cniVersion\":\"1.0.0\",\"ips\":[{\"address\":\"10.1.0.2/24\"}]}\n"""`, ""},
		{"killed", `kill -KILL $$`, "", `exec: delegated plugin failed: fake: signal: killed: no error printed: """"`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := plugins(t, map[string]string{"fake": tt.script})
			got, err := leases("fake").Add(t.Context(), f.call())
			if diff := cmp.Diff(canonical(t, tt.want), canonical(t, asJSON(t, got))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if said := fmt.Sprint(err); said != tt.err && (err != nil || tt.err != "") {
				t.Errorf("error %s\nwant  %s", said, tt.err)
			}
			if err != nil && !errors.Is(err, ErrPlugin) {
				t.Errorf("%v is no ErrPlugin", err)
			}
			if tt.differs != "" {
				return
			}
			theirs, theirErr := byInvoke(t, f)
			if diff := cmp.Diff(theirs, got); diff != "" || (err == nil) != (theirErr == nil) {
				t.Errorf("%v, invoke: %v (-invoke +got)\n%s", err, theirErr, diff)
			}
			if a, b := printed(err), printed(theirErr); b.Code != 0 && !cmp.Equal(a, b) {
				t.Errorf("error %+v, invoke has %+v", a, b)
			}
		})
	}
}

// printed is the error that a plugin printed, the zero Error for none.
func printed(err error) types.Error {
	if e, ok := errors.AsType[*types.Error](err); ok {
		return *e
	}
	return types.Error{}
}

// byInvoke runs the plugin fake through the field's own package.
func byInvoke(t *testing.T, f folder) (*types100.Result, error) {
	t.Helper()
	c := f.call()
	args := &invoke.Args{Command: "ADD", ContainerID: c.ContainerID, NetNS: c.NetNS, PluginArgsStr: c.Args, IfName: c.IfName, Path: string(f)}
	r, err := invoke.ExecPluginWithResult(t.Context(), filepath.Join(string(f), "fake"), c.Conf, args, &invoke.DefaultExec{RawExec: &invoke.RawExec{}})
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(r)
}

func TestPluginThatIsMissing(t *testing.T) {
	f := plugins(t, nil)
	missing := fmt.Sprintf("delegated plugin failed: fake: no executable in CNI_PATH %q", f)
	address := &types100.Result{IPs: []*types100.IPConfig{{}}}
	for _, tt := range []struct {
		name, verb string
		made       Made
		before     *types100.Result
		want       string
	}{
		{"ADD", "ADD", Made{}, nil, missing},
		{"CHECK", "CHECK", Made{}, nil, missing},
		{"DEL after it ran", "DEL", Made{Known: true, Steps: map[string]Ran{"ipam": Asked}}, nil, missing},
		{"DEL after one that did not end", "DEL", Made{Known: true, Steps: map[string]Ran{"ipam": Freeing}}, nil, missing},
		{"DEL after one that succeeded", "DEL", Made{Known: true, Steps: map[string]Ran{"ipam": Freed}}, nil, ""},
		{"DEL after it never ran", "DEL", Made{Known: true}, nil, ""},
		{"DEL without a record, with an address", "DEL", Made{}, address, missing},
		{"DEL without a record, without an address", "DEL", Made{}, &types100.Result{}, ""},
		{"DEL of what nothing is known of", "DEL", Made{}, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := f.call()
			c.Made, c.Before = tt.made, tt.before
			err := does(t.Context(), tt.verb, c)
			if got := fmt.Sprint(err); got != tt.want && (err != nil || tt.want != "") || err != nil && !errors.Is(err, ErrPlugin) {
				t.Errorf("error %s, want %s", got, tt.want)
			}
		})
	}
}

// does runs the plugin fake for a verb.
func does(ctx context.Context, verb string, c Call) (err error) {
	switch verb {
	case "ADD":
		_, err = leases("fake").Add(ctx, c)
	case "DEL":
		err = leases("fake").Del(ctx, c)
	default:
		err = leases("fake").Check(ctx, c)
	}
	return err
}

func TestPluginThatIsNoProgram(t *testing.T) {
	f := plugins(t, map[string]string{"fake": ""})
	path := filepath.Join(string(f), "fake")
	for _, tt := range []struct {
		name, content string
		mode          os.FileMode
		want          string
	}{
		{"not executable", "#!/bin/sh\n", 0o600, "permission denied"},
		{"of no format", "\x00\x00", 0o700, "exec format error"},
		{"without its interpreter", "#!/none\n", 0o700, "no such file or directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := errors.Join(os.WriteFile(path, []byte(tt.content), 0o600), os.Chmod(path, tt.mode)); err != nil {
				t.Fatal(err)
			}
			_, err := leases("fake").Add(t.Context(), f.call())
			if got, want := fmt.Sprint(err), "exec: delegated plugin failed: fake: fork/exec "+path+": "+tt.want; got != want || !errors.Is(err, ErrPlugin) {
				t.Errorf("error %s, want %s", got, want)
			}
		})
	}
}

// TestPluginThatIsBeingReplaced: the kernel refuses to run what is open to be written.
func TestPluginThatIsBeingReplaced(t *testing.T) {
	f := plugins(t, map[string]string{"fake": `echo '{"cniVersion":"1.0.0"}'`})
	w, err := os.OpenFile(filepath.Join(string(f), "fake"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := leases("fake").Add(ctx, f.call()); err == nil {
		t.Error("ran what is open to be written")
	}
	closed := time.AfterFunc(20*time.Millisecond, func() { _ = w.Close() })
	defer closed.Stop()
	if _, err := leases("fake").Add(t.Context(), f.call()); err != nil {
		t.Errorf("not tried again: %v", err)
	}
}

// TestEnvironment: one of each variable, ours in their places, else as the
// field's own package makes it.
func TestEnvironment(t *testing.T) {
	const stale = "00-11111111111111111111111111111111-2222222222222222-01"
	for k, v := range map[string]string{"CNI_COMMAND": "GC", "CNI_ARGS": "A=1", "CNI_PATH": "/none", "CNI_IFNAME": "eth9", trace.EnvParent: stale, trace.EnvState: "a=1", "TRACEWIRE_TEST_OWN": "a=b c"} {
		t.Setenv(k, v)
	}
	f := plugins(t, map[string]string{"fake": `env >"${0%/*}/env"; echo '{"cniVersion":"1.0.0"}'`})
	c := f.call()
	c.Path = []string{string(f), "/other"}
	op := record(t, func(ctx context.Context) {
		if _, err := leases("fake").Add(ctx, c); err != nil {
			t.Fatal(err)
		}
	})
	got := variables(t, f)
	exec := op.Root.Children[0]
	want := map[string]string{
		"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/c1", "CNI_IFNAME": "eth0",
		"CNI_ARGS": "K8S_POD_NAME=web-0;IgnoreUnknown=1", "CNI_PATH": string(f) + ":/other",
		"TRACEPARENT": "00-" + exec.TraceID + "-" + exec.SpanID + "-01", "TRACEWIRE_TEST_OWN": "a=b c",
	}
	if _, err := byInvoke(t, f); err != nil {
		t.Fatal(err)
	}
	for k, v := range variables(t, f) {
		if _, ours := want[k]; !ours && k != trace.EnvState {
			want[k] = v
		}
	}
	for _, env := range []map[string]string{want, got} { // the shell's own
		delete(env, "_")
		delete(env, "PWD")
		delete(env, "SHLVL")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// variables is the environment that the plugin wrote down.
func variables(t *testing.T, f folder) map[string]string {
	t.Helper()
	env := map[string]string{}
	for line := range strings.Lines(f.read(t, "env")) {
		k, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !ok {
			continue // a further line of a value
		}
		if _, twice := env[k]; twice {
			t.Errorf("%s is there twice", k)
		}
		env[k] = v
	}
	return env
}

func TestEnvironIsMade(t *testing.T) {
	t.Setenv(trace.EnvParent, "00-11111111111111111111111111111111-2222222222222222-01")
	t.Setenv("CNI_NETNS", "/run/netns/other")
	t.Setenv(EnvOperation, "an outer one")
	remote := api.ContextWithRemoteSpanContext(t.Context(), trace.ParseContext("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"))
	for _, tt := range []struct {
		name, args, wantArgs string
		ctx                  context.Context
		parent, operation    string
	}{
		{"without a span the inherited parent is not passed on", "", "IgnoreUnknown=1", t.Context(), "", ""},
		{"the span in the context", "A=1;", "A=1;IgnoreUnknown=1", remote, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", "this one"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := map[string]string{}
			for _, kv := range environ(tt.ctx, "DEL", Call{Args: tt.args, Operation: tt.operation}) {
				k, v, _ := strings.Cut(kv, "=")
				if _, twice := got[k]; twice {
					t.Errorf("%s is there twice", k)
				}
				if strings.HasPrefix(k, "CNI_") || k == trace.EnvParent || k == EnvOperation {
					got[k] = v
				}
			}
			want := map[string]string{"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": "", "CNI_PATH": "", "CNI_ARGS": tt.wantArgs}
			if tt.parent != "" {
				want[trace.EnvParent], want[EnvOperation] = tt.parent, tt.operation
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestStdin: the configuration is passed on whole; DEL and CHECK add the
// runtime's prevResult, else the record's in the configuration's version.
func TestStdin(t *testing.T) {
	made, err := Previous(json.RawMessage(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	long := `{"cniVersion":"1.0.0","x":"` + strings.Repeat("y", 1<<20) + `"}`
	for _, tt := range []struct {
		name, verb, conf, prev string
		made                   *types100.Result
		want, err              string
	}{
		{"ADD has it byte by byte", "ADD", "{ \"name\":\n\"net\" }", "", nil, "{ \"name\":\n\"net\" }", ""},
		{"ADD has 1 MB", "ADD", long, "", nil, long, ""},
		{"ADD has no record's", "ADD", conf, "", made, conf, ""},
		{"DEL without any", "DEL", conf, "", nil, conf, ""},
		{"DEL with the runtime's", "DEL", conf, `{"ips":[],"x":1}`, made, `{"cniVersion":"1.0.0","name":"net","prevResult":{"ips":[],"x":1},"type":"fake"}`, ""},
		{"DEL with one that nobody can read, and the record's", "DEL", conf, `{"ips":[null],"x":1}`, made, `{"cniVersion":"1.0.0","name":"net","prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.2/24"}]},"type":"fake"}`, ""},
		{"DEL with one that nobody can read", "DEL", conf, `{"cniVersion":"9.9.9"}`, nil, conf, ""},
		{"DEL with what can be read of it", "DEL", conf, `{"cniVersion":"1.0.0","ips":[null,{"address":"10.1.0.7/24"}]}`, nil, `{"cniVersion":"1.0.0","name":"net","prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.7/24"}]},"type":"fake"}`, ""},
		{"DEL with one of an older version", "DEL", conf, `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.7/24"}}`, made, `{"cniVersion":"1.0.0","name":"net","prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.7/24"}]},"type":"fake"}`, ""},
		{"DEL with the record's", "DEL", conf, "", made, `{"cniVersion":"1.0.0","name":"net","prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.2/24"}]},"type":"fake"}`, ""},
		{"CHECK with the runtime's", "CHECK", `{"prevResult":{"old":1}}`, `{"new":1}`, nil, `{"prevResult":{"new":1}}`, ""},
		{"a version that cannot hold it", "DEL", `{"cniVersion":"7.0.0"}`, "", made, `{"cniVersion":"7.0.0"}`, ""},
		{"a configuration that is broken", "DEL", `{"name":`, `{}`, nil, "", "delegated plugin failed: fake: configuration: unexpected end of JSON input"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := plugins(t, map[string]string{"fake": `cat >"${0%/*}/stdin"; echo '{"cniVersion":"1.0.0"}'`})
			c := f.call()
			c.Conf, c.Prev, c.Made.Result = []byte(tt.conf), json.RawMessage(tt.prev), tt.made
			err := does(t.Context(), tt.verb, c)
			if said := fmt.Sprint(err); said != tt.err && (err != nil || tt.err != "") {
				t.Errorf("error %s, want %s", said, tt.err)
			}
			if tt.err != "" {
				return
			}
			if got := f.read(t, "stdin"); got != tt.want {
				t.Errorf("got %.300s (%d bytes), want %.300s (%d bytes)", got, len(got), tt.want, len(tt.want))
			}
		})
	}
}

func TestVerbs(t *testing.T) {
	f := plugins(t, map[string]string{"fake": `echo "$CNI_COMMAND" >>"${0%/*}/verbs"; echo '{"code":11,"msg":"later"}'; exit 1`})
	for _, verb := range []string{"ADD", "CHECK", "DEL"} {
		if e := printed(does(t.Context(), verb, f.call())); e.Code != 11 || e.Msg != "later" {
			t.Errorf("%s: %v", verb, e)
		}
	}
	got := strings.Fields(f.read(t, "verbs"))
	if diff := cmp.Diff([]string{"ADD", "CHECK", "DEL"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestExecIsAPhase(t *testing.T) {
	f := plugins(t, map[string]string{"good": `echo '{"cniVersion":"1.0.0"}'`, "bad": "exit 1"})
	for name, want := range map[string]struct {
		phases []string
		tree   string
	}{
		"good": {[]string{"asked ipam durable true", "begin exec", "end exec"}, "cni.ADD\n  exec\n"},
		"bad":  {[]string{"asked ipam durable true", "begin exec"}, "cni.ADD\n  exec [error]\n"},
		"none": {nil, "cni.ADD\n"},
	} {
		j := &journal{}
		c := f.call()
		c.Journal = j
		op := record(t, func(ctx context.Context) { _, _ = leases(name).Add(ctx, c) })
		if diff := cmp.Diff(want.tree, read.Tree(op)); diff != "" {
			t.Errorf("%s: spans (-want +got)\n%s", name, diff)
		}
		if diff := cmp.Diff(want.phases, j.phases); diff != "" {
			t.Errorf("%s: phases (-want +got)\n%s", name, diff)
		}
		if len(op.Root.Children) > 0 {
			if got := op.Root.Children[0].Attributes.Text(trace.KeyPlugin); got != filepath.Join(string(f), name) {
				t.Errorf("%s is executable %s", name, got)
			}
		}
	}
}

// TestNoPluginWithoutItsLine: one that ran without the record's knowledge would
// never be asked to take anything back.
func TestNoPluginWithoutItsLine(t *testing.T) {
	f := plugins(t, map[string]string{"fake": `: >"${0%/*}/ran"`})
	c := f.call()
	c.Journal = &journal{full: unix.ENOSPC}
	if _, err := leases("fake").Add(t.Context(), c); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(filepath.Join(string(f), "ran")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it ran: %v", err)
	}
}

// TestStderrIsAWarning: it is kept, bounded, and the plugin is never blocked by it.
func TestStderrIsAWarning(t *testing.T) {
	f := plugins(t, map[string]string{"fake": `head -c 1048576 /dev/zero | tr '\0' x >&2; echo '{"cniVersion":"1.0.0"}'`})
	op := record(t, func(ctx context.Context) {
		if _, err := leases("fake").Add(ctx, f.call()); err != nil {
			t.Error(err)
		}
	})
	got := map[string]string{}
	for _, e := range op.Root.Children[0].Events {
		got[e.Name] = e.Attributes.Text(trace.KeyStderr)
	}
	if diff := cmp.Diff(map[string]string{"standard error of fake": strings.Repeat("x", maxStderr)}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// lingering is what a plugin starts that holds the pipe beside it open, by where
// it goes.
var lingering = map[string]string{
	"in its group":             `(exec 3>"${0%/*}/pipe"; echo up >&3; exec sleep 600) & wait`,
	"in a session of its own":  `setsid sh -c 'exec 3>"$1/pipe"; echo up >&3; exec sleep 600' sh "${0%/*}" & wait`,
	"without a parent":         `(setsid sh -c 'exec 3>"$1/pipe"; (echo up >&3; exec sleep 600) & ' sh "${0%/*}" &); exec sleep 600`,
	"after the plugin's end":   `setsid sh -c 'exec 3>"$1/pipe"; echo up >&3; exec sleep 600' sh "${0%/*}" & exit 0`,
	"without an environment":   `setsid env -i sh -c 'exec 3>"$1/pipe"; echo up >&3; exec sleep 600' sh "${0%/*}" & wait`,
	"and starts more of them":  `setsid sh -c 'exec 3>"$1/pipe"; echo up >&3; while :; do setsid sleep 600 & setsid true; done' sh "${0%/*}" & wait`,
	"and stops, as the plugin": `setsid sh -c 'exec 3>"$1/pipe"; echo up >&3; kill -STOP $$' sh "${0%/*}" & kill -STOP $$`,
}

// TestEndsWithAll: what the plugin started ends with it when we are told to stop,
// or the time is over. The pipe that it holds open tells.
func TestEndsWithAll(t *testing.T) {
	for name, script := range lingering {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			endsWithAll(ctx, t, script, cancel, context.Canceled)
		})
	}
	t.Run("deadline", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		endsWithAll(ctx, t, lingering["in a session of its own"], func() {}, context.DeadlineExceeded)
	})
}

func endsWithAll(ctx context.Context, t *testing.T, script string, stop func(), want error) {
	f := plugins(t, map[string]string{"fake": script})
	fd, before := f.pipe(t), children()
	got := make(chan error, 1)
	go func() { _, err := leases("fake").Add(ctx, f.call()); got <- err }()
	await(t, fd, unix.POLLIN)
	if n, err := unix.Read(fd, make([]byte, 16)); err != nil || n != len("up\n") {
		t.Errorf("read %d bytes: %v", n, err)
	}
	stop()
	if err := <-got; !errors.Is(err, want) || !errors.Is(err, ErrPlugin) || err.Error() != "exec: delegated plugin failed: fake: "+want.Error() {
		t.Errorf("error %v, want %v", err, want)
	}
	await(t, fd, unix.POLLHUP)
	if diff := cmp.Diff(before, children()); diff != "" {
		t.Errorf("children (-before +after)\n%s", diff)
	}
}

// pipe is a named one beside the plugins, open to be read.
func (f folder) pipe(t *testing.T) (fd int) {
	t.Helper()
	path := filepath.Join(string(f), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// TestSparesTheEarlier: what was left by a plugin that succeeded is none of the
// next one's.
func TestSparesTheEarlier(t *testing.T) {
	f := plugins(t, map[string]string{
		"daemon": `setsid sh -c 'exec 3>"$1/pipe"; echo up >&3; exec sleep 600' sh "${0%/*}" >/dev/null 2>&1 </dev/null & echo $! >"${0%/*}/pid"; read up <"${0%/*}/pipe"; echo '{"cniVersion":"1.0.0"}'`,
		"hangs":  `exec sleep 600`,
	})
	fd := f.pipe(t)
	if _, err := leases("daemon").Add(t.Context(), f.call()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := leases("hangs").Add(ctx, f.call()); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(f.read(t, "pid")))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Errorf("the daemon is gone: %v", err)
	}
	_, _ = unix.Wait4(pid, nil, 0, nil)
	await(t, fd, unix.POLLHUP)
}

// TestPluginLeavesAChild: one that keeps the pipes open neither spoils the
// answer nor outlives the operation.
func TestPluginLeavesAChild(t *testing.T) {
	f := plugins(t, map[string]string{"fake": `(exec 3>"${0%/*}/pipe"; echo up >&3; exec sleep 600) & read up <"${0%/*}/pipe"; echo '{"cniVersion":"1.0.0"}'`})
	fd := f.pipe(t)
	if _, err := leases("fake").Add(t.Context(), f.call()); err != nil {
		t.Errorf("error %v", err)
	}
	await(t, fd, unix.POLLHUP)
}

// await waits until the pipe is ready to be read, or nobody holds it to write.
func await(t *testing.T, fd int, event int16) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		p := []unix.PollFd{{Fd: int32(fd), Events: event}}
		if _, err := unix.Poll(p, 1000); err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
		if p[0].Revents&event != 0 {
			return
		}
	}
	t.Fatalf("the pipe never had %#x", event)
}

func TestCapped(t *testing.T) {
	c := &capped{max: 5}
	for _, tt := range []struct {
		in, want string
		over     bool
	}{{"ab", "ab", false}, {"cde", "abcde", false}, {"", "abcde", false}, {"f", "abcde", true}, {"ghi", "abcde", true}} {
		n, err := c.Write([]byte(tt.in))
		if n != len(tt.in) || err != nil || c.b.String() != tt.want || c.over != tt.over {
			t.Errorf("after %q: %d, %v, %q, over %t", tt.in, n, err, c.b.String(), c.over)
		}
	}
}

func FuzzResult(f *testing.F) {
	for _, s := range []string{full, `{"ips":[null]}`, `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24","routes":[null]}}`, `null`, `{"interfaces":[{}],"routes":null}`,
		``, `{}`, `{"cniVersion":"1.1.0"`, `{"cniVersion":"1.1.0","ips":[null],"interfaces":[null]}`, `{"cniVersion":"9.9.9"}`, `{"cniVersion":5}`, `{"ips":[{"address":"10.1.0.2/24","interface":7}]}`,
		"\x00\x00", "hello\n" + full, full + full, `{"code":7,"msg":"no"}`} {
		for _, v := range []string{"", "0.2.0", "0.4.0", "1.1.0"} {
			f.Add(v, []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, version string, raw []byte) {
		before := bytes.Clone(raw)
		r, err := Result(version, raw)
		if err == nil && (r == nil || r.CNIVersion == "") {
			t.Errorf("%+v", r)
		}
		if r != nil { // what is taken for a result is read past without a look for nil
			_ = sound(r)
		}
		if before := Salvage(raw); before != nil {
			_ = sound(before)
		}
		if !bytes.Equal(before, raw) {
			t.Error("its argument was changed")
		}
	})
}
