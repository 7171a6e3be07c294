package delegates

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// errNull marks a result with an entry that is null: the types package would
// take it for a real one.
var errNull = errors.New("has an entry that is null")

// Previous reads a prevResult of any version into the current form. It is nil
// for an absent or null one.
func Previous(raw json.RawMessage) (*types100.Result, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var head struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, err
	}
	return Result(head.CNIVersion, raw)
}

// Salvage reads what can be read of a prevResult; nil when that is nothing. DEL
// has to go on with it.
func Salvage(raw json.RawMessage) *types100.Result {
	r, err := Previous(raw)
	if errors.Is(err, errNull) {
		r, err = Previous(withoutNulls(raw))
	}
	if err != nil {
		return nil
	}
	return r
}

// Result reads a result of a CNI version into the current form.
func Result(version string, raw []byte) (*types100.Result, error) {
	if version == "" {
		version = types100.ImplementedSpecVersion
	}
	if !bytes.Equal(withoutNulls(raw), raw) {
		return nil, errNull
	}
	raw, err := withVersion(raw, version)
	if err != nil {
		return nil, err
	}
	r, err := create.Create(version, raw)
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(r)
}

// withVersion gives a result that says no version the one it was asked for in,
// as the field's own pkg/invoke does.
func withVersion(raw []byte, version string) ([]byte, error) {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	if said := string(m["cniVersion"]); said != "" && said != `""` {
		return raw, nil
	}
	if m == nil {
		m = map[string]json.RawMessage{}
	}
	m["cniVersion"], _ = json.Marshal(version) // a string can always be written
	return json.Marshal(m)
}

// withoutNulls drops null entries from a result's lists; raw itself where
// there are none.
func withoutNulls(raw []byte) []byte {
	var m map[string]json.RawMessage
	if !bytes.Contains(raw, []byte("null")) || json.Unmarshal(raw, &m) != nil {
		return raw
	}
	changed := false
	for key := range m { // of any key: Go's decoder does not mind its case
		var list []*json.RawMessage
		if json.Unmarshal(m[key], &list) != nil {
			continue
		}
		kept := slices.DeleteFunc(slices.Clone(list), func(e *json.RawMessage) bool { return e == nil })
		if len(kept) < len(list) {
			m[key], _ = json.Marshal(kept) // raw messages that were just read
			changed = true
		}
	}
	if !changed {
		return raw
	}
	b, _ := json.Marshal(m)
	return b
}
