package measure

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
)

// Sizes of a plot, in pixels.
const (
	plotWidth = 760
	edge      = 16
	fontSize  = 12
	titleSize = 15
	smallSize = 11
	tinySize  = 10
	lineStep  = 18 // from one line of text to the next
	colours   = 4  // then they come again
)

// style is made for light and dark pages: with a background of its own the plot
// can be read on both, also by a viewer that knows no media queries.
const style = `<style>
text{font:12px "Helvetica Neue",Helvetica,Arial,"DejaVu Sans",sans-serif;fill:#1f2328}
.title{font-size:15px;font-weight:bold}.small{font-size:11px}.tiny{font-size:10px}.soft{fill:#59636e}.ground{fill:#ffffff;stroke:#d1d9e0}
.grid{stroke:#d1d9e0}.axis{stroke:#59636e}.spread{stroke:#1f2328;stroke-width:1.5}.target{stroke:#cf222e;stroke-width:1.5;stroke-dasharray:5 3}
.c0{fill:#0969da}.c1{fill:#bc4c00}.c2{fill:#1a7f37}.c3{fill:#8250df}
.l0{stroke:#0969da}.l1{stroke:#bc4c00}.l2{stroke:#1a7f37}.l3{stroke:#8250df}.line{fill:none;stroke-width:1.8}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}.soft{fill:#9198a1}.ground{fill:#0d1117;stroke:#3d444d}
.grid{stroke:#3d444d}.axis{stroke:#9198a1}.spread{stroke:#e6edf3}.target{stroke:#ff7b72}
.c0{fill:#388bfd}.c1{fill:#db6d28}.c2{fill:#3fb950}.c3{fill:#a371f7}
.l0{stroke:#388bfd}.l1{stroke:#db6d28}.l2{stroke:#3fb950}.l3{stroke:#a371f7}}
</style>
`

// drawing is an SVG that is being made.
type drawing struct{ body bytes.Buffer }

// svg is the drawing at its height.
func (d *drawing) svg(title string, height float64) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%s" viewBox="0 0 %d %s" role="img" aria-label="%s">`+"\n",
		plotWidth, px(height), plotWidth, px(height), escaped(title))
	out.WriteString(style)
	fmt.Fprintf(&out, `<rect class="ground" x="0.5" y="0.5" width="%d" height="%s" rx="6"/>`+"\n", plotWidth-1, px(height-1))
	out.Write(d.body.Bytes())
	out.WriteString("</svg>\n")
	return out.Bytes()
}

// text writes s at its baseline; anchor is start, middle or end.
func (d *drawing) text(x, y float64, class, anchor, s string) {
	fmt.Fprintf(&d.body, `<text class="%s" x="%s" y="%s" text-anchor="%s">%s</text>`+"\n", class, px(x), px(y), anchor, escaped(s))
}

func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(&d.body, `<line class="%s" x1="%s" y1="%s" x2="%s" y2="%s"/>`+"\n", class, px(x1), px(y1), px(x2), px(y2))
}

func (d *drawing) rect(class string, x, y, width, height float64) {
	fmt.Fprintf(&d.body, `<rect class="%s" x="%s" y="%s" width="%s" height="%s"/>`+"\n", class, px(x), px(y), px(width), px(height))
}

// title writes the first line of a plot and returns where the next one stands.
func (d *drawing) title(s string) (y float64) {
	d.text(edge, edge+titleSize, "title", "start", s)
	return edge + titleSize + lineStep + 4
}

// px is a place to a tenth of a pixel.
func px(v float64) string { return fmt.Sprint(math.Round(v*10) / 10) }

func escaped(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s)) // a buffer takes everything
	return b.String()
}

// textWidth is how wide a text is at most: fonts differ.
func textWidth(s string, size float64) float64 {
	return float64(len([]rune(s))) * size * 0.62
}

// ticks are about n round values from 0 to most, which they reach or pass.
func ticks(most float64, n int) []float64 {
	if most <= 0 {
		most = 1
	}
	raw := most / float64(n)
	step := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if step*factor >= raw*0.999 {
			step *= factor
			break
		}
	}
	var out []float64
	for i := 0; ; i++ {
		out = append(out, float64(i)*step)
		if float64(i)*step >= most*0.999 {
			return out
		}
	}
}
