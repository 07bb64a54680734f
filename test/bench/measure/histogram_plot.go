package measure

import (
	"math"
	"strconv"
	"time"
)

// svg draws the panels below each other on one logarithmic axis of time. Counts
// are logarithmic, too: what is rare is what such a plot is looked at for.
func (p *HistoPlot) svg() []byte {
	const height = 130
	first, last := time.Duration(math.MaxInt64), time.Duration(0)
	for _, panel := range p.Panels {
		if n := len(panel.Bars); n > 0 {
			first, last = min(first, panel.Bars[0].From), max(last, panel.Bars[n-1].From)
		}
	}
	if last == 0 {
		first, last = time.Microsecond, time.Millisecond
	}
	if p.Target > 0 {
		first, last = min(first, p.Target), max(last, p.Target)
	}
	low := math.Floor(math.Log10(float64(first))*10) / 10
	high := math.Ceil(math.Log10(float64(last))*10)/10 + 0.2 // a bar is a fifth of a decade wide
	left, right := float64(edge), float64(plotWidth-edge)
	x := func(d time.Duration) float64 {
		return left + (math.Log10(float64(max(d, 1)))-low)/(high-low)*(right-left)
	}

	var d drawing
	y := d.title(p.Title)
	d.text(edge, y, "soft", "start", "from left to right: time; upwards: how many, on a logarithmic scale, as the numbers say")
	y += lineStep
	if p.Target > 0 {
		d.line("target", edge, y-5, edge+18, y-5)
		d.text(edge+24, y, "", "start", "target of p99: "+Span(p.Target))
		y += lineStep
	}
	for i, panel := range p.Panels {
		y += 6
		d.text(edge, y, "", "start", panel.says())
		top, bottom := y+fontSize+8, y+fontSize+8+height
		most := 1.0
		for _, b := range panel.Bars {
			most = max(most, math.Log10(float64(b.Count))+0.5)
		}
		for _, b := range panel.Bars {
			if b.Count == 0 {
				continue
			}
			from, to := x(b.From), x(b.From)+(right-left)*0.2/(high-low)
			h := (math.Log10(float64(b.Count)) + 0.5) / most * height // one is seen, too
			d.rect("c"+string(rune('0'+i%colours)), from+0.5, bottom-h, to-from-1, h)
			if label := brief(b.Count, to-from-2); textWidth(label, tinySize) <= to-from-2 { // what is wider would stand upon its neighbour
				d.text((from+to)/2, bottom-h-3, "tiny", "middle", label)
			}
		}
		d.line("axis", left, bottom, right, bottom)
		for decade := math.Ceil(low); decade <= high; decade++ {
			at := time.Duration(math.Round(math.Pow(10, decade)))
			d.line("axis", x(at), bottom, x(at), bottom+5)
			label := Span(at)
			half := textWidth(label, smallSize) / 2
			d.text(min(max(x(at), left+half), right-half), bottom+17, "small soft", "middle", label)
		}
		if p.Target > 0 {
			d.line("target", x(p.Target), top-8, x(p.Target), bottom)
		}
		y = bottom + 17 + lineStep
	}
	return d.svg(p.Title, y)
}

// Span is a duration for a person: three digits that count and a unit.
func Span(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{time.Second, "s"}, {time.Millisecond, "ms"}, {time.Microsecond, "µs"}} {
		if d >= u.unit {
			return Number(float64(d)/float64(u.unit)) + " " + u.name
		}
	}
	return strconv.FormatInt(int64(d), 10) + " ns"
}

// grouped is a count with all its digits.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// brief is a count that fits the width of a bar: in thousands or millions, if it
// must be.
func brief(n int64, width float64) string {
	s := grouped(n)
	for _, u := range []struct {
		unit int64
		name string
	}{{1_000, "k"}, {1_000_000, "M"}} {
		if textWidth(s, tinySize) > width && n >= u.unit {
			s = strconv.FormatInt((n+u.unit/2)/u.unit, 10) + u.name
		}
	}
	return s
}
