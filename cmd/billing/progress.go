package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// progress says how far a long command has come: on a terminal in one line that
// is written anew, elsewhere in a line now and then.
type progress struct {
	to       io.Writer
	terminal bool
	next     time.Time // not before it
	shown    int       // width of what is on the terminal
}

const (
	progressTerminal = 100 * time.Millisecond
	progressPlain    = 10 * time.Second
)

func newProgress(to io.Writer) *progress {
	p := &progress{to: to}
	if f, ok := to.(*os.File); ok {
		if info, err := f.Stat(); err == nil {
			p.terminal = info.Mode()&os.ModeCharDevice != 0
		}
	}
	p.next = time.Now().Add(p.every()) // what is short shows nothing
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
	text := line()
	if !p.terminal {
		fmt.Fprintln(p.to, text)
		return
	}
	fmt.Fprintf(p.to, "\r%s%s", text, strings.Repeat(" ", max(0, p.shown-len(text))))
	p.shown = len(text)
}

// clear takes the line off the terminal, for what is written otherwise.
func (p *progress) clear() {
	if p.shown > 0 {
		fmt.Fprintf(p.to, "\r%s\r", strings.Repeat(" ", p.shown))
		p.shown = 0
	}
}

// bar is a bar of 24 places for a share from 0 to 1.
func bar(share float64) string {
	const width = 24
	n := int(min(max(share, 0), 1) * width)
	return "[" + strings.Repeat("#", n) + strings.Repeat(".", width-n) + fmt.Sprintf("] %3.0f %%", 100*share)
}
