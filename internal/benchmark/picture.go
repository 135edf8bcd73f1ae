package main

import (
	"bytes"
	"fmt"
	"html"
)

// Where things are in the picture, in its units.
const (
	width     = 760
	nameWidth = 230
	barWidth  = 380
	rowHeight = 20
	headSpace = 34
	margin    = 16
)

// picture shows the requests per second of every column as bars: plain SVG, with colours
// that fit a light page and a dark one.
func picture(f *field, r results) []byte {
	var bars bytes.Buffer
	y := margin
	for _, c := range f.columns {
		y = panel(&bars, y, c, f, r)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="Requests per second of each server">`+"\n", width, y)
	b.WriteString(`<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.bar { fill: #8c959f }
.weir { fill: #0969da }
.mark { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .bar { fill: #6e7681 }
  .weir { fill: #4493f8 }
  .mark { stroke: #f85149 }
}
</style>
`)
	b.Write(bars.Bytes())
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// panel draws a column from y down, and returns where the next may begin. Behind the bars
// a dashed line is what Weir is to reach.
func panel(b *bytes.Buffer, y int, c column, f *field, r results) int {
	fmt.Fprintf(b, `<text class="title" x="%d" y="%d">%s: requests/s</text>`+"\n", margin, y+14, html.EscapeString(c.title))
	y += headSpace - rowHeight/2
	var most float64
	var shown []string
	for _, name := range c.servers {
		if f.servers[name] != nil {
			shown = append(shown, name)
			most = max(most, rowOf(c, name, r).rate)
		}
	}
	if c.wanted > 0 {
		x := nameWidth + rowOf(c, c.servers[0], r).rate*c.wanted/most*barWidth
		fmt.Fprintf(b, `<line class="mark" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`+"\n", x, y, x, y+len(shown)*rowHeight)
	}
	for _, name := range shown {
		row := rowOf(c, name, r)
		class, length := "bar", row.rate/most*barWidth
		if ours(name) {
			class = "weir"
		}
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`, nameWidth-8, y+14, html.EscapeString(name))
		fmt.Fprintf(b, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d"/>`, class, nameWidth, y+3, length, rowHeight-6)
		fmt.Fprintf(b, `<text x="%.1f" y="%d">%.0f (%.2f)</text>`+"\n", nameWidth+length+8, y+14, row.rate, row.ratio)
		y += rowHeight
	}
	return y + margin
}
