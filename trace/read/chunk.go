package read

import (
	"bytes"
	"errors"
	"io"
	"os"
)

// MaxLine bounds a line that is shipped in bytes, and with it what is held of a
// file at once. A longer one is torn.
const MaxLine = 8 << 20

// Open opens a regular file to read it. A symbolic link is refused in its last
// element, and nothing is waited for.
func Open(path string) (*os.File, error) { return open(path) }

// Chunk reads whole lines from an offset on: as many as fit into room bytes,
// and one at least where there is one. It is empty where no line has ended yet.
// A line longer than MaxLine is passed over: skipped is its length as far as it
// was read, and chunk is empty.
func Chunk(f io.ReaderAt, at int64, room int) (chunk []byte, skipped int64, err error) {
	for b := make([]byte, room); ; b = make([]byte, min(2*len(b), MaxLine)) {
		n, err := f.ReadAt(b, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, 0, err
		}
		if end := bytes.LastIndexByte(b[:n], '\n') + 1; end > 0 {
			return b[:end], 0, nil
		}
		if n < len(b) {
			return nil, 0, nil
		}
		if len(b) >= MaxLine {
			return nil, int64(n), nil
		}
	}
}
