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
)

// Pool is the list of held credentials that one client may use, in the order of the configuration. The pool chooses a
// credential for each request and is safe for concurrent use.
type Pool struct {
	held   []Caller // never empty
	health *Health

	mu sync.Mutex
	// current is the security class of the credential in use, by resource. A change is expensive, because responses are
	// stored by class and cannot be revalidated with a credential of another class.
	current map[string]string
}

// Request describes the upstream request that needs a credential.
type Request struct {
	Operation *policy.Operation
	// Resource is the budget that the request counts against.
	Resource string
	// Path is the path of the request. Target is the repository, organization or other owner of the path.
	Path, Target string
	// Left returns the remaining budget of a caller's account. If Left is nil, the request spends no budget, and the
	// pool keeps the current credential.
	Left func(policy.Caller) (remaining int, known bool)
	// Except are the classes of the credentials that were tried for this request. Limited reports that these credentials
	// were refused for a limit.
	Except  []string
	Limited bool
}

// newPool returns the pool of a client; held are the held credentials by name.
func newPool(health *Health, client Client, held map[string]Caller) *Pool {
	p := &Pool{health: health, current: map[string]string{}}
	for _, name := range client.Credentials {
		c := held[name]
		c.Client, c.Group, c.Share, c.Priority = client.Name, client.Group, client.Share, client.Priority
		c.Paced = client.Priority == policy.Batch
		c.Scope, c.Debug, c.Pool = client.Scope, client.Debug, p
		c.TagFromClaim = client.Token.Tag != ""
		p.held = append(p.held, c)
	}
	return p
}

// HasChoice reports whether the client has more than one credential.
func (p *Pool) HasChoice() bool { return len(p.held) > 1 }

// Pick chooses a credential for a request. In order of importance, Pick prefers a credential
//
//   - of a kind that the operation accepts,
//   - for which the target is not known to be hidden,
//   - that is not in quarantine,
//   - that is in use, unless another credential has clearly more budget left.
//
// A second attempt uses only credentials that are of an accepted kind and not in quarantine.
// Pick returns false if no such credential is left.
//
// The response to an operation about the caller depends on the account. For such an operation, Pick returns only
// credentials of one account: the account of the first credential of a user.
func (p *Pool) Pick(r Request, now time.Time) (Caller, bool) {
	list := p.candidates(r, now)
	if len(list) == 0 {
		return Caller{}, false
	}
	p.mu.Lock()
	class := cmp.Or(p.current[r.Resource], p.held[0].Class)
	p.mu.Unlock()
	at := slices.IndexFunc(list, func(c Caller) bool { return c.Class == class })
	chosen := list[max(0, at)]
	if r.Left == nil {
		return chosen, true
	}
	chosen = list[mostLeft(max(0, at), list, r.Left)] // the call may reach the store, so mu is not held
	// A choice that was forced by this target alone does not change the credential in use.
	if r.Limited || len(r.Except) == 0 && at >= 0 {
		p.mu.Lock()
		p.current[r.Resource] = chosen.Class
		p.mu.Unlock()
	}
	return chosen, true
}

// The criteria of [Pool.Pick]. The rank of a credential is the sum of its criteria.
const (
	rankUsable   = 1 << iota // not in quarantine
	rankSees                 // the target is not known to be hidden
	rankAccepted             // of a kind that the operation accepts
)

// candidates returns the untried credentials of the highest rank, in order.
func (p *Pool) candidates(r Request, now time.Time) (list []Caller) {
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
			best, list = rank, []Caller{c}
		case rank == best:
			list = append(list, c)
		}
	}
	return list
}

// eligible returns the credentials that may be used for an operation. For an operation about the caller, these are the
// credentials of one account; otherwise all credentials.
func (p *Pool) eligible(op *policy.Operation) []Caller {
	if !op.Personal {
		return p.held
	}
	first := max(0, slices.IndexFunc(p.held, func(c Caller) bool { return op.Accepts(c.Kind) }))
	account := p.held[first].Account
	return slices.DeleteFunc(slices.Clone(p.held), func(c Caller) bool { return c.Account != account })
}

// switchFactor is the ratio of remaining budgets from which the pool leaves the current credential for another
// credential.
const switchFactor = 2

// mostLeft returns the index of the credential to use. The current credential stays unless its budget is exhausted or
// another credential has switchFactor times that budget. The current credential also stays if its budget is unknown.
func mostLeft(current int, list []Caller, left func(policy.Caller) (int, bool)) int {
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

// errNotInPool prevents a programming error from leaking a credential.
var errNotInPool = errors.New("the client may not use this credential")

// Authorization returns the header value for the credential of a security class. The call may wait for an app's token.
// The error is an [UnusableError] or the context's error.
func (p *Pool) Authorization(ctx context.Context, class string) (Secret, error) {
	at := slices.IndexFunc(p.held, func(c Caller) bool { return c.Class == class })
	if at < 0 {
		return "", errNotInPool
	}
	c := p.held[at]
	if err := p.health.use(class, c.heldName, time.Now()); err != nil {
		return "", err
	}
	if c.source == nil {
		return c.Authorization, nil
	}
	token, err := c.source.get(ctx)
	if err != nil {
		p.health.noResponse(class, time.Now(), time.Now())
		return "", err
	}
	return "Bearer " + token, nil
}

// OnResponse records the status of the upstream's response to a request that was sent at the given time. A status of 0
// means that the request got no response.
//
// A 401 counts only for an operation that accepts the credential's kind. Otherwise a client could quarantine a shared
// credential by calling, for example, GET /app, which accepts only an app's assertion.
func (p *Pool) OnResponse(caller policy.Caller, op *policy.Operation, status int, sent, now time.Time) {
	switch {
	case status == 0:
		p.health.noResponse(caller.Class, sent, now)
	case status == http.StatusUnauthorized:
		at := slices.IndexFunc(p.held, func(c Caller) bool { return c.Class == caller.Class })
		if at < 0 || !op.Known() || !op.Accepts(caller.Kind) {
			return
		}
		p.health.rejected(caller.Class, p.held[at].heldName, sent, now)
		if source := p.held[at].source; source != nil {
			source.reject(sent)
		}
	case status < http.StatusInternalServerError:
		p.health.accepted(caller.Class, sent)
	}
}

// OnHidden records that a credential got 403 or 404 for a request. seen means that another credential of the client got
// a better response. With seen, a 404 for the target's own path hides the whole target. Any other response with seen
// hides the operation on the target. Without seen, only the path is hidden, because the resource may not exist.
func (p *Pool) OnHidden(caller policy.Caller, r Request, status int, seen bool, now time.Time) {
	scope, target, operation := r.scopes()
	switch {
	case seen && status == http.StatusNotFound && strings.EqualFold(r.Path, r.Target):
		scope = target
	case seen:
		scope = operation
	}
	p.health.hidden.Add(hiddenTarget{caller.Class, scope}, now.Add(hiddenFor))
}
