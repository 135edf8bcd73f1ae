package proxy

import (
	"net/http"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/record"
)

// Plan has the decisions of the gateway that depend only on the method, the target and the caller of a request. A replay
// uses plans to predict the costs of requests.
type Plan struct {
	Match  policy.Match
	Caller policy.Caller // with the credential that the gateway chose
	Claim  limits.Claim  // a GraphQL call counts as a query
	// OutOfScope means that the scope of the client does not allow the request. Check is the preflight check that refuses
	// the request, or empty.
	OutOfScope bool
	Check      string
	// Cacheable is set if the response may be stored. Coalesces is set if identical questions share a call.
	Cacheable, Coalesces bool
	Key                  cache.Key
	Rule                 cache.Rule
	// Tags are the tags of the response. Changes are the tags that a success of an unsafe request makes stale.
	Tags, Changes []string
	// Reported means that webhooks can report the changes of the response.
	Reported bool
	// HasAlternative means that another credential of the client can be tried.
	HasAlternative bool
}

// Plan returns the plan of a request without conditions. If byBudget is set, the remaining budgets of the credentials decide
// which credential is used. The list tried has the security classes of the credentials that are at a limit. The error is
// the refusal of an invalid target.
func (g *Gateway) Plan(r *http.Request, identity *caller.Identity, byBudget bool, tried ...string) (*Plan, error) {
	ex := &exchange{in: r, record: &record.Record{}}
	q, err := g.parse(ex, identity)
	if err != nil {
		return nil, err
	}
	if identity, err = q.lent(identity); err != nil {
		return nil, err
	}
	if q.graphQL != nil {
		q.operation = q.match.Operation.ForCall(&policy.GraphQLCall{Kind: policy.GraphQLQuery})
	}
	q = g.withCredential(ex, q, g.chooseCredential(q, identity, tried))
	if byBudget && identity.Pool != nil {
		request := g.budgetedRequest(q, tried)
		request.Limited = len(tried) > 0
		if next := identity.Pool.Pick(request, time.Now()); next != nil {
			q = g.withCredential(ex, q, next)
		}
	}
	p := &Plan{
		Match: q.match, Caller: *q.caller, OutOfScope: !q.identity.Scope.Allows(q.method, q.match.Operation) || namesOutside(q.identity.Scope, q.match),
		Claim:     g.claim(q, *q.caller),
		Cacheable: q.cacheable, Coalesces: g.newAttempt(ex, q).coalesces() || q.graphQL != nil, Key: q.key, Rule: q.rule, Tags: q.tags(),
	}
	if f := q.match.Preflight(q.caller.Kind); f != nil {
		p.Check = f.Check
	}
	if !q.match.Operation.Safe() && q.graphQL == nil {
		p.Changes = g.tagsOfChange(q)
	}
	objects, _ := g.eventSource(q)
	p.Reported = len(objects) > 0
	if identity.Pool != nil {
		p.HasAlternative = identity.Pool.Pick(q.credentialRequest(append(tried, p.Caller.Class)), time.Now()) != nil
	}
	return p, nil
}
