package credential

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
)

// Pool is the list of held credentials that one client may use, in the order of the configuration. The pool chooses a
// credential for each request and is safe for concurrent use.
type Pool struct {
	held   []*heldCredential // never empty
	health *Health

	mu sync.Mutex
	// current is the security class of the credential in use, by resource. A change is expensive, because responses are
	// stored by class and cannot be revalidated with a credential of another class.
	current map[string]string
}

// heldCredential is one credential of a pool. It implements [caller.HeldCredential].
type heldCredential struct {
	caller.Identity
	name          string
	authorization Secret  // value of the header field; empty with a source
	source        *Source // of an app, otherwise nil
	health        *Health
}

// newPool returns the pool of a client; held are the held credentials by name.
func newPool(health *Health, client Client, held map[string]heldCredential) *Pool {
	p := &Pool{health: health, current: map[string]string{}}
	for _, name := range client.Credentials {
		c := held[name]
		c.Client, c.Group, c.Share, c.Priority = client.Name, client.Group, client.Share, client.Priority
		c.Paced = client.Priority == policy.Batch
		c.Scope, c.Debug, c.RefusalStatus = client.Scope, client.Debug, client.RefusalStatus
		c.TagFromClaim = client.Token.Tag != ""
		c.Credential, c.health = &c, health
		if len(client.Credentials) > 1 {
			c.Pool = p
		}
		p.held = append(p.held, &c)
	}
	return p
}

// first returns the client with its first credential.
func (p *Pool) first() *caller.Identity { return &p.held[0].Identity }

// Pick chooses a credential for a request. In order of importance, Pick prefers a credential
//
//   - of a kind that the operation accepts,
//   - for which the target is not known to be hidden,
//   - that is not in quarantine,
//   - that is in use, unless another credential has clearly more budget left.
//
// A second attempt uses only credentials that are of an accepted kind and not in quarantine.
// Pick returns nil if no such credential is left.
//
// The response to an operation about the caller depends on the account. For such an operation, Pick returns only
// credentials of one account: the account of the first credential of a user.
func (p *Pool) Pick(r policy.CredentialRequest, now time.Time) *caller.Identity {
	list := p.candidates(r, now)
	if len(list) == 0 {
		return nil
	}
	p.mu.Lock()
	class := cmp.Or(p.current[r.Resource], p.held[0].Class)
	p.mu.Unlock()
	at := slices.IndexFunc(list, func(c *heldCredential) bool { return c.Class == class })
	chosen := list[max(0, at)]
	if r.Left == nil {
		return &chosen.Identity
	}
	chosen = list[mostLeft(max(0, at), list, r.Left)] // the call may reach the store, so mu is not held
	// A choice that was forced by this target alone does not change the credential in use.
	if r.Limited || len(r.Except) == 0 && at >= 0 {
		p.mu.Lock()
		p.current[r.Resource] = chosen.Class
		p.mu.Unlock()
	}
	return &chosen.Identity
}

// The criteria of [Pool.Pick]. The rank of a credential is the sum of its criteria.
const (
	rankUsable   = 1 << iota // not in quarantine
	rankSees                 // the target is not known to be hidden
	rankAccepted             // of a kind that the operation accepts
)

// candidates returns the untried credentials of the highest rank, in order.
func (p *Pool) candidates(r policy.CredentialRequest, now time.Time) (list []*heldCredential) {
	best, required := 0, 0
	if len(r.Except) > 0 {
		required = rankUsable + rankAccepted
	}
	for _, c := range p.eligible(r.Operation) {
		if slices.Contains(r.Except, c.Class) {
			continue
		}
		rank := 0
		if !p.health.isQuarantined(c.Class, now) {
			rank += rankUsable
		}
		if r.Operation.Personal || !p.health.isHidden(c.Class, r, now) {
			rank += rankSees
		}
		if r.Operation.Accepts(c.Kind) {
			rank += rankAccepted
		}
		switch {
		case rank&required != required:
		case rank > best:
			best, list = rank, []*heldCredential{c}
		case rank == best:
			list = append(list, c)
		}
	}
	return list
}

// eligible returns the credentials that may be used for an operation. For an operation about the caller, these are the
// credentials of one account; otherwise all credentials.
func (p *Pool) eligible(op *policy.Operation) []*heldCredential {
	if !op.Personal {
		return p.held
	}
	first := max(0, slices.IndexFunc(p.held, func(c *heldCredential) bool { return op.Accepts(c.Kind) }))
	account := p.held[first].Account
	return slices.DeleteFunc(slices.Clone(p.held), func(c *heldCredential) bool { return c.Account != account })
}

// switchFactor is the ratio of remaining budgets from which the pool leaves the current credential for another
// credential.
const switchFactor = 2

// mostLeft returns the index of the credential to use. The current credential stays unless its budget is exhausted or
// another credential has switchFactor times that budget. The current credential also stays if its budget is unknown.
func mostLeft(current int, list []*heldCredential, left func(policy.Caller) (int, bool)) int {
	own, known := left(list[current].Caller)
	if !known {
		return current
	}
	most, chosen := 0, current
	for i, c := range list {
		if n, known := left(c.Caller); known && n > most && (own <= 0 || n >= switchFactor*own) {
			most, chosen = n, i
		}
	}
	return chosen
}

// errNotReady is the reason for an [policy.UnusableError] after the wait for a credential.
var errNotReady = errors.New("the upstream has not accepted its token in time")

// notReadyRetry is the time after which a client whose wait has ended may repeat its request.
const notReadyRetry = 2 * time.Second

// Await implements [caller.HeldCredential].
func (c *heldCredential) Await(ctx context.Context, by time.Time, u policy.CredentialUse) error {
	for {
		now := time.Now()
		_, wait, err := c.try(u, false, now)
		switch {
		case err != nil || wait == nil:
			return err
		case !now.Before(by):
			return &policy.UnusableError{Name: c.name, Until: now.Add(notReadyRetry), Cause: errNotReady}
		case wait.until.IsZero() || wait.until.After(by):
			wait.until = by
		}
		if err := wait.wait(ctx); err != nil {
			return err
		}
	}
}

// Authorize implements [caller.HeldCredential].
func (c *heldCredential) Authorize(h http.Header, u policy.CredentialUse) (caller.SentCredential, error) {
	now := time.Now()
	token, wait, err := c.try(u, true, now)
	switch {
	case err != nil:
		return nil, err
	case wait != nil:
		return nil, policy.ErrCredentialBusy
	}
	sent, authorization := &sentCredential{held: c, use: u, token: token, at: now}, c.authorization
	if token != nil {
		authorization, sent.fresh = "Bearer "+token.Value, c.source.isFresh(token, now)
	}
	h.Set("Authorization", authorization.Reveal())
	return sent, nil
}

// try returns the token of an app, or nil for another credential. It returns a pause if the request must wait. If send is set,
// the request is sent now.
func (c *heldCredential) try(u policy.CredentialUse, send bool, now time.Time) (*appToken, *pause, error) {
	wait, err := c.health.try(c.Class, send, now)
	if c.source == nil || wait != nil || err != nil {
		return nil, wait, err
	}
	token, wait, err := c.source.try(u, send, now)
	if token == nil && send {
		c.health.end(c.Class, now)
	}
	return token, wait, err
}

// sentCredential is a held credential in a request that was sent. It implements [caller.SentCredential].
type sentCredential struct {
	held  *heldCredential
	use   policy.CredentialUse
	token *appToken // of an app, otherwise nil
	fresh bool      // the upstream may not know the token yet
	at    time.Time
}

// IsUnproven implements [caller.SentCredential].
func (s *sentCredential) IsUnproven() bool { return s.fresh }

// End records the upstream's response, and reports whether the request should be repeated. In that case the response shows
// nothing about the request, because the upstream does not accept the token yet or not any more. A status of 0 means that the
// request got no response. limited marks a limit error.
func (s *sentCredential) End(op *policy.Operation, status int, limited bool) (repeat bool) {
	a, now, class, source := s.answerTo(op, status, limited), time.Now(), s.held.Class, s.held.source
	if source == nil {
		return s.held.health.observe(class, s.held.name, a, s.at, now) == verdictRepeat
	}
	v := source.observe(s.token, a, s.at, now)
	if v == verdictAccepts || v == verdictRejects {
		s.held.health.record(class, s.held.name, v == verdictAccepts, s.at, now)
	}
	s.held.health.end(class, s.at)
	return v == verdictRepeat
}

// Denied records that the upstream denied a permission in its response. The token of an installation may then be older than the
// permission.
func (s *sentCredential) Denied() {
	if s.held.source != nil {
		s.held.source.denied(s.token, time.Now())
	}
}

// Renewed waits for the renewal that Denied has started, and reports whether a newer token replaces the one that was sent.
func (s *sentCredential) Renewed(ctx context.Context, by time.Time) bool {
	return s.held.source != nil && s.held.source.renewed(ctx, s.token, by)
}

// answerTo classifies a response.
//
// A 401 counts only for an operation that accepts the credential's kind. Otherwise a client could quarantine a shared
// credential by calling, for example, GET /app, which accepts only an app's assertion.
func (s *sentCredential) answerTo(op *policy.Operation, status int, limited bool) answer {
	switch {
	case status == 0, status >= http.StatusInternalServerError, op.Known() && status == http.StatusUnauthorized && !op.Accepts(s.held.Kind):
		return answerNone
	case status == http.StatusUnauthorized && !op.Known():
		return answerUnknown
	case status == http.StatusUnauthorized:
		return answerRefused
	case s.use.Safe && !limited && (status == http.StatusForbidden || status == http.StatusNotFound):
		return answerHidden
	case status < http.StatusBadRequest:
		return answerSuccess
	}
	return answerOther
}

// OnHidden implements [caller.CredentialPool]. seen means that another credential of the client got a better response. With seen, a 404 for the target's own path hides the whole target. Any other response with seen
// hides the operation on the target. Without seen, only the path is hidden, because the resource may not exist.
func (p *Pool) OnHidden(class string, r policy.CredentialRequest, status int, seen bool, now time.Time) {
	scope, target, operation := scopes(r)
	switch {
	case seen && status == http.StatusNotFound && strings.EqualFold(r.Path, r.Target):
		scope = target
	case seen:
		scope = operation
	}
	p.health.hidden.Add(hiddenTarget{class, scope}, now.Add(hiddenFor))
}
