package learned

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/weirgate/weir/proxy/inbound"
)

// ClientTokens remembers which credentials the upstream accepted or refused, and protects the upstream against made-up
// tokens of clients. The zero value is empty and ready for use. ClientTokens is safe for concurrent use and outlives a
// gateway.
//
// A token that the upstream refused gets 401 without a request upstream, for a time that grows with each refusal. An
// unverified token is a token that the upstream has not accepted yet. From each client address, the upstream gets at most
// MaxUnverified requests with unverified tokens per minute without a success. A disconnect of the client does not change
// that.
//
// Credentials are known by their security class, which is a keyed hash. All lists are bounded, and the least recently
// used element is removed first.
type ClientTokens struct {
	mu       sync.Mutex
	accepted bounded[string, struct{}]           // by class
	refused  bounded[string, refusedToken]       // by class
	senders  *simplelru.LRU[netip.Addr, *sender] // nil without a bound for each address
}

const (
	// maxTokens bounds the accepted and the refused credentials in memory, and maxSenders the addresses.
	maxTokens, maxSenders = 16384, 10_000
	// The first refusal of a token is remembered for firstRefusal, because the upstream may not know a new token yet.
	// Each further refusal multiplies the time by four, up to longestRefusal.
	firstRefusal, longestRefusal = time.Second, 5 * time.Minute
	// MaxUnverified bounds the requests of an address with unverified tokens that are upstream, or ended without a success within
	// FailedWindow. While half of MaxUnverified requests are upstream, each token may have one of them, so that all tokens are
	// tested.
	MaxUnverified = 20
	// FailedWindow is the time for which a request without a success counts.
	FailedWindow = time.Minute
	// unverifiedRetry is the Retry-After of a request that waited in vain for earlier requests.
	unverifiedRetry = time.Second
	// NotSent replaces the status for a request that was certainly not sent.
	NotSent = 0
	// Unanswered replaces the status for a request without a response that may have been sent.
	Unanswered = -1
)

// refusedToken is a credential that the upstream refused and has not accepted since.
type refusedToken struct {
	until time.Time // end of the refusal without a request upstream; zero without such a refusal
	times int
	lost  bool // a refusal concerned the credential and not the operation
}

// sender is a client address with unverified tokens.
type sender struct {
	used      time.Time
	verifying map[string]int // requests upstream, by class
	upstream  int            // sum of verifying
	failed    []failedUse    // the latest requests without a success, at most MaxUnverified
	changed   chan struct{}  // closed when a request in verifying ends
}

// failedUse is a request with an unverified token that ended without a success.
type failedUse struct {
	class string
	at    time.Time
}

// LimitAddresses sets whether the unverified tokens of each address are bounded.
func (t *ClientTokens) LimitAddresses(limit bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case !limit:
		t.senders = nil
	case t.senders == nil:
		t.senders, _ = simplelru.NewLRU[netip.Addr, *sender](maxSenders, nil) // fails only for a size below 1
	}
}

// Observe records the status of a response to a request with a credential. Only a success proves that the upstream
// accepted the credential, because a 403 or a 404 may also be an answer to a wrong one. A conclusive 401 concerns the
// credential and not the operation. The first 401 of an accepted token is not remembered, because it may be a mistake of
// one client of the token. The result is whether an accepted credential has lost its access.
func (t *ClientTokens) Observe(class string, status int, conclusive bool, now time.Time) (lost bool) {
	if status >= http.StatusBadRequest && status != http.StatusUnauthorized {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if status != http.StatusUnauthorized {
		t.accepted.list(maxTokens).Add(class, struct{}{})
		t.refused.list(maxTokens).Remove(class)
		return false
	}
	r, _ := t.refused.list(maxTokens).Get(class)
	r.lost = r.lost || conclusive
	lost = conclusive && t.accepted.list(maxTokens).Contains(class)
	if conclusive && !t.accepted.list(maxTokens).Contains(class) && !now.Before(r.until) {
		span := longestRefusal
		if r.times < 5 { // a larger shift exceeds longestRefusal
			span = min(span, firstRefusal<<(2*r.times))
		}
		r.until, r.times = now.Add(span), r.times+1
	}
	t.accepted.list(maxTokens).Remove(class)
	t.refused.list(maxTokens).Add(class, r)
	return lost
}

// HasLostAccess reports whether the upstream refused a credential in its last response.
func (t *ClientTokens) HasLostAccess(class string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, _ := t.refused.list(maxTokens).Get(class)
	return r.lost
}

// Has reports whether the upstream accepted a credential in its last response. Without a response, the result is
// presumed.
func (t *ClientTokens) Has(class string, presumed bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, accepted := t.accepted.list(maxTokens).Get(class)
	return accepted || presumed && !t.refused.list(maxTokens).Contains(class)
}

// IsRefused reports whether a token gets 401 without a request upstream.
func (t *ClientTokens) IsRefused(class string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, _ := t.refused.list(maxTokens).Get(class)
	return now.Before(r.until)
}

// Begin permits a request upstream with a token of a client. If the requests upstream may fill the bound of the address,
// Begin waits until the deadline for their responses. The error is an [UnverifiedError] or the cause of a canceled context.
// end must be called with the status of the response, with NotSent or with Unanswered. Only the first call of end has an
// effect.
func (t *ClientTokens) Begin(
	ctx context.Context, address netip.Addr, class string, deadline time.Time,
) (end func(status int), err error) {
	address = inbound.ClientOf(address)
	var timeout <-chan time.Time // nil before the first wait
	for {
		end, changed, err := t.tryBegin(address, class, time.Now())
		if end != nil || err != nil {
			return end, err
		}
		if timeout == nil {
			timeout = time.After(time.Until(deadline))
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timeout:
			return nil, &UnverifiedError{address, unverifiedRetry}
		}
	}
}

// tryBegin is Begin without waiting. If the request must wait, end is nil, and changed is closed before the next
// attempt.
func (t *ClientTokens) tryBegin(address netip.Addr, class string, now time.Time) (
	end func(status int), changed <-chan struct{}, err error,
) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, accepted := t.accepted.list(maxTokens).Get(class); accepted || t.senders == nil {
		return func(int) {}, nil, nil
	}
	s, ok := t.senders.Get(address)
	if !ok {
		s = &sender{verifying: map[string]int{}, changed: make(chan struct{})}
		t.senders.Add(address, s)
	}
	s.used = now
	t.removeIdleLocked(now)
	t.expireLocked(s, now)
	switch {
	case len(s.failed) >= MaxUnverified:
		return nil, nil, &UnverifiedError{address, s.failed[0].at.Add(FailedWindow).Sub(now)}
	case len(s.failed)+s.upstream >= MaxUnverified, s.verifying[class] > 0 && s.upstream >= MaxUnverified/2:
		return nil, s.changed, nil
	}
	s.verifying[class]++
	s.upstream++
	ended := false
	return func(status int) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if !ended {
			ended = true
			t.endLocked(s, class, status, now, time.Now())
		}
	}, nil, nil
}

// endLocked ends a request upstream. A 401 is not counted if the token got another one while the request was upstream.
func (t *ClientTokens) endLocked(s *sender, class string, status int, began, now time.Time) {
	s.upstream--
	if s.verifying[class]--; s.verifying[class] == 0 {
		delete(s.verifying, class)
	}
	together := func(r failedUse) bool { return r.class == class && !r.at.Before(began) }
	switch {
	case status == NotSent, IsSuccess(status), t.accepted.list(maxTokens).Contains(class):
	case status == http.StatusUnauthorized && slices.ContainsFunc(s.failed, together):
	default:
		s.failed = append(s.failed, failedUse{class, now})
		s.failed = s.failed[max(0, len(s.failed)-MaxUnverified):]
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// IsSuccess reports whether a status is a success. A redirect is none, because it may precede the check of the token.
func IsSuccess(status int) bool {
	return status >= http.StatusOK && status < http.StatusMultipleChoices || status == http.StatusNotModified
}

// expireLocked removes old failed requests, and the failed requests of tokens that the upstream accepted later.
func (t *ClientTokens) expireLocked(s *sender, now time.Time) {
	s.failed = slices.DeleteFunc(s.failed, func(r failedUse) bool {
		return now.Sub(r.at) >= FailedWindow || t.accepted.list(maxTokens).Contains(r.class)
	})
}

// removeIdleLocked removes at most two addresses without requests upstream and failed requests. Each request adds at most one
// address, so the list shrinks without a long pause for any request.
func (t *ClientTokens) removeIdleLocked(now time.Time) {
	for range 2 {
		_, s, ok := t.senders.GetOldest()
		if !ok || len(s.verifying) > 0 || now.Sub(s.used) < FailedWindow {
			return
		}
		t.senders.RemoveOldest()
	}
}

// UnverifiedError refuses an unverified token because too many requests of the address had no success. The status is 429
// and not 401: the token may be valid, and a client may discard a token after a 401.
type UnverifiedError struct {
	Address    netip.Addr
	RetryAfter time.Duration
}

func (u *UnverifiedError) Error() string {
	return fmt.Sprintf("the upstream accepted none of the last %d requests with new tokens from %s", MaxUnverified, u.Address)
}
