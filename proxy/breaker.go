package proxy

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// breaker is the circuit breaker and the retry budget for the upstream. The breaker opens after maxFailures attempts in
// a row without a response. While the breaker is open, each account may send one trial request per second. A response
// to any attempt closes the breaker.
type breaker struct {
	mu       sync.Mutex
	failures int             // attempts in a row without a response
	trials   map[string]bool // accounts that have sent a trial since started
	started  time.Time       // start of the current interval of trials
	// retryDebt grows by retryCost with each retry, and falls by 1 with each response.
	retryDebt int
}

const (
	maxFailures              = 10
	trialInterval, maxTrials = time.Second, 64
	// maxRetries bounds the retries of one request. retryBurst is the number of retries that the full retry budget
	// allows. Each retry reduces the budget until retryCost responses have arrived.
	maxRetries            = 2
	retryBurst, retryCost = 10, 10
	// minRetryPause is the shortest pause before the first retry.
	minRetryPause = 50 * time.Millisecond
)

// allow returns an error while the breaker is open, unless the request may be sent as a trial. Each account has its own
// trial, so that no account can use the trials of another account.
func (b *breaker) allow(account string, now time.Time) (trial bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < maxFailures {
		return false, nil
	}
	if now.Sub(b.started) >= trialInterval {
		b.started, b.trials = now, map[string]bool{}
	}
	if len(b.trials) < maxTrials && !b.trials[account] {
		b.trials[account] = true
		return true, nil
	}
	return false, &failure{
		status: http.StatusServiceUnavailable, detail: "breaker", retryAfter: trialInterval,
		message: "Service Unavailable: the upstream does not respond at the moment",
	}
}

// cancelTrial permits another trial of an account whose trial was not sent.
func (b *breaker) cancelTrial(account string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.trials, account)
}

// succeed records a response, and reports whether the breaker was open.
func (b *breaker) succeed() (wasOpen bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wasOpen = b.failures >= maxFailures
	b.failures = 0
	b.retryDebt = max(0, b.retryDebt-1)
	return wasOpen
}

// fail records an attempt without a response, and reports whether the breaker opens.
func (b *breaker) fail(account string, now time.Time) (opens bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures++; b.failures != maxFailures {
		return false
	}
	b.started, b.trials = now, map[string]bool{account: true}
	return true
}

// takeRetry reports whether the budget allows another retry, and charges the retry.
func (b *breaker) takeRetry() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.retryDebt+retryCost > retryBurst*retryCost {
		return false
	}
	b.retryDebt += retryCost
	return true
}

// Reachable reports whether the circuit breaker for the upstream is closed.
func (g *Gateway) Reachable() bool {
	g.breaker.mu.Lock()
	defer g.breaker.mu.Unlock()
	return g.breaker.failures < maxFailures
}

// observeUpstream reports the result of an attempt to the breaker.
func (g *Gateway) observeUpstream(a *attempt, err error) {
	switch {
	case err == nil:
		if g.breaker.succeed() {
			g.Log.InfoContext(a.detach(), "circuit breaker closed: the upstream responds again")
		}
	case a.isUpstreamFault(err) && g.breaker.fail(a.identity.Caller.Account, time.Now()):
		g.Log.ErrorContext(a.detach(), "circuit breaker opened: the upstream does not respond", "error", err)
	}
}

// isUpstreamFault reports whether the upstream caused the error. The upstream does not cause a disconnect of the
// client, an invalid request body or a broken idle connection.
func (a *attempt) isUpstreamFault(err error) bool {
	switch {
	case a.reused && isBroken(err) && !isStreamReset(err), a.body.Err() != nil:
		return false
	case errors.Is(err, errStalled), isTimeout(err), errors.Is(err, errInterim), errors.Is(err, errUnpermitted):
		return true
	}
	return !errors.Is(err, context.Canceled)
}

var errRetryBudget = errors.New("the retry budget is exhausted")

// retries reports whether a request is sent again after the connection broke, and waits before the retry. Only a safe
// request is retried, within the client's deadline and the retry budget.
func (g *Gateway) retries(a *attempt, err error, before int) bool {
	pause := time.Duration((1 + rand.Float64()) * float64(minRetryPause<<(2*before)))
	switch {
	case !a.match.Operation.Safe(), before == maxRetries, !isBroken(err), a.body.Err() != nil, a.ctx.Err() != nil, !g.Reachable():
		return false
	case time.Now().Add(pause).After(a.deadline(g.Wait)):
		return false
	}
	s := g.beginStage(a.exchange, a.ctx, stageRetry)
	if !g.breaker.takeRetry() {
		s.end("", errRetryBudget)
		return false
	}
	if idle, ok := g.Transport.(interface{ CloseIdleConnections() }); ok && a.reused {
		idle.CloseIdleConnections() // other idle connections are probably broken as well
	}
	a.call.SetPaused(true)
	err = sleep(a.ctx, pause)
	a.record.Waited += s.end("", err)
	return err == nil
}

// isBroken reports whether the connection broke before a response began. A retry may then succeed, unlike after a
// timeout.
func isBroken(err error) bool {
	fault, _ := connectionFault(err)
	return fault != "" && !errors.Is(err, errStalled) && !isTimeout(err) && !errors.Is(err, errInterim)
}
