package proxy

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/contentcoding"
	"github.com/weirgate/weir/policy"
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
	call, h := q.graphQL, q.header
	conditional := func(name string) bool { return len(h[name]) > 0 }
	if call.Question == "" || q.match.Query != "" || q.cacheControl.Has("no-store") || slices.ContainsFunc(queryConditions, conditional) ||
		q.identity.Caller.Kind == policy.Unauthenticated {
		return
	}
	q.key = cache.NewKey(q.keyParts(policy.GraphQL, g.base, call.Question, q.identity.Caller.Class, strings.Join(h["Accept"], ","), strings.Join(h["Content-Type"], ","))...)
	q.rule.OneCaller = true
	q.askForIdentity()
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

// hasData reports whether the body of a GraphQL response has data and no errors. Other responses are not stored.
func hasData(body []byte) bool {
	var answer struct{ Data, Errors json.RawMessage }
	return json.Unmarshal(body, &answer) == nil && answer.Data != nil && string(answer.Data) != "null" && answer.Errors == nil
}

// validationErrors are the codes of errors that the upstream finds in a query without executing it.
var validationErrors = map[string]bool{
	"argumentLiteralsIncompatible": true, "argumentNotAccepted": true, "argumentNotUnique": true, "cannotSpreadFragment": true,
	"defaultValueInvalidType": true, "directiveCannotBeApplied": true, "fieldConflict": true, "fragmentNotUnique": true,
	"infiniteLoop": true, "missingRequiredArguments": true, "missingRequiredInputObjectAttribute": true,
	"selectionMismatch": true, "typeMismatch": true, "undefinedDirective": true, "undefinedField": true,
	"undefinedFragment": true, "undefinedType": true, "useAndDefineFragment": true, "variableMismatch": true,
	"variableNotDefined": true, "variableNotUsed": true, "variableRequiresValidType": true,
}

// hasFinalErrors reports whether a GraphQL response has only errors that all identical queries of a security class get at
// the same time: a missing object, or an invalid query. The followers of the call get such a response.
func hasFinalErrors(body []byte) bool {
	var answer struct {
		Errors []struct {
			Type       string
			Extensions struct{ Code string }
		}
	}
	if json.Unmarshal(body, &answer) != nil || len(answer.Errors) == 0 {
		return false
	}
	for _, e := range answer.Errors {
		if e.Type != "NOT_FOUND" && (e.Type != "" || !validationErrors[e.Extensions.Code]) {
			return false
		}
	}
	return true
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

// writeResult is the result of an unsafe request.
type writeResult int

const (
	succeeded writeResult = iota
	failed                // certainly changed nothing
	uncertain
)

// maxMutationPeek bounds the part of a response that is read to find the result of a mutation.
const maxMutationPeek = 64 << 10

// resultOfMutation returns the result that the body of a response reports. A mutation failed if the response has errors and
// no data. Null in each root field also counts as no data. However, if an error concerns a part of the response below a root
// field, or reports a fault of the upstream, the mutation may have succeeded. Any other data with errors is the result of
// mutations that succeeded.
func resultOfMutation(resp *http.Response) writeResult {
	if mediaType := strings.ToLower(resp.Header.Get("Content-Type")); !strings.Contains(mediaType, "json") && !strings.HasPrefix(mediaType, "text/plain") {
		return uncertain // such as a stream, which may not end
	}
	start, _ := peek(resp, maxMutationPeek) // a part of the JSON is no JSON
	text := contentcoding.Decode(resp.Header.Get("Content-Encoding"), start, maxMutationPeek)
	var answer struct {
		Data   json.RawMessage
		Errors []graphQLError
	}
	if json.Unmarshal(text, &answer) != nil {
		return uncertain
	}
	fields := map[string]json.RawMessage{}
	if answer.Data != nil && json.Unmarshal(answer.Data, &fields) != nil {
		return uncertain
	}
	for _, value := range fields {
		if string(value) != "null" {
			return succeeded
		}
	}
	below := func(e graphQLError) bool { return len(e.Path) > 1 }
	switch {
	case len(answer.Errors) == 0:
		return succeeded
	case len(fields) > 0 && slices.ContainsFunc(answer.Errors, below), slices.ContainsFunc(answer.Errors, graphQLError.isFault):
		return uncertain
	}
	return failed
}

// graphQLError is an error in the response to a GraphQL call.
type graphQLError struct {
	Path          []any
	Type, Message any
}

// isFault reports whether the upstream failed or ran out of time, instead of refusing the call.
func (e graphQLError) isFault() bool {
	message, _ := e.Message.(string)
	return strings.HasPrefix(message, "Something went wrong while executing your query") || e.Type == "INTERNAL" || e.Type == "SERVICE_UNAVAILABLE"
}
