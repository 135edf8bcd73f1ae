package proxy

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// breaker is how the upstream has answered lately: it bounds how often a request is sent
// again, and spares an upstream that answers nobody. It is of one gateway, and so of one
// upstream.
type breaker struct {
	mu sync.Mutex
	// owed is what requests that were sent again have cost, and others have not earned yet.
	owed int
	// unanswered is how many attempts in a row came to nothing.
	unanswered int
	// asked are the accounts that have tried since then.
	asked map[string]bool
	since time.Time
}

const (
	// maxAgain is how often one request is sent again.
	maxAgain = 2
	// againAtOnce is how many may be sent again when none was for long, againEach how many
	// answers earn one more.
	againAtOnce, againEach = 10, 10
	// maxUnanswered is how many attempts in a row come to nothing before the upstream is
	// spared.
	maxUnanswered = 10
	// tryEvery is how often each account tries then, maxTrying how many do.
	tryEvery, maxTrying = time.Second, 64
)

// spares refuses what would be sent to an upstream that answers nobody. One request of
// each account tries it every second, whoever else does: nobody can take the others' turn.
// A try goes on when its client has left: else one who leaves early and comes again had
// every turn, and nothing was learned.
func (c *breaker) spares(account string, now time.Time) (tries bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unanswered < maxUnanswered {
		return false, nil
	}
	if now.Sub(c.since) >= tryEvery {
		c.since, c.asked = now, map[string]bool{}
	}
	if len(c.asked) < maxTrying && !c.asked[account] {
		c.asked[account] = true
		return true, nil
	}
	return false, &failure{
		status: http.StatusServiceUnavailable, detail: "breaker", retryAfter: tryEvery,
		message: "Service Unavailable: the upstream answers nobody at the moment",
	}
}

// notSent gives back the turn of a try that was not sent.
func (c *breaker) notSent(account string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.asked, account)
}

// answered notes that an attempt was, and reports whether the upstream was spared before.
func (c *breaker) answered() (before bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before = c.unanswered >= maxUnanswered
	c.unanswered = 0
	c.owed = max(0, c.owed-1)
	return before
}

// failed notes that an attempt came to nothing, and reports whether the upstream is
// spared from now on.
func (c *breaker) failed(account string, now time.Time) (spared bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unanswered++; c.unanswered != maxUnanswered {
		return false
	}
	c.since, c.asked = now, map[string]bool{account: true}
	return true
}

// takeAgain reports whether one more request may be sent again.
func (c *breaker) takeAgain() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owed+againEach > againAtOnce*againEach {
		return false
	}
	c.owed += againEach
	return true
}

// Reachable reports whether the upstream answers, as far as is known.
func (g *Gateway) Reachable() bool {
	g.breaker.mu.Lock()
	defer g.breaker.mu.Unlock()
	return g.breaker.unanswered < maxUnanswered
}

// noteContact notes what came of an attempt.
func (g *Gateway) noteContact(ex *exchange, err error) {
	switch {
	case err == nil:
		if g.breaker.answered() {
			g.Log.InfoContext(ex.detach(), "the upstream answers again")
		}
	case ex.isUpstreams(err) && g.breaker.failed(ex.identity.Caller.Account, time.Now()):
		g.Log.ErrorContext(ex.detach(), "the upstream answers nobody; until it does, each account tries once a second", "error", err)
	}
}

// isUpstreams reports whether it is the upstream that an attempt came to nothing by. A
// client that leaves, or whose body breaks off, says nothing of it, nor does a connection
// that had lain idle.
func (ex *exchange) isUpstreams(err error) bool {
	switch {
	case ex.reused && isBroken(err):
		return false
	case ex.body.Err() != nil:
		return false
	case errors.Is(err, errStalled), isTimeout(err), errors.Is(err, errInterim), errors.Is(err, errClosedOn):
		return true
	}
	return !errors.Is(err, context.Canceled)
}

// goesAgain waits a little and reports whether a request is sent again whose connection
// broke, or could not be made: a safe one that its client can wait for, a few times, and
// so few of all that an upstream that breaks down is not held down. What may have changed
// something is never sent again.
func (g *Gateway) goesAgain(ex *exchange, ctx context.Context, err error, before int) bool {
	pause := time.Duration((1 + rand.Float64()) * float64(leastPause<<(2*before)))
	if !ex.match.Operation.Safe() || before == maxAgain || !isBroken(err) || ctx.Err() != nil || !g.Reachable() || time.Now().Add(pause).After(ex.until(g.Wait)) {
		return false
	}
	s := g.enter(ex, ctx, stageRetry)
	if !g.breaker.takeAgain() {
		s.leave("", errTooManyAgain)
		return false
	}
	if idle, ok := g.Transport.(interface{ CloseIdleConnections() }); ok && ex.reused {
		idle.CloseIdleConnections() // the others may be dead as well
	}
	ex.call.waits()
	err = sleep(ctx, pause)
	ex.record.Waited += s.leave("", err)
	return err == nil
}

// leastPause is how long a request rests at least before it is sent again for the first
// time.
const leastPause = 50 * time.Millisecond

var errTooManyAgain = errors.New("too many requests are sent again")

// isBroken reports whether an attempt ended with its connection, before an answer had
// begun: another may fare better. What took too long would again.
func isBroken(err error) bool {
	return connectionFault(err) != "" && !errors.Is(err, errStalled) && !isTimeout(err) && !errors.Is(err, errInterim)
}
