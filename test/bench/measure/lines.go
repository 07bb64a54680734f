package measure

import (
	"fmt"
	"strings"
)

// Lines is a plot of values over time, or over something else that grows.
type Lines struct {
	Name       string   `json:"name"`
	Title      string   `json:"title"`
	XUnit      string   `json:"x_unit"`
	YUnit      string   `json:"y_unit"`
	Bound      float64  `json:"bound,omitempty"` // drawn as a line
	BoundLabel string   `json:"bound_label,omitempty"`
	Series     []Series `json:"series"`
}

// Series is one line of a plot.
type Series struct {
	Label string    `json:"label"`
	X     []float64 `json:"x"`
	Y     []float64 `json:"y"`
}

// maxPoints is how many points of a line are kept: more than a plot can show
// would only make the stored file long.
const maxPoints = 300

// Lines keeps a plot of lines.
func (r *Report) Lines(p Lines) {
	r.t.Helper()
	r.named(p.Name)
	for i := range p.Series {
		s := &p.Series[i]
		if len(s.X) == 0 || len(s.X) != len(s.Y) {
			r.t.Fatalf("plot %s: %s has %d and %d values", p.Name, s.Label, len(s.X), len(s.Y))
		}
		s.X, s.Y = thinned(s.X, s.Y)
	}
	r.result.Lines = append(r.result.Lines, p)
}

// thinned keeps, of each run of points that fall together, the highest one: a
// peak is what such a line is looked at for.
func thinned(x, y []float64) (tx, ty []float64) {
	every := (len(x) + maxPoints - 1) / maxPoints
	for from := 0; from < len(x); from += every {
		best := from
		for i := from; i < min(from+every, len(x)); i++ {
			if y[i] > y[best] {
				best = i
			}
		}
		tx, ty = append(tx, rounded(x[best], 6)), append(ty, rounded(y[best], 6))
	}
	return tx, ty
}

func (p *Lines) svg() []byte {
	const height = 240
	mostX, mostY := 0.0, p.Bound
	for _, s := range p.Series {
		for i := range s.X {
			mostX, mostY = max(mostX, s.X[i]), max(mostY, s.Y[i])
		}
	}
	xTicks, yTicks := ticks(mostX, 8), ticks(mostY, 5)
	topX, topY := mostX, yTicks[len(yTicks)-1]
	if topX == 0 {
		topX = 1
	}
	labels := 0.0
	for _, v := range yTicks {
		labels = max(labels, textWidth(Number(v), smallSize))
	}
	left, right := edge+labels+6, float64(plotWidth-edge-24)

	var d drawing
	y := d.title(p.Title)
	for i, s := range p.Series { // each in a row of its own
		peak := s.Y[0]
		for _, v := range s.Y {
			peak = max(peak, v)
		}
		d.rect("c"+string(rune('0'+i%colours)), edge, y-8, 18, 4)
		d.text(edge+24, y, "", "start", fmt.Sprintf("%s: largest %s, last %s %s", s.Label, Number(peak), Number(s.Y[len(s.Y)-1]), p.YUnit))
		y += lineStep
	}
	if p.Bound > 0 {
		d.line("target", edge, y-5, edge+18, y-5)
		d.text(edge+24, y, "", "start", fmt.Sprintf("%s: %s %s", p.BoundLabel, Number(p.Bound), p.YUnit))
		y += lineStep
	}
	bottom := y + height
	px := func(v float64) float64 { return left + v/topX*(right-left) }
	py := func(v float64) float64 { return bottom - v/topY*height }
	for _, v := range yTicks {
		d.line("grid", left, py(v), right, py(v))
		d.text(left-6, py(v)+4, "small soft", "end", Number(v))
	}
	for _, v := range xTicks {
		if v <= topX {
			d.line("axis", px(v), bottom, px(v), bottom+4)
			d.text(px(v), bottom+16, "small soft", "middle", Number(v))
		}
	}
	d.line("axis", left, bottom, right, bottom)
	d.text(right, bottom+32, "small soft", "end", p.XUnit)
	d.text(edge, bottom+32, "small soft", "start", "upwards: "+p.YUnit)
	if p.Bound > 0 {
		d.line("target", left, py(p.Bound), right, py(p.Bound))
	}
	for i, s := range p.Series {
		var points []string
		for j := range s.X {
			points = append(points, fmt.Sprintf("%.1f,%.1f", px(s.X[j]), py(s.Y[j])))
		}
		fmt.Fprintf(&d.body, `<polyline class="line l%d" points="%s"/>`+"\n", i%colours, strings.Join(points, " "))
	}
	return d.svg(p.Title, bottom+32+edge)
}
