package history

import (
	"cmp"
	"slices"
	"time"
)

// point is what happened in one step.
type point struct {
	results         [7]uint32
	saved, upstream uint32
	waiting         uint32 // the most
	inFlight        uint32 // the last known
}

// Series are numbers over time, the oldest first: of each result, and saved (answers
// that cost nothing and would have without Weir), upstream (requests sent), waiting (most in the queue at once)
// and in_flight.
type Series struct {
	// Start is when the first step began, in seconds since 1970; Step is in seconds.
	Start  int64               `json:"start"`
	Step   int                 `json:"step"`
	Values map[string][]uint32 `json:"values"`
}

// Accounts is what has changed of the accounts.
type Accounts struct {
	// All is set where Changed are all there are.
	All     bool      `json:"all,omitempty"`
	Changed []Account `json:"changed"`
	Gone    []string  `json:"gone"`
	// Trouble is why they are not known at present; empty where they are.
	Trouble string `json:"trouble,omitempty"`
}

// Costs are what operations and clients cost in the last hour.
type Costs struct {
	Operations []Operation `json:"operations"`
	Spenders   []Spender   `json:"spenders"`
}

// Series returns the last hour.
func (h *History) Series() Series {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.series(time.Now(), steps)
}

// series is that of the last steps; mu is held.
func (h *History) series(now time.Time, last int) Series {
	d := division(now, step)
	s := Series{Start: (d - int64(last) + 1) * int64(step/time.Second), Step: int(step / time.Second), Values: map[string][]uint32{}}
	i := steps
	h.points.each(d, steps, func(p point) {
		if i--; i >= last {
			return
		}
		for i, o := range results() {
			s.Values[string(o)] = append(s.Values[string(o)], p.results[i])
		}
		for name, v := range map[string]uint32{"saved": p.saved, "upstream": p.upstream, "waiting": p.waiting, "in_flight": p.inFlight} {
			s.Values[name] = append(s.Values[name], v)
		}
	})
	return s
}

// Lines are what the budgets of accounts had left over the last hour, by account and
// resource; null where nothing was known.
func (h *History) Lines(accounts []string) map[string]map[string][]*int {
	h.listing.Lock()
	defer h.listing.Unlock()
	lines, now := map[string]map[string][]*int{}, time.Now()
	for _, name := range accounts {
		lines[name] = h.tracks.lines(name, now)
	}
	return lines
}

// Costs returns those of the last hour.
func (h *History) Costs() Costs {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.costs(time.Now())
}

func (h *History) costs(now time.Time) Costs {
	d := division(now, period)
	return Costs{operations(h.operations, d), spenders(h.spenders, d)}
}

// allAccounts are all that are known; listing is held.
func (h *History) allAccounts() Accounts {
	all := Accounts{All: true, Changed: make([]Account, 0, len(h.accounts)), Gone: []string{}, Trouble: h.trouble}
	for _, k := range h.accounts {
		all.Changed = append(all.Changed, k.account)
	}
	slices.SortFunc(all.Changed, func(a, b Account) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
