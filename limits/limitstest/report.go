package limitstest

import (
	"slices"
	"strings"
	"time"
)

// Report is what an upstream has counted in one scenario.
type Report struct {
	Seed     uint64
	Requests int
	// Tallies are by limit.
	Tallies map[string]*Tally
	// Violations are the first few, in words.
	Violations []string
}

// Tally is what was counted of one limit.
type Tally struct {
	Requests, Violations int
	// Worst is the largest sum as a share of the limit. Raw counts CPU time
	// that nobody could expect as well.
	Worst, Raw float64
	// Held is how full the upstream's windows were in steady state: of fixed
	// windows each at its end, of sliding ones the fullest in each span of
	// their length. Through is what was counted in steady state as a share of
	// the limit times the elapsed windows, of each account.
	Held, Through []float64
}

// Fullness is how full the emptiest of a limit's windows was.
func (r *Report) Fullness(limit string) float64 { return least(r.Tallies[limit].Held) }

func newReport(seed uint64) Report { return Report{Seed: seed, Tallies: map[string]*Tally{}} }

func (r *Report) tally(limit string) *Tally {
	t := r.Tallies[limit]
	if t == nil {
		t = &Tally{}
		r.Tallies[limit] = t
	}
	return t
}

// measure adds up how much was used in steady state.
func (u *Upstream) measure() {
	if u.from.IsZero() {
		return
	}
	now := time.Now()
	elapsed := now.Sub(u.from)
	for _, a := range u.accounts {
		for resource, w := range a.windows {
			w.roll(now, false)
			t := u.report.tally(primaryOf(resource))
			t.Held = append(t.Held, w.closed...)
			t.Through = append(t.Through, w.pace.achieved)
		}
		for key, s := range a.sums {
			limit, _, _ := strings.Cut(key, " \x00")
			limit = strings.TrimSpace(limit)
			if s.meter.from.IsZero() || len(s.meter.blocks) == 0 {
				continue
			}
			t := u.report.tally(limit)
			full := int(elapsed / s.length) // the last block may be a part
			t.Held = append(t.Held, s.meter.blocks[:min(full, len(s.meter.blocks))]...)
			t.Through = append(t.Through, s.meter.achieved)
		}
		a.busy.add(u.from, a.inside)
		most := float64(u.nature.Limits.Concurrent)
		t := u.report.tally(concurrency)
		t.Through = append(t.Through, float64(a.busy.sum)/float64(elapsed)/most)
	}
}

// median and least of some shares; zero when there is none.
func median(shares []float64) float64 {
	if len(shares) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(shares))
	return sorted[len(sorted)/2]
}

func least(shares []float64) float64 {
	if len(shares) == 0 {
		return 0
	}
	return slices.Min(shares)
}
