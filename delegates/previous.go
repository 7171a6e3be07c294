package delegates

import (
	"bytes"
	"encoding/json"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// Previous reads a prevResult of any version into the current form. It is nil
// for an absent or null one; entries that are null are left out.
func Previous(raw json.RawMessage) (*types100.Result, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var head struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, fmt.Errorf("prevResult: %w", err)
	}
	r, err := Result(head.CNIVersion, raw)
	if err != nil {
		return nil, fmt.Errorf("prevResult: %w", err)
	}
	return r, nil
}

// Result reads a result of a CNI version into the current form. Entries that
// are null, which the types package takes for real ones, are left out.
func Result(version string, raw []byte) (*types100.Result, error) {
	if version == "" {
		version = types100.ImplementedSpecVersion
	}
	raw, err := withoutNulls(raw)
	if err != nil {
		return nil, err
	}
	r, err := create.Create(version, raw)
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(r)
}

// withoutNulls drops null entries from a result's lists.
func withoutNulls(raw []byte) ([]byte, error) {
	if !bytes.Contains(raw, []byte("null")) {
		return raw, nil
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	changed := false
	for _, key := range []string{"interfaces", "ips", "routes"} {
		var list []*json.RawMessage
		if json.Unmarshal(m[key], &list) != nil {
			continue
		}
		kept := make([]json.RawMessage, 0, len(list))
		for _, e := range list {
			if e != nil {
				kept = append(kept, *e)
			}
		}
		if len(kept) < len(list) {
			m[key], _ = json.Marshal(kept) // raw messages that were just read
			changed = true
		}
	}
	if !changed {
		return raw, nil
	}
	return json.Marshal(m)
}
