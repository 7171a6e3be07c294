package ipam

// Use is how much of a range set is in use.
type Use struct {
	Ranges string // "10.22.0.1-10.22.0.254"
	Used   uint64 // its addresses that have a reservation file, gateways left out
	Total  uint64 // addresses that can be given
}

// Uses is how much of each range set a network has in use. A store that is not
// there has nothing in use.
func (h HostLocal) Uses(network string) ([]Use, error) {
	dir, err := folder(h.DataDir, network)
	if err != nil {
		return nil, err
	}
	all, err := taken(dir)
	if noStore(err) {
		err = nil
	}
	uses := make([]Use, len(h.Sets))
	for i, s := range h.Sets {
		uses[i] = Use{Ranges: s.String(), Used: uint64(len(s.of(all))), Total: s.size()}
	}
	return uses, err
}
