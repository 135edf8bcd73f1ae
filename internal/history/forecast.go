package history

import (
	"maps"
	"time"

	"github.com/weirgate/weir/limits"
)

// Account is an account of the ledger with forecasts for its budgets.
type Account struct {
	limits.Account
	// Label is the name of the account for people.
	Label string `json:"label"`
	// Waiting is the number of requests that wait for the account at this replica.
	Waiting int `json:"waiting,omitempty"`
	// Forecasts are by resource. A budget that is not being spent has no forecast.
	Forecasts map[string]Forecast `json:"forecasts,omitempty"`
	// Clients are by the resource of the client's budget. A client without waiting and denied requests is omitted.
	Clients map[string]ClientRequests `json:"clients,omitempty"`
	// GraphQLDrain is set while GraphQL is almost empty and REST almost unused.
	GraphQLDrain *GraphQLDrain `json:"graphql_drain,omitempty"`
}

// ClientRequests counts requests of a client for one resource, at this replica.
type ClientRequests struct {
	// Waiting is the number of requests that wait now. Denied is the number of requests of the last hour that a budget
	// refused.
	Waiting int    `json:"waiting,omitempty"`
	Denied  uint32 `json:"denied,omitempty"`
}

// Forecast extrapolates the spending of a budget.
type Forecast struct {
	// Rate is the quota spent per second, less the quota that returned.
	Rate float64 `json:"rate"`
	// Ends is the time at which the budget is exhausted at that rate.
	Ends time.Time `json:"ends"`
	// Early is true if the budget is exhausted before its reset.
	Early bool `json:"early,omitempty"`
}

const (
	maxAccounts = 1000
	maxSeries   = 4000 // budgets
	// rateSamples is the number of samples from which a rate is computed. minRateTime is the shortest time that these
	// samples must span.
	rateSamples = 30
	minRateTime = 2 * time.Second
	// maxForecast bounds the time to exhaustion.
	maxForecast = 365 * 24 * time.Hour
	// samplesPerPoint is the number of consecutive samples for one point of a chart. The point shows the last known
	// sample.
	samplesPerPoint = 3
)

type budgetName struct{ account, resource string }

// sample is the remaining budget at a time. The zero value is no sample.
type sample struct {
	at        int64 // Unix time in milliseconds
	remaining int
}

// budgetSamples holds the samples of used budgets, for at most maxSeries budgets.
type budgetSamples map[budgetName]*ring[sample]

// add samples the budgets of all accounts, and drops series without a sample for an hour.
func (t budgetSamples) add(accounts []limits.Account, now time.Time) {
	step := interval(now, stepLength)
	maps.DeleteFunc(t, func(_ budgetName, s *ring[sample]) bool {
		if s.last > step {
			s.at(step, stepCount) // the clock may have stepped back
		}
		return step-s.last >= stepCount
	})
	for _, a := range accounts {
		for _, b := range a.Budgets {
			name := budgetName{a.Name, b.Resource}
			if t[name] == nil {
				if len(t) == maxSeries || b.Limit <= 0 || b.Used <= 0 && b.Held <= 0 {
					continue
				}
				t[name] = &ring[sample]{}
			}
			*t[name].at(step, stepCount) = sample{now.UnixMilli(), max(0, b.Remaining)}
		}
	}
}

// forecast extrapolates the spending since the budget last increased. ok is false if the budget is not being spent or
// is not known for long enough.
func (t budgetSamples) forecast(account string, b limits.Budget, now time.Time) (f Forecast, ok bool) {
	series := t[budgetName{account, b.Resource}]
	if series == nil {
		return f, false
	}
	since, remaining := now, b.Remaining
	for step := series.last; step > series.last-rateSamples; step-- {
		s := series.values[step%stepCount]
		if s.at == 0 {
			continue // the listing was slow or failed
		}
		if s.remaining < remaining {
			break
		}
		since, remaining = time.UnixMilli(s.at), s.remaining
	}
	took := now.Sub(since)
	if took < minRateTime || remaining <= b.Remaining {
		return f, false
	}
	f.Rate = float64(remaining-b.Remaining) / took.Seconds()
	seconds := min(max(0, float64(b.Remaining)/f.Rate), maxForecast.Seconds())
	f.Ends = now.Add(time.Duration(seconds * float64(time.Second))).Truncate(time.Second)
	f.Early = f.Ends.Before(b.Reset)
	return f, true
}

// describe adds the forecasts to an account.
func (t budgetSamples) describe(a limits.Account, waiting int, now time.Time) Account {
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

// lines returns the remaining budgets of an account by resource, oldest first. Unknown values are nil.
func (t budgetSamples) lines(account string, now time.Time) map[string][]*int {
	lines := map[string][]*int{}
	for name, series := range t {
		if name.account != account {
			continue
		}
		line := make([]*int, stepCount/samplesPerPoint)
		for i, s := range series.all(interval(now, stepLength), stepCount) {
			if s.at > 0 {
				line[i/samplesPerPoint] = &s.remaining
			}
		}
		lines[name.resource] = line
	}
	return lines
}
