package history

import (
	"cmp"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// others is the name for the sum of all names without a row.
const others = "others"

// interval returns the number of the interval that contains t, for intervals of the given length.
func interval(t time.Time, length time.Duration) int64 { return t.UnixNano() / int64(length) }

// ring holds one value for each of the last intervals. The zero value is empty.
type ring[T any] struct {
	values []T // allocated on first use
	last   int64
}

// at returns the value of an interval. A skipped interval gets the zero value. After a step of the clock back, all values
// keep their age.
func (r *ring[T]) at(interval int64, size int) *T {
	if r.values == nil {
		r.values, r.last = make([]T, size), interval
	}
	if back := r.last - interval; back > 1 { // one interval may be the order of two observations
		n := back % int64(size)
		r.values, r.last = slices.Concat(r.values[n:], r.values[:n]), interval
	}
	if interval-r.last >= int64(size) {
		clear(r.values)
		r.last = interval
	}
	var zero T
	for r.last < interval {
		r.last++
		r.values[r.last%int64(size)] = zero
	}
	return &r.values[r.last%int64(size)]
}

// all returns the values up to an interval, oldest first.
func (r *ring[T]) all(interval int64, size int) []T {
	r.at(interval, size)
	next := (r.last + 1) % int64(size)
	return slices.Concat(r.values[next:], r.values[:next])
}

// counts counts by name over the last two hours, in a bounded number of rows. When all rows are taken, a new name may
// replace the lightest of a few random rows. The probability is one divided by the count of the lightest row. A flood
// of names therefore does not displace frequent names.
type counts[K comparable] struct {
	maxRows int
	rows    map[K]*ring[count]
	others  ring[count] // of the names without a row
	// lastReplace is the time of the last attempt to replace a row.
	lastReplace time.Time
}

// count holds the counts of one name in one period.
type count struct {
	requests, hits, validated, upstream, spent, saved uint32
	times                                             *histogram // nil without observed durations
}

// observe adds a duration.
func (c *count) observe(d time.Duration) {
	if c.times == nil {
		c.times = new(histogram)
	}
	c.times.observe(d)
}

// add adds the counts and durations of more, which it does not retain.
func (c *count) add(more count) {
	c.requests += more.requests
	c.hits += more.hits
	c.validated += more.validated
	c.upstream += more.upstream
	c.spent += more.spent
	c.saved += more.saved
	if more.times == nil {
		return
	}
	if c.times == nil {
		c.times = new(histogram)
	}
	for i, n := range more.times.counts {
		c.times.counts[i] += n
	}
	c.times.max = max(c.times.max, more.times.max)
}

const (
	// replacePause is the pause between two attempts to replace a row, which bounds the cost of a flood of names.
	replacePause = 10 * time.Millisecond
	// replaceSample is the number of random rows that are candidates for a replacement.
	replaceSample = 16
)

func newCounts[K comparable](maxRows int) *counts[K] {
	return &counts[K]{maxRows: maxRows, rows: map[K]*ring[count]{}}
}

// at returns the count of a name in the present period. A name without a row shares the count of the other names.
func (c *counts[K]) at(key K, now time.Time) *count {
	period := interval(now, periodLength)
	r := c.rows[key]
	if r == nil {
		switch {
		case len(c.rows) < c.maxRows:
			r = &ring[count]{}
		case now.Sub(c.lastReplace) >= replacePause:
			c.lastReplace = now
			r = c.replace(period)
		}
		if r == nil {
			return c.others.at(period, 2*periodCount)
		}
		c.rows[key] = r
	}
	return r.at(period, 2*periodCount)
}

// replace removes a row, adds the counts of that row to c.others and returns the empty row, or nil if no row is
// replaced.
func (c *counts[K]) replace(period int64) *ring[count] {
	var lightest K
	weight, n := math.MaxInt, 0
	for key, r := range c.rows {
		r.at(period, 2*periodCount)
		sum := 0
		for i := range r.values {
			sum += int(r.values[i].requests + r.values[i].upstream)
		}
		if sum < weight {
			lightest, weight = key, sum
		}
		if n++; n == replaceSample {
			break
		}
	}
	if rand.IntN(max(1, weight)) > 0 {
		return nil
	}
	r := c.rows[lightest]
	delete(c.rows, lightest)
	c.others.at(period, 2*periodCount)
	r.at(c.others.last, 2*periodCount) // c.others may already have counts of the next period
	for i, v := range r.values {
		c.others.values[i].add(v)
	}
	clear(r.values)
	return r
}

// hours holds the sums of the last hour and of the hour before.
type hours struct{ last, before count }

// sums returns the sums of each row, and the sums of c.others if c.others has counts.
func (c *counts[K]) sums(others K, period int64) iter.Seq2[K, hours] {
	return func(yield func(K, hours) bool) {
		for key, r := range c.rows {
			if !yield(key, sumOf(r, period)) {
				return
			}
		}
		if c.others.values != nil {
			yield(others, sumOf(&c.others, period))
		}
	}
}

// sum returns the sums of one row, or zero without a row.
func (c *counts[K]) sum(key K, period int64) hours {
	if r := c.rows[key]; r != nil {
		return sumOf(r, period)
	}
	return hours{}
}

func sumOf(r *ring[count], period int64) (sum hours) {
	values := r.all(period, 2*periodCount)
	for i := range periodCount {
		sum.before.add(values[i])
		sum.last.add(values[periodCount+i])
	}
	return sum
}

// Operation is the use of an operation in the last hour.
type Operation struct {
	Name     string `json:"operation"`
	Requests uint32 `json:"requests"`
	// Hits is the number of responses from the cache. Validated is the number of responses after a 304.
	Hits      uint32 `json:"hits"`
	Validated uint32 `json:"validated"`
	// Upstream is the number of requests to the upstream.
	Upstream uint32 `json:"upstream"`
	// Median, P95 and Max are durations of whole requests.
	Median time.Duration `json:"median_ns"`
	P95    time.Duration `json:"p95_ns"`
	Max    time.Duration `json:"max_ns"`
}

// Spender is the cost of a client in the last hour, for one operation, one tag or one account.
type Spender struct {
	// Client is the name of the client, or the account of a client without a name.
	Client    string `json:"client"`
	Operation string `json:"operation,omitempty"`
	Tag       string `json:"tag,omitempty"`
	Account   string `json:"account,omitempty"`
	Version   string `json:"version,omitempty"`
	// ClientLabel and AccountLabel are the names of Client and Account for people.
	ClientLabel  string `json:"client_label"`
	AccountLabel string `json:"account_label,omitempty"`
	Use
	// Before is the use in the hour before the last hour.
	Before Use `json:"before,omitzero"`
}

// Use counts requests and their cost.
type Use struct {
	Requests uint32 `json:"requests"`
	// Spent is the consumed quota as far as it is known. Upstream is the number of requests to the upstream. Saved is
	// the number of responses that consumed no quota, but would have consumed quota without Weir.
	Spent    uint32 `json:"spent"`
	Upstream uint32 `json:"upstream"`
	Saved    uint32 `json:"saved"`
}

func (c count) use() Use { return Use{c.requests, c.spent, c.upstream, c.saved} }

type spenderKey struct{ client, operation, tag, account, version string }

// histogram counts durations in buckets whose bounds double.
type histogram struct {
	counts [24]uint32
	max    time.Duration
}

// firstBound is the upper bound of the first bucket.
const firstBound = 50 * time.Microsecond

func (h *histogram) observe(d time.Duration) {
	i := 0
	for bound := firstBound; d > bound && i < len(h.counts)-1; bound *= 2 {
		i++
	}
	h.counts[i]++
	h.max = max(h.max, d)
}

// quantile returns an estimate of a quantile, interpolated within its bucket, or 0 without durations.
func (h *histogram) quantile(q float64) time.Duration {
	var total uint32
	for _, n := range h.counts {
		total += n
	}
	rank, from, to := q*float64(total), time.Duration(0), firstBound
	for _, n := range h.counts {
		if rank <= float64(n) && n > 0 {
			return min(from+time.Duration(rank/float64(n)*float64(to-from)), h.max)
		}
		rank -= float64(n)
		from, to = to, 2*to
	}
	return h.max
}

// listOperations returns all operations, most requested first.
func listOperations(c *counts[string], period int64) []Operation {
	list := make([]Operation, 0, len(c.rows)+1)
	for name, sum := range c.sums(others, period) {
		n := sum.last
		if n.requests+n.upstream == 0 {
			continue
		}
		times := cmp.Or(n.times, &histogram{})
		list = append(list, Operation{
			name, n.requests, n.hits, n.validated, n.upstream, times.quantile(0.5), times.quantile(0.95), times.max,
		})
	}
	slices.SortFunc(list, func(a, b Operation) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// listSpenders returns all spenders, most expensive first.
func (h *History) listSpenders(c *counts[spenderKey], others spenderKey, period int64) []Spender {
	list := make([]Spender, 0, len(c.rows)+1)
	for key, n := range c.sums(others, period) {
		if n.last.requests+n.last.upstream == 0 {
			continue
		}
		s := Spender{Client: key.client, Operation: key.operation, Tag: key.tag, Account: key.account, Version: key.version, Use: n.last.use(), Before: n.before.use()}
		s.ClientLabel = h.sources.Label(s.Client)
		if s.Account != "" {
			s.AccountLabel = h.sources.Label(s.Account)
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Spender) int {
		return cmp.Or(cmp.Compare(b.Spent, a.Spent), cmp.Compare(b.Upstream, a.Upstream), cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Client, b.Client), cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Tag, b.Tag), cmp.Compare(a.Account, b.Account), cmp.Compare(a.Version, b.Version))
	})
	return list
}
