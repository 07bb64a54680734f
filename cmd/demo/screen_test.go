package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestStyle(t *testing.T) {
	if s := styleOf(&bytes.Buffer{}, os.Getenv); s != (style{}) {
		t.Errorf("no terminal: %+v", s)
	}
	for _, c := range []struct {
		env  map[string]string
		want style
	}{
		{map[string]string{}, style{terminal: true, colours: true}},
		{map[string]string{"LANG": "de_DE.UTF-8"}, style{terminal: true, colours: true, unicode: true}},
		{map[string]string{"LANG": "de_DE.UTF-8", "LC_ALL": "C"}, style{terminal: true, colours: true}},
		{map[string]string{"LC_CTYPE": "C.utf8", "NO_COLOR": "1"}, style{terminal: true, unicode: true}},
	} {
		if got := terminalStyle(func(name string) string { return c.env[name] }); got != c.want {
			t.Errorf("%v: %+v", c.env, got)
		}
	}
}

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*[mK]")

func TestProgress(t *testing.T) {
	tell := func(s style) string {
		var b bytes.Buffer
		screen := newScreen(&b, s)
		screen.title("title")
		screen.say(head, "plain loop")
		for n := int64(0); n <= 4; n++ {
			screen.bar("plain loop", n*50_000, 200_000, 10*time.Second, []float64{0.25, 1})
		}
		screen.say(bad, "SIGKILL at %s: %s", grouped(50_000), strings.Repeat("many words ", 10))
		screen.say(doing, "reading %s", strings.Repeat("many words ", 10))
		screen.say(good, "done")
		screen.clear()
		return b.String()
	}
	pipe := tell(style{})
	if n := strings.Count(pipe, "of 200,000"); n > 1 {
		t.Errorf("%d lines of mere progress within a second:\n%s", n, pipe)
	}
	for line := range strings.Lines(pipe) {
		if !strings.HasPrefix(line, "demo: ") || strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("in a pipe: %q", line)
		}
	}
	terminal := tell(style{terminal: true, colours: true, unicode: true})
	for _, text := range []string{"\x1b[31m\u2718\x1b[0m SIGKILL at 50,000: many words", "\x1b[32m\u2714\x1b[0m done\n", eraseLine, "0 of 200,000"} {
		if !strings.Contains(terminal, text) {
			t.Errorf("no %q on a terminal:\n%q", text, terminal)
		}
	}
	// What is written over takes one line.
	if _, line, _ := strings.Cut(terminal, "reading"); strings.Contains(strings.Split(line, eraseLine)[0], "\n") {
		t.Errorf("a line that is to be written over has two:\n%q", terminal)
	}
	for _, line := range strings.FieldsFunc(escapes.ReplaceAllString(terminal, ""), func(r rune) bool { return r == '\n' || r == '\r' }) {
		if utf8.RuneCountInString(line) > wide {
			t.Errorf("too long for a terminal: %q", line)
		}
	}
	if bar := escapes.ReplaceAllString(newScreen(nil, style{unicode: true}).places(0.5, []float64{0.25, 1}), ""); bar != "\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2718"+strings.Repeat("\u2501", 7)+strings.Repeat("\u2500", 15)+"\u2718" {
		t.Errorf("bar %q", bar)
	}
}

func TestGrouped(t *testing.T) {
	for number, want := range map[string]string{
		"0": "0", "999": "999", "1000": "1,000", "-123456": "-123,456", "+1234567.120000000000": "+1,234,567.120000000000", "-0.5": "-0.5",
	} {
		if got := groupedText(number); got != want {
			t.Errorf("%s is shown as %s", number, got)
		}
	}
}
