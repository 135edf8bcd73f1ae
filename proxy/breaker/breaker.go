// Package breaker stops the requests to an upstream that does not respond, and bounds retries.
package breaker

import (
	"sync"
	"time"
)

// Breaker is the circuit breaker and the retry budget for the upstream. The breaker opens after MaxFailures requests in
// a row without a response. While the breaker is open, each account may send one trial request per second. A response
// to any request closes the breaker. The zero value is closed and ready for use.
type Breaker struct {
	mu       sync.Mutex
	failures int             // requests in a row without a response
	trials   map[string]bool // accounts that have sent a trial since started
	started  time.Time       // start of the current interval of trials
	// retryDebt grows by RetryCost with each retry, and falls by 1 with each response.
	retryDebt int
}

const (
	// MaxFailures is the number of requests in a row without a response that opens the breaker.
	MaxFailures = 10
	// TrialInterval is the interval at which each account may send a trial.
	TrialInterval = time.Second
	// MaxTrials bounds the trials of all accounts in an interval.
	MaxTrials = 64
	// RetryBurst is the number of retries that the full retry budget allows.
	RetryBurst = 10
	// RetryCost is the number of responses after which a retry no longer reduces the budget.
	RetryCost = 10
)

// Allow reports whether a request may be sent. While the breaker is open, only a trial may be sent. Each account has its own
// trial, so that no account can use the trials of another account.
func (b *Breaker) Allow(account string, now time.Time) (allowed, trial bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < MaxFailures {
		return true, false
	}
	if now.Sub(b.started) >= TrialInterval {
		b.started, b.trials = now, map[string]bool{}
	}
	if len(b.trials) >= MaxTrials || b.trials[account] {
		return false, false
	}
	b.trials[account] = true
	return true, true
}

// CancelTrial permits another trial of an account whose trial was not sent.
func (b *Breaker) CancelTrial(account string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.trials, account)
}

// Succeed records a response, and reports whether the breaker was open.
func (b *Breaker) Succeed() (wasOpen bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wasOpen = b.failures >= MaxFailures
	b.failures = 0
	b.retryDebt = max(0, b.retryDebt-1)
	return wasOpen
}

// Fail records a request without a response, and reports whether the breaker opens.
func (b *Breaker) Fail(account string, now time.Time) (opens bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures++; b.failures != MaxFailures {
		return false
	}
	b.started, b.trials = now, map[string]bool{account: true}
	return true
}

// TakeRetry reports whether the budget allows another retry, and charges the retry.
func (b *Breaker) TakeRetry() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.retryDebt+RetryCost > RetryBurst*RetryCost {
		return false
	}
	b.retryDebt += RetryCost
	return true
}

// Open reports whether the breaker is open.
func (b *Breaker) Open() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures >= MaxFailures
}
