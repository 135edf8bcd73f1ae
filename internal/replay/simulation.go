package replay

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy"
	"github.com/weirgate/weir/proxy/caller"
)

// Config is the configuration of a gateway for a replay.
type Config struct {
	Upstream *url.URL
	// Unlimited means that the gateway obeys no limits.
	Unlimited    bool
	Rules        limits.Rules
	Catalogue    *policy.Catalogue
	Dialect      *policy.Dialect
	Wait         time.Duration
	Statistics   proxy.Statistics
	CacheBytes   int64
	Webhooks     bool // deliveries of webhooks make stored responses stale
	WebhookFresh time.Duration
	// Identify returns the caller of a request, and whether the configuration names it.
	Identify func(*Request) (id *caller.Identity, named bool)
	// Progress is called for every thousandth request with the number of requests so far; nil is allowed.
	Progress func(requests int)
}

// Run replays the requests of a log, ordered by their start, and returns the prediction. It returns the
// error of the log, or the cause for which the context ended.
func Run(ctx context.Context, c Config, requests iter.Seq2[Request, error]) (*Report, error) {
	next, stop := iter.Pull2(requests)
	defer stop()
	r, err, ok := next()
	if !ok {
		return nil, errors.New("replay: the logs have no requests; give a log with requests, or check --format")
	}
	if err != nil {
		return nil, err
	}
	s := newSimulation(c, r.Start)
	for ok || s.pending() {
		at := s.nextStep()
		if ok && (at.IsZero() || r.Start.Before(at)) {
			at = r.Start
		}
		if at.After(s.now) { // a request may start before the time of the simulation
			s.now = at
		}
		switch {
		case len(s.events) > 0 && !s.events[0].at.After(s.now):
			heap.Pop(&s.events).(event).run()
		case ok && !r.Start.After(s.now):
			s.arrive(&r)
			r, err, ok = next()
			if err == nil {
				err = context.Cause(ctx)
			}
			if err != nil {
				return nil, err
			}
		}
		s.permits.Advance()
	}
	return s.report.finish(), nil
}

// simulation is the state of a replay. Only one goroutine uses it.
type simulation struct {
	Config
	now      time.Time
	events   queue[event]
	sequence int
	gateway  *proxy.Gateway
	permits  *limits.Simulation
	cache    *cache.Memory
	calls    map[cache.Key]*call
	upstream *upstream
	report   *recorder
}

// call is a coalesced call.
type call struct{ followers []*exchange }

// exchange is one request in progress.
type exchange struct {
	request   *Request
	in        *http.Request
	identity  *caller.Identity
	plan      *proxy.Plan
	key       cache.Key
	content   *content
	deadline  time.Time
	stale     *cache.Entry
	purged    bool             // stale was purged, and is not served instead of a refusal
	tried     []string         // security classes of credentials at a limit
	call      *call            // that this exchange leads
	alone     bool             // the exchange follows no other call
	waitStart time.Time        // start of the present wait for a permit or a call
	since     cache.Generation // of the cache when the request was sent
	polls     int
	result    result
}

func newSimulation(c Config, start time.Time) *simulation {
	s := &simulation{Config: c, now: start, calls: map[cache.Key]*call{}, upstream: newUpstream(c.Rules.Limits, c.Dialect), report: newRecorder(start)}
	// The replayed gateway has run for a while, so it withholds no budget because of unknown spending.
	c.Rules.ColdStart = "trust"
	s.permits = limits.NewSimulation(c.Rules, func() time.Time { return s.now })
	s.cache = cache.NewMemory(c.CacheBytes)
	s.gateway = proxy.New(proxy.Config{
		Upstream: c.Upstream, Catalogue: c.Catalogue, Dialect: c.Dialect, Ledger: s.permits.Ledger, Limiter: s.permits.Limiter,
		Cache: cache.NewStore(s.cache, nil), WebhookFresh: c.WebhookFresh, Log: slog.New(slog.DiscardHandler),
	})
	return s
}

// pending reports whether requests are in progress.
func (s *simulation) pending() bool { return len(s.events) > 0 || !s.permits.Next().IsZero() }

// nextStep returns the time of the next step, or zero if only a request of the log can be next.
func (s *simulation) nextStep() time.Time {
	at := s.permits.Next()
	if len(s.events) > 0 && (at.IsZero() || s.events[0].at.Before(at)) {
		at = s.events[0].at
	}
	return at
}

// after runs a function after a duration.
func (s *simulation) after(d time.Duration, run func()) {
	s.sequence++
	heap.Push(&s.events, event{s.now.Add(d), s.sequence, run})
}

// arrive starts a request.
func (s *simulation) arrive(r *Request) {
	if s.Progress != nil && s.report.Requests%1000 == 0 {
		s.Progress(s.report.Requests)
	}
	if r.URL.Host != "" && !strings.EqualFold(r.URL.Host, s.Upstream.Host) {
		s.report.OtherHosts++
		return
	}
	if !r.FromWeir && r.ETag == "" && r.Method == http.MethodGet && r.Status == http.StatusOK {
		s.report.WithoutETag++
	}
	request := *r
	x := &exchange{request: &request, deadline: s.now.Add(s.Wait), result: result{at: s.now}}
	x.in = &http.Request{Method: r.Method, URL: r.URL, Header: http.Header{}}
	var named bool
	x.identity, named = s.Identify(x.request)
	if !named && r.Client != "" {
		s.report.unnamed(r.Client)
	}
	plan, err := s.gateway.Plan(x.in, x.identity, false)
	if err != nil {
		x.result.operation, x.result.client = "(invalid target)", clientName(x.identity.Caller)
		s.finish(x, own)
		return
	}
	s.setPlan(x, plan)
	if x.plan.OutOfScope {
		s.finish(x, forbidden)
		return
	}
	// Preflight checks need the query, which a log of Weir does not have.
	if r.Own || x.plan.Match.Operation.ID == rateLimitOperation || !r.FromWeir && x.plan.Check != "" {
		s.finish(x, own)
		return
	}
	x.result.without = s.costWithoutWeir(x)
	s.answer(x)
}

// rateLimitOperation is the rate limit status, which costs no quota.
const rateLimitOperation = "rate-limit/get"

// setPlan assigns a plan to an exchange, and updates the model of the upstream from the exchange's line of the log.
func (s *simulation) setPlan(x *exchange, p *proxy.Plan) {
	x.plan, x.key, x.stale, x.purged = p, p.Key, nil, false
	switch {
	case x.request.TargetHash == "":
	case p.Key == cache.Key{}: // a GraphQL query
		x.key = cache.NewKey(x.request.TargetHash, p.Caller.Class)
	default:
		x.key = cache.NewKey(string(p.Key[:]), x.request.TargetHash)
	}
	x.result.operation, x.result.client = p.Claim.Operation, clientName(p.Caller)
	x.result.account, x.result.resource = p.Caller.Account, p.Claim.Resource
	written := func(since cache.Generation) bool { return s.cache.Purged(p.Tags, since) }
	var changed bool
	if x.content, changed = s.upstream.observe(x.request, s.contentKey(x), s.cache.Generation(), written); changed && s.Webhooks {
		s.cache.ApplyPurge(cache.Purge{Tags: []string{"url:" + p.Match.Path}}, 0) // a webhook would have reported the change
		x.content.since = s.cache.Generation()
	}
}

// contentKey returns the key of the content of a question, also for a question without a cache key.
func (s *simulation) contentKey(x *exchange) cache.Key {
	if x.plan.Cacheable {
		return x.key
	}
	m := x.plan.Match
	return cache.NewKey("uncacheable", x.in.Method, m.Path, m.Query, x.request.TargetHash, x.plan.Caller.Class)
}

func clientName(caller policy.Caller) string { return cmp.Or(caller.Client, caller.Account) }

// costWithoutWeir returns the quota that the request of the log cost, or would have cost, without Weir.
func (s *simulation) costWithoutWeir(x *exchange) int {
	switch x.request.Status {
	case http.StatusUnauthorized:
		return 0
	case http.StatusNotModified:
		if x.plan.Caller.Kind != policy.Unauthenticated {
			return 0
		}
	}
	return s.cost(x)
}

// cost returns the quota that one attempt costs.
func (s *simulation) cost(x *exchange) int {
	if x.plan.Claim.Resource == policy.GraphQL {
		return max(1, x.request.Spent)
	}
	return 1
}

// answer serves an exchange from the cache, by a call in progress, or by the upstream.
func (s *simulation) answer(x *exchange) {
	if s.answerFromCache(x) {
		return
	}
	if x.identity.Pool != nil && s.pick(x) && s.answerFromCache(x) {
		return
	}
	if x.plan.Coalesces && !x.alone && (x.plan.Cacheable || x.request.TargetHash != "") {
		if c := s.calls[x.key]; c != nil {
			c.followers = append(c.followers, x)
			x.waitStart = s.now
			return
		}
		x.call = &call{}
		s.calls[x.key] = x.call
	}
	s.acquire(x)
}

// answerFromCache finishes an exchange that a stored response can answer.
func (s *simulation) answerFromCache(x *exchange) bool {
	if !x.plan.Cacheable {
		return false
	}
	e, purged := s.cache.Lookup(x.key, x.in.Header)
	current := e != nil && !purged && x.plan.Reported && s.Webhooks && e.Age(s.now) < s.WebhookFresh && e.Lifetime > 0 &&
		e.Status == http.StatusOK && !e.NeverStale(x.plan.Rule)
	if e != nil && !purged && (e.Fresh(s.now) || current) {
		s.finish(x, hit)
		return true
	}
	x.stale, x.purged = e, purged
	return false
}

// pick chooses the credential again, and reports whether it changed. Budgets and credentials at a limit decide.
func (s *simulation) pick(x *exchange) (changed bool) {
	p, err := s.gateway.Plan(x.in, x.identity, true, x.tried...)
	if err != nil || p.Caller.Class == x.plan.Caller.Class {
		return false
	}
	s.setPlan(x, p)
	return true
}

// acquire gets a permit and sends the request.
func (s *simulation) acquire(x *exchange) {
	if s.Unlimited {
		s.send(x, &limits.Permit{Claim: x.plan.Claim})
		return
	}
	deadline := x.deadline
	if soon := s.now.Add(proxy.AlternativeWait); x.plan.HasAlternative && soon.Before(deadline) {
		deadline = soon
	}
	claim, caller := x.plan.Claim, x.plan.Caller
	claim.Cost = s.cost(x)
	if x.polls > 0 {
		caller.Priority = policy.Batch
	}
	x.waitStart = s.now
	s.permits.Acquire(claim, caller, deadline, func(p *limits.Permit, err error) {
		x.result.waited += s.now.Sub(x.waitStart)
		if err != nil {
			s.refused(x)
			return
		}
		s.send(x, p)
	})
}

// refused tries another credential, or serves a stale response, or refuses the request.
func (s *simulation) refused(x *exchange) {
	if x.plan.HasAlternative {
		x.tried = append(x.tried, x.plan.Caller.Class)
		s.endCall(x, (*simulation).answer)
		if s.pick(x) {
			s.answer(x)
			return
		}
	}
	if x.stale != nil && !x.purged && !x.stale.NeverStale(x.plan.Rule) {
		s.finish(x, stale)
	} else {
		s.finish(x, refused)
	}
	s.endCall(x, (*simulation).answer) // a follower may have a later deadline
}

// send sends a request with a permit. The response arrives after the latency.
func (s *simulation) send(x *exchange, p *limits.Permit) {
	x.since = s.cache.Generation()
	latency := s.upstream.latencyOf(x.request, x.plan.Claim.Operation)
	requested := s.now
	s.after(latency, func() { s.receive(x, p, requested) })
}

// receive settles the permit, and stores the response or polls again.
func (s *simulation) receive(x *exchange, p *limits.Permit, requested time.Time) {
	c, safe := x.content, x.plan.Match.Operation.Safe()
	computing := x.plan.Cacheable && x.plan.Match.Operation.Cache.Class == policy.Statistics && c.status == http.StatusOK &&
		s.upstream.computing(x.plan.Match.Path, c, s.now)
	// The upstream answers 304 to the condition of the stored response.
	confirmed := safe && !computing && c.status == http.StatusOK && x.stale != nil && x.stale.Header.Get("Etag") == c.etag()
	cost := s.cost(x)
	if c.status == http.StatusUnauthorized || confirmed && x.plan.Caller.Kind != policy.Unauthenticated {
		cost = 0
	}
	s.settle(x, p, cost, requested)
	x.result.spent += cost
	if computing {
		pause := s.Statistics.Pause(x.polls)
		x.polls++
		x.deadline = s.now.Add(s.Statistics.Budget)
		s.after(pause, func() {
			x.result.waited += pause
			s.acquire(x)
		})
		return
	}
	stored := x.plan.Cacheable && x.in.Method == http.MethodGet && s.store(x, requested)
	if !safe && c.status < http.StatusBadRequest {
		s.cache.ApplyPurge(cache.Purge{Tags: x.plan.Changes}, 0)
	}
	switch {
	case x.polls > 0: // like the followers, the request waited for the polls
		s.finish(x, collapsed)
	case confirmed:
		s.finish(x, validated)
	case !x.plan.Cacheable:
		s.finish(x, bypass)
	default:
		s.finish(x, miss)
	}
	shared := stored || x.plan.Claim.Resource == policy.GraphQL && c.status == http.StatusOK
	s.endCall(x, func(s *simulation, follower *exchange) {
		follower.result.waited += s.now.Sub(follower.waitStart)
		if shared {
			s.finish(follower, collapsed)
			return
		}
		follower.alone = true
		s.acquire(follower)
	})
}

// settle reports the response to the ledger.
func (s *simulation) settle(x *exchange, p *limits.Permit, cost int, requested time.Time) {
	if s.Unlimited {
		return
	}
	o := limits.Outcome{
		Sent: true, Answered: true, Ended: true, Elapsed: s.now.Sub(requested), Rate: s.upstream.count(x.plan, cost, s.now),
		Failed: x.content.status >= http.StatusInternalServerError, Succeeded: x.content.status < http.StatusBadRequest,
		Unauthorized: x.content.status == http.StatusUnauthorized, Uncounted: cost == 0,
	}
	if x.plan.Claim.Resource == policy.GraphQL {
		o.Cost = cost
	}
	_, _ = s.permits.Settle(context.Background(), *p, o) // a ledger in memory never fails
}

// zeros is the body of all stored responses. Only its length counts.
var zeros [8 << 20]byte

// store stores the response, and reports whether the followers of the call may use it.
func (s *simulation) store(x *exchange, requested time.Time) (shared bool) {
	c := x.content
	if c.bytes > int64(len(zeros)) || x.plan.Rule.AnyStatus && c.status >= http.StatusBadRequest {
		return false
	}
	a := cache.Response{Status: c.status, Header: s.upstream.header(x.plan, c), Requested: requested, Answered: s.now}
	lifetime, ok := cache.Storable(a, nil, x.plan.Rule)
	if !ok {
		s.cache.Delete(x.key)
		return false
	}
	e := cache.NewEntry(a, zeros[:c.bytes], lifetime)
	e.Since, e.Tags = x.since, x.plan.Tags
	s.cache.Put(x.key, e)
	return !e.SingleUse(x.plan.Rule)
}

// endCall ends the call that an exchange leads, and calls then for each follower.
func (s *simulation) endCall(x *exchange, then func(*simulation, *exchange)) {
	c := x.call
	if c == nil {
		return
	}
	if x.call = nil; s.calls[x.key] == c {
		delete(s.calls, x.key)
	}
	for _, follower := range c.followers {
		then(s, follower)
	}
}

// finish records the result of an exchange.
func (s *simulation) finish(x *exchange, o outcome) {
	x.result.outcome = o
	s.report.add(&x.result)
}

// event is a step at a time. Events at the same time run in the order of their creation.
type event struct {
	at       time.Time
	sequence int
	run      func()
}

func (e event) Before(other event) bool {
	return cmp.Or(e.at.Compare(other.at), cmp.Compare(e.sequence, other.sequence)) < 0
}
