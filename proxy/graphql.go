package proxy

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/contentcoding"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/bodies"
	"github.com/weirgate/weir/proxy/refusal"
	"github.com/weirgate/weir/proxy/tags"
)

// queryConditions are the request fields with which a GraphQL query is not shared, because they change the meaning of the
// request or of its body.
var queryConditions = []string{
	"Content-Encoding", "If-Match", "If-Modified-Since", "If-None-Match", "If-Range", "If-Unmodified-Since", "Range",
}

// setQueryKey lets identical GraphQL queries share a call. It sets the key, and makes the question cacheable if a rule
// matches.
func (g *Gateway) setQueryKey(q *question) {
	call, h := q.graphQL, q.Header
	q.askForIdentity() // the errors of a long response are at its end (lateLimit)
	conditional := func(name string) bool { return len(h[name]) > 0 }
	if call.Question == "" || q.match.Query != "" || q.cacheControl.Has("no-store") || slices.ContainsFunc(queryConditions, conditional) ||
		q.caller.Kind == policy.Unauthenticated {
		return
	}
	q.key = cache.NewKey(q.KeyParts(policy.GraphQL, g.base, call.Question, q.caller.Class, strings.Join(h["Accept"], ","), strings.Join(h["Content-Type"], ","))...)
	q.rule.OneCaller = true
	rule, cacheable := g.GraphQLCache.RuleFor(call)
	q.cacheable, q.ttl = cacheable, rule.TTL
}

// isQuery reports whether the question is a GraphQL query, which changes nothing.
func (q *question) isQuery() bool { return q.tagged().IsQuery() }

// queryStorable reports whether the response to a GraphQL query may be stored, or given to the followers of its call, as
// far as the header shows.
func queryStorable(a cache.Response) bool {
	return a.Status == http.StatusOK && !cache.ParseDirectives(a.Header["Cache-Control"]).Has("no-store") && len(a.Header["Set-Cookie"]) == 0
}

// completeQueryEntry prepares the response to a GraphQL query for storage. It replaces Cache-Control by the lifetime of the
// rule, removes validators, and adds tags for the node IDs in the body. The upstream's Cache-Control does not apply, because
// the rule decides the lifetime.
func (a *attempt) completeQueryEntry(e *cache.Entry) {
	e.Header.Set("Cache-Control", "private, must-revalidate, max-age="+strconv.Itoa(int(a.ttl/time.Second)))
	for _, name := range []string{"Etag", "Expires", "Last-Modified", "Pragma"} {
		e.Header.Del(name)
	}
	e.Tags = append(e.Tags, tags.OfNodes(e.Body)...)
}

// maxMutationPeek bounds the part of a response that is read to find the result of a mutation.
const maxMutationPeek = 64 << 10

// resultOfMutation returns the result that the body of a response reports, and the status of [policy.ReadMutationResult].
func resultOfMutation(resp *http.Response) (result policy.MutationResult, status int) {
	if mediaType := strings.ToLower(resp.Header.Get("Content-Type")); !strings.Contains(mediaType, "json") && !strings.HasPrefix(mediaType, "text/plain") {
		return policy.MutationUncertain, 0 // such as a stream, which may not end
	}
	start, _ := bodies.Peek(resp, maxMutationPeek) // a part of the JSON is no JSON
	text := contentcoding.Decode(resp.Header.Get("Content-Encoding"), start, maxMutationPeek)
	return policy.ReadMutationResult(text)
}

// refusedQuery is the value of Record.QueryFailure for a query that Weir refuses.
const refusedQuery = "refused"

// refuseHeavy returns the refusal of a query that has failed too often, or nil.
func (g *Gateway) refuseHeavy(a *attempt) error {
	if !a.isQuery() || a.graphQL.Question == "" {
		return nil
	}
	failures, wait := g.heavyQueries.Pause(g.Ledger.Canonical(a.caller.Account), cache.NewKey(a.graphQL.Question), time.Now())
	if wait <= 0 {
		return nil
	}
	a.record.QueryFailure = refusedQuery
	message := fmt.Sprintf("This gateway does not send this query: it timed out or exceeded the resource limits %d times. Ask for fewer nodes or fields, or retry in %ds.",
		failures, int((wait+time.Second-1)/time.Second))
	return &refusal.Error{
		Status: http.StatusOK, Detail: "query", Message: message, RetryAfter: wait,
		GraphQL: &policy.GraphQLError{Type: "RESOURCE_LIMITS_EXCEEDED", Message: message},
	}
}

// observeQuery records the response to a question, and returns its failure if it is a query. The upstream worked for elapsed on
// the response.
func (g *Gateway) observeQuery(q *question, account string, answer policy.UpstreamAnswer, elapsed time.Duration) string {
	if !q.isQuery() {
		return ""
	}
	name, outage := answer.QueryFailure(elapsed)
	if q.graphQL.Question != "" && (name != "" || answer.Status == http.StatusOK) {
		g.heavyQueries.Observe(account, cache.NewKey(q.graphQL.Question), name, outage, time.Now())
	}
	return name
}
