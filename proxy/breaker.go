package proxy

import (
	"net/http"
	"sync"
	"time"
)

// breaker is the circuit breaker and the retry budget for the upstream. The breaker opens after maxFailures requests in
// a row without a response. While the breaker is open, each account may send one trial request per second. A response
// to any request closes the breaker.
type breaker struct {
	mu       sync.Mutex
	failures int             // requests in a row without a response
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

// fail records a request without a response, and reports whether the breaker opens.
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
