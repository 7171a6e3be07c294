package ipam

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/tracewire/tracewire/delegates"
)

// Check looks for the reservation of each address that the record lists, or
// without one of each that the final result has of the ranges. Where that is
// none, any reservation of the attachment will do.
func (h HostLocal) Check(ctx context.Context, c delegates.Call) error {
	dir, err := folder(h.DataDir, c.Network)
	if err != nil {
		return err
	}
	listed := delegates.Addresses(c.Made.Reserved)
	if c.Made.Reserved == nil {
		listed = delegates.Addresses(c.Made.Result)
	}
	if !c.Made.Known {
		listed = slices.DeleteFunc(delegates.Addresses(c.Before), func(a netip.Addr) bool {
			return !slices.ContainsFunc(h.Sets, func(s Set) bool { return s.index(a) >= 0 })
		})
	}
	if len(listed) == 0 {
		return checkAny(dir, of(c.Attachment))
	}
	var found delegates.Findings
	var errs []error
	for _, a := range listed {
		f, err := checkOne(filepath.Join(dir, a.String()), of(c.Attachment))
		if len(f) > 0 && c.Restore {
			delegates.Restored(ctx, f[0], Restore(ctx, dir, a, c.Attachment, always))
		}
		found, errs = append(found, f...), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil || found == nil {
		return err
	}
	return found
}

// always is for an attachment of which it was found out already.
func always() (bool, error) { return true, nil }

func checkOne(path string, owner Reservation) (delegates.Findings, error) {
	r, ok, err := readReservation(path)
	if ok && (r == owner || r == owner.bare()) {
		return nil, nil
	}
	state := "no reservation"
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case ok:
		state = "held by " + r.String()
	default:
		state = "a file without a holder"
	}
	return missing(fmt.Sprintf("%s held by %s", filepath.Base(path), owner), state), nil
}

func checkAny(dir string, owner Reservation) error {
	all, err := reservations(dir)
	for _, r := range all {
		if r == owner || r == owner.bare() {
			return nil
		}
	}
	if err != nil {
		return err
	}
	return missing("an address held by "+owner.String(), "no reservation")
}

func missing(expected, found string) delegates.Findings {
	return delegates.Findings{{Code: "ipam.reservation", Expected: expected, Found: found}}
}
