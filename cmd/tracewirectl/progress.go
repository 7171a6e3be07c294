package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// progress is one line on the terminal of who waits, for work that takes longer
// than a moment. Into a pipe it writes nothing.
type progress struct {
	out  io.Writer // nil where nobody watches
	what string
	all  int // 0 where it is not known
	stop chan struct{}
	over sync.WaitGroup

	mu   sync.Mutex
	done int
	said string // of all that is known, what is found by now
}

// When the line is drawn first, and how often then.
const (
	moment = time.Second
	redraw = 100 * time.Millisecond
)

// progress begins a line on work with all steps, 0 where nobody knows how many.
func (c *command) progress(what string, all int) *progress {
	p := &progress{what: what, all: all, stop: make(chan struct{})}
	if !c.attended {
		return p
	}
	p.out = c.err
	p.over.Go(p.draw)
	return p
}

func (p *progress) draw() {
	start := time.Now()
	for wait := moment; ; wait = redraw {
		select {
		case <-p.stop:
			if time.Since(start) >= moment {
				_, _ = io.WriteString(p.out, "\r\x1b[K")
			}
			return
		case <-time.After(wait):
			_, _ = io.WriteString(p.out, "\r\x1b[K"+p.line(time.Since(start)))
		}
	}
}

// barWidth is how many signs the bar has.
const barWidth = 24

// line is what is drawn.
func (p *progress) line(since time.Duration) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == 0 {
		return strings.TrimSpace(fmt.Sprintf("%s … %ds %s", p.what, int(since.Seconds()), p.said))
	}
	full := barWidth * p.done / p.all
	return fmt.Sprintf("%s [%s%s] %d/%d %s", p.what, strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), p.done, p.all, p.said)
}

// step tells that one more is done.
func (p *progress) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
}

// say tells what is known by now.
func (p *progress) say(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said = text
}

// end takes the line away.
func (p *progress) end() {
	close(p.stop)
	p.over.Wait()
}
