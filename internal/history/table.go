package history

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// others is the name of what found no place.
const others = "others"

// maxNameLength bounds a name, in bytes.
const maxNameLength = 120

// table counts by name, over an hour. It has a bounded number of rows: a newcomer to a
// full table takes the place of the least of some, which goes to the others, if that has
// counted no more; else it takes one off its weight. So a flood of names does not displace
// those that count. add folds one count into another.
type table[K, T comparable] struct {
	most   int
	add    func(into *T, more T)
	rows   map[K]*row[T]
	others row[T]
	// asked is when the last newcomer asked for a place.
	asked time.Time
}

// askEvery is how soon the next does: what counts comes again, and to look for room for each of
// ten thousand names would take longer than the rest of what is counted.
const askEvery = 10 * time.Millisecond

type row[T comparable] struct {
	ring[T]
	weight float64 // of what it has counted lately
}

func newTable[K, T comparable](most int, add func(*T, T)) *table[K, T] {
	return &table[K, T]{most: most, add: add, rows: map[K]*row[T]{}}
}

// count adds to a row.
func (t *table[K, T]) count(key K, now time.Time, more T) {
	division := division(now, period)
	r := t.rows[key]
	if r == nil {
		switch {
		case len(t.rows) < t.most:
			r = &row[T]{}
		case now.Sub(t.asked) >= askEvery:
			t.asked = now
			r = t.displace(division)
		}
		if r == nil {
			t.add(t.others.at(division, hour), more)
			return
		}
		t.rows[key] = r
	}
	r.weight++
	t.add(r.at(division, hour), more)
}

// looked is of how many rows, of no order, the least gives way: all would take long.
const looked = 16

// displace takes the row of one that gives way, and returns it empty; nil where none does.
func (t *table[K, T]) displace(division int64) *row[T] {
	var least K
	lightest, n := math.Inf(1), 0
	for key, r := range t.rows {
		if r.weight < lightest {
			least, lightest = key, r.weight
		}
		if n++; n == looked {
			break
		}
	}
	from := t.rows[least]
	if from.weight > 1 {
		from.weight--
		return nil
	}
	delete(t.rows, least)
	division = max(division, t.others.last) // another may have counted in the next one already
	t.others.at(division, hour)
	from.at(division, hour)
	var none T
	for i, v := range from.values {
		if v != none {
			t.add(&t.others.values[i], v)
		}
	}
	clear(from.values)
	from.weight = 0
	return from
}

// forgotten is the weight below which a row has counted nothing for an hour: it halves
// with each period.
const forgotten = 4e-19 // one, after 61 periods

// age lets a period pass.
func (t *table[K, T]) age() {
	for key, r := range t.rows {
		if r.weight /= 2; r.weight < forgotten {
			delete(t.rows, key)
		}
	}
}

// sums calls visit with what each row has counted in the hour, and last with the others,
// for which there is no key.
func (t *table[K, T]) sums(division int64, visit func(key *K, sum T)) {
	for key, r := range t.rows {
		visit(&key, t.sum(r, division))
	}
	if t.others.values != nil {
		visit(nil, t.sum(&t.others, division))
	}
}

func (t *table[K, T]) sum(r *row[T], division int64) (sum T) {
	var none T
	r.each(division, hour, func(v T) {
		if v != none {
			t.add(&sum, v)
		}
	})
	return sum
}

// Operation is what an operation was asked for in the last hour.
type Operation struct {
	Name     string `json:"operation"`
	Requests uint32 `json:"requests"`
	// Held is how many were answered from the cache, Validated how many by a 304.
	Held      uint32 `json:"held"`
	Validated uint32 `json:"validated"`
	// Upstream is how many requests went to the API for it.
	Upstream uint32 `json:"upstream"`
	// Median, P95 and Max are times to the end of the answer.
	Median time.Duration `json:"median_ns"`
	P95    time.Duration `json:"p95_ns"`
	Max    time.Duration `json:"max_ns"`
}

// Spender is what a client cost with an operation in the last hour.
type Spender struct {
	// Client is its name; where it has none, the account it came with.
	Client    string `json:"client"`
	Operation string `json:"operation"`
	Requests  uint32 `json:"requests"`
	// Spent is what that cost of a quota, as far as it is known; Upstream how many
	// requests went to the API for it, Saved how many cost nothing and would have.
	Spent    uint32 `json:"spent"`
	Upstream uint32 `json:"upstream"`
	Saved    uint32 `json:"saved"`
}

// use is what is counted of an operation.
type use struct {
	requests, held, validated, upstream uint32
	times                               times
}

func addUse(into *use, more use) {
	into.requests += more.requests
	into.held += more.held
	into.validated += more.validated
	into.upstream += more.upstream
	for i, n := range more.times.counts {
		into.times.counts[i] += n
	}
	into.times.max = max(into.times.max, more.times.max)
}

// spender is by what spending is counted; spent is what.
type (
	spender struct{ client, operation string }
	spent   struct{ requests, spent, upstream, saved uint32 }
)

func addSpent(into *spent, more spent) {
	into.requests += more.requests
	into.spent += more.spent
	into.upstream += more.upstream
	into.saved += more.saved
}

// times are how long answers took, by buckets that double.
type times struct {
	counts [24]uint32
	max    time.Duration
}

// shortest is the end of the first bucket.
const shortest = 50 * time.Microsecond

func (t *times) observe(d time.Duration) {
	i := 0
	for end := shortest; d > end && i < len(t.counts)-1; end *= 2 {
		i++
	}
	t.counts[i]++
	t.max = max(t.max, d)
}

// quantile is a time that a share of the answers did not exceed, interpolated within its
// bucket.
func (t *times) quantile(share float64) time.Duration {
	var all uint32
	for _, n := range t.counts {
		all += n
	}
	rank, from, to := share*float64(all), time.Duration(0), shortest
	for _, n := range t.counts {
		if rank <= float64(n) && n > 0 {
			return min(from+time.Duration(rank/float64(n)*float64(to-from)), t.max)
		}
		rank -= float64(n)
		from, to = to, 2*to
	}
	return t.max
}

// operations lists them, those that cost most first.
func operations(t *table[string, use], division int64) []Operation {
	list := make([]Operation, 0, len(t.rows)+1)
	t.sums(division, func(name *string, u use) {
		o := Operation{others, u.requests, u.held, u.validated, u.upstream, u.times.quantile(0.5), u.times.quantile(0.95), u.times.max}
		if name != nil {
			o.Name = *name
		}
		if o.Requests+o.Upstream > 0 {
			list = append(list, o)
		}
	})
	slices.SortFunc(list, func(a, b Operation) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// spenders lists them, those that cost most first.
func spenders(t *table[spender, spent], division int64) []Spender {
	list := make([]Spender, 0, len(t.rows)+1)
	t.sums(division, func(key *spender, s spent) {
		row := Spender{others, others, s.requests, s.spent, s.upstream, s.saved}
		if key != nil {
			row.Client, row.Operation = key.client, key.operation
		}
		if row.Requests+row.Upstream > 0 {
			list = append(list, row)
		}
	})
	slices.SortFunc(list, func(a, b Spender) int {
		return cmp.Or(cmp.Compare(b.Spent, a.Spent), cmp.Compare(b.Upstream, a.Upstream), cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Client, b.Client), cmp.Compare(a.Operation, b.Operation))
	})
	return list
}
