package measure

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Histogram counts durations to three digits: buckets of 1/900 of a decade's
// width. Add costs a few nanoseconds and allocates nothing. It is used by one
// goroutine.
type Histogram struct {
	counts [decades * perDecade]int64
	count  int64
	max    time.Duration
}

const (
	perDecade = 900 // 1.00, 1.01 ... 9.99
	decades   = 11  // from 100 ns, in steps of 1 ns, with all below in the first bucket, to 10000 s
)

// Add counts one duration.
func (h *Histogram) Add(d time.Duration) {
	h.counts[bucketOf(d)]++
	h.count++
	h.max = max(h.max, d)
}

// Merge counts all that other has counted.
func (h *Histogram) Merge(other *Histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
	h.count += other.count
	h.max = max(h.max, other.max)
}

// Count is how many durations were counted.
func (h *Histogram) Count() int64 { return h.count }

// Max is the longest one, exactly.
func (h *Histogram) Max() time.Duration { return h.max }

// Quantile is a duration that this share of all, 0 to 1, does not exceed: at
// most a hundredth too large.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank, seen := int64(math.Ceil(q*float64(h.count))), int64(0)
	for i, n := range h.counts {
		if seen += n; seen >= rank && n > 0 {
			return min(endOf(i), h.max)
		}
	}
	return h.max
}

func bucketOf(d time.Duration) int {
	v, decade := max(int64(d), 0), 0
	for v >= 1000 && decade < decades-1 {
		v /= 10
		decade++
	}
	return decade*perDecade + int(min(max(v, 100), 999)) - 100
}

// endOf is the longest duration of a bucket.
func endOf(bucket int) time.Duration {
	width := time.Duration(1)
	for range bucket / perDecade {
		width *= 10
	}
	return time.Duration(bucket%perDecade+101)*width - 1
}

// steps divide a decade into five parts of about the same width on a logarithmic
// axis.
var steps = []int{100, 160, 250, 400, 630}

// HistoPlot is a plot of histograms below each other, on one axis of time.
type HistoPlot struct {
	Name   string        `json:"name"`
	Title  string        `json:"title"`
	Target time.Duration `json:"target_ns,omitempty"` // drawn as a line
	Panels []Panel       `json:"panels"`
}

// Panel is one histogram of a plot.
type Panel struct {
	Label string        `json:"label"`
	Count int64         `json:"count"`
	P50   time.Duration `json:"p50_ns"`
	P90   time.Duration `json:"p90_ns"`
	P99   time.Duration `json:"p99_ns"`
	Max   time.Duration `json:"max_ns"`
	Bars  []HistoBar    `json:"bars"`
}

// HistoBar is how many durations began at From, and lay below the next step.
type HistoBar struct {
	From  time.Duration `json:"from_ns"`
	Count int64         `json:"count"`
}

// Panel is the histogram as it is drawn and stored.
func (h *Histogram) Panel(label string) Panel {
	p := Panel{Label: label, Count: h.count, P50: h.Quantile(0.5), P90: h.Quantile(0.9), P99: h.Quantile(0.99), Max: h.max}
	width := time.Duration(1)
	for decade := range decades {
		for i, from := range steps {
			to := 1000
			if i+1 < len(steps) {
				to = steps[i+1]
			}
			n := int64(0)
			for _, c := range h.counts[decade*perDecade+from-100 : decade*perDecade+to-100] {
				n += c
			}
			p.Bars = append(p.Bars, HistoBar{From: time.Duration(from) * width, Count: n})
		}
		width *= 10
	}
	filled := func(b HistoBar) bool { return b.Count > 0 }
	first := slices.IndexFunc(p.Bars, filled)
	if first < 0 {
		p.Bars = nil
		return p
	}
	p.Bars = p.Bars[first:]
	for !filled(p.Bars[len(p.Bars)-1]) {
		p.Bars = p.Bars[:len(p.Bars)-1]
	}
	return p
}

// says is the panel in one line.
func (p *Panel) says() string {
	return fmt.Sprintf("%s: %s in all, p50 %s, p90 %s, p99 %s, max %s", p.Label, grouped(p.Count), Span(p.P50), Span(p.P90), Span(p.P99), Span(p.Max))
}

// Histograms keeps a plot of them.
func (r *Report) Histograms(p HistoPlot) {
	r.t.Helper()
	r.named(p.Name)
	for _, panel := range p.Panels {
		r.say("%s, %s", p.Name, panel.says())
	}
	r.result.Histograms = append(r.result.Histograms, p)
}
