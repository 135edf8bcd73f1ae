package limitstest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// Names of limits in reports. Other primary limits have the name of their resource. "content long" is the longer window
// of content creation.
const (
	points      = "points"
	content     = "content"
	primary     = "primary"
	cpu         = "cpu"
	concurrency = "concurrency"
	cooling     = "cool-down"
)

// Upstream counts requests. Its methods may be called concurrently, inside one bubble of virtual time.
type Upstream struct {
	profile Profile
	seed    uint64
	began   time.Time
	from    time.Time      // start of the measurement
	work    sync.WaitGroup // requests in progress

	mu       sync.Mutex // guards the fields below
	accounts map[string]*account
	report   Report
	trace    func(format string, args ...any)
}

// account contains the counts of one account.
type account struct {
	name          string
	windows       map[string]*window
	sums          map[string]*sums // by limit and scope
	inProgress    int              // requests in progress
	cooldowns     []reportedCooldown
	episodes      int       // consecutive secondary limit errors
	lastSecondary time.Time // time of the last secondary limit error
	lastLearned   time.Time // time at which the ledger learned of that error
	busy          slotMeter
}

// reportedCooldown is a cool-down that a response started.
type reportedCooldown struct {
	learned time.Time // time at which the ledger learned of the cool-down, or zero
	ends    time.Time
}

// slotMeter sums the time that requests were in progress.
type slotMeter struct {
	since time.Time
	sum   time.Duration
}

// NewUpstream returns an upstream that measures use from the given time.
func NewUpstream(profile Profile, seed uint64, from time.Time) *Upstream {
	return &Upstream{profile: profile, seed: seed, began: time.Now(), from: from, accounts: map[string]*account{}, report: newReport(seed)}
}

func (u *Upstream) account(name string) *account {
	a := u.accounts[name]
	if a == nil {
		a = &account{name: name, windows: map[string]*window{}, sums: map[string]*sums{}}
		u.accounts[name] = a
	}
	return a
}

// window returns the window of a resource.
func (u *Upstream) window(a *account, resource string) *window {
	w := a.windows[resource]
	if w != nil {
		return w
	}
	rule := u.profile.Limits.For(u.profile.Kind, resource)
	w = &window{max: int64(rule.Max), length: rule.Window, pace: pace{from: u.from}}
	if resource == policy.GraphQL && u.profile.GraphQL.Max != 0 {
		w.max, w.length = int64(u.profile.GraphQL.Max), u.profile.GraphQL.Window
	}
	if granted := u.profile.Grant[resource]; granted != 0 {
		w.max = int64(granted)
	}
	if resource == misguessed {
		w.max = unreachable
	}
	if u.profile.Aligned {
		rng := rand.New(rand.NewPCG(u.seed, uint64(len(resource))))
		w.phase = time.Now().Add(-w.length).Add(upTo(rng, w.length))
	}
	a.windows[resource] = w
	return w
}

// sum returns the sliding window of a limit and a scope, and creates the window if necessary.
func (a *account) sum(from time.Time, limit, scope string, rule policy.Window) *sums {
	key := limit + " \x00" + scope
	s := a.sums[key]
	if s == nil {
		s = &sums{max: int64(rule.Max), length: rule.Window, meter: meter{pace: pace{from: from}}}
		a.sums[key] = s
	}
	return s
}

// count adds a cost to a sliding sum, and reports a violation.
func (u *Upstream) count(a *account, r *Request, limit, scope string, rule policy.Window, cost int64, c *transportCopy) {
	if cost == 0 {
		return
	}
	u.serve(r, limit, cost)
	s := a.sum(u.from, limit, scope, rule)
	sum := s.add(spend{time.Now(), cost, c}, r.Granted)
	t := u.report.tally(limit)
	t.Requests++
	t.Worst = max(t.Worst, float64(sum)/float64(s.max))
	if sum > s.max && c == nil {
		u.violation(a, limit, fmt.Sprintf("%s: %d of %d in %v, granted at %s", scope, sum, s.max, s.length,
			u.clock(r.Granted)))
	}
}

// serve records a cost that counts against a limit.
func (u *Upstream) serve(r *Request, limit string, cost int64) {
	u.report.Served = append(u.report.Served, Served{r.Client, limit, time.Since(u.began), cost})
}

// waited records how long a client waited for a permit.
func (u *Upstream) waited(client string, wait time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.report.Waits[client] = append(u.report.Waits[client], wait)
}

// countCPU adds CPU time. It reports a violation only for the time that a ledger could predict.
func (u *Upstream) countCPU(a *account, ex *exchange, limit string, most, took time.Duration) {
	rule := policy.Window{Max: int(most.Microseconds()), Window: u.profile.Limits.CPU.Window}
	expected := min(took, most, time.Duration(float64(ex.Expected)*u.profile.Limits.CPU.Factor))
	s := a.sum(u.from, limit, "", rule)
	now, t := time.Now(), u.report.tally(limit)
	sum := s.add(spend{at: now, cost: expected.Microseconds()}, ex.Granted)
	if took > expected {
		s.excesses = append(s.excesses, excessCPU{now, took - expected, expected, ex})
	}
	known, all := s.totalExcess(now, ex.Granted)
	t.Requests++
	t.Worst = max(t.Worst, float64(sum+known)/float64(s.max))
	t.Raw = max(t.Raw, float64(sum+all)/float64(s.max))
	if sum+known > s.max {
		u.violation(a, limit, fmt.Sprintf("%d of %d µs, granted at %s", sum+known, s.max, u.clock(ex.Granted)))
	}
}

// enter counts a request as in progress.
func (u *Upstream) enter(r *Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	a := u.account(r.Account)
	a.busy.add(u.from, a.inProgress)
	a.inProgress++
	t := u.report.tally(concurrency)
	t.Requests++
	u.report.Requests++
	most := u.profile.Limits.Concurrent
	t.Worst = max(t.Worst, float64(a.inProgress)/float64(most))
	if a.inProgress > most {
		u.violation(a, concurrency, fmt.Sprintf("%d of %d requests, granted at %s", a.inProgress, most,
			u.clock(r.Granted)))
	}
}

func (u *Upstream) leave(r *Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	a := u.account(r.Account)
	a.busy.add(u.from, a.inProgress)
	a.inProgress--
}

// add adds the time since the last change.
func (m *slotMeter) add(from time.Time, inProgress int) {
	now := time.Now()
	if since := maxTime(m.since, from); !from.IsZero() && now.After(since) {
		m.sum += time.Duration(inProgress) * now.Sub(since)
	}
	m.since = now
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// violation records a violation.
func (u *Upstream) violation(a *account, limit, detail string) {
	t := u.report.tally(limit)
	t.Violations++
	u.log(a.name, "VIOLATION %s %s", limit, detail)
	if len(u.report.Violations) < 10 {
		u.report.Violations = append(u.report.Violations,
			fmt.Sprintf("%s %s %s: %s", u.clock(time.Now()), a.name, limit, detail))
	}
}

// clock formats a time of the bubble.
func (u *Upstream) clock(t time.Time) string { return t.UTC().Format("15:04:05.000000") }

// log writes an event to the trace.
func (u *Upstream) log(account, format string, args ...any) {
	if u.trace != nil {
		u.trace("%s %s "+format, append([]any{u.clock(time.Now()), account}, args...)...)
	}
}

// OtherTraffic sends the requests of other users of an account, until done is closed.
func (u *Upstream) OtherTraffic(name string, rng *rand.Rand, done <-chan struct{}) {
	for {
		pause := time.Duration(rng.ExpFloat64() / u.profile.OtherTraffic * float64(time.Second)).Truncate(time.Microsecond)
		select {
		case <-done:
			return
		case <-time.After(pause):
		}
		u.mu.Lock()
		a := u.account(name)
		for resource, w := range a.windows {
			w.spendByOtherUsers(time.Now(), 1)
			u.log(name, "other users: %s used %d", resource, w.used)
		}
		u.mu.Unlock()
	}
}

// Learned records that a ledger has used a response. Its store learns the response within lag. The store learns a limit
// error before the ledger returns.
func (u *Upstream) Learned(response *Response, lag time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	stored := now
	if response.Limited == policy.NotLimited {
		stored = now.Add(lag)
	}
	a := u.account(response.account)
	u.log(a.name, "learned %s", response.describe())
	if response.Rate.Limit != 0 {
		response.snapshot.learned(stored)
	}
	response.settled = stored
	if response.copied != nil {
		response.copied.learned = stored
	}
	if response.cooldown != nil {
		a.cooldowns = append(a.cooldowns, reportedCooldown{now, *response.cooldown})
		a.lastLearned = now
	} else if response.granted.After(a.lastLearned) {
		a.episodes = 0
	}
}

// notLearned logs a response that no ledger has used.
func (u *Upstream) notLearned(response *Response) {
	if response != nil {
		u.log(response.account, "not learned %s", response.describe())
	}
}

// Report waits for all requests in progress, and returns the counts.
func (u *Upstream) Report() Report {
	u.work.Wait()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.measure()
	return u.report
}

// Request is one request to the upstream.
type Request struct {
	limits.Claim
	// Price is the true cost in the primary window. Zero counts as 1.
	Price int64
	// Granted is the time of the grant. Expected is the predicted CPU time.
	Granted  time.Time
	Expected time.Duration
	// Lag is the largest age of the ledger's data about open permits.
	Lag time.Duration
	// Timeout is the longest wait of the client for the response.
	Timeout time.Duration
}
