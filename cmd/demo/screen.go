package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// style is how text is shown: plain in a pipe, with colours on a terminal, and
// with other signs than ASCII's where the locale has them.
type style struct{ terminal, colours, unicode bool }

// styleOf looks at where w leads and at the environment.
func styleOf(w io.Writer, env func(string) string) style {
	f, ok := w.(*os.File)
	if !ok {
		return style{}
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 || env("TERM") == "dumb" {
		return style{}
	}
	return terminalStyle(env)
}

func terminalStyle(env func(string) string) style {
	s := style{terminal: true, colours: env("NO_COLOR") == ""}
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} { // the first that is set counts
		if v := strings.ToLower(env(name)); v != "" {
			s.unicode = strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
			break
		}
	}
	return s
}

const (
	red   = "31"
	green = "32"
	dim   = "2"
	bold  = "1"
)

// paint puts text into a colour.
func (s style) paint(colour, text string) string {
	if !s.colours || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// sign is the first where the terminal has more than ASCII.
func (s style) sign(unicode, ascii string) string {
	if s.unicode {
		return unicode
	}
	return ascii
}

// mark is how a line of progress begins.
type mark int

const (
	doing mark = iota // shown on a terminal only until the next line
	good
	bad
	head // begins a part
)

// screen says what is going on: on a terminal with a line that is written anew,
// in a pipe with one line each, not more than one a second of what is only progress.
type screen struct {
	style
	w      io.Writer
	begin  time.Time
	open   bool // the terminal's last line is to be written over
	showed time.Time
}

func newScreen(w io.Writer, s style) *screen { return &screen{style: s, w: w, begin: time.Now()} }

const (
	wide       = 79 // columns of a terminal of 80
	redrawing  = 100 * time.Millisecond
	plainLines = time.Second
	barPlaces  = 32
	eraseLine  = "\r\x1b[K"
)

// say writes a line. What is too long for a terminal goes on below, indented.
func (s *screen) say(m mark, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !s.terminal {
		if m == doing && time.Since(s.showed) < plainLines {
			return
		}
		s.showed = time.Now()
		fmt.Fprintf(s.w, "demo: %5.1f s  %s\n", time.Since(s.begin).Seconds(), text)
		return
	}
	s.clear()
	if m == head {
		fmt.Fprintf(s.w, "\n  %s\n", s.paint(bold, text))
		return
	}
	lead := map[mark]string{
		doing: s.paint(dim, s.sign("\u2026", "-")),
		good:  s.paint(green, s.sign("\u2714", "+")),
		bad:   s.paint(red, s.sign("\u2718", "x")),
	}[m]
	lines := wrap(text, wide-4)
	if m == doing {
		lines = lines[:1] // it is written over
	}
	fmt.Fprintf(s.w, "  %s %s", lead, strings.Join(lines, "\n    "))
	if s.open = m == doing; !s.open {
		fmt.Fprintln(s.w)
	}
}

// title writes what it is all about.
func (s *screen) title(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if s.terminal {
		fmt.Fprintf(s.w, "\n  %s\n\n", s.paint(bold, text))
		return
	}
	fmt.Fprintf(s.w, "demo: %s\n", text)
}

func (s *screen) clear() {
	if s.open {
		fmt.Fprint(s.w, eraseLine)
		s.open = false
	}
}

// bar shows how far something has come, with marks where a contender was killed.
func (s *screen) bar(what string, done, total int64, took time.Duration, marks []float64) {
	every := plainLines
	if s.terminal {
		every = redrawing
	}
	if time.Since(s.showed) < every {
		return
	}
	s.showed = time.Now()
	rate := grouped(int64(float64(done)/max(took.Seconds(), 0.001))) + "/s"
	counts := grouped(done) + " of " + grouped(total)
	if !s.terminal {
		fmt.Fprintf(s.w, "demo: %5.1f s  %s: %s, %s\n", time.Since(s.begin).Seconds(), what, counts, rate)
		return
	}
	s.clear()
	fmt.Fprintf(s.w, "  %-11s %s %s %9s", what, s.places(float64(done)/float64(max(total, 1)), marks), counts, rate)
	s.open = true
}

// places is the bar itself.
func (s *screen) places(share float64, marks []float64) string {
	at := map[int]bool{}
	for _, m := range marks {
		at[min(int(m*barPlaces), barPlaces-1)] = true
	}
	var b strings.Builder
	for i := range barPlaces {
		switch {
		case at[i]:
			b.WriteString(s.paint(red, s.sign("\u2718", "x")))
		case float64(i+1) <= share*barPlaces:
			b.WriteString(s.paint(green, s.sign("\u2501", "#")))
		default:
			b.WriteString(s.paint(dim, s.sign("\u2500", ".")))
		}
	}
	return b.String()
}

// wrap cuts text into lines of the width, between words.
func wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// grouped writes a count as people read it: 200,000.
func grouped(n int64) string { return groupedText(strconv.FormatInt(n, 10)) }

// groupedText puts commas between the thousands of a decimal number.
func groupedText(number string) string {
	sign := ""
	if number != "" && (number[0] == '-' || number[0] == '+') {
		sign, number = number[:1], number[1:]
	}
	whole, places, fraction := strings.Cut(number, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if fraction {
		whole += "." + places
	}
	return sign + whole
}
