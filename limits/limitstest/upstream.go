package limitstest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// Names of limits in reports; those of other primary windows also have their
// resource, the longer window of content creation is "content long".
const (
	points      = "points"
	content     = "content"
	primary     = "primary"
	cpu         = "cpu"
	concurrency = "concurrency"
	cooling     = "cool-down"
)

// Upstream counts requests. Its methods may be called concurrently, inside one
// bubble of virtual time.
type Upstream struct {
	nature Profile
	seed   uint64
	from   time.Time      // steady state
	work   sync.WaitGroup // requests that are worked on

	mu       sync.Mutex // guards what follows
	accounts map[string]*account
	report   Report
	trace    func(format string, args ...any)
}

// account is what is counted of one account.
type account struct {
	name     string
	windows  map[string]*window
	sums     map[string]*sums // by limit and scope
	inside   int              // requests that are worked on
	cooled   []cooled
	episodes int       // secondary errors in a row
	scolded  time.Time // when the last one was made
	lastTold time.Time // when the last one was told
	busy     meterOfPlaces
}

// cooled is a cool-down that an answer has told.
type cooled struct {
	told time.Time // zero: not yet
	ends time.Time
}

// meterOfPlaces adds up for how long how many requests were worked on.
type meterOfPlaces struct {
	since time.Time
	sum   time.Duration
}

// NewUpstream returns an upstream that measures use from a time on. What it
// draws depends on the seed.
func NewUpstream(nature Profile, seed uint64, from time.Time) *Upstream {
	return &Upstream{nature: nature, seed: seed, from: from, accounts: map[string]*account{}, report: newReport(seed)}
}

func (u *Upstream) account(name string) *account {
	a := u.accounts[name]
	if a == nil {
		a = &account{name: name, windows: map[string]*window{}, sums: map[string]*sums{}}
		u.accounts[name] = a
	}
	return a
}

// window returns an account's window of a resource.
func (u *Upstream) window(a *account, resource string) *window {
	w := a.windows[resource]
	if w != nil {
		return w
	}
	rule := u.nature.Limits.For(u.nature.Kind, resource)
	w = &window{max: int64(rule.Max), length: rule.Window, pace: pace{from: u.from}}
	if granted := u.nature.Grant[resource]; granted != 0 {
		w.max = int64(granted)
	}
	if u.nature.Aligned {
		rng := rand.New(rand.NewPCG(u.seed, uint64(len(resource))))
		w.phase = time.Now().Add(-rule.Window).Add(upTo(rng, rule.Window))
	}
	a.windows[resource] = w
	return w
}

// sum returns the sliding sum of a limit and a scope of it.
func (a *account) sum(from time.Time, limit, scope string, rule policy.Window) *sums {
	key := limit + " \x00" + scope
	s := a.sums[key]
	if s == nil {
		s = &sums{max: int64(rule.Max), length: rule.Window, meter: meter{pace: pace{from: from}}}
		a.sums[key] = s
	}
	return s
}

// count adds to a sliding sum, and judges it.
func (u *Upstream) count(a *account, r *Request, limit, scope string, rule policy.Window, cost int64, c *copied) {
	if cost == 0 {
		return
	}
	s := a.sum(u.from, limit, scope, rule)
	sum := s.add(spend{time.Now(), cost, c}, r.Granted)
	t := u.report.tally(limit)
	t.Requests++
	t.Worst = max(t.Worst, float64(sum)/float64(s.max))
	if sum > s.max && c == nil {
		u.blame(a, limit, fmt.Sprintf("%s: %d of %d in %v, granted at %s", scope, sum, s.max, s.length, u.clock(r.Granted)))
	}
}

// foreseen adds CPU time, and judges it as far as a ledger could foresee it.
func (u *Upstream) foreseen(a *account, x *exchange, limit string, most, took time.Duration) {
	rule := policy.Window{Max: int(most.Microseconds()), Window: u.nature.Limits.CPU.Window}
	expected := min(took, most, time.Duration(float64(x.Expected)*u.nature.Limits.CPU.Factor))
	s := a.sum(u.from, limit, "", rule)
	now, t := time.Now(), u.report.tally(limit)
	sum := s.add(spend{at: now, cost: expected.Microseconds()}, x.Granted)
	if took > expected {
		s.surprises = append(s.surprises, surprise{now, took - expected, expected, x})
	}
	known, all := s.surprised(now, x.Granted)
	t.Requests++
	t.Worst = max(t.Worst, float64(sum+known)/float64(s.max))
	t.Raw = max(t.Raw, float64(sum+all)/float64(s.max))
	if sum+known > s.max {
		u.blame(a, limit, fmt.Sprintf("%d of %d µs, granted at %s", sum+known, s.max, u.clock(x.Granted)))
	}
}

// enter gives a request its place.
func (u *Upstream) enter(r *Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	a := u.account(r.Account)
	a.busy.add(u.from, a.inside)
	a.inside++
	t := u.report.tally(concurrency)
	t.Requests++
	u.report.Requests++
	most := u.nature.Limits.Concurrent
	t.Worst = max(t.Worst, float64(a.inside)/float64(most))
	if a.inside > most {
		u.blame(a, concurrency, fmt.Sprintf("%d of %d at once, granted at %s", a.inside, most, u.clock(r.Granted)))
	}
}

func (u *Upstream) leave(r *Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	a := u.account(r.Account)
	a.busy.add(u.from, a.inside)
	a.inside--
}

// add counts the time since the last change.
func (m *meterOfPlaces) add(from time.Time, inside int) {
	now := time.Now()
	if since := maxTime(m.since, from); !from.IsZero() && now.After(since) {
		m.sum += time.Duration(inside) * now.Sub(since)
	}
	m.since = now
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// blame records a violation.
func (u *Upstream) blame(a *account, limit, what string) {
	t := u.report.tally(limit)
	t.Violations++
	u.log(a.name, "VIOLATION %s %s", limit, what)
	if len(u.report.Violations) < 10 {
		u.report.Violations = append(u.report.Violations, fmt.Sprintf("%s %s %s: %s", u.clock(time.Now()), a.name, limit, what))
	}
}

// clock is a time of day in a bubble.
func (u *Upstream) clock(t time.Time) string { return t.UTC().Format("15:04:05.000000") }

// log tells the story, when somebody listens.
func (u *Upstream) log(account, format string, args ...any) {
	if u.trace != nil {
		u.trace("%s %s "+format, append([]any{u.clock(time.Now()), account}, args...)...)
	}
}

// Others makes the requests of somebody else, until the context of the caller
// ends it.
func (u *Upstream) others(name string, rng *rand.Rand, done <-chan struct{}) {
	for {
		pause := time.Duration(rng.ExpFloat64() / u.nature.OtherTraffic * float64(time.Second)).Truncate(time.Microsecond)
		select {
		case <-done:
			return
		case <-time.After(pause):
		}
		u.mu.Lock()
		a := u.account(name)
		for resource, w := range a.windows {
			w.others(time.Now(), 1)
			u.log(name, "somebody else: %s used %d", resource, w.used)
		}
		u.mu.Unlock()
	}
}

// Told tells the upstream that a ledger has taken in an answer.
func (u *Upstream) Told(answer *Answer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	a := u.account(answer.account)
	u.log(a.name, "told %s", answer.describe())
	if answer.Rate.Limit != 0 {
		answer.snapshot.told(now)
	}
	answer.settled = now
	if answer.copied != nil {
		answer.copied.told = now
	}
	if answer.cooldown != nil {
		a.cooled = append(a.cooled, cooled{now, *answer.cooldown})
		a.lastTold = now
	} else if answer.granted.After(a.lastTold) {
		a.episodes = 0
	}
}

// unheard tells the story of an answer that no ledger has taken in.
func (u *Upstream) unheard(answer *Answer) {
	if answer != nil {
		u.log(answer.account, "not told %s", answer.describe())
	}
}

// Report returns what was counted, once everything that is worked on has ended.
func (u *Upstream) Report() Report {
	u.work.Wait()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.measure()
	return u.report
}

// Request is one wire attempt.
type Request struct {
	limits.Claim
	// Granted is when the ledger gave the permit; Expected is the CPU time that
	// it was taken to need.
	Granted  time.Time
	Expected time.Duration
	// Lag is how old the ledger's knowledge of requests in flight may be.
	Lag time.Duration
	// Patience is after how long the client gives up.
	Patience time.Duration
}
