package read

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"

	"golang.org/x/sys/unix"
)

// maxLine bounds what is held of one line in bytes. A longer one is torn.
const maxLine = 32 << 20

// lines hands on each line without its line feed, the last one also where it
// has none. One that is longer than maxLine is handed on as nil, an empty one
// not at all. A line is good until the next is asked for. Reading stops at an
// error, which the file has at its end too.
func lines(r io.Reader) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		in := bufio.NewReaderSize(r, 64<<10)
		var line []byte
		long := false
		for {
			part, err := in.ReadSlice('\n')
			if long = long || len(line)+len(part) > maxLine; long {
				line = nil
			} else {
				line = append(line, part...)
			}
			if errors.Is(err, bufio.ErrBufferFull) {
				continue
			}
			whole := bytes.TrimSuffix(line, []byte("\n"))
			if (long || len(whole) > 0) && !yield(whole) {
				return
			}
			if err != nil {
				return
			}
			line, long = line[:0], false
		}
	}
}

// errIrregular marks a file that is not read because it is not a file of lines.
var errIrregular = errors.New("not a regular file")

// open opens a regular file. A symbolic link is refused in its last element,
// and nothing is waited for.
func open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: path, Err: errIrregular}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
