package conflist

import (
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestAsks(t *testing.T) {
	for _, tt := range []struct {
		raw         string
		given, asks bool
	}{
		{``, false, false}, {`null`, false, false},
		{`false`, true, false}, {`0`, true, false}, {`""`, true, false}, {`[]`, true, false}, {"[ \n]", true, false}, {`{}`, true, false}, {`{ }`, true, false},
		{`true`, true, true}, {`1`, true, true}, {`"0"`, true, true}, {`"false"`, true, true}, {`[null]`, true, true}, {`[0]`, true, true}, {`{"a":null}`, true, true},
	} {
		v := &Value{Raw: json.RawMessage(tt.raw)}
		if given, asks := v.Given(), v.Asks(); given != tt.given || asks != tt.asks {
			t.Errorf("%q: given %t and asks %t, want %t and %t", tt.raw, given, asks, tt.given, tt.asks)
		}
	}
}

func TestEach(t *testing.T) {
	for _, tt := range []struct {
		name, doc string
		want      []string // path and raw
		err       string
	}{
		{"absent", `{}`, nil, ""},
		{"null", `{"a":null}`, nil, ""},
		{"empty", `{"a":[]}`, nil, ""},
		{"elements", `{"a":[1,null,{"b":2}]}`, []string{"a[0]=1", "a[1]=null", `a[2]={"b":2}`}, ""},
		{"no array", `{"a":{"b":2}}`, nil, `invalid network configuration: a: must be an array, got {"b":2}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			doc := Read([]byte(tt.doc))
			var got []string
			for _, v := range doc.At("a").Each() {
				got = append(got, v.Path+"="+string(v.Raw))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if got := text(doc.Err()); got != tt.err {
				t.Errorf("error %s, want %s", got, tt.err)
			}
		})
	}
}

func TestPathsOfWhatIsNested(t *testing.T) {
	doc := Read([]byte(`{"ipam":{"ranges":[[{"subnet":5}]]}}`))
	doc.At("ipam").At("ranges").Each()[0].Each()[0].At("subnet").Text()
	if got, want := text(doc.Err()), "invalid network configuration: ipam.ranges[0][0].subnet: must be a string, got 5"; got != want {
		t.Errorf("error %s, want %s", got, want)
	}
}

func TestAtIsOneValueAKey(t *testing.T) {
	doc := Read([]byte(`{"a":{"b":"x"},"A":5}`))
	if first, again := doc.At("a").At("b"), doc.At("a").At("b"); first != again {
		t.Error("a member is read twice")
	}
	for key, want := range map[string]string{"a": `{"b":"x"}`, "A": "5", "c": ""} {
		if got := string(doc.At(key).Raw); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
	if got := doc.At("c").At("d").At("e").Text(); got != "" || doc.Err() != nil {
		t.Errorf("below what is absent: %q, %v", got, doc.Err())
	}
}

func TestInto(t *testing.T) {
	for _, tt := range []struct{ name, raw, boolean, word, whole, words string }{
		{"null keeps the defaults", `null`, "", "", "", ""},
		{"a boolean", `true`, "", "must be a string", "must be a whole number", "must be of another type"},
		{"a string", `"x"`, "must be a boolean", "", "must be a whole number", "must be of another type"},
		{"a number", `7`, "must be a boolean", "must be a string", "", "must be of another type"},
		{"an array of strings", `["x"]`, "must be a boolean", "must be a string", "must be a whole number", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			boolean, word, whole, words := true, "default", 5, []string{"default"}
			for _, x := range []struct {
				variable any
				why      string
			}{{&boolean, tt.boolean}, {&word, tt.word}, {&whole, tt.whole}, {&words, tt.words}} {
				doc := Read([]byte(`{"k":` + tt.raw + `}`))
				doc.At("k").Into(x.variable)
				want := ""
				if x.why != "" {
					want = "invalid network configuration: k: " + x.why + ", got " + tt.raw
				}
				if got := text(doc.Err()); got != want {
					t.Errorf("error %s, want %s", got, want)
				}
			}
			type vars struct {
				Boolean bool
				Word    string
				Whole   int
				Words   []string
			}
			want := vars{true, "default", 5, []string{"default"}}
			switch tt.raw {
			case `"x"`:
				want.Word = "x"
			case "7":
				want.Whole = 7
			case `["x"]`:
				want.Words = []string{"x"}
			}
			if diff := cmp.Diff(want, vars{boolean, word, whole, words}); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestIntoAnotherType(t *testing.T) {
	doc := Read([]byte(`{"k":"x"}`))
	var f float64
	doc.At("k").Into(&f)
	if got, want := text(doc.Err()), `invalid network configuration: k: must be of another type, got "x"`; got != want {
		t.Errorf("error %s, want %s", got, want)
	}
}

func TestNumber(t *testing.T) {
	number := func(n int) *int { return &n }
	for _, tt := range []struct {
		name, doc string
		number    int
		optional  *int
	}{
		{"absent", `{}`, 7, nil},
		{"null", `{"k":null}`, 7, nil},
		{"the least", `{"k":0}`, 0, number(0)},
		{"the most", `{"k":100}`, 100, number(100)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			doc, n := Read([]byte(tt.doc)), 7
			doc.At("k").Number(&n, 100)
			if diff := cmp.Diff(tt.optional, doc.At("k").Optional(100)); diff != "" || n != tt.number {
				t.Errorf("got %d, want %d; optional (-want +got)\n%s", n, tt.number, diff)
			}
			if err := doc.Err(); err != nil {
				t.Error(err)
			}
		})
	}
	for raw, want := range map[string]string{
		"-1": "must be 0 to 100, got -1", "101": "must be 0 to 100, got 101", "1.5": "must be a whole number, got 1.5", `"1"`: `must be a whole number, got "1"`,
	} {
		doc, n := Read([]byte(`{"k":`+raw+`}`)), 7
		doc.At("k").Number(&n, 100)
		if got := text(doc.Err()); got != "invalid network configuration: k: "+want || n != 7 {
			t.Errorf("%s: %d, error %s", raw, n, got)
		}
	}
}

// TestNoise: a key may be read by several rooms, and what is below a wrong one
// says nothing of its own.
func TestNoise(t *testing.T) {
	for _, tt := range []struct {
		name string
		add  []error
		want string
	}{
		{"nil", []error{nil}, ""},
		{"twice", []error{Invalid("a", 1, "x"), Invalid("a", 1, "y")}, "invalid network configuration: a: x, got 1"},
		{"unsupported after invalid", []error{Invalid("a", 1, "x"), Unsupported("a", 1)}, "invalid network configuration: a: x, got 1"},
		{"below", []error{Invalid("a", 1, "x"), Invalid("a.b", 1, "y"), Invalid("a[0]", 1, "y")}, "invalid network configuration: a: x, got 1"},
		{"above comes later", []error{Invalid("a.b", 1, "x"), Invalid("a", 1, "y")}, "invalid network configuration: a.b: x, got 1\ninvalid network configuration: a: y, got 1"},
		{"beside", []error{Invalid("a", 1, "x"), Invalid("b", 2, "y")}, "invalid network configuration: a: x, got 1\ninvalid network configuration: b: y, got 2"},
		{"beside, and begins with the same letters", []error{Invalid("a.b", 1, "x"), Invalid("a.bc", 2, "y")}, "invalid network configuration: a.b: x, got 1\ninvalid network configuration: a.bc: y, got 2"},
		{"of another kind", []error{Invalid("a", 1, "x"), fs.ErrExist, fs.ErrExist}, "invalid network configuration: a: x, got 1\nfile already exists\nfile already exists"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			doc := Read([]byte(`{}`))
			for _, err := range tt.add {
				doc.At("any").Add(err)
			}
			if diff := cmp.Diff(tt.want, text(doc.Err())); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestShown(t *testing.T) {
	long := strings.Repeat("x", maxShown-1)
	for _, tt := range []struct {
		name string
		v    any
		want string
	}{
		{"nil", nil, "null"},
		{"absent", json.RawMessage(nil), "null"},
		{"a string", "a\"b\n\x1b[31m", `"a\"b\n\u001b[31m"`},
		{"not UTF-8", "a\xff", `"a\ufffd"`},
		{"JSON", json.RawMessage("{ \"a\" :\n1 }"), `{"a":1}`},
		{"no JSON", json.RawMessage("{\"a\"\n"), `"{\"a\"\n"`},
		{"as long as may be", strings.Repeat("x", maxShown-2), `"` + strings.Repeat("x", maxShown-2) + `"`},
		{"longer", strings.Repeat("x", 1<<20), `"` + long + "..."},
		{"longer, in the middle of a rune", long[1:] + "üü", `"` + long[1:] + "..."},
		{"no JSON at all", func() {}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Shown(tt.v)
			if tt.want != "" && got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if got == "" || len(got) > maxShown+len("...") || !utf8.ValidString(got) || strings.ContainsAny(got, "\n\x1b") {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestInvalidOfNoKey(t *testing.T) {
	err := Invalid("", "x", "must be an object")
	if got, want := err.Error(), `invalid network configuration: network configuration: must be an object, got "x"`; got != want || !errors.Is(err, ErrInvalid) {
		t.Errorf("error %s, want %s", got, want)
	}
}
