package conflist

import (
	"fmt"
	"strings"
)

// Args is CNI_ARGS, read. Keys that nobody knows are kept: they are the
// runtime's, and never an error.
type Args map[string]string

// ParseArgs reads CNI_ARGS, "K=V;K=V" (CNI spec 1.1.0, section 2). Empty pairs
// are passed over. The Args of a malformed text hold the pairs that could be read.
func ParseArgs(text string) (Args, error) {
	args := Args{}
	var bad error
	for pair := range strings.SplitSeq(text, ";") {
		if pair == "" {
			continue
		}
		k, v, ok := strings.Cut(pair, "=")
		if !ok || k == "" || strings.Contains(v, "=") {
			if bad == nil {
				bad = fmt.Errorf("%w: pair %s is not KEY=VALUE", ErrArgs, Shown(k)) // the value may be a secret
			}
			continue
		}
		args[k] = v
	}
	return args, bad
}
