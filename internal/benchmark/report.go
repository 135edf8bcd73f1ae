package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// What stands between these lines is written anew by each run.
const (
	begin = "<!-- begin figures -->\n"
	end   = "<!-- end figures -->\n"
)

// write puts the figures into the page and draws the picture.
func write(o options, machine string, f *field, r results, beside []figure) error {
	page := filepath.Join(o.docs, "performance.md")
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	filled, err := insert(text, tables(machine, f, r, beside))
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	if err := os.WriteFile(page, filled, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.docs, "performance.svg"), picture(f, r), 0o644)
}

// insert replaces what stands between the marks of a page.
func insert(page []byte, figures string) ([]byte, error) {
	before, rest, found := bytes.Cut(page, []byte(begin))
	_, after, ended := bytes.Cut(rest, []byte(end))
	if !found || !ended {
		return nil, fmt.Errorf("the lines %q and %q are not there", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return fmt.Appendf(nil, "%s%s\n%s%s%s", before, begin, figures, end, after), nil
}

// tables are all figures in Markdown.
func tables(machine string, f *field, r results, beside []figure) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Machine: %s.\n\n", machine)
	for _, c := range f.columns {
		fmt.Fprintf(&b, "### %s\n\n", c.title)
		fmt.Fprintf(&b, "| server | requests/s | to %s | p50 | p99 | CPU s for 100,000 |\n|---|---|---|---|---|---|\n", c.servers[0])
		for _, name := range c.servers {
			if f.servers[name] == nil {
				fmt.Fprintf(&b, "| %s | not installed | | | | |\n", name)
				continue
			}
			row := rowOf(c, name, r)
			fmt.Fprintf(&b, "| %s | %.0f | %.2f | %s | %s | %.2f |\n", bold(name), row.rate, row.ratio, milliseconds(row.p50), milliseconds(row.p99), row.cpu)
		}
		if c.wanted > 0 {
			fmt.Fprintf(&b, "\nWanted: %.2f.\n", c.wanted)
		}
		b.WriteString("\n")
	}
	b.WriteString("### Weir alone\n\n| | measured | wanted |\n|---|---|---|\n")
	for _, figure := range append(derived(r), beside...) {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", figure.what, figure.value, figure.wanted)
	}
	b.WriteString("\n")
	return b.String()
}

// derived are figures that are made of several columns or servers.
func derived(r results) []figure {
	var figures []figure
	if len(r[cell{hits, varnish}]) > 0 {
		cpu := func(m sample) float64 { return 1 / m.cpu }
		figures = append(figures, figure{"hits per CPU second, to Varnish's", fmt.Sprintf("%.2f", paired(r[cell{hits, weir}], r[cell{hits, varnish}], cpu)), "at least 1"})
	}
	return figures
}

// row is what is told of a server in a column: medians, and the median of its ratios to
// the first.
type row struct {
	sample
	ratio float64
}

func rowOf(c column, name string, r results) row {
	rate := func(m sample) float64 { return m.rate }
	samples := r[cell{c.title, name}]
	return row{
		sample: sample{
			rate: median(samples, rate),
			p50:  time.Duration(median(samples, func(m sample) float64 { return float64(m.p50) })),
			p99:  time.Duration(median(samples, func(m sample) float64 { return float64(m.p99) })),
			cpu:  median(samples, func(m sample) float64 { return m.cpu }),
		},
		ratio: paired(samples, r[cell{c.title, c.servers[0]}], rate),
	}
}

// bold marks the gateway.
func bold(name string) string {
	if ours(name) {
		return "**" + name + "**"
	}
	return name
}

func ours(name string) bool { return strings.HasPrefix(name, weir) }

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", d.Seconds()*1000)
}
