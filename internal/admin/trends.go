package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/internal/credential"
)

// Prometheus contains the URL and the token of the Prometheus that scrapes all replicas.
type Prometheus struct {
	URL   string // base URL; empty if no server is configured
	Token credential.Secret
}

const (
	// trendsTimeout bounds all queries of one request together.
	trendsTimeout = 10 * time.Second
	// maxTrendsRequests bounds the requests that query Prometheus at the same time.
	maxTrendsRequests = 4
	// maxTrendsBody bounds the response to one query, in bytes. A point has about 25 bytes, so the body has room for about
	// 900 clients.
	maxTrendsBody = 4 << 20
	// maxTrendsError bounds a quoted error, in bytes.
	maxTrendsError = 300
	// maxTrendClients bounds the clients with a separate series, and maxTrendBudgets bounds the budgets. The page has eight
	// colors, and one more for the other clients.
	maxTrendClients = 7
	maxTrendBudgets = 8
)

// trendRange is a time range that is divided into steps.
type trendRange struct {
	name    string
	step    string // length of a step, as a duration of PromQL
	seconds int64  // length of a step
	steps   int
}

var trendRanges = []trendRange{{"1d", "10m", 600, 144}, {"7d", "1h", 3600, 168}, {"30d", "4h", 14400, 180}}

// trendsShift is the time in seconds by which steps begin before a multiple of their length. Prometheus misses a growth
// between the last sample of a step and the first sample of the next step, and programs often begin at full minutes.
const trendsShift = 150

// The queries. The length of a step replaces STEP. They add the counters of all replicas. Every replica reports the same
// budgets, so budgetsQuery takes the highest value, and only the 20 highest of each step. A budget without an account is
// the overflow of a metric with too many series.
const (
	spentQuery   = `sum by (weir_client) (increase(weir_spent_total[STEP]))`
	savedQuery   = `sum(increase(weir_saved_total[STEP]))`
	refusedQuery = `sum(increase(weir_requests_total{weir_cache="refused"}[STEP]))`
	budgetsQuery = `topk(20, max by (weir_account, weir_resource) (max_over_time(weir_budget_utilization_ratio{weir_account!=""}[STEP])))`
)

// trendsReport is the JSON of /api/v1/trends. Every series has one value per step. The first step is the first with data.
type trendsReport struct {
	Range   string        `json:"range"`
	Start   int64         `json:"start"`   // of the first step, in Unix seconds
	Step    int64         `json:"step"`    // in seconds
	Spent   []clientTrend `json:"spent"`   // quota of the clients that spent most
	Others  []float64     `json:"others"`  // quota of all other clients together
	Saved   []float64     `json:"saved"`   // requests
	Refused []float64     `json:"refused"` // requests
	Budgets []budgetTrend `json:"budgets"` // the tightest first
}

// clientTrend is the spent quota of a client.
type clientTrend struct {
	Client string    `json:"client"`
	Values []float64 `json:"values"`
	total  float64   // sum of Values
}

// budgetTrend is the lowest remaining fraction of a budget. A value is nil if Prometheus has no samples of the step, or if
// 20 other budgets were tighter.
type budgetTrend struct {
	Account  string     `json:"account"`
	Resource string     `json:"resource"`
	Values   []*float64 `json:"values"`
	lowest   float64    // value, or +Inf without any value
}

// trends serves /api/v1/trends with series that it reads from Prometheus.
type trends struct {
	configured func() Prometheus
	client     *http.Client
	slots      chan struct{} // one element per request that queries Prometheus
}

func newTrends(configured func() Prometheus) *trends {
	return &trends{
		configured: configured,
		client: &http.Client{
			// Queries are rare, so no connection stays open. HTTP_PROXY is ignored, as it is for the upstream.
			Transport: &http.Transport{DisableKeepAlives: true},
			// net/http would send the token to another port or a subdomain.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		slots: make(chan struct{}, maxTrendsRequests),
	}
}

func (t *trends) serve(w http.ResponseWriter, r *http.Request) {
	p := t.configured()
	if p.URL == "" {
		fail(w, http.StatusNotFound, errors.New("no Prometheus is configured; set admin.prometheus.url"))
		return
	}
	name := r.URL.Query().Get("range")
	i := slices.IndexFunc(trendRanges, func(c trendRange) bool { return c.name == name })
	if i < 0 {
		fail(w, http.StatusBadRequest, fmt.Errorf("range %q: must be 1d, 7d or 30d", name))
		return
	}
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	default:
		w.Header().Set("Retry-After", "10")
		fail(w, http.StatusServiceUnavailable, fmt.Errorf("%d requests are querying Prometheus; retry in 10 seconds", maxTrendsRequests))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), trendsTimeout)
	defer cancel()
	report, err := t.report(ctx, p, trendRanges[i], time.Now())
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		fail(w, http.StatusGatewayTimeout, fmt.Errorf("query Prometheus at %s: no complete response within %s; check admin.prometheus.url", p.URL, trendsTimeout))
	case err != nil:
		fail(w, http.StatusBadGateway, fmt.Errorf("query Prometheus at %s: %w", p.URL, err))
	default:
		writeJSON(w, report, "")
	}
}

// report returns the series of a range. The last step contains now, so it is not complete.
func (t *trends) report(ctx context.Context, p Prometheus, r trendRange, now time.Time) (*trendsReport, error) {
	last := now.Unix() + trendsShift
	start := last - last%r.seconds - trendsShift - int64(r.steps-1)*r.seconds
	var results [4][]series
	first := r.steps // the first step with data
	for i, query := range []string{spentQuery, savedQuery, refusedQuery, budgetsQuery} {
		var err error
		if results[i], err = t.query(ctx, p, query, r, start); err != nil {
			return nil, err
		}
		for _, s := range results[i] {
			first = min(first, slices.IndexFunc(s.points, func(n float64) bool { return !math.IsNaN(n) }))
		}
	}
	if first == r.steps {
		first = 0
	}
	spent, saved, refused, budgets := results[0], results[1], results[2], results[3]
	steps := r.steps - first
	report := &trendsReport{
		Range: r.name, Start: start + int64(first)*r.seconds, Step: r.seconds, Spent: []clientTrend{}, Others: make([]float64, steps),
		Saved: make([]float64, steps), Refused: make([]float64, steps), Budgets: []budgetTrend{},
	}
	for _, s := range saved {
		addCounts(report.Saved, s.points[first:])
	}
	for _, s := range refused {
		addCounts(report.Refused, s.points[first:])
	}

	clients := make([]clientTrend, len(spent))
	for i, s := range spent {
		clients[i] = clientTrend{Client: s.Labels.Client, Values: make([]float64, steps)}
		clients[i].total = addCounts(clients[i].Values, s.points[first:])
	}
	slices.SortFunc(clients, func(a, b clientTrend) int {
		return cmp.Or(cmp.Compare(b.total, a.total), strings.Compare(a.Client, b.Client))
	})
	for _, c := range clients {
		// Above its maximum number of series, a replica counts further requests without the name of their client.
		if c.Client != "" && len(report.Spent) < maxTrendClients {
			report.Spent = append(report.Spent, c)
			continue
		}
		for step, n := range c.Values {
			report.Others[step] += n
		}
	}

	for _, s := range budgets {
		b := budgetTrend{Account: s.Labels.Account, Resource: s.Labels.Resource, Values: make([]*float64, steps), lowest: math.Inf(1)}
		for step, used := range s.points[first:] {
			if !math.IsNaN(used) {
				b.Values[step] = new(max(0, 1-used))
				b.lowest = min(b.lowest, *b.Values[step])
			}
		}
		report.Budgets = append(report.Budgets, b)
	}
	slices.SortFunc(report.Budgets, func(a, b budgetTrend) int {
		return cmp.Or(cmp.Compare(a.lowest, b.lowest), strings.Compare(a.Account, b.Account), strings.Compare(a.Resource, b.Resource))
	})
	report.Budgets = report.Budgets[:min(len(report.Budgets), maxTrendBudgets)]
	return report, nil
}

// addCounts adds points to counts, and returns the sum of the counts. It rounds the points, because Prometheus extrapolates
// the increase of a counter to the ends of a step.
func addCounts(counts, points []float64) (total float64) {
	for step, n := range points {
		if !math.IsNaN(n) {
			counts[step] += math.Round(n)
		}
		total += counts[step]
	}
	return total
}

// series is a time series in a response of Prometheus. At least one point is a number.
type series struct {
	Labels struct {
		Client   string `json:"weir_client"`
		Account  string `json:"weir_account"`
		Resource string `json:"weir_resource"`
	} `json:"metric"`
	Values []sample  `json:"values"`
	points []float64 // one value per step; NaN if the step has no finite value
}

// sample is a value at a time in Unix seconds. Its JSON is [1764190800, "0.5"]; the value may also be NaN, +Inf or -Inf.
type sample struct{ seconds, value float64 }

func (s *sample) UnmarshalJSON(text []byte) error {
	var value string
	if err := json.Unmarshal(text, &[]any{&s.seconds, &value}); err != nil {
		return err
	}
	var err error
	s.value, err = strconv.ParseFloat(value, 64)
	return err
}

// query runs a range query with one point at the end of each step.
func (t *trends) query(ctx context.Context, p Prometheus, query string, r trendRange, start int64) ([]series, error) {
	firstEnd := start + r.seconds // of the first step
	parameters := url.Values{
		"query": {strings.ReplaceAll(query, "STEP", r.step)}, "step": {strconv.FormatInt(r.seconds, 10)},
		"start": {strconv.FormatInt(firstEnd, 10)}, "end": {strconv.FormatInt(start+int64(r.steps)*r.seconds, 10)},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(p.URL, "/")+"/api/v1/query_range?"+parameters.Encode(), http.NoBody)
	if err != nil {
		return nil, err
	}
	if p.Token != "" {
		req.Header.Set("Authorization", "Bearer "+p.Token.Reveal())
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w; check admin.prometheus.url", errors.Unwrap(err)) // the *url.Error would repeat the long URL of the query
	}
	defer func() { _ = resp.Body.Close() }()
	var answer struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     []series
		}
	}
	err = json.NewDecoder(http.MaxBytesReader(nil, resp.Body, maxTrendsBody)).Decode(&answer)
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return nil, fmt.Errorf("more than %d MiB of series", maxTrendsBody>>20)
	}
	switch {
	case answer.Error != "":
		return nil, fmt.Errorf("%s: %s", resp.Status, p.quote(answer.Error))
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s; check admin.prometheus.url and admin.prometheus.token", resp.Status)
	case err != nil:
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("invalid response: %s; check admin.prometheus.url", p.quote(err.Error()))
	case answer.Status != "success" || answer.Data.ResultType != "matrix":
		return nil, errors.New("the response is not the result of a range query; check admin.prometheus.url")
	}
	for i := range answer.Data.Result {
		s := &answer.Data.Result[i]
		s.points = slices.Repeat([]float64{math.NaN()}, r.steps)
		for _, v := range s.Values { // Prometheus omits steps without a value
			step := math.Round((v.seconds - float64(firstEnd)) / float64(r.seconds))
			if step >= 0 && step < float64(r.steps) && !math.IsInf(v.value, 0) {
				s.points[int(step)] = v.value
			}
		}
	}
	return slices.DeleteFunc(answer.Data.Result, func(s series) bool {
		return !slices.ContainsFunc(s.points, func(n float64) bool { return !math.IsNaN(n) })
	}), nil
}

// quote shortens an error text, and masks the token, which a proxy may repeat.
func (p Prometheus) quote(text string) string {
	if p.Token != "" {
		text = strings.ReplaceAll(text, p.Token.Reveal(), "•••")
	}
	return strings.ToValidUTF8(text[:min(len(text), maxTrendsError)], "")
}
