package netlink

import (
	"testing"

	"golang.org/x/sys/unix"
)

func FuzzMessages(f *testing.F) {
	var m Batch
	m.Add("request", unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS)
	m.Raw(make([]byte, 4+unix.SizeofNlMsghdr)...)
	m.Str(unix.NLMSGERR_ATTR_MSG, "words")
	m.End()
	f.Add(m.Bytes())
	for n := range len(m.Bytes()) {
		f.Add(m.Bytes()[:n])
	}
	f.Add([]byte{16, 0, 0, 0, unix.NLMSG_ERROR, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		seen := 0
		err := Messages(b, func(h unix.NlMsghdr, body []byte) {
			seen += unix.SizeofNlMsghdr + len(body)
			_ = Answer(h, body)
			Walk(body, func(_ uint16, data []byte) { _ = String(data) })
		})
		if seen > len(b) {
			t.Errorf("%d of %d bytes, %v", seen, len(b), err)
		}
	})
}
