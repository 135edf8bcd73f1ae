package proxy

import (
	"cmp"
	"context"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
)

// Statistics says how answers that the upstream still computes (202) are asked
// for again (design section 6.4).
type Statistics struct {
	// Wait is how long a client waits unless it says (Prefer: wait=N).
	Wait time.Duration
	// First is the pause before the first poll; each is Factor times longer
	// than the last, Max at most.
	First  time.Duration
	Factor float64
	Max    time.Duration
	// Budget is how long one question is asked, for all who wait.
	Budget time.Duration
}

// statisticsKept is how long statistics are fresh that say nothing of it.
const statisticsKept = time.Minute

// computed reports whether the upstream computes the answer while it says 202. All
// other 202s are final answers.
func (ex *exchange) computed() bool {
	return ex.cacheable && ex.method == http.MethodGet && ex.match.Operation.Cache.Class == policy.Statistics
}

// computation is what is known of an answer that is not there yet.
type computation struct {
	answer *cache.Entry // the 202
	next   time.Time    // when it is asked for again
	asked  int          // how often this replica did
}

// Poll is an answer that the upstream still computes, for people to look at.
type Poll struct {
	Path    string    `json:"path"`
	Account string    `json:"account"`
	Since   time.Time `json:"since"`
	// Next is when it is asked for again.
	Next time.Time `json:"next"`
	// Asked is how often this replica has asked, Waiting how many wait for it here.
	Asked   int `json:"asked"`
	Waiting int `json:"waiting"`
}

// Bounds of a list of polls, and of a path in it, in bytes.
const (
	maxPolls    = 100
	maxPollPath = 200
)

// Polling lists what is asked for until it is computed, the oldest first, and 100 at most.
func (g *Gateway) Polling() []Poll {
	l := &g.flights
	l.mu.Lock()
	flying := slices.Collect(maps.Values(l.flying))
	l.mu.Unlock()
	polls := []Poll{}
	for _, f := range flying {
		if p, ok := f.poll(); ok {
			polls = append(polls, p)
		}
	}
	slices.SortFunc(polls, func(a, b Poll) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Path, b.Path)) })
	return polls[:min(len(polls), maxPolls)]
}

// poll describes a flight whose answer is computed; not ok if it is none.
func (f *flight) poll() (p Poll, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pending.answer == nil {
		return p, false
	}
	path := f.path[:min(len(f.path), maxPollPath)]
	return Poll{path, f.caller.Account, f.began, f.pending.next, f.pending.asked, f.waiting}, true
}

// next decides whether an answer is to be asked for again, and after which
// pause: when it is still computed, and somebody can wait for it.
func (s Statistics) next(ex *exchange, resp *http.Response) (wait time.Duration, again bool) {
	if ex.match.Operation.Cache.Class != policy.Statistics || resp.StatusCode != http.StatusAccepted {
		return 0, false
	}
	wait = min(time.Duration(float64(s.First)*math.Pow(s.Factor, float64(ex.polls))), s.Max)
	ex.polls++
	ex.record.Polls++
	now := time.Now()
	answer := cache.Response{Status: resp.StatusCode, Header: resp.Header, Requested: ex.sent, Answered: now}
	ex.call.computes(cache.NewEntry(answer, peek(resp), 0), now.Add(wait))
	left := time.Until(ex.until(s.Wait))
	if left <= 0 || !ex.record.Background { // it is polled for all
		resp.Header.Set("Retry-After", retryAfter(wait))
		return 0, false
	}
	return min(wait, left), true
}

// poll begins to ask again for what is still computed, on behalf of all who wait for
// it now or later, until it is there or the budget ends. It reports whether it did,
// and the exchange waits for it, too.
func (g *Gateway) poll(ex *exchange, resp *http.Response) bool {
	if !ex.computed() || resp.StatusCode != http.StatusAccepted {
		return false
	}
	f, q, cause := ex.call, ex.question, ex.spanContext()
	select {
	case g.Background.polls <- struct{}{}:
	default:
		g.land(ex, unfinished, nil)
		return false
	}
	ctx, cancel := context.WithCancelCause(g.Background.ctx)
	if !f.takeOver(cancel) {
		cancel(nil)
		<-g.Background.polls
		g.land(ex, unfinished, nil)
		return false
	}
	discard(resp.Body)
	f.waits()
	ex.call = nil
	q.identity.Caller.Priority = policy.Batch // a poll is nobody's hurry
	pause := time.Until(f.computation().next)
	g.Background.run(func() {
		defer func() { <-g.Background.polls }()
		defer cancel(nil)
		g.serveNobody(ctx, errand{q, f, cause, g.Statistics.Budget}, pause)
	})
	return true
}

// stillComputed answers a client whose time is over: with the last good answer, if
// it may still be used, else with the 202.
func (g *Gateway) stillComputed(ex *exchange, f *flight) *http.Response {
	if ex.fallback != nil {
		ex.record.Cache = "weir; hit" // nothing was forwarded for this client
		return ex.useFallback("computing")
	}
	c := f.computation()
	if ex.record.Attempts == 0 { // else it says so already
		ex.record.Cache += "; fwd-status=" + strconv.Itoa(c.answer.Status)
	}
	ex.record.Cache += "; collapsed"
	resp := entryResponse(ex, c.answer, time.Now())
	resp.Header.Set("Retry-After", retryAfter(time.Until(c.next)+time.Second)) // by then it has come
	return resp
}
