package replay

import (
	_ "embed" // the template of the page
	"fmt"
	"html/template"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/internal/durations"
)

//go:embed page.html
var pageText string

// page is the template of the page. html/template escapes all values.
var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"percent": func(p float64) string { return strconv.FormatFloat(p, 'f', 1, 64) + " %" },
	"seconds": func(s float64) string {
		return durations.Text(time.Duration(s * float64(time.Second)))
	},
	"time":  func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") },
	"table": func(title string, rows []Row) map[string]any { return map[string]any{"Title": title, "Rows": rows} },
	"first": func(rows []Row) []Row { return rows[:min(MaxRows, len(rows))] },
}).Parse(pageText))

// MaxRows bounds the rows of each table for a reader. The JSON report has all rows.
const MaxRows = 20

// The size of the charts in SVG units.
const (
	chartWidth, chartHeight = 720, 180
	barWidth                = 420
)

// chart is the quota by time.
type chart struct {
	Width, Height        int
	Max                  int
	With, Without        string // points of polylines
	Refused              []column
	From, To, PartLength string
}

// column is a bar for the refusals in a part of the time.
type column struct {
	X, Y, Width, Height float64
	Title               string
}

// bar is a pair of horizontal bars.
type bar struct {
	Account
	Y                   int
	WithoutW, WithW     float64
	WithoutEnd, WithEnd float64
}

// Page writes the report as one HTML page that has no scripts and loads no other file.
func (r *Report) Page(out io.Writer) error {
	data := struct {
		*Report
		Chart     chart
		Bars      []bar
		BarsWidth int
		BarsEnd   int
	}{r, r.chart(), r.bars(), chartWidth, 0}
	data.BarsEnd = len(data.Bars) * barPitch
	return page.Execute(out, data)
}

// chart returns the geometry of the quota by time.
func (r *Report) chart() chart {
	c := chart{
		Width: chartWidth, Height: chartHeight, Max: 1, From: r.From.UTC().Format("01-02 15:04"), To: r.To.UTC().Format("01-02 15:04"),
		PartLength: durations.Text(time.Duration(r.PartSeconds) * time.Second),
	}
	for _, p := range r.Series {
		c.Max = max(c.Max, p.Spent, p.Without, p.Refused)
	}
	step := float64(chartWidth) / float64(max(1, len(r.Series)))
	height := func(n int) float64 { return round(float64(n) * chartHeight / float64(c.Max)) }
	var with, without strings.Builder
	for i, p := range r.Series {
		x := round((float64(i) + 0.5) * step)
		fmt.Fprintf(&with, "%g,%g ", x, chartHeight-height(p.Spent))
		fmt.Fprintf(&without, "%g,%g ", x, chartHeight-height(p.Without))
		if p.Refused > 0 {
			c.Refused = append(c.Refused, column{
				round(float64(i) * step), chartHeight - height(p.Refused), round(step), height(p.Refused),
				fmt.Sprintf("%s: %d refused", p.Start.UTC().Format("01-02 15:04"), p.Refused),
			})
		}
	}
	c.With, c.Without = with.String(), without.String()
	return c
}

// barPitch is the distance between two pairs of bars.
const barPitch = 44

// bars returns the geometry of the quota by account and resource.
func (r *Report) bars() (bars []bar) {
	most := 1
	for _, a := range r.Accounts {
		most = max(most, a.Spent, a.Without)
	}
	width := func(n int) float64 { return round(float64(n) * barWidth / float64(most)) }
	for i, a := range r.Accounts[:min(MaxRows, len(r.Accounts))] {
		bars = append(bars, bar{a, i * barPitch, width(a.Without), width(a.Spent), width(a.Without) + 6, width(a.Spent) + 6})
	}
	return bars
}

func round(x float64) float64 { return math.Round(10*x) / 10 }
