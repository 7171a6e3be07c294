package read

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tracewire/tracewire/trace"
)

// Segments is the paths of a spool's segments, oldest first.
func Segments(dir string) (paths []string, err error) {
	entries, err := os.ReadDir(dir) // sorted by name, and names sort as times do
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Type().IsRegular() && strings.HasSuffix(e.Name(), trace.SegmentSuffix) {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, nil
}

// Spool hands each operation of a spool to each, oldest segment first, until
// that returns false. Lines that cannot be read are counted and passed over;
// a segment that vanishes meanwhile has no operations.
func Spool(dir string, each func(Operation) bool) (torn int, err error) {
	paths, err := Segments(dir)
	for i, going := 0, true; err == nil && going && i < len(paths); i++ {
		n := 0
		n, err = Segment(paths[i], func(o Operation) bool { going = each(o); return going })
		torn += n
	}
	return torn, err
}

// Newest does as Spool does, from the newest operation back to the oldest. It
// holds the operations of one segment at a time.
func Newest(dir string, each func(Operation) bool) (torn int, err error) {
	paths, err := Segments(dir)
	for _, path := range slices.Backward(paths) {
		var held []Operation
		n, err := Segment(path, func(o Operation) bool { held = append(held, o); return true })
		if torn += n; err != nil {
			return torn, err
		}
		for _, o := range slices.Backward(held) {
			if !each(o) {
				return torn, nil
			}
		}
	}
	return torn, err
}

// Segment hands on each operation of one segment, until each returns false.
// One that is not there has none.
func Segment(path string, each func(Operation) bool) (torn int, err error) {
	f, err := open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for line := range lines(f) {
		spans, err := decode(line)
		if err != nil {
			torn++
			continue
		}
		for _, o := range Operations(spans) {
			if !each(o) {
				return torn, nil
			}
		}
	}
	return torn, nil
}
