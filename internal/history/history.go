// Package history holds the last two hours of a replica for the dashboard. It has request results over time, costs of each
// operation and client, and forecasts for each budget. The earlier hour is returned only as sums, for comparison with the
// last hour. The package also lists requests by kind (recent.go), and streams current events to watchers.
//
// Invariants:
//   - Memory is bounded for all traffic of clients. Names that do not fit are counted together as "others".
//   - Data older than two hours is dropped.
//   - An observed request never waits. A slow watcher skips events and receives the number of skipped requests.
//   - Only names, numbers and records are stored, and contain no secrets.
//
// The package is not a metrics store. The history ends with the process and covers this replica only, except for the
// accounts, which come from the ledger.
//
// Entry points: [New], [History.Run] and [History.Observe]. Read this file first, then watcher.go, counts.go (bounded
// counters by name), forecast.go and explain.go.
package history

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/proxy/record"
)

// Sources are the functions that a history polls.
type Sources struct {
	// Accounts returns at most limit accounts.
	Accounts func(ctx context.Context, limit int) ([]limits.Account, error)
	// Waiting returns the number of waiting requests.
	Waiting func() map[limits.ClientResource]int
	// State returns the state of the gateway, which must be encodable as JSON.
	State func() any
	// Label returns the name of an account for people. If Label is nil, the label is the name of the account.
	Label func(account string) string
}

// History is the last two hours of a replica. It is safe for concurrent use.
type History struct {
	sources Sources
	// listSoon receives a value if the accounts should be listed without delay.
	listSoon chan struct{}

	mu         sync.Mutex // held briefly: Observe needs it
	recent     recent
	points     ring[point]
	operations *counts[string]
	spenders   *counts[spenderKey] // by client and operation
	tags       *counts[spenderKey] // by client and tag
	charged    *counts[spenderKey] // by client and account
	versions   *counts[spenderKey] // by client and version of the API
	queries    *counts[spenderKey] // by account and GraphQL query
	denied     *counts[limits.ClientResource]
	state      any // nil before the first poll
	watchers   map[*Watcher]bool
	closed     bool

	listing   sync.Mutex // guards the fields below; locked before mu
	samples   budgetSamples
	accounts  map[string]listedAccount
	listError string // error of the last listing; empty after a successful listing
}

// listedAccount is the last published state of an account.
type listedAccount struct {
	account Account
	text    []byte // JSON
}

const (
	maxOperations = 128
	maxRows       = 512 // of each other list
	maxNameLength = 120 // bytes
)

// An hour is divided into short steps for charts, and into longer periods for counts by name.
const (
	stepLength   = 10 * time.Second
	stepCount    = 360
	periodLength = time.Minute
	periodCount  = 60
)

// New returns an empty history.
func New(s Sources) *History {
	if s.Label == nil {
		s.Label = func(account string) string { return account }
	}
	return &History{
		sources: s, listSoon: make(chan struct{}, 1),
		operations: newCounts[string](maxOperations), spenders: newCounts[spenderKey](maxRows), tags: newCounts[spenderKey](maxRows),
		charged: newCounts[spenderKey](maxRows), versions: newCounts[spenderKey](maxRows), queries: newCounts[spenderKey](maxRows),
		denied:  newCounts[limits.ClientResource](maxRows),
		samples: budgetSamples{}, accounts: map[string]listedAccount{}, watchers: map[*Watcher]bool{},
	}
}

// noVersion is the name for requests whose client asks for no version, so that the upstream chooses one.
const noVersion = "none"

const requestEvent, accountsEvent = "request", "accounts"

// Request is a completed request with an explanation.
type Request struct {
	record.Record
	// Path is the path without segments that may contain a secret, with its repository.
	Path string `json:"path,omitempty"`
	// Cache is the Cache-Status of the response.
	Cache string `json:"cache"`
	// AccountLabel is the name of the account for people.
	AccountLabel string `json:"account_label,omitempty"`
	// Result classifies the outcome. Waits and errors have separate results.
	Result Result `json:"result"`
	// Why explains the outcome to an operator.
	Why string `json:"why"`
}

// Request returns a record with its result, its explanation and the label of its account.
func (h *History) Request(r *record.Record) Request {
	request := Request{Record: *r, Path: truncated(r.Path), Cache: r.Cache.String(), Result: resultOf(r), Why: explain(r)}
	if r.Account != "" {
		request.AccountLabel = h.sources.Label(r.Account)
	}
	return request
}

// Observe counts a completed request and publishes the request to the watchers. Observe retains r.
func (h *History) Observe(r *record.Record) {
	now, result := time.Now(), resultOf(r)
	operation, client := truncated(cmp.Or(r.OperationName(), "none")), truncated(cmp.Or(r.Client, r.Account, "none"))
	c := count{upstream: uint32(r.Sent), spent: uint32(r.Spent)}
	if !r.Background {
		c.requests = 1
		switch result {
		case Hit, Stale:
			c.hits = 1
		case Validated:
			c.validated = 1
		}
		if r.Saved {
			c.saved = 1
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.recent.add(r, result, now)
	p := h.points.at(interval(now, stepLength), 2*stepCount)
	p.upstream += c.upstream
	p.saved += c.saved
	p.spent += c.spent
	if !r.Background {
		p.results[slices.Index(Results(), result)]++
	}
	row := h.operations.at(operation, now)
	row.add(c)
	if !r.Background {
		row.observe(r.Elapsed)
	}
	h.spenders.at(spenderKey{client: client, operation: operation}, now).add(c)
	if r.Tag != "" {
		h.tags.at(spenderKey{client: client, tag: truncated(r.Tag)}, now).add(c)
	}
	if r.Account != "" {
		h.charged.at(spenderKey{client: client, account: truncated(r.Account)}, now).add(c)
	}
	h.versions.at(spenderKey{client: client, version: cmp.Or(r.Version, noVersion)}, now).add(c)
	h.observeQuery(r, now)
	if r.Client != "" && denied(r) {
		h.denied.at(limits.ClientResource{Account: r.Account, Resource: r.Resource, Client: r.Client}, now).add(count{requests: 1})
	}
	if len(h.watchers) == 0 {
		return
	}
	h.publish(requestEvent, h.Request(r))
	if result == Refused || result == Limited || r.Status == http.StatusForbidden || r.Status == http.StatusTooManyRequests {
		h.requestListing() // a cool-down may have begun
	}
}

// Recent returns the latest requests, refusals and errors, and the slowest requests, newest first.
func (h *History) Recent() []Request {
	h.mu.Lock()
	records := h.recent.records()
	h.mu.Unlock()
	requests := make([]Request, len(records))
	for i, r := range records {
		requests[i] = h.Request(r) // the label of the account may need time
	}
	return requests
}

// denied reports whether a budget refused the request.
func denied(r *record.Record) bool {
	return slices.ContainsFunc(r.Stages, func(s record.Stage) bool {
		return s.Name == record.StageQueue && s.Failed && s.Detail != "canceled" && s.Detail != "store"
	})
}

// requestListing makes [History.Run] list the accounts soon.
func (h *History) requestListing() {
	select {
	case h.listSoon <- struct{}{}:
	default: // already requested
	}
}

// truncated returns a name of bounded length.
func truncated(name string) string {
	if len(name) > maxNameLength {
		return strings.Clone(strings.ToValidUTF8(name[:maxNameLength], ""))
	}
	return name
}

const (
	// pollInterval is the interval at which queue and state are polled. Accounts are listed at this interval if there
	// are watchers, otherwise once per step.
	pollInterval = time.Second
	// costsEvery is the number of polls after which costs are published.
	costsEvery = 5
	// After a refusal and for a new watcher, the accounts are listed minListPause after the last listing.
	minListPause = 200 * time.Millisecond
	// A slow listing is repeated less often. The pause is pauseFactor times the duration of the listing, or
	// soonPauseFactor times the duration if a listing was requested, and at most maxListPause.
	pauseFactor     = 20
	soonPauseFactor = 5
	maxListPause    = 30 * time.Second
	// listTimeout bounds one listing.
	listTimeout = 5 * time.Second
)

// Run polls the sources until ctx ends.
func (h *History) Run(ctx context.Context) {
	polls := time.NewTicker(pollInterval)
	defer polls.Stop()
	listings := time.NewTimer(0)
	defer listings.Stop()
	var listed time.Time // start of the last listing
	var took time.Duration
	schedule := func(pause time.Duration, factor int) {
		pause = max(pause, min(time.Duration(factor)*took, maxListPause))
		listings.Reset(time.Until(listed.Add(pause)))
	}
	h.poll(true)
	for n := 1; ; {
		select {
		case <-ctx.Done():
			return
		case <-h.listSoon:
			schedule(minListPause, soonPauseFactor)
		case <-listings.C:
			listed = time.Now()
			h.list(ctx)
			took = time.Since(listed)
			if h.Watchers() > 0 {
				schedule(pollInterval, pauseFactor)
			} else {
				schedule(stepLength, pauseFactor)
			}
		case <-polls.C:
			h.poll(n%costsEvery == 0)
			n++
		}
	}
}

// list lists the accounts, samples their budgets and publishes the accounts that have changed.
func (h *History) list(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	accounts, err := h.sources.Accounts(ctx, maxAccounts)
	now := time.Now()
	h.listing.Lock()
	defer h.listing.Unlock()
	update := Accounts{Changed: []Account{}, Gone: []string{}}
	if err != nil {
		update.Error = err.Error()
	} else {
		h.samples.add(accounts, now)
		next, inFlight := make(map[string]listedAccount, len(accounts)), 0
		for _, described := range h.describe(accounts, now) {
			inFlight += described.InUse
			text, err := json.Marshal(described)
			if err != nil {
				panic(err) // names, numbers and times are encodable
			}
			if !bytes.Equal(text, h.accounts[described.Name].text) {
				update.Changed = append(update.Changed, described)
			}
			next[described.Name] = listedAccount{described, text}
		}
		for name := range h.accounts {
			if _, ok := next[name]; !ok {
				update.Gone = append(update.Gone, name)
			}
		}
		h.accounts = next
		h.mu.Lock()
		h.points.at(interval(now, stepLength), 2*stepCount).inFlight = uint32(inFlight)
		h.mu.Unlock()
	}
	changed := update.Error != h.listError || len(update.Changed)+len(update.Gone) > 0
	h.listError = update.Error
	h.publishAccounts(update, changed)
}

// Describe adds labels, forecasts and the numbers of waiting and denied requests to accounts.
func (h *History) Describe(accounts []limits.Account) []Account {
	h.listing.Lock()
	defer h.listing.Unlock()
	return h.describe(accounts, time.Now())
}

// describe implements Describe. listing must be held.
func (h *History) describe(accounts []limits.Account, now time.Time) []Account {
	waiting, byAccount := h.sources.Waiting(), map[string]int{}
	for key, n := range waiting {
		byAccount[key.Account] += n
	}
	described := make([]Account, len(accounts))
	for i, a := range accounts {
		described[i] = h.samples.describe(a, byAccount[a.Name], now)
		described[i].Label = h.sources.Label(a.Name)
		described[i].Clients = h.clients(a, waiting, now)
		described[i].GraphQLDrain = h.drain(a, now)
	}
	return described
}

// clients returns the requests of the clients of an account.
func (h *History) clients(a limits.Account, waiting map[limits.ClientResource]int, now time.Time) map[string]ClientRequests {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := map[string]ClientRequests{}
	for _, b := range a.Budgets {
		if b.Client == "" {
			continue
		}
		_, scope, _ := strings.Cut(b.Resource, ":")
		resource, _, _ := strings.Cut(scope, ":")
		key := limits.ClientResource{Account: a.Name, Resource: resource, Client: b.Client}
		c := ClientRequests{waiting[key], h.denied.sum(key, interval(now, periodLength)).last.requests}
		if c != (ClientRequests{}) {
			list[b.Resource] = c
		}
	}
	return list
}

// publishAccounts publishes an update if changed is set. Watchers that have missed an update receive all accounts.
// listing must be held.
func (h *History) publishAccounts(update Accounts, changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		switch {
		case w.missedAccounts:
			w.missedAccounts = false // send sets it again if the buffer is full
			w.send(Event{accountsEvent, h.recent.number, h.allAccounts()})
		case changed:
			w.send(Event{accountsEvent, h.recent.number, update})
		}
	}
}

// poll samples the queue and publishes state, series and, if costs is set, costs.
func (h *History) poll(costs bool) {
	waiting, now, state := 0, time.Now(), h.sources.State()
	for _, n := range h.sources.Waiting() {
		waiting += n
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.points.at(interval(now, stepLength), 2*stepCount)
	p.waiting = max(p.waiting, uint32(waiting))
	h.state = state
	if len(h.watchers) == 0 {
		return
	}
	h.publish("state", state)
	h.publish("series", h.series(now, 2))
	if costs {
		h.publish("operations", h.costs(now))
	}
}

// point holds the numbers of one step.
type point struct {
	results                [8]uint32
	saved, spent, upstream uint32
	waiting                uint32 // maximum
	inFlight               uint32 // last known number
}

// Series are numbers per step, oldest first. There is one series per result. The series "saved" counts responses that consumed no
// quota, but would have consumed quota without Weir. "spent" is the consumed quota. "upstream" counts requests sent.
// "waiting" is the maximum queue length. "in_flight" is the last number of requests in progress.
type Series struct {
	// Start is the start of the first step in Unix seconds. Step is the length of a step in seconds.
	Start  int64               `json:"start"`
	Step   int                 `json:"step"`
	Values map[string][]uint32 `json:"values"`
	// Before holds the sums of the hour before the last hour, without waiting and in_flight.
	Before map[string]uint32 `json:"before"`
}

// Accounts is an update of the accounts.
type Accounts struct {
	// All is true if Changed holds all accounts.
	All     bool      `json:"all,omitempty"`
	Changed []Account `json:"changed"`
	Gone    []string  `json:"gone"`
	// Error is the reason why the accounts cannot be listed, or empty after a successful listing.
	Error string `json:"error,omitempty"`
}

// Costs are the costs of the last hour. Spenders are by client and operation, Tags by client and tag, and Accounts by
// client and account, and Versions by client and version of the API. Tags contains only requests with a tag.
type Costs struct {
	Operations []Operation `json:"operations"`
	Spenders   []Spender   `json:"spenders"`
	Tags       []Spender   `json:"tags"`
	Accounts   []Spender   `json:"accounts"`
	Versions   []Spender   `json:"versions"`
}

// Series returns the last hour.
func (h *History) Series() Series {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.series(time.Now(), stepCount)
}

// series returns the last n steps. mu must be held.
func (h *History) series(now time.Time, n int) Series {
	last := interval(now, stepLength)
	seconds := int64(stepLength / time.Second)
	s := Series{Start: (last - int64(n) + 1) * seconds, Step: int(seconds), Values: map[string][]uint32{}, Before: map[string]uint32{}}
	points := h.points.all(last, 2*stepCount)
	for _, p := range points[:stepCount] {
		for i, o := range Results() {
			s.Before[string(o)] += p.results[i]
		}
		s.Before["saved"] += p.saved
		s.Before["spent"] += p.spent
		s.Before["upstream"] += p.upstream
	}
	for _, p := range points[len(points)-n:] {
		for i, o := range Results() {
			s.Values[string(o)] = append(s.Values[string(o)], p.results[i])
		}
		for name, v := range map[string]uint32{"saved": p.saved, "spent": p.spent, "upstream": p.upstream, "waiting": p.waiting, "in_flight": p.inFlight} {
			s.Values[name] = append(s.Values[name], v)
		}
	}
	return s
}

// Lines returns the remaining budgets of accounts over the last hour, oldest first, by account and resource. Unknown values
// are nil.
func (h *History) Lines(accounts []string) map[string]map[string][]*int {
	h.listing.Lock()
	defer h.listing.Unlock()
	lines, now := map[string]map[string][]*int{}, time.Now()
	for _, name := range accounts {
		lines[name] = h.samples.lines(name, now)
	}
	return lines
}

// Costs returns the costs of the last hour.
func (h *History) Costs() Costs {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.costs(time.Now())
}

func (h *History) costs(now time.Time) Costs {
	last := interval(now, periodLength)
	return Costs{
		listOperations(h.operations, last),
		h.listSpenders(h.spenders, spenderKey{client: others, operation: others}, last),
		h.listSpenders(h.tags, spenderKey{client: others, tag: others}, last),
		h.listSpenders(h.charged, spenderKey{client: others, account: others}, last),
		h.listSpenders(h.versions, spenderKey{client: others, version: others}, last),
	}
}

// allAccounts returns all known accounts by name. listing must be held.
func (h *History) allAccounts() Accounts {
	all := Accounts{All: true, Changed: make([]Account, 0, len(h.accounts)), Gone: []string{}, Error: h.listError}
	for _, a := range h.accounts {
		all.Changed = append(all.Changed, a.account)
	}
	slices.SortFunc(all.Changed, func(a, b Account) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
