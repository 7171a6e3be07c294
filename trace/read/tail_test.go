package read

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tracewire/tracewire/trace"
)

// TestTailOfARotatedLog: writers write, the log is rotated by renaming or by
// copying and truncating, and the reader is stopped and goes on from its place,
// all at any moment: it has each line once. What is written between the copying
// and the truncating is lost to everybody, so that writers wait there.
func TestTailOfARotatedLog(t *testing.T) {
	for name, rotate := range map[string]func(path string) error{
		"rename":       func(path string) error { return os.Rename(path, path+".1") },
		"copytruncate": copyTruncate,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log.jsonl")
			logOne(t, path, "first")
			first := Tail{Path: path}
			if _, _, err := first.Next(room); err != nil {
				t.Fatal(err)
			}
			first.Close()
			var gap sync.RWMutex
			var writers sync.WaitGroup
			for w := range 8 {
				writers.Go(func() {
					for n := range 100 {
						gap.RLock()
						logOne(t, path, fmt.Sprint(w, "/", n))
						gap.RUnlock()
					}
				})
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				written := make(chan struct{})
				go func() { writers.Wait(); close(written) }()
				for n := 1; ; n++ {
					select {
					case <-written:
						return
					case <-time.After(3 * time.Millisecond):
					}
					if name == "copytruncate" {
						gap.Lock()
					}
					for i := n; i > 0; i-- {
						_ = os.Rename(path+"."+strconv.Itoa(i), path+"."+strconv.Itoa(i+1))
					}
					if err := rotate(path); err != nil && !os.IsNotExist(err) {
						t.Error(err)
					}
					if name == "copytruncate" {
						gap.Unlock()
					}
				}
			}()
			want := map[string]int{}
			for w := range 8 {
				for n := range 100 {
					want[fmt.Sprint(w, "/", n)] = 1
				}
			}
			if diff := cmp.Diff(want, followed(t, path, first.Place, done)); diff != "" {
				t.Error("(-want +got):\n" + diff)
			}
		})
	}
}

func copyTruncate(path string) error {
	b, err := os.ReadFile(path)
	if err == nil && len(b) > 0 {
		err = os.WriteFile(path+".1", b, 0o600)
	}
	if err == nil {
		err = os.Truncate(path, 0)
	}
	return err
}

// logOne writes an operation as the plugin does.
func logOne(t *testing.T, path, name string) {
	r := trace.NewRecorder(time.Now())
	_, root := r.Begin(name, time.Now(), trace.Origin{})
	root.End()
	if err := (trace.Log{Path: path, Level: "info"}).Write(r); err != nil {
		t.Error(err)
	}
}

// followed is how often each operation was read, until done and nothing more
// comes. Each reader reads a few chunks, and another one goes on.
func followed(t *testing.T, path string, at Place, done <-chan struct{}) map[string]int {
	t.Helper()
	got := map[string]int{}
	for last := false; ; {
		tail := Tail{Path: path, Place: at}
		read := 0
		for range 7 {
			chunk, torn, err := tail.Next(2000)
			if err != nil || torn > 0 {
				t.Fatalf("%d torn, %v", torn, err)
			}
			for line := range bytes.Lines(chunk) {
				if len(line) == 1 {
					continue // ended a line that another writer was in the midst of
				}
				var l logLine
				if err := json.Unmarshal(line, &l); err != nil {
					t.Fatal(err)
				}
				got[l.Message]++
			}
			if read += len(chunk); len(chunk) > 0 {
				at = tail.Place
			}
		}
		tail.Close()
		if read == 0 && last {
			return got
		}
		select {
		case <-done:
			last = true
		default:
		}
	}
}
