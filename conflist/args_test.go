package conflist

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseArgs(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	for _, tt := range []struct {
		name, text string
		want       Args
		err        string
	}{
		{"empty", "", Args{}, ""},
		{"a runtime's", "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_UID=5b1c",
			Args{"IgnoreUnknown": "1", "K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": "web-0", "K8S_POD_UID": "5b1c"}, ""},
		{"empty pairs (cni#560)", ";;A=1;;B=2;", Args{"A": "1", "B": "2"}, ""},
		{"only semicolons", ";;", Args{}, ""},
		{"an empty value", "A=;B=2", Args{"A": "", "B": "2"}, ""},
		{"the last of two counts", "A=1;A=2", Args{"A": "2"}, ""},
		{"case counts", "a=1;A=2", Args{"a": "1", "A": "2"}, ""},
		{"blanks belong to it", " A = 1 ", Args{" A ": " 1 "}, ""},
		{"no equals sign", "A=1;B;C=3", Args{"A": "1", "C": "3"}, `invalid CNI_ARGS: pair "B" is not KEY=VALUE`},
		{"two equals signs", "A==b;C=3", Args{"C": "3"}, `invalid CNI_ARGS: pair "A" is not KEY=VALUE`},
		{"an equals sign in the value", "A=b=c", Args{}, `invalid CNI_ARGS: pair "A" is not KEY=VALUE`},
		{"no key", "=1;C=3", Args{"C": "3"}, `invalid CNI_ARGS: pair "" is not KEY=VALUE`},
		{"the first of two is named", "A;B", Args{}, `invalid CNI_ARGS: pair "A" is not KEY=VALUE`},
		{"100 kB", "A=" + long, Args{"A": long}, ""},
		{"100 kB that is no pair", long, Args{}, `invalid CNI_ARGS: pair "` + long[:maxShown-1] + "... is not KEY=VALUE"},
		{"not UTF-8", "A=\xff\xfe", Args{"A": "\xff\xfe"}, ""},
		{"not UTF-8 and no pair", "\xff", Args{}, `invalid CNI_ARGS: pair "\ufffd" is not KEY=VALUE`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseArgs(tt.text)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if got := text(err); got != tt.err || err != nil && !errors.Is(err, ErrArgs) {
				t.Errorf("error %s, want %s", got, tt.err)
			}
		})
	}
}

func FuzzArgs(f *testing.F) {
	for _, s := range []string{"", ";", "A=1;B=2", "A==b", "=", "A", "IgnoreUnknown=1;;K8S_POD_NAME=web-0", "\xff=\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		args, err := ParseArgs(in)
		if args == nil || err != nil && !errors.Is(err, ErrArgs) {
			t.Fatalf("%v, %v", args, err)
		}
		if len(text(err)) > 512 {
			t.Errorf("an error of %d bytes", len(text(err)))
		}
		var pairs []string
		for k, v := range args {
			if k == "" || strings.ContainsAny(k+v, "=;") || !slices.Contains(strings.Split(in, ";"), k+"="+v) {
				t.Errorf("%q=%q is not in it", k, v)
			}
			pairs = append(pairs, k+"="+v)
		}
		again, err := ParseArgs(strings.Join(pairs, ";"))
		if diff := cmp.Diff(args, again); diff != "" || err != nil {
			t.Errorf("%v (-want +got)\n%s", err, diff)
		}
	})
}
