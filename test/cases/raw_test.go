//go:build linux

package cases

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tracewire/tracewire/test/attach"
)

// rawCall is what "raw VERB CONTAINER IFNAME POD" says.
type rawCall struct {
	verb  string
	words []string          // of the attachment
	keys  map[string]string // of the configuration, JSON
	stdin string            // file of the case that is the whole of it; "" is none
	env   []string
}

// raw runs our plugin alone, without libcni and without a prevResult: "raw
// CHECK c1 eth0 pod1 prev=FILE", "raw ADD c1 eth0 pod1 set=KEY=JSON
// env=KEY=VALUE". The verbs GC, STATUS and VERSION are of no attachment.
func (c *story) raw(ctx context.Context, t *testing.T, args []string) error {
	call := c.parse(t, args)
	plugin, stdin, err := c.First(call.keys)
	if err != nil {
		t.Fatal(err)
	}
	if call.stdin != "" {
		stdin = []byte(c.file(t, call.stdin))
	}
	var a attach.Attachment
	if len(call.words) > 0 {
		a = c.attachment(t, call.words)
	}
	if call.verb == "ADD" {
		c.pod(t, call.words[2])
	}
	out, err := c.Run(ctx, plugin, stdin, append(c.Environment(call.verb, a), call.env...))
	if call.verb != "ADD" || err != nil {
		return err
	}
	return c.added(a, value(t, string(out)))
}

func (c *story) parse(t *testing.T, args []string) rawCall {
	t.Helper()
	call := rawCall{verb: args[0], keys: map[string]string{}}
	for _, word := range args[1:] {
		kind, rest, _ := strings.Cut(word, "=")
		switch key, val, _ := strings.Cut(rest, "="); kind {
		case "prev":
			call.keys["prevResult"] = c.file(t, rest)
		case "set":
			call.keys[key] = val
		case "stdin":
			call.stdin = rest
		case "env":
			call.env = append(call.env, key+"="+strings.ReplaceAll(text(t, val), attach.Dir, c.Dir))
		default:
			call.words = append(call.words, word)
		}
	}
	return call
}

// file is a file of the case.
func (c *story) file(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.folder, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), attach.Dir, c.Dir)
}

// long is a value that no table or log is made for.
var long = strings.Repeat("x", 100_000)

// text is a value of a step. A quoted one may have any byte ("a\nb"), and
// @LONG@ is 100 kB.
func text(t *testing.T, val string) string {
	t.Helper()
	if strings.HasPrefix(val, `"`) {
		var err error
		if val, err = strconv.Unquote(val); err != nil {
			t.Fatalf("%s: %v", val, err)
		}
	}
	return strings.ReplaceAll(val, "@LONG@", long)
}

// gc runs GC of the whole list; the attachments that it names are valid: "gc
// c1:eth0 c2:eth0". "gc -" runs our plugin alone without any list, "gc null"
// with one that is null.
func (c *story) gc(ctx context.Context, t *testing.T, args []string) error {
	switch {
	case slices.Equal(args, []string{"-"}):
		return c.raw(ctx, t, []string{"GC"})
	case slices.Equal(args, []string{"null"}):
		return c.raw(ctx, t, []string{"GC", "set=cni.dev/valid-attachments=null", "set=cni.dev/attachments=null"})
	}
	valid := []types.GCAttachment{} // nil would be null
	for _, name := range args {
		container, ifName, _ := strings.Cut(name, ":")
		valid = append(valid, types.GCAttachment{ContainerID: container, IfName: ifName})
	}
	return c.GC(ctx, valid)
}

// value is JSON as a value that can be compared.
func value(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}
