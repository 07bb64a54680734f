package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// progress says how far a long command has come: on a terminal in one line that
// is written anew and is gone at the end, elsewhere in a line now and then. What
// is short shows nothing. It is used by one goroutine at a time.
type progress struct {
	to       io.Writer
	terminal bool
	next     time.Time // not before it
	shown    bool      // a line is on the terminal
}

const (
	progressTerminal = 500 * time.Millisecond
	progressPlain    = 10 * time.Second
)

// newProgress is told whether to is a terminal (see isTerminal).
func newProgress(to io.Writer, terminal bool) *progress {
	p := &progress{to: to, terminal: terminal}
	p.next = time.Now().Add(p.every())
	return p
}

func (p *progress) every() time.Duration {
	if p.terminal {
		return progressTerminal
	}
	return progressPlain
}

// show shows what line gives, if it is time.
func (p *progress) show(line func() string) {
	if time.Now().Before(p.next) {
		return
	}
	p.next = time.Now().Add(p.every())
	if !p.terminal {
		fmt.Fprintln(p.to, line())
		return
	}
	fmt.Fprint(p.to, "\r", line(), toEndOfLine)
	p.shown = true
}

// clear takes the line off the terminal, for what is written otherwise.
func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.to, "\r", toEndOfLine)
		p.shown = false
	}
}

const toEndOfLine = "\x1b[K"

// tell shows what line gives, again and again, until the function that it returns
// is called, which is before anybody else uses p.
func (p *progress) tell(ctx context.Context, line func() string) (end func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(p.every())
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				p.clear()
				return
			case <-tick.C:
				p.show(line)
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// isTerminal reports whether a person sees what is written to w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// bar is a bar of 24 places for a share from 0 to 1.
func bar(share float64) string {
	const width = 24
	share = min(max(share, 0), 1)
	n := int(share * width)
	return "[" + strings.Repeat("#", n) + strings.Repeat(".", width-n) + fmt.Sprintf("] %3.0f %%", 100*share)
}
