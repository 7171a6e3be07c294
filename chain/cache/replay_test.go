package cache

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// written is the bytes of a journal that has every kind of line.
func written(t testing.TB) []byte {
	t.Helper()
	d, j := begin(t)
	for _, l := range append(add, del...) {
		if err := l.do(j); err != nil {
			t.Fatalf("%s: %v", l.name, err)
		}
	}
	b, err := os.ReadFile(d.File(web))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func lines(b []byte) [][]byte { return slices.Collect(bytes.Lines(b)) }

// sealed is a JSON object as a line: with its sum.
func sealed(body string) []byte {
	head := body[:len(body)-1]
	return fmt.Appendf(nil, "%s%s%016x\"}\n", head, sumKey, sumOf([]byte(head)))
}

func replayed(b []byte) view {
	r := Replay(b)
	return r.view()
}

// TestTruncation: a journal that ends anywhere is what its whole lines tell,
// and who opens it appends after them.
func TestTruncation(t *testing.T) {
	b := written(t)
	d, j := begin(t)
	_ = j.Close()
	for n := range len(b) + 1 {
		whole := bytes.LastIndexByte(b[:n], '\n') + 1
		r := Replay(b[:n])
		if diff := cmp.Diff(replayed(b[:whole]), r.view()); diff != "" || r.Damaged || r.Size != int64(n) {
			t.Fatalf("%d bytes: damaged %t, size %d (-want +got)\n%s", n, r.Damaged, r.Size, diff)
		}
		if err := os.WriteFile(d.File(web), b[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		j, err := d.Open(r, web, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(j.Told(), j.Close()); err != nil {
			t.Fatal(err)
		}
		after, err := d.Read(web)
		want := r.view()
		want.Told = true
		if diff := cmp.Diff(want, after.view()); diff != "" || err != nil || after.Damaged {
			t.Fatalf("%d bytes and a line: %v, damaged %t (-want +got)\n%s", n, err, after.Damaged, diff)
		}
	}
}

// TestFlippedBits: no changed bit changes a value. The line it is in is dropped
// (and the next, where it was the line feed between them), and the record is
// damaged when a good line follows.
func TestFlippedBits(t *testing.T) {
	b := written(t)
	all := lines(b)
	original := replayed(b)
	at := 0
	for k, line := range all {
		without := func(n int) view {
			return replayed(bytes.Join(slices.Delete(slices.Clone(all), k, min(k+n, len(all))), nil))
		}
		dropped, droppedTwo := without(1), without(2)
		for i := range line {
			for bit := range 8 {
				c := bytes.Clone(b)
				c[at+i] ^= 1 << bit
				want, last := dropped, k == len(all)-1
				if line[i] == '\n' {
					want, last = droppedTwo, k >= len(all)-2
				}
				r := Replay(c)
				got := r.view()
				if cmp.Equal(original, got) && !r.Damaged {
					continue // a digit of the sum in upper case is the same sum
				}
				if diff := cmp.Diff(want, got); diff != "" || r.Damaged == last {
					t.Fatalf("line %d, byte %d, bit %d: damaged %t (-want +got)\n%s", k, i, bit, r.Damaged, diff)
				}
			}
		}
		at += len(line)
	}
}

// TestNothingReadable: a file without one good line is unreadable, and can be
// written all the same: DEL goes on.
func TestNothingReadable(t *testing.T) {
	for _, tt := range []struct {
		name string
		b    []byte
	}{
		{"empty", nil},
		{"NULs", make([]byte, 4096)},
		{"line feeds", []byte("\n\n\n")},
		{"garbage", []byte("garbage\n\xff\xfe{}\n")},
		{"JSON without a sum", []byte(`{"v":1,"kind":"intent","network":"net"}` + "\n")},
		{"a wrong sum", []byte(`{"v":1,"kind":"intent","network":"net","sum":"0000000000000000"}` + "\n")},
		{"only a sum", sealed("{}")[1:]},
		{"a sum of no JSON", sealed("no JSON}")},
		{"an object without a kind", sealed(`{"v":1}`)},
		{"a kind that is no string", sealed(`{"v":1,"kind":5}`)},
		{"an intent whose key is of another type", sealed(`{"v":1,"kind":"intent","network":5}`)},
		{"a phase that is no JSON", sealed(`{"v":1,"kind":"begin",}`)},
		{"lines without an intent", bytes.Join(lines(written(t))[1:], nil)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, j := begin(t)
			_ = j.Close()
			if err := os.WriteFile(d.File(web), tt.b, 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := d.Read(web)
			if err != nil || r.State != Unreadable || r.Network != "" || r.Made("boot-1").Known {
				t.Fatalf("%+v, %v", r, err)
			}
			j, err = d.Open(r, web, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if err := j.Deleting(Operation{Name: "cni.DEL", Span: "00-del"}); err != nil {
				t.Error(err)
			}
			if again, err := d.Read(web); err != nil || again.State != Unreadable || again.Deleting != "00-del" {
				t.Errorf("%+v, %v", again, err)
			}
			if err := j.Remove(); err != nil {
				t.Error(err)
			}
			if r, err := d.Read(web); err != nil || r.State != None {
				t.Errorf("%s, %v", r.State, err)
			}
		})
	}
}

// TestNewerSchema: what a later version wrote is read as far as it is understood.
func TestNewerSchema(t *testing.T) {
	later := [][]byte{
		sealed(`{"v":2,"kind":"intent","at":5,"after":6,"network":"net","containerID":"c1","ifName":"eth0","zone":{"a":[1]},"boot":"boot-1"}`),
		sealed(`{"v":2,"kind":"moved","at":7,"result":{"interfaces":5},"to":"elsewhere"}`),
		sealed(`{"v":2,"kind":"begin","after":8,"phase":"veth.create","cpu":3}`),
		sealed(`{"v":2,"kind":"reserved","result":{"ips":"all of them"}}`),
		sealed(`{"v":2,"kind":"plan","result":{"cniVersion":"2.0.0","interfaces":[{"name":"plan","colour":"red"}]}}`),
	}
	r := Replay(bytes.Join(later, nil))
	want := view{Intent: Intent{Attachment: web, Boot: "boot-1"}, State: Interrupted, Plan: "plan", Phases: []string{"veth.create ..."}}
	if diff := cmp.Diff(want, r.view()); diff != "" || r.Damaged {
		t.Errorf("damaged %t (-want +got)\n%s", r.Damaged, diff)
	}
	if len(r.Reserved) == 0 || r.Reserved.Get() != nil {
		t.Errorf("a result of a newer kind: %s", r.Reserved)
	}
	if !r.Began.Equal(time.Unix(0, 5)) {
		t.Errorf("began %s", r.Began)
	}
}

func FuzzReplay(f *testing.F) {
	b := written(f)
	f.Add(b)
	for _, l := range lines(b) {
		f.Add(l)
		f.Add(append(bytes.Clone(l), b...))
	}
	f.Add([]byte(nil))
	f.Add(make([]byte, 512))
	f.Add(b[:len(b)/2])
	f.Add(slices.Concat(b, b))
	f.Add(slices.Concat(b, make([]byte, 512)))
	f.Add(bytes.Replace(b, []byte(`"kind":"asked"`), []byte(`"kind":"Asked"`), 1))
	f.Add(sealed(`{"v":9,"kind":"begin"}`))
	f.Add(sealed(`{"v":1,"kind":"mended"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := Replay(b)
		if r.Size != int64(len(b)) || r.good < 0 || r.good > r.Size || r.good == r.Size && r.Damaged && r.good == 0 {
			t.Fatalf("%d bytes: size %d, good to %d", len(b), r.Size, r.good)
		}
		if made := r.Made("boot-1"); made.Known && (r.Damaged || r.good < r.Size) {
			t.Error("a record with a hole is whole")
		}
		if r.State != Unreadable && Replay(sound(b)).State != r.State {
			t.Errorf("the good lines alone are %s, all of them %s", Replay(sound(b)).State, r.State)
		}
		want := r.view()
		again := Replay(append(bytes.Clone(b[:r.good]), sealed(`{"v":1,"kind":"told"}`)...))
		want.Told = true
		if diff := cmp.Diff(want, again.view()); diff != "" || again.Damaged != r.Damaged {
			t.Errorf("cut and appended to: damaged %t (-want +got)\n%s", again.Damaged, diff)
		}
		// An intent makes it readable again, with what stands there.
		in, err := encode(entry{Kind: "intent", Intent: intent})
		if err != nil {
			t.Fatal(err)
		}
		if last := Replay(append(bytes.Clone(b[:r.good]), in...)); last.State != Interrupted || !cmp.Equal(last.Intent, intent) {
			t.Errorf("%+v", last)
		}
	})
}
