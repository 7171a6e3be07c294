package proc

import (
	"os"
	"strings"
	"testing"
)

func TestOf(t *testing.T) {
	p := Of(os.Getpid())
	if p.Name == "" || p.Parent != os.Getppid() || p.State == "Z" || p.Began == 0 || p.Began > Now() || Now()-p.Began > 60*60*100 {
		t.Errorf("%+v, at %d", p, Now())
	}
	if p := Of(-1); p != (Process{}) {
		t.Errorf("of none: %+v", p)
	}
}

func TestParse(t *testing.T) {
	zeros := strings.Repeat("0 ", 17)
	for text, want := range map[string]Process{
		"7 (a) S 1 " + zeros + "777 0":        {Name: "a", State: "S", Parent: 1, Began: 777},
		"7 (a) b (c)) Z 12 " + zeros + "5":    {Name: "a) b (c)", State: "Z", Parent: 12, Began: 5},
		"7 (a) S 1":                           {},
		"":                                    {},
		")(":                                  {},
		"7 (a) S " + strings.Repeat("x ", 30): {Name: "a", State: "S"},
	} {
		if got := parse([]byte(text)); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"4711 (a) b (c)) S 12 4711 4711 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 777 0 0", ")(", "(", ""} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if p := parse(b); len(p.Name)+len(p.State) > len(b) {
			t.Errorf("%+v", p)
		}
	})
}
