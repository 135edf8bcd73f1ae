package proxy

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/contentcoding"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/fields"
	"github.com/weirgate/weir/proxy/names"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/refusal"
	"github.com/weirgate/weir/proxy/secrets"
)

// question is the upstream request of an exchange. A question is immutable after [Gateway.ask] or [Gateway.withCredential]
// has returned it; a request with another credential is another question. A question has no reference to the client's
// connection, so background tasks can keep it.
type question struct {
	identity        *caller.Identity // with the credential
	caller          *policy.Caller   // of identity, with the budget of the tag
	tag             string           // tag of the request, for the record
	match           policy.Match
	method          string
	fields.Outgoing // without Authorization
	// authorization is the Authorization field of the client, which is sent if identity.Passed is set.
	authorization []string
	cacheUse
	cacheControl   cache.Directives // Cache-Control of the client's request
	acceptEncoding []string         // Accept-Encoding of the client's request, if header asks for the identity form
	route          string           // label in logs and metrics; the number of labels is bounded
	// operation is the matched operation, with points that depend on the body. claimScope is the operation's name in
	// claims: the ID, or method and route for a route outside the catalogue.
	operation  *policy.Operation
	claimScope string
	// predicts is the ID of the operation, whose responses predict each other, or empty for a route outside the catalogue.
	predicts string
	// graphQL is a parsed GraphQL call, otherwise nil. invalid is the reason for which the upstream must refuse it.
	graphQL *policy.GraphQLCall
	invalid error
	// named is the repository that the path names, if the client has a scope of repositories.
	named string
	// ttl is the lifetime of the response to a GraphQL query that a rule stores.
	ttl time.Duration
	// resource is the primary-limit resource of the request: the resource that the upstream named for an earlier request
	// of the operation, or the catalogue's prediction.
	resource string
}

// cacheUse is the use of the cache by a question.
type cacheUse struct {
	// cacheable is set if the response may come from the cache and may be stored under key. ranged is set instead for a
	// range request: a complete response under key can answer the request, and a partial response is stored under
	// partKey.
	cacheable, ranged bool
	key               cache.Key // zero if the request uses neither the cache nor a call
	// baseKey is the key without a security class, by which responses to other callers are found. It is zero if all callers share
	// the response, for unknown operations, whose ETags may not be comparable, and for GraphQL queries, which cannot be
	// revalidated.
	baseKey cache.Key
	rule    cache.Rule
}

// ask returns the question of a client's request that has passed screen. The error is the refusal for the client.
func (g *Gateway) ask(ex *exchange) (*question, error) {
	ex.record.Version = g.Dialect.VersionLabel(ex.in.Header[g.versionField])
	identity, err := g.Identify(ex.in)
	if err != nil {
		return nil, err
	}
	ex.debug = identity.Debug
	ex.record.Account, ex.record.Client = identity.Account, identity.Client
	if ex.record.Tag, err = requestTagOf(identity, ex.in.Header); err != nil {
		return nil, err
	}
	q, err := g.parse(ex, identity)
	if err != nil {
		return nil, err
	}
	q.authorization = ex.in.Header["Authorization"]
	if identity, err = q.lent(identity); err != nil {
		return nil, err
	}
	ex.record.Client = identity.Client
	scope := identity.Scope
	g.setCredential(ex, q, g.chooseCredential(q, identity, nil))
	ex.record.Account, ex.record.Resource = q.caller.Account, q.resource
	if err := g.authorize(ex, q, scope); err != nil {
		return nil, err
	}
	ex.authorized = true
	if f := q.match.Preflight(q.caller.Kind); f != nil { // the upstream would certainly refuse the request
		return nil, &refusal.Error{Status: f.Status, Finding: f, Message: f.Message, Detail: f.Check}
	}
	if invalid, ok := errors.AsType[*policy.GraphQLError](q.invalid); ok && invalid.Type != policy.GraphQLParseError {
		return nil, &refusal.Error{Status: http.StatusOK, GraphQL: invalid, Message: invalid.Message, Detail: "graphql"}
	}
	return q, nil
}

// tagHeader is the request field by which a client names its run, repository or agent. The field is not forwarded.
const tagHeader = "Weir-Tag"

// requestTagOf returns the tag of a request, or an empty string. An invalid JWT claim is ignored, because a client cannot change
// its token. An invalid field is an error.
func requestTagOf(identity *caller.Identity, h http.Header) (string, error) {
	if identity.TagFromClaim {
		if !secrets.IsTag(identity.TokenTag) {
			return "", nil
		}
		return identity.TokenTag, nil
	}
	values := h[tagHeader]
	switch {
	case len(values) == 0, len(values) == 1 && values[0] == "":
		return "", nil
	case len(values) > 1 || !secrets.IsTag(values[0]):
		return "", &refusal.Error{
			Status: http.StatusBadRequest, Detail: "tag",
			Message: "Bad Request: Weir-Tag must be one field with 1 to 64 letters, digits and ._-/:@ and without a credential",
		}
	}
	return values[0], nil
}

// parse returns the part of the question that does not depend on a credential: the target, the operation and the GraphQL call.
func (g *Gateway) parse(ex *exchange, identity *caller.Identity) (*question, error) {
	path := ex.in.URL.EscapedPath()
	if g.Host == "" { // the paths of files stay unchanged
		path = policy.SingleSlashes(path)
	}
	path, ok := strings.CutPrefix(path, g.Prefix)
	if ok {
		ex.prefix = g.Prefix
	}
	if rest, ok := strings.CutPrefix(path, names.EnterprisePrefix); ok && strings.HasPrefix(rest, "/") && g.Host == "" {
		ex.prefix, path = ex.prefix+names.EnterprisePrefix, rest
	}
	match, err := g.Catalogue.Classify(ex.in.Method, path, ex.in.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	op := match.Operation
	q := &question{
		identity: identity, caller: &identity.Caller, tag: ex.record.Tag, match: match, method: ex.in.Method, operation: op, route: g.Host + op.Path, claimScope: op.ID, predicts: op.ID,
		cacheControl: cache.ParseDirectives(ex.in.Header["Cache-Control"]),
	}
	if !op.Known() {
		q.claimScope, q.predicts = record.MethodLabel(op.Method)+" "+op.Path, ""
	}
	ex.question, ex.record.Route, ex.record.Operation = q, q.route, op.ID
	ex.record.Path = ex.maskedPath()
	if op.Resource == policy.GraphQL {
		err = g.parseGraphQL(ex, q)
	}
	return q, err
}

// parseGraphQL adds the GraphQL call in the body to the question.
func (g *Gateway) parseGraphQL(ex *exchange, q *question) (err error) {
	var body []byte // stays nil for an incomplete body, which counts as a mutation
	if ex.body != nil {
		if body, err = g.bufferBody(ex); err != nil {
			return err
		}
		if err := g.throttleSize(ex, body); err != nil {
			return err
		}
	}
	op := q.operation
	q.graphQL, q.invalid = policy.ParseGraphQL(body)
	q.operation = op.ForCall(q.graphQL)
	if q.match.Query != "" { // the upstream may read the call there
		q.operation = op.ForCall(&policy.GraphQLCall{})
	}
	ex.record.QueryHash = q.graphQL.Hash[:min(len(q.graphQL.Hash), record.QueryHashLength)]
	if name := q.graphQL.Operation; !secrets.In(name, ex.in.Header) {
		ex.record.Query = name[:min(len(name), record.MaxQueryName)]
	}
	return nil
}

// lent returns the identity for a question: the lent credential if an anonymous client reads public data
// ([policy.Operation.Public]), otherwise the client's identity.
func (q *question) lent(client *caller.Identity) (*caller.Identity, error) {
	switch lent, op := client.Lent, q.match.Operation; {
	case lent != nil && op.Public() && lent.Scope.Allows(q.method, op):
		return lent, nil
	case client.LentOnly:
		return nil, caller.ErrUnauthenticated
	}
	return client, nil
}

// chooseCredential returns the identity with a credential for a question, without regard to budgets, because a hit needs no
// budget. The list tried has the security classes of the credentials that were tried.
func (g *Gateway) chooseCredential(q *question, identity *caller.Identity, tried []string) *caller.Identity {
	if identity.Pool != nil {
		r := q.credentialRequest(tried)
		r.Resource = g.Resources.Of(q.claimScope, identity.Kind, q.match.Operation.Resource)
		if picked := identity.Pool.Pick(r, time.Now()); picked != nil {
			return picked
		}
	}
	return identity
}

// withCredential returns the question with another credential.
func (g *Gateway) withCredential(ex *exchange, asked *question, identity *caller.Identity) *question {
	q := *asked
	g.setCredential(ex, &q, identity)
	return &q
}

// credentialRequest describes the question for the choice of a credential. The list tried has the security classes of the
// credentials that were tried.
func (q *question) credentialRequest(tried []string) policy.CredentialRequest {
	return policy.CredentialRequest{
		Operation: q.match.Operation, Resource: q.resource, Path: q.match.Path, Target: targetOf(q.match.Path), Except: tried,
	}
}

// budgetedRequest returns a credential request with Left set, so that the choice may depend on budgets.
func (g *Gateway) budgetedRequest(q *question, tried []string) policy.CredentialRequest {
	r := q.credentialRequest(tried)
	r.Left = func(caller policy.Caller) (int, bool) {
		caller.Tag = g.Limiter.TagBudget(caller, q.tag)
		b, _ := g.Ledger.Budget(caller, q.resource)
		return b.Remaining - b.Held, !b.Unlimited
	}
	return r
}

// targetOf returns the part of a path that names a repository, an organization or similar, in lower case. Without such
// a part it returns the whole path.
func targetOf(path string) string {
	segments := strings.SplitN(strings.ToLower(path), "/", 5)
	names := map[string]int{"repos": 2, "repositories": 1, "orgs": 1, "organizations": 1, "users": 1, "teams": 1}[segments[1]]
	if names == 0 || len(segments) < names+2 {
		return strings.ToLower(path)
	}
	return strings.Join(segments[:names+2], "/")
}

// setCredential completes a new question with a credential, and with the header and the cache key, which depend on it.
func (g *Gateway) setCredential(ex *exchange, q *question, identity *caller.Identity) {
	q.identity, q.caller = identity, &identity.Caller
	if budget := g.Limiter.TagBudget(identity.Caller, q.tag); budget != "" {
		tagged := identity.Caller
		tagged.Tag, q.caller = budget, &tagged
	}
	q.resource = g.Resources.Of(q.claimScope, identity.Kind, q.match.Operation.Resource)
	q.Outgoing = fields.Outbound(ex.in.Header, q.match.Operation.Known(), g.viaOf(ex.in))
	if n, err := strconv.Atoi(ex.in.Header.Get("Max-Forwards")); err == nil && n > 0 && q.method == http.MethodOptions {
		q.Header["Max-Forwards"] = []string{strconv.Itoa(n - 1)} // RFC 9110 section 7.6.2
	}
	ex.record.Withheld = q.Withheld
	if q.method == http.MethodGet || q.method == http.MethodHead {
		for _, name := range contentFields {
			delete(q.Header, name)
		}
	}
	q.acceptEncoding, q.cacheable, q.ranged, q.key, q.baseKey, q.rule, q.ttl = nil, false, false, cache.Key{}, cache.Key{}, cache.Rule{}, 0
	if q.graphQL != nil {
		g.setQueryKey(q)
	} else if q.usesCache(ex.in.Header) {
		g.setKey(q, ex.in.Header)
		g.unifyHeader(q)
	}
}

// contentFields describe the body of a request. GET and HEAD requests are forwarded without a body, and therefore without
// these fields.
var contentFields = []string{"Content-Encoding", "Content-Language", "Content-Type"}

// sentHeader returns the header of the request upstream without the credential. [Gateway.setConditions] may replace the client's
// conditions. Weir must read limit errors, so the upstream may use only codings that Weir can decode.
func (a *attempt) sentHeader() http.Header {
	h := maps.Clone(a.Header)
	if a.identityAsked {
		return h
	}
	if len(a.acceptEncoding) > 0 {
		h["Accept-Encoding"] = a.acceptEncoding
	}
	if accept := h["Accept-Encoding"]; len(accept) > 0 {
		h["Accept-Encoding"] = []string{contentcoding.Supported(accept)}
	}
	return h
}

// usesCache reports whether the response to a REST request may come from the cache, or may be stored.
func (q *question) usesCache(in http.Header) bool {
	switch {
	case q.method != http.MethodGet && q.method != http.MethodHead, q.match.Operation.Cache.Class == policy.Never, q.cacheControl.Has("no-store"):
		return false
	case len(in["If-Match"]) > 0, len(in["If-Unmodified-Since"]) > 0:
		return false // only the upstream can evaluate these conditions (RFC 9110 section 13.2.1)
	}
	return true
}

// setKey sets the key and the rule of a question that uses the cache.
func (g *Gateway) setKey(q *question, in http.Header) {
	op := q.match.Operation
	class := q.caller.Class
	switch {
	case op.Cache.Class == policy.Shared:
		class = string(policy.Shared)
	case isFeed(q.match.Path) && isBasic(in.Get("Authorization")):
		class += " basic"
	}
	q.ranged = len(in["Range"]) > 0 && q.method == http.MethodGet
	q.cacheable = !q.ranged
	base := g.keyWithoutClass(q)
	q.key = cache.NewKey(string(base[:]), class)
	if op.Cache.Class != policy.Shared && op.Known() {
		q.baseKey = base
	}
	anonymous := q.caller.Kind == policy.Unauthenticated
	// OneCaller is also set for reference data (class Shared), although all callers share the key. Private responses of
	// reference data are then stored without the fields that identify a caller (withoutCaller).
	q.rule = cache.Rule{
		OneCaller: !anonymous, Heuristic: anonymous && !op.Known(), AnyStatus: !op.Known(), Partial: q.ranged,
	}
	switch op.Cache.Class {
	case policy.Shared:
		q.rule.TTL = op.Cache.TTL
	case policy.Immutable:
		if q.match.Immutable() {
			q.rule.TTL = op.Cache.TTL
		}
	case policy.Statistics:
		q.rule.DefaultLifetime = statisticsTTL
	}
}

// isFeed reports whether a path is that of the list of feeds or of a feed. Private feeds and their URLs need Basic
// authentication, and refuse the same token as a bearer token (Document B section 5.4).
func isFeed(path string) bool { return path == "/feeds" || strings.HasPrefix(path, "/feeds/") }

func isBasic(authorization string) bool {
	scheme, _, _ := strings.Cut(strings.TrimSpace(authorization), " ")
	return strings.EqualFold(scheme, "basic")
}

// keyWithoutClass returns the key of a question without a security class. The cache evaluates the method, the conditions and the
// range, so the key does not contain them. Neither does it contain fields that have a fixed value, or name a program or a request.
func (g *Gateway) keyWithoutClass(q *question) cache.Key {
	accept := strings.Join(q.Header["Accept"], ",")
	if q.match.Operation.Known() {
		accept = g.Dialect.Accept(q.Header["Accept"])
	}
	return cache.NewKey(q.KeyParts(g.base, q.match.Path, q.match.Query, accept)...)
}

// unifyHeader gives all requests with the same key the same values of the fields that the key does not contain and that may
// change the response.
func (g *Gateway) unifyHeader(q *question) {
	q.askForIdentity()
	if len(g.Dialect.ETag) > 0 {
		// The upstream formats JSON for browsers, under the same ETag as the compact form. The ETag depends on the
		// spelling of the media type, so the gateway sends one spelling.
		q.Header["User-Agent"] = fields.DefaultAgent
		if q.match.Operation.Known() && g.Dialect.Accept(q.Header["Accept"]) == "" {
			q.Header.Set("Accept", g.Dialect.MediaType())
		}
	}
}

// identityEncoding is the Accept-Encoding of the identity form, which all requests share. It must not be modified.
var identityEncoding = []string{"identity"}

// askForIdentity asks the upstream for the identity form, which is stored. Weir encodes that form for the client.
func (q *question) askForIdentity() {
	q.acceptEncoding = q.Header["Accept-Encoding"]
	q.Header["Accept-Encoding"] = identityEncoding
}

// authorize refuses a question that the client may not ask. scope is that of the client.
func (g *Gateway) authorize(ex *exchange, q *question, scope *policy.Scope) error {
	op := q.match.Operation
	if !scope.Allows(q.method, op) {
		return &refusal.Error{
			Status: http.StatusForbidden, Detail: "scope",
			Message: fmt.Sprintf("Forbidden: this gateway does not let its client %q call %s %s",
				q.caller.Client, record.MethodLabel(q.method), op.ID),
		}
	}
	if q.graphQL != nil && ex.lacksMemory() && (scope.ReadsQueries() || scope.LimitsNames()) {
		return errBodyMemory
	}
	if q.graphQL != nil && scope.ReadsQueries() {
		if q.match.Query != "" {
			return errQueryInURL
		}
		if err := scope.CheckQuery(q.graphQL); err != nil {
			return refusedByRules(err)
		}
	}
	if err := g.checkToken(ex, q); err != nil || !scope.LimitsNames() && (q.graphQL == nil || !scope.LimitsQueries()) {
		return err
	}
	return g.authorizeNames(ex, q, scope)
}

// checkToken refuses a client's token that the upstream refused a short time ago. Operations for the credentials of apps are an
// exception, because a token that other operations refuse may be such a credential.
func (g *Gateway) checkToken(ex *exchange, q *question) error {
	if !q.sendsClientToken() || q.match.Operation.Auth == "app" || !g.tokens.IsRefused(q.caller.Class, ex.record.Start) {
		return nil
	}
	ex.record.Account = "" // as in beginToken
	return errBadCredentials
}

// errBadCredentials refuses a request with a credential that the upstream refused.
var errBadCredentials = &refusal.Error{Status: http.StatusUnauthorized, Message: "Bad credentials", Detail: "refused-token", Cause: errRefusedToken}

// errRefusedToken is the cause of a 401 without a request upstream.
var errRefusedToken = errors.New("the upstream refused this token a short time ago")

// sendsClientToken reports whether the request is sent with a credential of the client, which only the upstream can
// verify.
func (q *question) sendsClientToken() bool {
	return q.identity.Passed && q.caller.Kind != policy.Unauthenticated
}
