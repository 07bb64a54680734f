package main

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgressIsTold(t *testing.T) {
	for _, c := range []struct {
		terminal bool
		after    time.Duration
		want     string
	}{
		{false, 9 * time.Second, ""},
		{false, 29 * time.Second, "half\nhalf\n"},
		{true, 400 * time.Millisecond, ""},
		{true, 1400 * time.Millisecond, "\rhalf\x1b[K\rhalf\x1b[K\r\x1b[K"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			end := newProgress(&out, c.terminal).tell(t.Context(), func() string { return "half" })
			<-time.After(c.after)
			end()
			if out.String() != c.want {
				t.Errorf("after %s: %q, want %q", c.after, out.String(), c.want)
			}
		})
	}
}

func TestProgressGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := newProgress(&out, true)
		line := func() string { return "half" }
		p.show(line)
		p.clear() // nothing is there yet
		<-time.After(progressTerminal)
		p.show(line)
		p.show(line) // too soon
		p.clear()
		if want := "\rhalf\x1b[K\r\x1b[K"; out.String() != want {
			t.Errorf("%q, want %q", out.String(), want)
		}
	})
}

func TestBar(t *testing.T) {
	for share, want := range map[float64]string{
		-1: "[........................]   0 %", 0.5: "[############............]  50 %", 1: "[########################] 100 %", 7: "[########################] 100 %",
	} {
		if got := bar(share); got != want {
			t.Errorf("%v: %s", share, got)
		}
	}
}
