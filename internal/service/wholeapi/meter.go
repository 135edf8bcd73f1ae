package wholeapi

import (
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirgate/weir/policy"
)

const (
	// banAfter is the number of requests sent while limited that causes a ban. The documents do not define the number.
	banAfter = 100
	// cooldown is the waiting time after a secondary limit error.
	cooldown = time.Minute
)

// Resource is a primary limit with a name, which x-ratelimit-resource shows.
type Resource struct {
	Name      string
	Limit     policy.Window
	Anonymous int // the limit of an address without a credential
}

const core, search, codeSearch = "core", "search", "code_search"

// resourcesOf returns all resources besides those of Config.Unlisted. The numbers of core, search and code_search come
// from the limits, and the others from observed responses.
func resourcesOf(kind Kind, l policy.Limits) []Resource {
	requests := map[Kind]int{Installation: l.Primary.Installation, App: l.Primary.Installation}[kind]
	if requests == 0 {
		requests = l.Primary.User
	}
	per := func(name string, limit, anonymous int, window time.Duration) Resource {
		return Resource{name, policy.Window{Max: limit, Window: window}, anonymous}
	}
	return []Resource{
		per(core, requests, l.Primary.Unauthenticated, l.Primary.Window),
		per(search, l.Search.Authenticated, l.Search.Unauthenticated, l.Search.Window),
		per(codeSearch, l.Search.Code, 0, l.Search.Window),
		per("graphql", 5000, 0, time.Hour),
		per("integration_manifest", 5000, 5000, time.Hour),
		per("source_import", 100, 5, time.Minute),
		per("code_scanning_upload", 1000, 0, time.Hour),
		per("code_scanning_autofix", 10, 0, time.Minute),
		per("actions_runner_registration", 10_000, 0, time.Hour),
		per("scim", 15_000, 0, time.Hour),
		per("dependency_snapshots", 100, 0, time.Minute),
		per("dependency_sbom", 100, 0, time.Minute),
		per("audit_log", 1750, 0, time.Hour),
	}
}

// resourceRules assign operations to resources: the first rule whose method and part of the path match. Other
// operations belong to core.
var resourceRules = []struct{ method, part, resource string }{
	{"", "/search/code", codeSearch},
	{"", "/search/", search},
	{http.MethodPost, "/app-manifests/", "integration_manifest"},
	{"", "/repos/{owner}/{repo}/import", "source_import"},
	{http.MethodPost, "/code-scanning/sarifs", "code_scanning_upload"},
	{http.MethodPost, "/autofix", "code_scanning_autofix"},
	{http.MethodPost, "/actions/runners/registration-token", "actions_runner_registration"},
	{http.MethodPost, "/actions/runners/remove-token", "actions_runner_registration"},
	{http.MethodPost, "/actions/runners/generate-jitconfig", "actions_runner_registration"},
	{"", "/scim/v2/", "scim"},
	{http.MethodPost, "/dependency-graph/snapshots", "dependency_snapshots"},
	{"", "/dependency-graph/sbom", "dependency_sbom"},
	{http.MethodGet, "/audit-log", "audit_log"},
}

// resource returns the name of the resource of an operation.
func (op *Operation) resource(unlisted map[string]Resource) string {
	if op == nil {
		return core
	}
	if r, ok := unlisted[op.ID]; ok {
		return r.Name
	}
	for _, rule := range resourceRules {
		if (rule.method == "" || rule.method == op.Method) && strings.Contains(op.Path, rule.part) {
			return rule.resource
		}
	}
	return core
}

// points returns the points of a request (Document B section 8.3).
func points(method string) int {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return 1
	}
	return 5
}

// createsNoContent are parts of paths whose POST operations respond with 201 but create only credentials, runs or
// internal objects.
var createsNoContent = []string{
	"/registration-token", "/remove-token", "/generate-jitconfig", "/access_tokens", "/conversions", "/rerun", "/approve",
	"/rerequest", "/dependency-graph/snapshots", "/pages/builds", "/copilot/billing/", "/codespaces",
}

// createsContent reports whether an operation generates content (Document B section 8.3): it notifies users, or it is a
// POST that creates an object.
func (op *Operation) createsContent() bool {
	if op == nil {
		return false
	}
	without := slices.ContainsFunc(createsNoContent, func(part string) bool { return strings.Contains(op.Path, part) })
	return op.notifies || op.Method == http.MethodPost && op.lists(http.StatusCreated) && !without
}

// oneEndpoint maps an operation to the operation that stands for the same endpoint.
var oneEndpoint = map[string]string{"repos/compare-commits": "repos/compare-commits-with-basehead"}

// endpoint returns the name under which the points of an operation are counted.
func (op *Operation) endpoint() string {
	if same, ok := oneEndpoint[op.ID]; ok {
		return same
	}
	return op.ID
}

// meter counts requests against all limits. It keeps one lock, and a list of all charges of each window.
type meter struct {
	limits   policy.Limits
	override map[string]policy.Window
	unlisted map[string]Resource
	off      bool // no limits

	mu         sync.Mutex
	usages     map[string]*usage // by account
	violations Violations
}

// usage is what one account used.
type usage struct {
	windows                 map[string]*window
	charges                 map[string][]charge // by limit and endpoint, oldest first
	inProgress              int
	limitedAt, limitedUntil time.Time
	sentWhileLimited        int
}

// window is a fixed window. Its first request opens it.
type window struct {
	policy.Window
	used         int
	reset        time.Time
	firstRefusal time.Time
}

type charge struct {
	at     time.Time
	amount int
}

// ticket is one request in the meter.
type ticket struct {
	meter      *meter
	usage      *usage
	window     *window
	resource   string
	arrivedAt  time.Time
	counted    bool
	refusal    string // the exceeded kind of limit: primary, secondary or banned
	retryAfter time.Duration
}

// arrive returns the ticket of a request. It refuses the request if the account has too many concurrent requests.
func (m *meter) arrive(c caller) *ticket {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.usages[c.account]
	if u == nil {
		u = &usage{windows: map[string]*window{}, charges: map[string][]charge{}}
		m.usages[c.account] = u
	}
	t := &ticket{meter: m, usage: u, arrivedAt: time.Now()}
	u.inProgress++
	m.violations.MaxConcurrent = max(m.violations.MaxConcurrent, u.inProgress)
	m.recordHighest("concurrency", u.inProgress, m.limits.Concurrent)
	if !m.off && u.inProgress > m.limits.Concurrent {
		t.refuseSecondary("concurrency", t.arrivedAt)
	}
	return t
}

func (t *ticket) leave() {
	t.meter.mu.Lock()
	defer t.meter.mu.Unlock()
	t.usage.inProgress--
}

func (t *ticket) refuseSecondary(limit string, now time.Time) {
	t.meter.violations.Violations++
	t.meter.violations.ByLimit[limit]++
	t.refusal, t.retryAfter = "secondary", cooldown
	t.usage.limitedAt, t.usage.limitedUntil = now, now.Add(cooldown)
}

func (t *ticket) recordSentWhileLimited() {
	t.usage.sentWhileLimited++
	t.meter.violations.SentWhileLimited++
	t.meter.violations.Banned = t.meter.violations.Banned || t.usage.sentWhileLimited >= banAfter
}

// cost is the amount of a request against one sliding limit.
type cost struct {
	name, scope   string
	limit, amount int
	window        time.Duration
}

func (m *meter) costs(op *Operation, method string) []cost {
	if op == nil {
		return nil
	}
	list := []cost{{"points", "points " + op.endpoint(), m.limits.Points.REST, points(method), m.limits.Points.Window}}
	if op.createsContent() {
		for _, w := range m.limits.Content {
			name := "content:" + w.Window.String()
			list = append(list, cost{name, name, w.Max, 1, w.Window})
		}
	}
	return list
}

// count charges a request or refuses it. A refused request costs nothing, nor does a request for the rate limit status.
func (t *ticket) count(c caller, op *Operation, method string) {
	m := t.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	t.resource = op.resource(m.unlisted)
	t.window = m.window(t.usage, c, t.resource, now)
	switch {
	case m.off, t.refusal != "", op != nil && op.ID == rateLimitID:
		return
	case t.usage.sentWhileLimited >= banAfter:
		t.refusal = "banned"
		return
	case now.Before(t.usage.limitedUntil):
		t.refusal, t.retryAfter = "secondary", t.usage.limitedUntil.Sub(now)
		if t.arrivedAt.After(t.usage.limitedAt) {
			t.recordSentWhileLimited()
		}
		return
	}
	costs := m.costs(op, method)
	for _, c := range costs {
		if t.usage.sum(c, now)+c.amount > c.limit {
			t.refuseSecondary(c.name, now)
			return
		}
	}
	if t.window.used >= t.window.Max {
		t.refusePrimary(now)
		return
	}
	for _, c := range costs {
		t.usage.charges[c.scope] = append(t.usage.charges[c.scope], charge{now, c.amount})
		m.recordHighest(c.name, t.usage.sum(c, now), c.limit)
	}
	t.window.used++
	t.counted = true
	m.recordHighest("primary:"+t.resource, t.window.used, t.window.Max)
	m.violations.Answered[t.resource]++
}

func (t *ticket) refusePrimary(now time.Time) {
	t.refusal = "primary"
	t.meter.violations.Violations++
	t.meter.violations.ByLimit["primary:"+t.resource]++
	if at := t.window.firstRefusal; !at.IsZero() && !t.arrivedAt.Before(at) {
		t.recordSentWhileLimited()
	}
	if t.window.firstRefusal.IsZero() {
		t.window.firstRefusal = now
	}
}

// sum returns the sum of the charges in the window that ends now. It drops older charges.
func (u *usage) sum(c cost, now time.Time) int {
	all := u.charges[c.scope]
	for len(all) > 0 && now.Sub(all[0].at) >= c.window {
		all = all[1:]
	}
	u.charges[c.scope] = all
	sum := 0
	for _, charge := range all {
		sum += charge.amount
	}
	return sum
}

// window returns the current window of a resource, and opens one if there is none.
func (m *meter) window(u *usage, c caller, resource string, now time.Time) *window {
	w := u.windows[resource]
	if w != nil && now.Before(w.reset) {
		return w
	}
	for _, r := range m.resources(c.kind) {
		if r.Name == resource {
			limit := r.Limit
			if c.kind == Anonymous {
				limit.Max = r.Anonymous
			}
			w = &window{Window: limit, reset: now.Add(limit.Window).Truncate(time.Second)}
		}
	}
	u.windows[resource] = w
	return w
}

// resources returns all resources of a caller kind, including the unlisted ones.
func (m *meter) resources(kind Kind) []Resource {
	all := resourcesOf(kind, m.limits)
	for i, r := range all {
		if limit, ok := m.override[r.Name]; ok {
			all[i].Limit = limit
		}
	}
	for _, id := range slices.Sorted(maps.Keys(m.unlisted)) {
		if !slices.ContainsFunc(all, func(r Resource) bool { return r.Name == m.unlisted[id].Name }) {
			all = append(all, m.unlisted[id])
		}
	}
	return all
}

// refund reverses the primary charge of a 304 to an authenticated caller.
func (t *ticket) refund() {
	t.meter.mu.Lock()
	defer t.meter.mu.Unlock()
	if t.counted {
		t.counted = false
		t.window.used--
		t.meter.violations.Answered[t.resource] = max(0, t.meter.violations.Answered[t.resource]-1) // after a reset
	}
}

// writeHeaders sets the rate limit headers of a response.
func (t *ticket) writeHeaders(h http.Header) {
	t.meter.mu.Lock()
	defer t.meter.mu.Unlock()
	if t.meter.off {
		return
	}
	for name, value := range map[string]int{
		"Limit": t.window.Max, "Remaining": t.window.Max - t.window.used, "Used": t.window.used, "Reset": int(t.window.reset.Unix()),
	} {
		h.Set("X-Ratelimit-"+name, strconv.Itoa(value))
	}
	h.Set("X-Ratelimit-Resource", t.resource)
	if t.refusal == "secondary" {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(t.retryAfter.Seconds()))))
	}
}

const rateLimitID = "rate-limit/get"

// status returns the rate limit status of a caller.
func (t *ticket) status(c caller, withRate bool) doc {
	m := t.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	now, members := time.Now(), doc{}
	for _, r := range m.resources(c.kind) {
		w := m.window(t.usage, c, r.Name, now)
		members[r.Name] = doc{"limit": w.Max, "used": w.used, "remaining": w.Max - w.used, "reset": w.reset.Unix(), "resource": r.Name}
	}
	if withRate {
		return doc{"resources": members, "rate": members[core]}
	}
	return doc{"resources": members}
}

func (m *meter) recordHighest(name string, sum, limit int) {
	if sum > m.violations.Highest[name].Sum {
		m.violations.Highest[name] = Highest{sum, limit}
	}
}

func (m *meter) recordStale() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.violations.StaleReads++
}

func (m *meter) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.usages, m.violations = map[string]*usage{}, noViolations()
}

func noViolations() Violations {
	return Violations{ByLimit: map[string]int{}, Highest: map[string]Highest{}, Answered: map[string]int{}}
}

func (m *meter) report() Violations {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.violations
	v.ByLimit, v.Highest, v.Answered = maps.Clone(v.ByLimit), maps.Clone(v.Highest), maps.Clone(v.Answered)
	return v
}
