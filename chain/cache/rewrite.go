package cache

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"
)

// Given is what a runtime's libcni was given for an ADD and what came of it.
// Reference: cni v1.3.1, libcni/api.go, cachedInfo.
type Given struct {
	Args   string          // CNI_ARGS
	Result json.RawMessage // of the whole list, of any version
}

// Given reads it from the file.
func (f File) Given() (g Given, err error) {
	b, _, err := readRegular(f.Path, maxEntry)
	if err != nil {
		return g, err
	}
	var kept struct {
		CniArgs [][2]string `json:"cniArgs"`
		Result  json.RawMessage
	}
	err = json.Unmarshal(b, &kept)
	pairs := make([]string, len(kept.CniArgs))
	for i, kv := range kept.CniArgs {
		pairs[i] = kv[0] + "=" + kv[1]
	}
	return Given{strings.Join(pairs, ";"), kept.Result}, err
}

// Rewrite writes the record of an attachment that lives and has lost it. It gets
// its name once it is whole: what stands for an ADD that did not end would be taken
// back. So it is an error where the file system has no files without a name
// (open(2), O_TMPFILE). Its owner holds the attachment's lock.
func (d Dir) Rewrite(in Intent, began time.Time, reserved, made *types100.Result) error {
	j := &Journal{path: d.File(in.Attachment), start: began, record: Record{State: None}}
	err := inFolder(j.path, func() (err error) {
		j.fd, err = d.open(filepath.Dir(j.path), appending|unix.O_TMPFILE)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _ = j.Close() }()
	err = errors.Join(j.write(entry{Kind: "intent", Intent: in}), j.Reserved(reserved), j.Plan(made), j.Result(made), j.Told())
	if err != nil {
		return err
	}
	return j.name()
}
