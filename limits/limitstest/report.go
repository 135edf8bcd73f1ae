package limitstest

import (
	"slices"
	"strings"
	"time"
)

// Report contains the counts of one scenario.
type Report struct {
	Seed     uint64
	Requests int
	// Tallies are the counts by limit.
	Tallies map[string]*Tally
	// Violations describes the first violations.
	Violations []string
	// Served lists the counted costs in the order of time, except CPU time. Waits contains the waits of each client for
	// its permits. A refused request counts as the longest wait that its client allows.
	Served []Served
	Waits  map[string][]time.Duration
}

// Served is the cost of one request that the upstream counted against one limit.
type Served struct {
	Client, Limit string
	At            time.Duration // since the start of the scenario
	Cost          int64
}

// served returns the cost of a client, or of all clients if client is empty, in the time span [from, until).
func (r *Report) served(limit, client string, from, until time.Duration) (cost int64) {
	for _, s := range r.Served {
		if s.Limit == limit && (client == "" || s.Client == client) && s.At >= from && s.At < until {
			cost += s.Cost
		}
	}
	return cost
}

// Tally contains the counts of one limit.
type Tally struct {
	Requests, Violations int
	// Worst is the largest sum as a fraction of the limit. Raw includes the CPU time that no ledger could predict.
	Worst, Raw float64
	// Fullness is the use of each measured window as a fraction: of a fixed window at its end, of a sliding window at
	// its highest use. Throughput is the measured use of each account, divided by the limit and the number of elapsed
	// windows.
	Fullness, Throughput []float64
}

// Fullness returns the use of the emptiest window of a limit.
func (r *Report) Fullness(limit string) float64 { return least(r.Tallies[limit].Fullness) }

func newReport(seed uint64) Report {
	return Report{Seed: seed, Tallies: map[string]*Tally{}, Waits: map[string][]time.Duration{}}
}

func (r *Report) tally(limit string) *Tally {
	t := r.Tallies[limit]
	if t == nil {
		t = &Tally{}
		r.Tallies[limit] = t
	}
	return t
}

// StopMeasuring ends the measurement of use.
func (u *Upstream) StopMeasuring() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.measure()
	u.from = time.Time{}
}

// measure adds the measured use to the report.
func (u *Upstream) measure() {
	if u.from.IsZero() {
		return
	}
	now := time.Now()
	elapsed := now.Sub(u.from)
	for _, a := range u.accounts {
		for resource, w := range a.windows {
			w.roll(now, false)
			t := u.report.tally(primaryName(resource))
			t.Fullness = append(t.Fullness, w.closed...)
			t.Throughput = append(t.Throughput, w.pace.achieved)
		}
		for key, s := range a.sums {
			limit, _, _ := strings.Cut(key, " \x00")
			limit = strings.TrimSpace(limit)
			if s.meter.from.IsZero() || len(s.meter.blocks) == 0 {
				continue
			}
			t := u.report.tally(limit)
			full := int(elapsed / s.length) // the last block may be incomplete
			t.Fullness = append(t.Fullness, s.meter.blocks[:min(full, len(s.meter.blocks))]...)
			t.Throughput = append(t.Throughput, s.meter.achieved)
		}
		a.busy.add(u.from, a.inProgress)
		most := float64(u.profile.Limits.Concurrent)
		t := u.report.tally(concurrency)
		t.Throughput = append(t.Throughput, float64(a.busy.sum)/float64(elapsed)/most)
	}
}

// median returns the median, or zero if there is no value.
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
