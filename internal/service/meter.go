package service

import (
	"cmp"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirgate/weir/internal/service/quirk"
	"github.com/weirgate/weir/policy"
)

// banAfter is the number of requests sent while limited that causes a ban (Document B section 7, retry rule 5). The
// documents do not define the number.
const banAfter = 100

// meter counts requests against the limits of Document B section 8, as strictly as the text allows. It is deliberately
// simple: one lock, and a list of all charges in each window.
type meter struct {
	Config
	resources []Resource // all resources, in the order of the rate limit status

	mu         sync.Mutex // guards the fields below
	usages     map[string]*usage
	requests   int // number of requests that were not refused for a cool-down or a ban
	violations Violations
}

// usage holds the usage of one caller.
type usage struct {
	windows    map[string]*window     // by resource
	charges    map[string]chargeList  // by limit and scope
	searches   map[string][]time.Time // times of recent searches, by resource
	inProgress int
	// limitedAt and limitedUntil delimit the cool-down after a secondary limit error.
	limitedAt, limitedUntil time.Time
	sentWhileLimited        int // see banAfter
}

// window is a fixed window. The first request in the window opens it (Document B section 3).
type window struct {
	policy.Window
	used         int
	reset        time.Time
	firstRefusal time.Time // time of the first refusal in the window
}

// charge is an amount charged at a time.
type charge struct {
	at     time.Time
	amount int
}

// Resource is a primary limit with a name, which x-ratelimit-resource shows.
type Resource struct {
	Name      string                    `yaml:"name"`
	Limit     policy.Window             `yaml:"limit"`
	Anonymous int                       `yaml:"anonymous"` // the limit of an address without a credential
	Kinds     map[policy.CallerKind]int `yaml:"kinds"`     // other limits of kinds of callers
	Dialect   string                    `yaml:"dialect"`   // the only dialect with the resource, or ""
}

const core, searchResource, codeSearch, graphQLResource = "core", "search", "code_search", "graphql"

// limitRules is the content of reference/limits.yaml.
var limitRules = readReference[struct {
	Resources []Resource
	Rules     []struct{ Method, Part, Resource string }
	NoContent []string `yaml:"no_content"`
	Endpoints map[string]string
}]("limits.yaml")

// newMeter returns a meter for the limits and resources of a configuration.
func newMeter(c Config) *meter {
	m := &meter{Config: c, usages: map[string]*usage{}, violations: noViolations()}
	m.resources = slices.DeleteFunc(slices.Clone(limitRules().Resources), func(r Resource) bool { return r.Dialect != "" && r.Dialect != c.Dialect.Name })
	for i, r := range m.resources {
		switch search := c.Limits.Search; r.Name {
		case searchResource:
			m.resources[i].Limit, m.resources[i].Anonymous = policy.Window{Max: search.Authenticated, Window: search.Window}, search.Unauthenticated
		case codeSearch:
			m.resources[i].Limit = policy.Window{Max: search.Code, Window: search.Window}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.Unlisted)) {
		if !slices.ContainsFunc(m.resources, func(r Resource) bool { return r.Name == c.Unlisted[id].Name }) {
			m.resources = append(m.resources, c.Unlisted[id])
		}
	}
	return m
}

// demand is what a request costs.
type demand struct {
	resource string
	amount   int    // in the window of the resource
	endpoint string // the points are counted for each endpoint
	points   int
	content  bool // creates content
	free     bool // costs nothing: the rate limit status

	secondaryEvery int // see quirk.Set.SecondaryEvery
}

// demand returns what a request costs (Document B section 8.3). A path that no row of the table has is an endpoint,
// too.
func (s *Service) demand(r *request) demand {
	d := demand{resource: core, amount: 1, points: 5, secondaryEvery: r.quirks.SecondaryEvery}
	if isRead(r.Method) {
		d.points = 1
	}
	op := r.op
	if op == nil {
		d.endpoint = endpoint(r.Method, r.URL.Path)
		return d
	}
	d.endpoint, d.free = cmp.Or(limitRules().Endpoints[op.ID], op.ID), op.ID == rateLimitID
	for _, rule := range limitRules().Rules {
		if (rule.Method == "" || rule.Method == op.Method) && strings.Contains(op.Path, rule.Part) {
			d.resource = rule.Resource
			break
		}
	}
	without := slices.ContainsFunc(limitRules().NoContent, func(part string) bool { return strings.Contains(op.Path, part) })
	d.content = op.notifies || op.Method == http.MethodPost && op.lists(http.StatusCreated) && !without
	if s.config.Dialect.Name == "service" && op.documented != nil {
		d.content = op.documented.CreatesContent
	}
	if !slices.ContainsFunc(s.meter.resources, func(known Resource) bool { return known.Name == d.resource }) {
		d.resource = core
	}
	if unlisted, ok := s.config.Unlisted[op.ID]; ok {
		d.resource = unlisted.Name
	}
	if call := r.graphQL; call != nil {
		d.amount, d.points, d.content = call.amount(), 1, call.mutates
		if call.mutates {
			d.points = 5
		}
	}
	return d
}

const rateLimitID = "rate-limit/get"

// ticket represents one request in the meter. arrive creates the ticket, count charges the request, and leave ends the
// ticket before the last byte of the response is written.
type ticket struct {
	meter     *meter
	caller    caller
	usage     *usage
	arrivedAt time.Time

	window *window
	demand
	counted   bool
	left      bool
	countedAt time.Time // the time when the request was counted
	// refusal is the reason for a refused request. retryAfter is the time to wait.
	refusal    refusalReason
	retryAfter time.Duration
}

// refusalReason is the reason why the meter refuses a request.
type refusalReason int

const (
	accepted refusalReason = iota
	primary
	secondary
	banned
)

// arrive returns a ticket for a request. It refuses the request if the caller exceeds the concurrency limit.
func (m *meter) arrive(c caller, now time.Time) *ticket {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &ticket{meter: m, caller: c, usage: m.usage(c), arrivedAt: now}
	t.usage.inProgress++
	m.violations.MaxConcurrent = max(m.violations.MaxConcurrent, t.usage.inProgress)
	m.recordHighest("concurrency", t.usage.inProgress, m.Limits.Concurrent)
	if !m.NoRateLimits && t.usage.inProgress > m.Limits.Concurrent {
		m.violate("concurrency")
		t.startCooldown(now)
	}
	return t
}

// leave ends the ticket. Only the first call has an effect.
func (t *ticket) leave() {
	t.meter.mu.Lock()
	defer t.meter.mu.Unlock()
	if t.left {
		return
	}
	t.left = true
	t.usage.inProgress--
	if t.counted && (t.resource == searchResource || t.resource == codeSearch) {
		t.recordSearch()
	}
}

// recordSearch records a charged search and updates the highest sum of the sliding windows that contain the search. It
// refuses no request, because the documents do not define the start of a search window.
func (t *ticket) recordSearch() {
	window := t.window.Window.Window
	all := t.usage.searches[t.resource]
	at, _ := slices.BinarySearchFunc(all, t.countedAt, time.Time.Compare)
	all = slices.Insert(all, at, t.countedAt)
	for i := at; i < len(all) && all[i].Sub(t.countedAt) < window; i++ {
		outside, _ := slices.BinarySearchFunc(all, all[i].Add(-window+1), time.Time.Compare)
		t.meter.recordHighest(t.resource, i+1-outside, t.window.Max)
	}
	old, _ := slices.BinarySearchFunc(all, all[len(all)-1].Add(-3*window), time.Time.Compare)
	t.usage.searches[t.resource] = all[old:]
}

func (m *meter) usage(c caller) *usage {
	u := m.usages[c.account]
	if u == nil {
		u = &usage{windows: map[string]*window{}, charges: map[string]chargeList{}, searches: map[string][]time.Time{}}
		m.usages[c.account] = u
	}
	return u
}

// violate records a violation of a limit.
func (m *meter) violate(limit string) {
	m.violations.Violations++
	m.violations.ByLimit[limit]++
}

// startCooldown refuses the request and starts a cool-down for the caller.
func (t *ticket) startCooldown(now time.Time) {
	t.refusal, t.retryAfter = secondary, t.meter.Cooldown
	t.usage.limitedAt, t.usage.limitedUntil = now, now.Add(t.meter.Cooldown)
}

// recordSentWhileLimited counts a request that was sent while its caller was limited. The request may cause a ban.
func (t *ticket) recordSentWhileLimited() {
	violations := &t.meter.violations
	violations.SentWhileLimited++
	t.usage.sentWhileLimited++
	violations.Banned = violations.Banned || t.usage.sentWhileLimited >= banAfter
}

// count charges a request or refuses it. Refused requests and requests for the rate limit status are not charged
// (Document B section 4.5).
func (t *ticket) count(d demand) {
	m := t.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now() // under the lock, so that charges are ordered by time
	t.demand, t.window = d, m.window(t.caller, d.resource, now)
	switch {
	case m.NoRateLimits, t.refusal != accepted, d.free:
		return
	case t.usage.sentWhileLimited >= banAfter:
		t.refusal = banned
		return
	case now.Before(t.usage.limitedUntil):
		t.refusal, t.retryAfter = secondary, t.usage.limitedUntil.Sub(now)
		if t.arrivedAt.After(t.usage.limitedAt) {
			t.recordSentWhileLimited()
		}
		return
	}
	m.requests++
	if d.secondaryEvery > 0 && m.requests%d.secondaryEvery == 0 {
		t.startCooldown(now)
		return
	}
	costs := m.costs(d)
	for _, c := range costs {
		if t.usage.sum(c, now)+c.amount > c.limit {
			m.violate(c.name)
			t.startCooldown(now)
			return
		}
	}
	if t.window.used+d.amount > t.window.Max {
		t.refusePrimary(now)
		return
	}
	for _, c := range costs {
		t.usage.charge(c, now)
		m.recordHighest(c.name, t.usage.sum(c, now), c.limit)
	}
	t.window.used += d.amount
	t.counted, t.countedAt = true, now
	m.recordHighest("primary:"+t.resource, t.window.used, t.window.Max)
	m.violations.Answered[t.resource]++
}

// refusePrimary refuses a request because its fixed window is exhausted.
func (t *ticket) refusePrimary(now time.Time) {
	t.refusal = primary
	t.meter.violate("primary:" + t.resource)
	if at := t.window.firstRefusal; !at.IsZero() && !t.arrivedAt.Before(at) {
		t.recordSentWhileLimited()
	}
	if t.window.firstRefusal.IsZero() {
		t.window.firstRefusal = now
	}
}

// cost is the amount that a request is charged against one sliding limit.
type cost struct {
	name, scope   string
	limit, amount int
	window        time.Duration
}

// costs returns the costs of a request: points and content (Document B section 8.3), and CPU time in milliseconds. The
// CPU cost is 0, because it is known only at the end.
func (m *meter) costs(d demand) []cost {
	isGraphQL := d.resource == graphQLResource
	points, name := m.Limits.Points.REST, "points"
	if isGraphQL {
		points, name = m.Limits.Points.GraphQL, "points:graphql"
	}
	list := []cost{{name, "points " + d.endpoint, points, d.points, m.Limits.Points.Window}}
	if d.content {
		for _, w := range m.Limits.Content {
			list = append(list, cost{"content:" + w.Window.String(), "content:" + w.Window.String(), w.Max, 1, w.Window})
		}
	}
	return append(list, m.cpuCosts(isGraphQL, 0)...)
}

// endpoint returns the endpoint of a path without an operation: the method and the segments at the positions where
// paths of the API have literals.
func endpoint(method, path string) string {
	segments := strings.Split(strings.Trim(path, "/"), "/")
	name := method + " " + segments[0]
	literal := map[string]int{"repos": 3, "repositories": 2, "orgs": 2, "organizations": 2, "users": 2, "teams": 2, "user": 1}[segments[0]]
	if literal > 0 && literal < len(segments) {
		name += " " + segments[literal]
	}
	return name
}

func (m *meter) cpuCosts(graphQL bool, millis int) []cost {
	list := []cost{{"cpu", "cpu", int(m.Limits.CPU.Total / time.Millisecond), millis, m.Limits.CPU.Window}}
	if graphQL {
		list = append(list, cost{"cpu:graphql", "cpu:graphql", int(m.Limits.CPU.GraphQL / time.Millisecond), millis, m.Limits.CPU.Window})
	}
	return list
}

// chargeList holds the charges against one sliding limit within its window, oldest first, and their sum.
type chargeList struct {
	all []charge
	sum int
}

// sum returns the sum of the charges in the window that ends now. It drops older charges.
func (u *usage) sum(limit cost, now time.Time) int {
	s, old := u.charges[limit.scope], 0
	for ; old < len(s.all) && now.Sub(s.all[old].at) >= limit.window; old++ {
		s.sum -= s.all[old].amount
	}
	s.all = s.all[old:]
	u.charges[limit.scope] = s
	return s.sum
}

// charge adds the cost to the charges.
func (u *usage) charge(limit cost, now time.Time) {
	if limit.amount == 0 {
		return
	}
	s := u.charges[limit.scope]
	u.charges[limit.scope] = chargeList{append(s.all, charge{now, limit.amount}), s.sum + limit.amount}
}

// chargeCPU charges the CPU time of a request. It records a violation if the sum exceeds the limit. The request cannot
// be refused at this point.
func (t *ticket) chargeCPU(took time.Duration) {
	m := t.meter
	if m.NoRateLimits {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	millis := int(math.Round(float64(took) * m.Limits.CPU.Factor / float64(time.Millisecond)))
	over := false
	for _, c := range m.cpuCosts(t.resource == graphQLResource, millis) {
		t.usage.charge(c, now)
		sum := t.usage.sum(c, now)
		m.recordHighest(c.name, sum, c.limit)
		over = over || sum > c.limit
	}
	if over {
		m.violate("cpu")
	}
}

// recordHighest updates the highest observed sum of a limit.
func (m *meter) recordHighest(name string, sum, limit int) {
	if old := m.violations.Highest[name]; sum > old.Sum {
		m.violations.Highest[name] = Highest{sum, limit}
	}
}

// window returns the caller's window of a resource at now, and opens a new window if the previous one has ended.
func (m *meter) window(c caller, resource string, now time.Time) *window {
	u := m.usage(c)
	w := u.windows[resource]
	if w == nil || !now.Before(w.reset) {
		limit := m.limit(c, resource)
		w = &window{Window: limit, reset: now.Add(limit.Window).Truncate(time.Second)}
		u.windows[resource] = w
	}
	return w
}

// limit returns the window of a resource for a caller (Document B sections 8.1 and 8.2).
func (m *meter) limit(c caller, resource string) policy.Window {
	isAnonymous := c.kind == policy.Unauthenticated
	if limit, ok := m.Resources[resource]; ok && !isAnonymous {
		return limit
	}
	if resource == core {
		return policy.Window{Max: cmp.Or(c.coreLimit, m.coreLimit(c.kind)), Window: m.Limits.Primary.Window}
	}
	r := m.resources[slices.IndexFunc(m.resources, func(r Resource) bool { return r.Name == resource })]
	if r.Limit.Max = cmp.Or(r.Kinds[c.kind], r.Limit.Max); isAnonymous {
		r.Limit.Max = r.Anonymous
	}
	return r.Limit
}

func (m *meter) coreLimit(kind policy.CallerKind) int {
	switch p := m.Limits.Primary; kind {
	case policy.Unauthenticated:
		return p.Unauthenticated
	case policy.Enterprise, policy.EnterpriseInstallation, policy.EnterpriseOAuthApp, policy.EnterpriseWorkflow:
		return p.Enterprise
	case policy.Installation, appKind:
		return p.Installation
	case policy.OAuthApp:
		return p.OAuthApp
	case policy.Workflow:
		return p.Workflow
	}
	return m.Limits.Primary.User
}

// installationLimit returns the primary limit of an installation, which grows with its repositories and users (Document
// B section 8.1).
func (m *meter) installationLimit(repositories, users int) int {
	least := m.Limits.Primary.Installation
	return max(least, min(least+50*(max(0, repositories-20)+max(0, users-20)), 12_500))
}

// refund reverses the primary charge of a request whose response is a 304 to an authorized caller.
func (t *ticket) refund() {
	t.meter.mu.Lock()
	defer t.meter.mu.Unlock()
	if t.counted {
		t.counted = false
		t.window.used -= t.amount
		t.meter.violations.Answered[t.resource] = max(0, t.meter.violations.Answered[t.resource]-1) // reset may have cleared the count
	}
}

// writeHeaders sets the rate limit headers (Document B section 8.4) and applies the quirks to them. behind is the
// number of requests by which the headers are stale.
func (t *ticket) writeHeaders(h http.Header, quirks quirk.Set, behind int) {
	t.meter.mu.Lock()
	defer t.meter.mu.Unlock()
	if t.meter.NoRateLimits {
		return
	}
	remaining := t.window.Max - max(0, t.window.used-behind)
	if t.refusal == primary {
		remaining = 0
	}
	h.Set("X-Ratelimit-Limit", strconv.Itoa(t.window.Max))
	h.Set("X-Ratelimit-Remaining", strconv.Itoa(remaining))
	h.Set("X-Ratelimit-Used", strconv.Itoa(t.window.Max-remaining))
	h.Set("X-Ratelimit-Reset", strconv.FormatInt(t.window.reset.Add(time.Duration(quirks.ClockOffset)).Unix(), 10))
	h.Set("X-Ratelimit-Resource", t.resource)
	if t.refusal == secondary {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(t.retryAfter.Seconds()))))
	}
}

// reset clears all usage. Requests in progress keep their old usage.
func (m *meter) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.usages, m.requests, m.violations = map[string]*usage{}, 0, noViolations()
}

func noViolations() Violations {
	return Violations{ByLimit: map[string]int{}, Highest: map[string]Highest{}, Answered: map[string]int{}}
}

func (m *meter) recordStale() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.violations.StaleReads++
}

func (m *meter) report() Violations {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.violations
	r.ByLimit, r.Highest, r.Answered = maps.Clone(r.ByLimit), maps.Clone(r.Highest), maps.Clone(r.Answered)
	return r
}

// rateLimit returns the rate limit status (Document B section 2.6).
func rateLimit(s *Service, req *request) response {
	m := s.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.NoRateLimits {
		return fail(http.StatusNotFound, "Rate limiting is not enabled.")
	}
	now := time.Now()
	var members object
	for _, r := range m.resources {
		w := m.window(req.caller, r.Name, now)
		members = append(members, field{r.Name, object{
			{"limit", w.Max}, {"used", w.used}, {"remaining", w.Max - w.used}, {"reset", w.reset.Add(time.Duration(req.quirks.ClockOffset)).Unix()},
		}})
	}
	body := object{{"resources", members}}
	if since := s.config.Dialect.NoRateSince; since == "none" || s.version(req) < since {
		body = append(body, field{"rate", members.member(core)})
	}
	return response{status: http.StatusOK, volatile: true, body: body}
}
