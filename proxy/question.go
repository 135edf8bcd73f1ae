package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
)

// question is the upstream request of an exchange. A question is immutable after [Gateway.ask] or [Gateway.withCredential]
// has returned it; a request with another credential is another question. A question has no reference to the client's
// connection, so background tasks can keep it.
type question struct {
	identity   Identity // with the credential
	tag        string   // tag of the request, for the record
	match      policy.Match
	method     string
	sentFields // without the credential
	// cacheable is set if the response may come from the cache and may be stored under key. ranged is set instead for a
	// range request: a complete response under key can answer the request, and a partial response is stored under
	// partKey.
	cacheable, ranged bool
	key               cache.Key // zero if the request uses neither the cache nor a call
	// baseKey is the key without a security class, by which responses to other callers are found. It is zero if all callers share
	// the response, for unknown operations, whose ETags may not be comparable, and for GraphQL queries, which cannot be
	// revalidated.
	baseKey        cache.Key
	rule           cache.Rule
	cacheControl   cache.Directives // Cache-Control of the client's request
	acceptEncoding []string         // Accept-Encoding of the client's request, if header asks for the identity form
	route          string           // label in logs and metrics; the number of labels is bounded
	// operation is the matched operation, with points that depend on the body. claimScope is the operation's name in
	// claims: the ID, or method and route for a route outside the catalogue.
	operation  *policy.Operation
	claimScope string
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

// ask returns the question of a client's request that has passed screen. The error is the refusal for the client.
func (g *Gateway) ask(ex *exchange) (*question, error) {
	identity, err := g.Identify(ex.in)
	ex.debug = identity.Debug
	ex.record.Account, ex.record.Client = identity.Caller.Account, identity.Caller.Client
	if err != nil {
		return nil, err
	}
	if ex.record.Tag, err = requestTagOf(identity, ex.in.Header); err != nil {
		return nil, err
	}
	q, err := g.parse(ex, identity)
	if err != nil {
		return nil, err
	}
	if identity, err = identity.lendFor(q); err != nil {
		return nil, err
	}
	ex.record.Client = identity.Caller.Client
	scope := identity.Scope
	g.setCredential(ex, q, g.chooseCredential(q, identity, nil))
	ex.record.Account, ex.record.Resource = q.identity.Caller.Account, q.resource
	if err := g.authorize(ex, q, scope); err != nil {
		return nil, err
	}
	ex.authorized = true
	if f := q.match.Preflight(q.identity.Caller.Kind); f != nil { // the upstream would certainly refuse the request
		return nil, &failure{status: f.Status, finding: f, message: f.Message, detail: f.Check}
	}
	if invalid := (*policy.GraphQLError)(nil); errors.As(q.invalid, &invalid) && invalid.Type != policy.GraphQLParseError {
		return nil, &failure{status: http.StatusOK, graphQL: invalid, message: invalid.Message, detail: "graphql"}
	}
	return q, nil
}

// These constants bound the size of a request without its body. The bound of the server must exceed maxHeader, so that
// the gateway writes the refusal.
const (
	maxTarget = 8 << 10
	maxHeader = 32 << 10
)

// MaxHeaderBytes is the setting for the [http.Server] of a gateway.
const MaxHeaderBytes = 2 * maxHeader

// isOwnPath reports whether a decoded path is one of Weir's own paths, also below the prefix of the API. Requests for
// these paths are never forwarded.
func isOwnPath(path string) bool {
	path = strings.TrimPrefix(policy.SingleSlashes(path), EnterprisePrefix)
	return path == "/_weir" || strings.HasPrefix(path, "/_weir/")
}

// screen refuses requests that the gateway does not handle.
func (g *Gateway) screen(r *http.Request) error {
	switch {
	case r.Method == http.MethodConnect, r.Method == http.MethodTrace:
		return &failure{
			status: http.StatusMethodNotAllowed, message: "Method Not Allowed: " + r.Method,
			allow: "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
		}
	case len(r.RequestURI) > maxTarget:
		return &failure{status: http.StatusRequestURITooLong, message: "URI Too Long: at most 8 KiB"}
	case headerSize(r.Header) > maxHeader:
		return &failure{status: http.StatusRequestHeaderFieldsTooLarge, message: "Request Header Fields Too Large: at most 32 KiB"}
	case r.URL.IsAbs() && !isLocal(r):
		return &failure{status: http.StatusBadRequest, message: "Bad Request: this listener is not a forward proxy; send the path alone, or use the address of proxy.listen"}
	case isOwnPath(r.URL.Path), isOwnPath(strings.TrimPrefix(r.URL.Path, g.Prefix)):
		return &failure{status: http.StatusNotFound, message: "Not Found: Weir has nothing at this path"}
	case g.Host == "" && isGit(r):
		return &failure{
			status: http.StatusMisdirectedRequest, detail: "git", plain: true,
			message: "Weir serves the API, not git. Use the URL of the git host, directly or through Weir's forward proxy (docs/proxy.md).",
		}
	case g.hasPassed(r):
		return &failure{status: http.StatusLoopDetected, detail: "loop", message: "Loop Detected: the upstream forwards to this gateway"}
	}
	return nil
}

// isGit reports whether a request is of git over HTTP (gitprotocol-http) or of Git LFS. The API has no such paths.
func isGit(r *http.Request) bool {
	path, post := r.URL.Path, r.Method == http.MethodPost
	return strings.HasSuffix(path, "/info/refs") && strings.HasPrefix(r.URL.Query().Get("service"), "git-") ||
		post && strings.HasSuffix(path, "/git-upload-pack") || post && strings.HasSuffix(path, "/git-receive-pack") ||
		strings.Contains(path, ".git/info/lfs/") && !strings.HasPrefix(path, "/repos/")
}

func headerSize(h http.Header) int {
	size := 0
	for name, values := range h {
		for _, value := range values {
			size += len(name) + len(value) + len(": \r\n")
		}
	}
	return size
}

// isLocal reports whether an absolute-form target names the address that received the request.
func isLocal(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || r.URL.User != nil {
		return false
	}
	_, port, err := net.SplitHostPort(local.String())
	return err == nil && (r.URL.Host == local.String() || r.URL.Host == "localhost:"+port)
}

// parse returns the part of the question that does not depend on a credential: the target, the operation and the GraphQL call.
func (g *Gateway) parse(ex *exchange, identity Identity) (*question, error) {
	path := ex.in.URL.EscapedPath()
	if g.Host == "" { // the paths of files stay unchanged
		path = policy.SingleSlashes(path)
	}
	path, ok := strings.CutPrefix(path, g.Prefix)
	if ok {
		ex.prefix = g.Prefix
	}
	if rest, ok := strings.CutPrefix(path, EnterprisePrefix); ok && strings.HasPrefix(rest, "/") && g.Host == "" {
		ex.prefix, path = ex.prefix+EnterprisePrefix, rest
	}
	match, err := g.Catalogue.Classify(ex.in.Method, path, ex.in.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	op := match.Operation
	q := &question{
		identity: identity, tag: ex.record.Tag, match: match, method: ex.in.Method, operation: op, route: g.Host + op.Path, claimScope: op.ID,
		cacheControl: cache.ParseDirectives(ex.in.Header["Cache-Control"]),
	}
	if !op.Known() {
		q.claimScope = methodLabel(op.Method) + " " + op.Path
	}
	ex.question, ex.record.Route, ex.record.Operation = q, q.route, op.ID
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
	if name := q.graphQL.Operation; !ex.isSecret(name) {
		ex.record.Query = name[:min(len(name), maxQueryName)]
	}
	return nil
}

// authorize refuses a question that the client may not ask. scope is that of the client.
func (g *Gateway) authorize(ex *exchange, q *question, scope *policy.Scope) error {
	op := q.match.Operation
	if !scope.Allows(q.method, op) {
		return &failure{
			status: http.StatusForbidden, detail: "scope",
			message: fmt.Sprintf("Forbidden: this gateway does not let its client %q call %s %s",
				q.identity.Caller.Client, methodLabel(q.method), op.ID),
		}
	}
	if q.graphQL != nil && scope != nil && scope.GraphQL.Restricts() {
		if q.match.Query != "" {
			return errQueryInURL
		}
		var forbidden *policy.GraphQLError
		if errors.As(scope.GraphQL.Check(q.graphQL), &forbidden) {
			return &failure{status: http.StatusForbidden, graphQL: forbidden, message: forbidden.Message, detail: "scope"}
		}
	}
	if err := g.checkToken(ex, q); err != nil || !scope.LimitsNames() {
		return err
	}
	return g.authorizeNames(ex, q, scope)
}

// lendFor returns the identity for a question: the lent credential if an anonymous client reads public data
// ([policy.Operation.Public]), otherwise the identity itself.
func (i Identity) lendFor(q *question) (Identity, error) {
	switch lent, op := i.Lent, q.match.Operation; {
	case lent != nil && op.Public() && lent.Scope.Allows(q.method, op):
		return *lent, nil
	case i.LentOnly:
		return Identity{}, ErrUnauthenticated
	}
	return i, nil
}

// chooseCredential returns the identity with a credential for a question, without regard to budgets, because a hit needs no
// budget. The list tried has the security classes of the credentials that were tried.
func (g *Gateway) chooseCredential(q *question, identity Identity, tried []string) Identity {
	if identity.Pick != nil {
		r := q.credentialRequest(tried)
		r.Resource = g.Resources.Of(q.claimScope, identity.Caller.Kind, q.match.Operation.Resource)
		if picked, ok := identity.Pick(r); ok {
			return picked
		}
	}
	return identity
}

// withCredential returns the question with another credential.
func (g *Gateway) withCredential(ex *exchange, asked *question, identity Identity) *question {
	q := *asked
	g.setCredential(ex, &q, identity)
	return &q
}

// setCredential completes a new question with a credential, and with the header and the cache key, which depend on it.
func (g *Gateway) setCredential(ex *exchange, q *question, identity Identity) {
	q.identity = identity
	q.identity.Caller.Tag = g.Limiter.TagBudget(identity.Caller, q.tag)
	q.resource = g.Resources.Of(q.claimScope, identity.Caller.Kind, q.match.Operation.Resource)
	q.sentFields = g.outbound(ex.in.Header, q.match.Operation.Known())
	ex.record.Withheld = q.withheld
	if q.method == http.MethodGet || q.method == http.MethodHead {
		for _, name := range contentFields {
			delete(q.header, name)
		}
	}
	q.acceptEncoding, q.cacheable, q.ranged, q.key, q.baseKey, q.rule, q.ttl = nil, false, false, cache.Key{}, cache.Key{}, cache.Rule{}, 0
	if q.graphQL != nil {
		g.setQueryKey(q)
	} else if q.usesCache(ex.in.Header) {
		g.setKey(q, ex.in.Header)
	}
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
	class := q.identity.Caller.Class
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
	anonymous := q.identity.Caller.Kind == policy.Unauthenticated
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
	q.askForIdentity() // so the key need not include Accept-Encoding
	if len(g.Dialect.ETag) > 0 {
		// The upstream formats JSON for browsers, under the same ETag as the compact form. The ETag depends on the
		// spelling of the media type, so the gateway sends one spelling.
		q.header["User-Agent"] = defaultAgent
		if op.Known() && g.Dialect.Accept(q.header["Accept"]) == "" {
			q.header.Set("Accept", g.Dialect.MediaType())
		}
	}
}

// askForIdentity asks the upstream for the identity form, which is stored. Weir encodes that form for the client.
func (q *question) askForIdentity() {
	q.acceptEncoding = q.header["Accept-Encoding"]
	q.header["Accept-Encoding"] = identityEncoding
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
	accept := strings.Join(q.header["Accept"], ",")
	if q.match.Operation.Known() {
		accept = g.Dialect.Accept(q.header["Accept"])
	}
	return cache.NewKey(q.keyParts(g.base, q.match.Path, q.match.Query, accept)...)
}
