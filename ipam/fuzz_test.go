package ipam

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tracewire/tracewire/conflist"
)

func FuzzReservation(f *testing.F) {
	for _, content := range []string{"", "c1", "c1\r\neth0", "c1\r\n", "\r\neth0", " c1\r\neth0\n", "c1\neth0", "c1\r\n\r\neth0", "\xff\x00"} {
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content string) {
		r, ok := ParseReservation(content)
		if got := r.Text(); ok && got != strings.TrimSpace(content) {
			t.Errorf("%q became %q", content, got)
		}
		if ok != (r.ContainerID != "") || !utf8.ValidString(r.Text()) || strings.ContainsAny(r.Text(), "\x00 \t") {
			t.Errorf("%q became %q, %t", content, r.Text(), ok)
		}
		if again, _ := ParseReservation(r.Text()); again != r {
			t.Errorf("%+v became %+v", r, again)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, conf := range []string{
		`{"ipam":{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.9","gateway":"10.1.0.1","dataDir":"/d"}}`,
		`{"cniVersion":"1.0.0","ipam":{"ranges":[[{"subnet":"10.1.0.0/30"},{"subnet":"10.2.0.0/30"}],[{"subnet":"fd00::/64","rangeEnd":"fd00::9"}]],"routes":[{"dst":"::/0","gw":"fd00::1","table":5}]}}`,
		`{"ipam":{"ranges":[null,[null],[[]]],"routes":[null]},"runtimeConfig":{"ipRanges":[[{"subnet":"0.0.0.0/0"}]],"ips":["fd00::5/64",null,5]},"args":{"cni":{"ips":["10.1.0.5"]}}}`,
		`{"ipam":5}`, `null`, ``,
	} {
		f.Add([]byte(conf), "IgnoreUnknown=1;IP=10.1.0.5")
	}
	f.Fuzz(func(t *testing.T, conf []byte, args string) {
		h, err := parse(string(conf), args)
		if err != nil && !errors.Is(err, conflist.ErrInvalid) && !errors.Is(err, conflist.ErrArgs) {
			t.Errorf("unnamed error: %v", err)
		}
		if h.DataDir == "" || err == nil && len(h.Sets) == 0 {
			t.Errorf("unusable: %+v", h)
		}
		for _, s := range h.Sets {
			walk(t, s)
		}
	})
}

// walk takes some steps round the set.
func walk(t *testing.T, s Set) {
	t.Helper()
	first, n := netip.Addr{}, 0
	for a := range s.after(s.Ranges[0].End) {
		if s.index(a) < 0 || s.gateway(a) || a == first {
			t.Fatalf("%s is not to be leased from %s", a, s)
		}
		n++
		if n == 1 {
			first = a
		}
		if n == 300 {
			return
		}
	}
}

func FuzzResolv(f *testing.F) {
	for _, text := range []string{"nameserver 10.1.0.1\nsearch a b\noptions ndots:5\ndomain c\n", "nameserver", "nameserver\x00 x", "# x\n;y\n", " \t\nsearch\n", "\xff \xff", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		dns := parseResolv(text)
		for _, word := range slices.Concat(dns.Nameservers, dns.Search, dns.Options) {
			if word == "" || strings.ContainsAny(word, " \t\n") || !strings.Contains(text, word) {
				t.Errorf("%q", word)
			}
		}
	})
}
