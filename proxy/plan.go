package proxy

import (
	"encoding/hex"
	"net/http"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
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
// which credential is used. The list tried contains the security classes of the credentials that are at a limit. The error is the
// refusal of an invalid target.
func (g *Gateway) Plan(r *http.Request, identity Identity, byBudget bool, tried ...string) (*Plan, error) {
	ex := &exchange{in: r, span: noop.Span{}, tried: tried}
	ex.identity = identity
	if err := g.classify(ex); err != nil {
		return nil, err
	}
	if ex.graphQL != nil {
		ex.operation = ex.match.Operation.ForCall(&policy.GraphQLCall{Kind: policy.GraphQLQuery})
	}
	if byBudget && identity.Pick != nil {
		request := g.budgetedRequest(ex)
		request.Limited = len(tried) > 0
		if next, ok := identity.Pick(request); ok {
			g.useCredential(ex, next)
		}
	}
	p := &Plan{
		Match: ex.match, Caller: ex.identity.Caller, OutOfScope: !ex.identity.Scope.Allows(ex.method, ex.match.Operation),
		Claim: limits.Claim{
			Operation: ex.claimScope, Resource: ex.resource, Points: ex.operation.Points, CreatesContent: ex.operation.CreatesContent,
		},
		Cacheable: ex.cacheable, Coalesces: ex.coalesces() || ex.graphQL != nil, Key: ex.key, Rule: ex.rule, Tags: ex.tags(),
	}
	if f := ex.match.Preflight(ex.identity.Caller.Kind); f != nil {
		p.Check = f.Check
	}
	if !ex.match.Operation.Safe() && ex.graphQL == nil {
		p.Changes = g.tagsOfChange(&ex.question)
	}
	objects, _ := g.eventSource(&ex.question)
	p.Reported = len(objects) > 0
	if identity.Pick != nil {
		ex.tried = append(ex.tried, p.Caller.Class)
		_, p.HasAlternative = identity.Pick(g.credentialRequest(ex))
	}
	return p, nil
}

// targetHash returns a hash that identifies the target of a request, with its query and with a GraphQL query and its
// variables. Two requests with the same hash and the same caller are the same question. The hash is empty for a GraphQL
// call that cannot share a response, such as a mutation.
func (ex *exchange) targetHash() string {
	parts := []string{ex.match.Path, ex.match.Query}
	switch {
	case ex.match.Operation == nil, ex.graphQL != nil && ex.graphQL.Question == "":
		return ""
	case ex.graphQL != nil:
		parts = append(parts, ex.graphQL.Question)
	}
	key := cache.NewKey(parts...)
	return hex.EncodeToString(key[:8])
}
