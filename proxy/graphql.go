package proxy

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/contentcoding"
	"github.com/weirgate/weir/policy"
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

// isQuery reports whether the question is a GraphQL query, which changes nothing. A request with a URL query string returns
// false, because the string may contain a mutation.
func (q *question) isQuery() bool {
	return q.graphQL != nil && q.graphQL.Kind == policy.GraphQLQuery && q.match.Query == ""
}

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
	a.tagNodes(e)
}

// tagNodes adds the node IDs of a response to its tags.
func (a *attempt) tagNodes(e *cache.Entry) {
	for _, id := range responseID.FindAllSubmatch(e.Body, maxResponseIDs) {
		e.Tags = append(e.Tags, nodeTag(string(id[1])))
	}
}

const (
	// maxResponseIDs bounds the node IDs of one response that become tags.
	maxResponseIDs = 100
	// maxNodeID is the length of the longest node ID that becomes a tag.
	maxNodeID = 256
)

// responseID matches the field id in JSON. A quotation mark inside a string is escaped, so the text of a string does not
// match.
var responseID = regexp.MustCompile(`"id"\s*:\s*"([^"\\]{1,256})"`)

// The parts of the tags of GraphQL queries.
const (
	graphQLOperation = "graphql"
	allQueries       = "op:" + graphQLOperation
	// anyObject stands for a repository or an organization that a query may reach without naming it.
	anyObject = "?"
)

func nodeTag(id string) string     { return "node:" + id }
func classTag(class string) string { return "class:" + class }

// queriesOf returns the tag of the queries that name a repository or an organization.
func queriesOf(name string) string { return allQueries + "@" + strings.ToLower(name) }

// queryTags returns the tags of the response to a GraphQL query.
func (q *question) queryTags() []string {
	call, caller := q.graphQL, q.identity.Caller
	tags := []string{allQueries, urlTag(q.match.Path), "account:" + caller.Account, classTag(caller.Class), credentialTag(caller.Class)}
	for _, name := range call.Repositories {
		name = strings.ToLower(name)
		owner, _, _ := strings.Cut(name, "/")
		tags = append(tags, queriesOf(name), queriesOf(owner), "repo:"+name, "org:"+owner)
		for _, path := range []string{"/repos/" + name, "/orgs/" + owner, "/users/" + owner} {
			tags = append(tags, credentialTag(caller.Class)+"@"+path+"/")
		}
	}
	if call.ReachesUnnamed() {
		tags = append(tags, queriesOf(anyObject), "repo:?", "org:?", credentialTag(caller.Class)+ofUnnamed)
	}
	for _, id := range call.NodeIDs {
		if len(id) <= maxNodeID { // a change of a longer ID makes all queries stale
			tags = append(tags, nodeTag(id))
		}
	}
	slices.Sort(tags)
	return slices.Compact(tags)
}

// maxChanged bounds the tags that a mutation purges one by one.
const maxChanged = 100

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

// queriesChangedBy returns the tags that a successful unsafe request purges for GraphQL queries. The tags of a mutation also
// reach REST responses.
//
//   - A mutation purges the queries of its caller, and everything about the repositories and nodes in its arguments. A node may
//     be anywhere, so a mutation of nodes also purges the other responses to its account. With more than maxChanged names or a
//     long node ID, it purges all queries, and with more than maxChanged repositories all responses.
//   - A REST write purges the queries of its caller, the queries that name the repository or organization of its path, and the
//     queries that may reach unnamed objects. If the path does not show the name, it purges all queries.
//   - If the client has several credentials, all queries are purged instead of those of the caller.
func (g *Gateway) queriesChangedBy(q *question) []string {
	op, own := q.match.Operation, classTag(q.identity.Caller.Class)
	if q.identity.Pick != nil {
		own = allQueries
	}
	if call := q.graphQL; call != nil {
		switch {
		case q.isQuery():
			return nil
		case len(call.Repositories) > maxChanged:
			return g.allResponses()
		}
		tags := []string{own}
		if len(call.Repositories) == 0 || len(call.NodeIDs) > 0 {
			tags = append(tags, "account:"+q.identity.Caller.Account)
		}
		long := func(id string) bool { return len(id) > maxNodeID }
		if len(call.Repositories)+len(call.NodeIDs) > maxChanged || slices.ContainsFunc(call.NodeIDs, long) {
			tags = append(tags, allQueries)
		}
		return append(tags, tagsOfNames(call)...)
	}
	at, name := q.match.Collection(), repositoryOrOwner(&q.match)
	switch {
	case op.ReadsOnly:
		return nil
	case name != "":
		return []string{queriesOf(name), queriesOf(anyObject), own}
	case at.Root == "repo" || at.Root == "org":
		return []string{allQueries}
	}
	return []string{own, queriesOf(anyObject)}
}

// repositoryOrOwner returns the repository or the organization that a path names, or an empty string.
func repositoryOrOwner(m *policy.Match) string {
	at := m.Collection()
	owner, repo := m.Params.Get("owner"), m.Params.Get("repo")
	switch {
	case (at.Root == "repo" || at.Root == "org") && at.Name != anyObject:
		return at.Name
	case at.Root != "repo" && at.Root != "org" && owner != "" && repo != "":
		return owner + "/" + repo
	}
	return ""
}

// fullName is the form of a repository's name. The tags of other texts may mean many repositories.
var fullName = regexp.MustCompile(`^[\w.-]+/[\w.-]+$`)

// tagsOfNames returns the tags of the nodes and repositories that a mutation names.
func tagsOfNames(call *policy.GraphQLCall) (tags []string) {
	for _, id := range call.NodeIDs {
		if len(id) <= maxNodeID {
			tags = append(tags, nodeTag(id))
		}
	}
	for _, name := range call.Repositories {
		if fullName.MatchString(name) {
			tags = append(tags, "repo:"+strings.ToLower(name))
		}
	}
	return tags
}

// allResponses returns tags of which every response has one, except reference data. Their number is that of the operations.
func (g *Gateway) allResponses() []string {
	tags := []string{"op:" + policy.UnknownID}
	for _, op := range g.Catalogue.Operations() {
		if op.Cache.Class != policy.Shared {
			tags = append(tags, "op:"+op.ID)
		}
	}
	return tags
}
