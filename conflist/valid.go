package conflist

// Attachment is one that the runtime knows.
type Attachment struct{ ContainerID, IfName string }

// Valid reads the attachments that a GC has to leave alone, from
// cni.dev/valid-attachments, else from cni.dev/attachments, as the spec's draft
// named it (CNI spec 1.1.0, "GC"). given is false where the runtime gave no
// list: it is absent or null. A list that cannot be read whole is an error.
func Valid(conf []byte) (list []Attachment, given bool, err error) {
	doc := Read(conf)
	for _, key := range []string{"cni.dev/valid-attachments", "cni.dev/attachments"} {
		v := doc.At(key)
		if !v.Given() {
			continue
		}
		for _, e := range v.Each() {
			list = append(list, e.attachment())
		}
		return list, true, doc.Err()
	}
	return nil, false, nil
}

func (v *Value) attachment() Attachment {
	a := Attachment{ContainerID: v.At("containerID").Text(), IfName: v.At("ifname").Text()}
	if a.ContainerID == "" {
		v.At("containerID").Fail("must be a container id")
	}
	if a.IfName == "" {
		v.At("ifname").Fail("must be an interface name")
	}
	return a
}
