package history

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/weirgate/weir/limits"
)

// Account is an account of the ledger's, with what is expected of its budgets.
type Account struct {
	limits.Account
	// Waiting is how many requests wait for it at this replica.
	Waiting int `json:"waiting,omitempty"`
	// Forecasts are by resource; a budget that nobody spends has none.
	Forecasts map[string]Forecast `json:"forecasts,omitempty"`
}

// Forecast is when a budget ends if it is spent on as it was.
type Forecast struct {
	// Rate is how much is spent in a second, net of what comes back.
	Rate float64 `json:"rate"`
	// Ends is when nothing is left.
	Ends time.Time `json:"ends"`
	// Early is set when that is before the reset.
	Early bool `json:"early,omitempty"`
}

// Bounds of what is remembered of budgets.
const (
	maxAccounts = 1000
	maxTracks   = 4000
	// lookBack is over how many samples a rate is taken, enough from how long a time.
	lookBack = 30
	enough   = 2 * time.Second
	// farOff is as far as is looked ahead.
	farOff = 365 * 24 * time.Hour
)

// budgetName is a budget of an account.
type budgetName struct{ account, resource string }

// sample is what was left at a moment of a step of the hour; its zero value is none. There
// are more than a million of them: it has eight bytes, with what is more than 2^31 left
// out.
type sample struct {
	after uint16 // milliseconds since the step began, and one
	left  int32
}

func newSample(now time.Time, left int) sample {
	return sample{uint16(now.UnixNano()%int64(step)/int64(time.Millisecond)) + 1, int32(min(max(left, 0), math.MaxInt32))}
}

// at is when it was taken in a step.
func (s sample) at(division int64) time.Time {
	return time.Unix(0, division*int64(step)).Add(time.Duration(s.after-1) * time.Millisecond)
}

// track is what a budget had left over the last hour.
type track struct {
	ring[sample]
	seen int64 // in which round
}

// tracks are those of the budgets that somebody has touched: of too many, those of which
// the smallest share is left.
type tracks struct {
	of    map[budgetName]*track
	round int64
}

// note takes a sample of all accounts.
func (t *tracks) note(accounts []limits.Account, now time.Time) {
	type candidate struct {
		name budgetName
		left int
		part float64
	}
	var touched []candidate
	for _, a := range accounts {
		for _, b := range a.Budgets {
			if b.Limit > 0 && (b.Used > 0 || b.Held > 0) || t.of[budgetName{a.Name, b.Resource}] != nil {
				touched = append(touched, candidate{budgetName{a.Name, b.Resource}, b.Remaining, float64(b.Remaining) / float64(max(b.Limit, 1))})
			}
		}
	}
	if len(touched) > maxTracks {
		slices.SortFunc(touched, func(x, y candidate) int { return cmp.Compare(x.part, y.part) })
		touched = touched[:maxTracks]
	}
	t.round++
	for _, c := range touched {
		own := t.of[c.name]
		if own == nil {
			own = &track{}
			t.of[c.name] = own
		}
		own.seen = t.round
		*own.at(division(now, step), steps) = newSample(now, c.left)
	}
	t.forget(now)
}

// forget drops what has had no sample for an hour and, of too many, what had none now.
func (t *tracks) forget(now time.Time) {
	crowded := len(t.of) > maxTracks
	for name, own := range t.of {
		if own.seen != t.round && (crowded || division(now, step)-own.last >= steps) {
			delete(t.of, name)
		}
	}
}

// forecast is when a budget ends that is spent on as it was since it last came back; not
// ok where it is not spent, or not known for long enough.
func (t *tracks) forecast(account string, b limits.Budget, now time.Time) (f Forecast, ok bool) {
	own := t.of[budgetName{account, b.Resource}]
	if own == nil {
		return f, false
	}
	since, left := now, b.Remaining
	for division := own.last; division > own.last-lookBack; division-- {
		s := own.values[division%steps]
		if s.after == 0 {
			continue // not looked at: a listing takes long, or failed
		}
		if int(s.left) < left {
			break
		}
		since, left = s.at(division), int(s.left)
	}
	took := now.Sub(since)
	if took < enough || left <= b.Remaining {
		return f, false
	}
	f.Rate = float64(left-b.Remaining) / took.Seconds()
	lasts := min(max(0, float64(b.Remaining)/f.Rate), farOff.Seconds())
	f.Ends = now.Add(time.Duration(lasts * float64(time.Second))).Truncate(time.Second)
	f.Early = f.Ends.Before(b.Reset)
	return f, true
}

// describe adds what is expected.
func (t *tracks) describe(a limits.Account, waiting int, now time.Time) Account {
	d := Account{Account: a, Waiting: waiting}
	for _, b := range a.Budgets {
		if f, ok := t.forecast(a.Name, b, now); ok {
			if d.Forecasts == nil {
				d.Forecasts = map[string]Forecast{}
			}
			d.Forecasts[b.Resource] = f
		}
	}
	return d
}

// thinned is how many samples are shown as one, the last of them that is known.
const thinned = 3

// lines are what the budgets of an account had left, the oldest first; nil where nothing
// was known.
func (t *tracks) lines(account string, now time.Time) map[string][]*int {
	lines := map[string][]*int{}
	for name, own := range t.of {
		if name.account != account {
			continue
		}
		line, i := make([]*int, steps/thinned), 0
		own.each(division(now, step), steps, func(s sample) {
			if left := int(s.left); s.after > 0 {
				line[i/thinned] = &left
			}
			i++
		})
		lines[name.resource] = line
	}
	return lines
}
