package measure

// Bars is a plot of medians beside each other, with their spread.
type Bars struct {
	Name   string  `json:"name"`
	Title  string  `json:"title"`
	Unit   string  `json:"unit"`
	Target float64 `json:"target,omitempty"` // drawn as a line
	Groups []Group `json:"groups"`
}

// Group are bars under one heading, which may be empty.
type Group struct {
	Label string `json:"label,omitempty"`
	Bars  []Bar  `json:"bars"`
}

// Bar is one thing's values, one for each run.
type Bar struct {
	Label  string    `json:"label"`
	Values []float64 `json:"values"`
}

// Bars keeps a plot of bars.
func (r *Report) Bars(p Bars) {
	r.t.Helper()
	r.named(p.Name)
	for _, g := range p.Groups {
		for i := range g.Bars {
			if len(g.Bars[i].Values) == 0 {
				r.t.Fatalf("plot %s: %s has no values", p.Name, g.Bars[i].Label)
			}
			rounding := make([]float64, len(g.Bars[i].Values))
			for j, v := range g.Bars[i].Values {
				rounding[j] = rounded(v, 6)
			}
			g.Bars[i].Values = rounding
		}
	}
	r.result.Bars = append(r.result.Bars, p)
}

// named holds that plots have names of their own, which become names of files.
func (r *Report) named(name string) {
	r.t.Helper()
	if !plainName.MatchString(name) {
		r.t.Fatalf("%q is no name of a plot: small letters and hyphens", name)
	}
	for _, other := range r.result.plots() {
		if other.name == name {
			r.t.Fatalf("there are two plots %q", name)
		}
	}
}

// svg draws bars from left to right, the number behind each: labels have a
// column of their own, and nothing overlaps.
func (p *Bars) svg() []byte {
	const barHeight, barStep, groupGap = 16, 24, 8
	most, labels, numbers := p.Target, 0.0, 0.0
	for _, g := range p.Groups {
		for _, b := range g.Bars {
			labels = max(labels, textWidth(b.Label, fontSize))
			for _, v := range b.Values {
				most = max(most, v)
			}
			numbers = max(numbers, textWidth(Number(median(b.Values)), fontSize))
		}
	}
	if most <= 0 {
		most = 1
	}
	left := edge + labels + 10
	right := plotWidth - edge - numbers - 8
	x := func(v float64) float64 { return left + max(v, 0)/most*(right-left) }

	var d drawing
	y := d.title(p.Title)
	d.text(edge, y, "soft", "start", p.Unit+"; the thin line is the spread of the runs")
	y += lineStep
	if p.Target > 0 {
		d.text(min(x(p.Target), plotWidth-edge-textWidth("target "+Number(p.Target), fontSize)/2), y, "soft", "middle", "target "+Number(p.Target))
		y += 6
	}
	var marks drawing // over the bars
	for _, g := range p.Groups {
		if g.Label != "" {
			y += groupGap + fontSize
			d.text(edge, y, "soft", "start", g.Label)
			y += 4
		}
		top := y
		for i, b := range g.Bars {
			low, high := b.Values[0], b.Values[0]
			for _, v := range b.Values {
				low, high = min(low, v), max(high, v)
			}
			middle := y + barStep/2
			mid := median(b.Values)
			d.text(left-8, middle+4, "", "end", b.Label)
			d.rect("c"+string(rune('0'+i%colours)), left, middle-barHeight/2, max(x(mid)-left, 0.5), barHeight)
			if len(b.Values) > 1 {
				marks.line("spread", x(low), middle, x(high), middle)
				marks.line("spread", x(low), middle-3, x(low), middle+3)
				marks.line("spread", x(high), middle-3, x(high), middle+3)
			}
			marks.text(x(high)+6, middle+4, "", "start", Number(mid))
			y += barStep
		}
		// Beside the bars only: headings stand across.
		if p.Target > 0 {
			d.line("target", x(p.Target), top, x(p.Target), y)
		}
		d.line("axis", left, top, left, y)
	}
	d.body.Write(marks.body.Bytes())
	return d.svg(p.Title, y+edge)
}
