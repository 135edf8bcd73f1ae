package limitstest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
)

// Table summarizes reports in one row per limit.
type Table struct{ rows map[string]*row }

type row struct {
	Scenario   string  `json:"scenario"`
	Limit      string  `json:"limit"`
	Scenarios  int     `json:"scenarios"`
	Least      int     `json:"replicas_least"`
	Most       int     `json:"replicas_most"`
	Requests   int     `json:"requests"`
	Violations int     `json:"violations"`
	Worst      float64 `json:"worst"`
	Raw        float64 `json:"worst_with_surprises,omitempty"`
	// Windows and WindowsLeast are the median and the least use of the windows. Through and ThroughLeast are the median
	// and the least throughput.
	Windows         float64 `json:"windows_median,omitempty"`
	WindowsLeast    float64 `json:"windows_least,omitempty"`
	Throughput      float64 `json:"through_median,omitempty"`
	ThroughputLeast float64 `json:"through_least,omitempty"`

	held, through []float64
}

// NewTable returns an empty table.
func NewTable() *Table { return &Table{rows: map[string]*row{}} }

// Add adds the report of a scenario, for all limits or for the limits in only.
func (b *Table) Add(s *Scenario, r *Report, only ...string) {
	for limit, tally := range r.Tallies {
		if len(only) > 0 && !slices.Contains(only, limit) {
			continue
		}
		key := s.Name + " " + limit
		w := b.rows[key]
		if w == nil {
			w = &row{Scenario: s.Name, Limit: limit, Least: s.Replicas}
			b.rows[key] = w
		}
		w.Scenarios++
		w.Least, w.Most = min(w.Least, s.Replicas), max(w.Most, s.Replicas)
		w.Requests += tally.Requests
		w.Violations += tally.Violations
		w.Worst, w.Raw = max(w.Worst, tally.Worst), max(w.Raw, tally.Raw)
		w.held = append(w.held, tally.Fullness...)
		w.through = append(w.through, tally.Throughput...)
	}
}

// Print logs the table as text, and as one line of JSON per row.
func (b *Table) Print(t *testing.T) {
	var text, lines strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, "scenario\tlimit\tscenarios\treplicas\trequests\tviolations\tworst sum\twith excesses\twindows median\tleast\tthrough median\tleast\t")
	for _, key := range slices.Sorted(maps.Keys(b.rows)) {
		r := b.rows[key]
		r.Windows, r.WindowsLeast = median(r.held), least(r.held)
		r.Throughput, r.ThroughputLeast = median(r.through), least(r.through)
		_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%d..%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t\n", r.Scenario, r.Limit,
			r.Scenarios, r.Least, r.Most, r.Requests, r.Violations,
			percent(r.Worst), percent(r.Raw), percent(r.Windows), percent(r.WindowsLeast), percent(r.Throughput), percent(r.ThroughputLeast))
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(&lines, "%s\n", line)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s\n%s", text.String(), lines.String())
}

func percent(share float64) string {
	if share == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f %%", 100*share)
}
