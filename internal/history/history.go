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
	"github.com/weirgate/weir/proxy"
)

// Sources are what is looked at again and again.
type Sources struct {
	// Accounts lists at most so many accounts.
	Accounts func(ctx context.Context, most int) ([]limits.Account, error)
	// Waiting is how many requests wait, by account.
	Waiting func() map[string]int
	// State is the gateway's state, as JSON will show it.
	State func() any
}

// History is the last hour. It is safe for concurrent use.
type History struct {
	sources Sources
	// hurry has an element when the accounts should be looked at without delay.
	hurry chan struct{}

	mu         sync.Mutex // held for moments: who is observed needs it
	requests   uint64     // since the start
	points     ring[point]
	operations *table[string, use]
	spenders   *table[spender, spent]
	state      json.RawMessage
	watchers   map[*Watcher]bool
	closed     bool

	listing  sync.Mutex // locked before mu
	tracks   tracks
	accounts map[string]known
	trouble  string // why the accounts are not known; empty where they are
}

// known is an account, and how it was told last.
type known struct {
	account Account
	text    []byte
}

// Bounds of what is counted by name.
const (
	maxOperations = 128
	maxSpenders   = 512
)

// New returns one that knows nothing yet.
func New(s Sources) *History {
	return &History{
		sources: s, hurry: make(chan struct{}, 1), operations: newTable[string](maxOperations, addUse), spenders: newTable[spender](maxSpenders, addSpent),
		tracks: tracks{of: map[budgetName]*track{}}, accounts: map[string]known{}, watchers: map[*Watcher]bool{},
	}
}

const requestEvent, accountsEvent = "request", "accounts"

// Told is a request as people are told of it.
type Told struct {
	proxy.Record
	// Result is its outcome, with waits and errors apart.
	Result Result `json:"result"`
	// Why explains it to an operator, in words.
	Why string `json:"why"`
}

// Tell is a record with its explanation.
func Tell(r *proxy.Record) Told { return Told{*r, resultOf(r), explain(r)} }

// Observe counts a request that has ended, and tells of it. It does not keep r.
func (h *History) Observe(r *proxy.Record) {
	now, result := time.Now(), resultOf(r)
	operation := bounded(cmp.Or(knownName(r.Operation), r.Route, "none"))
	u := use{upstream: uint32(r.Attempts)}
	s := spent{upstream: uint32(r.Attempts), spent: uint32(r.Spent)}
	if !r.Background {
		u.requests, s.requests = 1, 1
		switch result {
		case Hit, Stale:
			u.held = 1
		case Validated:
			u.validated = 1
		}
		if r.Saved {
			s.saved = 1
		}
		u.times.observe(r.Elapsed)
	}
	client := bounded(cmp.Or(r.Client, r.Account, "none"))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests++
	p := h.points.at(division(now, step), steps)
	p.upstream += uint32(r.Attempts)
	if !r.Background {
		p.results[slices.Index(results(), result)]++
		p.saved += s.saved
	}
	h.operations.count(operation, now, u)
	h.spenders.count(spender{client, operation}, now, s)
	if len(h.watchers) == 0 {
		return
	}
	h.publish(requestEvent, sync.OnceValue(func() any { return Tell(r) })) // explained only for who takes it
	if result == Refused || r.Status == http.StatusForbidden || r.Status == http.StatusTooManyRequests {
		select {
		case h.hurry <- struct{}{}: // it may be a cool-down
		default:
		}
	}
}

// knownName is the name of an operation that the documents show, or empty.
func knownName(operation string) string {
	if operation == "unknown" {
		return ""
	}
	return operation
}

func bounded(name string) string {
	if len(name) > maxNameLength {
		return strings.Clone(strings.ToValidUTF8(name[:maxNameLength], ""))
	}
	return name
}

// How often is looked at what: each second the queue and the state; the accounts too, when
// somebody watches, else with each step of the series, and without delay when a request
// was refused; not so often where a listing takes long, so that a twentieth of the time
// goes into them, and a fifth at most where requests are refused; what operations cost.
const (
	tick       = time.Second
	soonest    = 200 * time.Millisecond
	costsEvery = 5 // ticks
	restFor    = 20
	restLeast  = 5
	longest    = 30 * time.Second
)

// Run looks at the sources until ctx ends.
func (h *History) Run(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var listed, aged time.Time
	var took time.Duration
	list := func() {
		listed = time.Now()
		h.list(ctx)
		took = time.Since(listed)
	}
	rested := func(every time.Duration, times int) time.Duration {
		return time.Until(listed.Add(max(every, min(time.Duration(times)*took, longest))))
	}
	var soon <-chan time.Time // when a hurried look is due
	for n := 0; ; {
		if time.Since(aged) >= period {
			aged = time.Now()
			h.age()
		}
		every := step
		if h.Watchers() > 0 {
			every = tick
		}
		if rested(every-tick/2, restFor) <= 0 {
			list()
		}
		h.look(n%costsEvery == 0)
		n++
		for beat := false; !beat; {
			select {
			case <-ctx.Done():
				return
			case <-h.hurry:
				if soon == nil {
					soon = time.After(rested(soonest, restLeast))
				}
			case <-soon:
				soon = nil
				list()
			case <-ticker.C:
				beat = true
			}
		}
	}
}

func (h *History) age() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations.age()
	h.spenders.age()
}

// listPatience bounds one listing.
const listPatience = 5 * time.Second

// list takes a sample of the accounts, and tells which have changed.
func (h *History) list(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	accounts, err := h.sources.Accounts(ctx, maxAccounts)
	waiting, now := h.sources.Waiting(), time.Now()
	h.listing.Lock()
	defer h.listing.Unlock()
	told := Accounts{Changed: []Account{}, Gone: []string{}}
	if err != nil {
		if h.trouble != err.Error() {
			h.trouble = err.Error()
			told.Trouble = h.trouble
			h.tellAccounts(told, true)
		}
		return
	}
	news := h.trouble != ""
	h.trouble = ""
	h.tracks.note(accounts, now)
	next, inFlight := make(map[string]known, len(accounts)), 0
	for _, a := range accounts {
		inFlight += a.InUse
		k := h.tracks.describe(a, waiting[a.Name], now).known()
		if !bytes.Equal(k.text, h.accounts[a.Name].text) {
			told.Changed = append(told.Changed, k.account)
		}
		next[a.Name] = k
	}
	for name := range h.accounts {
		if _, ok := next[name]; !ok {
			told.Gone = append(told.Gone, name)
		}
	}
	h.accounts = next
	h.mu.Lock()
	h.points.at(division(now, step), steps).inFlight = uint32(inFlight)
	h.mu.Unlock()
	h.tellAccounts(told, news || len(told.Changed)+len(told.Gone) > 0)
}

// Describe adds to accounts what is expected of their budgets, and how many requests wait.
func (h *History) Describe(accounts []limits.Account) []Account {
	now, waiting := time.Now(), h.sources.Waiting()
	h.listing.Lock()
	defer h.listing.Unlock()
	described := make([]Account, len(accounts))
	for i, a := range accounts {
		described[i] = h.tracks.describe(a, waiting[a.Name], now)
	}
	return described
}

func (a Account) known() known {
	text, err := json.Marshal(a)
	if err != nil {
		panic(err) // names, numbers and times
	}
	return known{a, text}
}

// tellAccounts tells what has changed, if anything has, and all to those who have missed
// a change; listing is held.
func (h *History) tellAccounts(a Accounts, news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		switch {
		case w.behind:
			w.behind = false // unless there is no room again
			w.tell(Event{accountsEvent, h.requests, h.allAccounts()})
		case news:
			w.tell(Event{accountsEvent, h.requests, a})
		}
	}
}

// look takes a sample of the queue, and tells how things are.
func (h *History) look(costs bool) {
	waiting, now := 0, time.Now()
	for _, n := range h.sources.Waiting() {
		waiting += n
	}
	state, err := json.Marshal(h.sources.State())
	if err != nil {
		panic(err) // names, numbers and times
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.points.at(division(now, step), steps)
	p.waiting = max(p.waiting, uint32(waiting))
	h.state = state
	if len(h.watchers) == 0 {
		return
	}
	h.publish("state", h.state)
	h.publish("series", h.series(now, 2))
	if costs {
		h.publish("operations", h.costs(now))
	}
}
