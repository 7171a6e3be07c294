package codes

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTable(t *testing.T) {
	var numbers []uint
	names := map[string]uint{}
	for _, c := range Table {
		numbers = append(numbers, c.Number)
		if other, taken := names[c.Name]; taken {
			t.Errorf("%d and %d are both %q", c.Number, other, c.Name)
		}
		names[c.Name] = c.Number
		if c.Name == "" || c.Meaning == "" {
			t.Errorf("%d says nothing: %+v", c.Number, c)
		}
		for _, text := range []string{c.Name, c.Meaning, c.Hint} {
			if strings.TrimSpace(text) != text || strings.HasSuffix(text, ".") || strings.Contains(text, "\n") {
				t.Errorf("%d: %q", c.Number, text)
			}
		}
	}
	// CNI spec 1.1.0, "Error": 1 to 99 are the spec's, 100 and up a plugin's.
	want := []uint{1, 2, 4, 5, 6, 7, 8, 11, 50, 51, 100, 101, 102, 103, 104, 105, 106, 107, 110, 999}
	if diff := cmp.Diff(want, numbers); diff != "" {
		t.Errorf("numbers (-want +got)\n%s", diff)
	}
	if !slices.IsSorted(numbers) {
		t.Error("not in order")
	}
}

func TestOf(t *testing.T) {
	for _, c := range Table {
		if got, ok := Of(c.Number); !ok || got != c {
			t.Errorf("%d is %+v, %t", c.Number, got, ok)
		}
	}
	for _, number := range []uint{0, 3, 99, 108, 1000} {
		if got, ok := Of(number); ok || got != (Code{}) {
			t.Errorf("%d is %+v", number, got)
		}
	}
}

func TestReasons(t *testing.T) {
	if Mends("nobody.knows") {
		t.Error("what nobody knows is mended")
	}
	names := map[string]bool{}
	for _, r := range Reasons {
		if r.Name == "" || r.Meaning == "" || r.Hint == "" || strings.HasSuffix(r.Hint, ".") || names[r.Name] || strings.Trim(r.Name, "abcdefghijklmnopqrstuvwxyz.") != "" || strings.HasSuffix(r.Meaning, ".") {
			t.Errorf("%+v", r)
		}
		names[r.Name] = true
		if Mends(r.Name) != r.Mends {
			t.Errorf("%s: mends is %t", r.Name, !r.Mends)
		}
	}
}
