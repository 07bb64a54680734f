package measure

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Quantiles are right to a hundredth, whatever the distribution.
func TestHistogramQuantiles(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	var all []time.Duration
	var h, half Histogram
	for i := range 100_000 {
		d := time.Duration(math.Exp(random.NormFloat64()*3) * 50_000)
		all = append(all, d)
		if i%2 == 0 {
			h.Add(d)
		} else {
			half.Add(d)
		}
	}
	all = append(all, time.Hour)
	half.Add(time.Hour)
	h.Merge(&half)
	slices.Sort(all)
	if h.Count() != int64(len(all)) || h.Max() != all[len(all)-1] {
		t.Errorf("%d, max %v", h.Count(), h.Max())
	}
	for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 0.9999, 1} {
		want := all[max(int(math.Ceil(q*float64(len(all))))-1, 0)]
		if got := h.Quantile(q); got < want || float64(got) > float64(max(want, 100))*1.011 {
			t.Errorf("quantile %v: %v, want %v", q, got, want)
		}
	}
	n := int64(0)
	panel := h.Panel("all")
	for _, b := range panel.Bars {
		n += b.Count
	}
	if n != panel.Count || panel.Bars[0].Count == 0 || panel.Bars[len(panel.Bars)-1].Count == 0 {
		t.Errorf("%d in the bars of %d, %v", n, panel.Count, panel.Bars)
	}
}

// Each duration is in the bucket that ends at or behind it, and in no later one.
func TestHistogramBuckets(t *testing.T) {
	for _, d := range []time.Duration{100, 101, 999, 1000, 1009, 1010, 9_999, 10_000, time.Millisecond - 1, time.Millisecond, 1234567, time.Hour} {
		b := bucketOf(d)
		if d > endOf(b) || b > 0 && d <= endOf(b-1) {
			t.Errorf("%v is in bucket %d, which ends at %v", d, b, endOf(b))
		}
	}
	for _, d := range []time.Duration{-1, 0, 99} {
		if bucketOf(d) != 0 {
			t.Errorf("%v is in bucket %d", d, bucketOf(d))
		}
	}
	if last := decades*perDecade - 1; bucketOf(math.MaxInt64) != last {
		t.Errorf("the longest of all is in bucket %d of %d", bucketOf(math.MaxInt64), last)
	}
	var h Histogram
	if p := h.Panel("none"); p.P99 != 0 || p.Max != 0 || p.Bars != nil {
		t.Errorf("an empty one: %+v", p)
	}
	h.Add(100 * time.Microsecond)
	if p := h.Panel("one"); p.P50 != 100*time.Microsecond || len(p.Bars) != 1 || p.Bars[0] != (HistoBar{100 * time.Microsecond, 1}) {
		t.Errorf("of one: %+v", p)
	}
}

// box is where a text of a plot is.
type box struct {
	text                     string
	left, right, top, bottom float64
}

// texts reads a plot as a viewer does.
func texts(t *testing.T, svg []byte) (boxes []box, width, height float64) {
	t.Helper()
	number := func(e xml.StartElement, name string) float64 {
		for _, a := range e.Attr {
			if a.Name.Local == name {
				v, err := strconv.ParseFloat(a.Value, 64)
				if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
					t.Errorf("%s of %s is %q", name, e.Name.Local, a.Value)
				}
				return v
			}
		}
		return 0
	}
	word := func(e xml.StartElement, name string) string {
		for _, a := range e.Attr {
			if a.Name.Local == name {
				return a.Value
			}
		}
		return ""
	}
	dec := xml.NewDecoder(strings.NewReader(string(svg)))
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return boxes, width, height
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		switch e.Name.Local {
		case "svg":
			width, height = number(e, "width"), number(e, "height")
		case "rect", "line":
			for _, name := range []string{"x", "y", "width", "height", "x1", "y1", "x2", "y2"} {
				if v := number(e, name); v < 0 || v > max(width, height) {
					t.Errorf("%s of a %s is %v", name, e.Name.Local, v)
				}
			}
		case "text":
			content, err := dec.Token()
			if err != nil {
				t.Fatal(err)
			}
			data, ok := content.(xml.CharData)
			if !ok {
				t.Fatalf("a text without words: %v", content)
			}
			size := float64(fontSize)
			if strings.Contains(word(e, "class"), "small") {
				size = smallSize
			} else if word(e, "class") == "tiny" {
				size = tinySize
			} else if word(e, "class") == "title" {
				size = titleSize
			}
			x, y, wide := number(e, "x"), number(e, "y"), textWidth(string(data), size)
			b := box{text: string(data), left: x, right: x + wide, top: y - size*0.8, bottom: y + size*0.2}
			switch word(e, "text-anchor") {
			case "middle":
				b.left, b.right = x-wide/2, x+wide/2
			case "end":
				b.left, b.right = x-wide, x
			}
			boxes = append(boxes, b)
		}
	}
}

// Plots are well formed; no label leaves the plot, and no two lie upon each
// other, whatever the numbers.
func TestPlots(t *testing.T) {
	var narrow, wide, one, none Histogram
	random := rand.New(rand.NewPCG(2, 2))
	for range 1_000_000 {
		narrow.Add(time.Duration(math.Exp(random.NormFloat64()*0.5) * 20_000))
		wide.Add(time.Duration(math.Exp(random.NormFloat64()*2.5) * 90_000))
	}
	one.Add(123 * time.Microsecond)
	var x, y []float64
	for i := range 5_000 {
		x, y = append(x, float64(i)/7), append(y, 1e6+1e5*random.Float64())
	}
	tx, ty := thinned(x, y)
	if len(tx) > maxPoints || slices.Max(ty) != rounded(slices.Max(y), 6) {
		t.Errorf("%d points are left, the highest %v of %v", len(tx), slices.Max(ty), slices.Max(y))
	}
	long := "a bare walk over the bytes & <nothing> else at all"
	for name, p := range map[string]interface{ svg() []byte }{
		"bars": &Bars{Title: "Messages decoded", Unit: "messages per CPU-second", Target: 800_000, Groups: []Group{
			{Label: "structured", Bars: []Bar{{"ours", []float64{950e3, 912e3, 1020e3}}, {"encoding/json", []float64{112e3}}, {long, []float64{3.1e6, 2.9e6}}}},
			{Label: "binary", Bars: []Bar{{"tiny", []float64{1, 2}}, {"zero", []float64{0}}, {"fifth", []float64{3e6}}, {"sixth", []float64{3e5}}}},
		}},
		"bars, target beyond all": &Bars{Title: "t", Unit: "bytes", Target: 1e9, Groups: []Group{{Bars: []Bar{{"a", []float64{0}}}}}},
		"bars, target near 0":     &Bars{Title: "t", Unit: "bytes", Target: 1, Groups: []Group{{Bars: []Bar{{"a", []float64{1e9}}}}}},
		"bars of nothing":         &Bars{Title: "t", Unit: "bytes", Groups: []Group{{Bars: []Bar{{"a", []float64{0}}}}}},
		"lines": &Lines{Title: "Memory", XUnit: "seconds", YUnit: "MiB", Bound: 2e6, BoundLabel: long,
			Series: []Series{{"resident", tx, ty}, {"heap", tx, tx}}},
		"lines of one point": &Lines{Title: "t", XUnit: "s", YUnit: "MiB", Series: []Series{{"a", []float64{0}, []float64{0}}}},
		"histograms": &HistoPlot{Title: "Pauses", Target: time.Millisecond, Panels: []Panel{
			narrow.Panel("idle"), wide.Panel("an epoch in flight"), one.Panel("one"), none.Panel("none")}},
		"histogram, target far away": &HistoPlot{Title: "t", Target: time.Hour, Panels: []Panel{one.Panel("one")}},
		"histogram of nothing":       &HistoPlot{Title: "t", Panels: []Panel{none.Panel("none")}},
	} {
		t.Run(name, func(t *testing.T) {
			boxes, width, height := texts(t, p.svg())
			if len(boxes) < 4 || width != plotWidth {
				t.Fatalf("%d texts, %v x %v", len(boxes), width, height)
			}
			for i, b := range boxes {
				if b.left < 0 || b.right > width || b.top < 0 || b.bottom > height {
					t.Errorf("%q leaves the plot: %+v of %v x %v", b.text, b, width, height)
				}
				for _, o := range boxes[:i] {
					if b.left < o.right && o.left < b.right && b.top < o.bottom && o.top < b.bottom {
						t.Errorf("%q lies upon %q: %+v, %+v", b.text, o.text, b, o)
					}
				}
			}
		})
	}
}

// Ticks are round, begin at 0 and reach the largest value.
func TestTicks(t *testing.T) {
	for _, most := range []float64{0, 0.003, 1, 5, 7, 59.9, 512, 1000, 123_456_789} {
		got := ticks(most, 5)
		if got[0] != 0 || got[len(got)-1] < most*0.999 || len(got) < 2 || len(got) > 7 {
			t.Errorf("ticks to %v: %v", most, got)
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0 ns", 999: "999 ns", 1000: "1 µs", 20_160: "20.2 µs", time.Millisecond: "1 ms", 90 * time.Second: "90 s"} {
		if got := Span(d); got != want {
			t.Errorf("%d ns are %q, want %q", d, got, want)
		}
	}
}
