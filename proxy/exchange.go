package proxy

import (
	"context"
	"net/http"
	"net/netip"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/coalesce"
	"github.com/weirgate/weir/proxy/inbound"
)

// question is the upstream request of an exchange. classify builds the question, and sets header and key through
// pickCredential. useCredential replaces identity, header, key and rule if another credential is picked. A question has
// no reference to the client's connection, so background tasks can copy the question.
type question struct {
	identity Identity
	tag      string // tag of the request, for the record
	match    policy.Match
	method   string
	header   http.Header // forwarded fields, without the credential
	// cacheable is set if the response may come from the cache and may be stored under key. ranged is set instead for a
	// range request: a complete response under key can answer the request, and a partial response is stored under
	// partKey.
	cacheable, ranged bool
	key               cache.Key // zero if the request uses neither the cache nor a call
	rule              cache.Rule
	cacheControl      cache.Directives // Cache-Control of the client's request
	// identityAsked is set if the upstream is asked for the identity form, and Weir selects the content coding from
	// acceptEncoding, the client's Accept-Encoding.
	identityAsked  bool
	acceptEncoding []string
	route          string // label in logs and metrics; the number of labels is bounded
	// operation is the matched operation, with points that depend on the body. claimScope is the operation's name in
	// claims: the ID, or method and route for a route outside the catalogue.
	operation  *policy.Operation
	claimScope string
	// graphQL is a parsed GraphQL call, otherwise nil. invalid is the reason for which the upstream must refuse it.
	graphQL *policy.GraphQLCall
	invalid error
	// ttl is the lifetime of the response to a GraphQL query that a rule stores.
	ttl time.Duration
	// resource is the primary-limit resource of the request: the resource that the upstream named for an earlier request
	// of the operation, or the catalogue's prediction.
	resource string
}

// exchange is one client request in progress. Only the goroutine that serves the request changes the exchange.
type exchange struct {
	question
	w            *recorder
	in           *http.Request
	body         *inbound.Body    // body of in; nil without a body
	address      netip.Addr       // of the client
	leave        func(netip.Addr) // ends the request in progress of RateLimiter; nil if it is not counted
	buffered     *buffer          // prefix of the body that was read in advance; nil before that read
	wholeBody    bool             // buffered contains the complete body
	start        time.Time
	waitingSince time.Time // start of the wait for the deadline
	authorized   bool      // the client may send the request; only these clients get the trace of the request
	prefix       string    // prefix of the client's path: Config.Prefix, "/api/v3", or both
	prefer       preference
	// stale is the stored response that must be revalidated. fallback is the same response, if clients may get the
	// stale response when the upstream fails.
	stale, fallback *cache.Entry
	// current is set if the stored response is used because webhooks report its changes.
	current bool
	// uncacheable is set if the last response to the question could not be stored. skipShared is set if look-ups omit
	// the shared tier.
	uncacheable, skipShared bool
	// hidden is a stored 403 or 404 while another credential of the client may have access.
	hidden *cache.Entry
	// candidates are the stored responses whose validators are sent upstream. conditional is set if the request has
	// conditions for stored responses. unconditional is set if the upstream confirmed no candidate and the request is
	// repeated.
	candidates                 []candidate
	conditional, unconditional bool
	// hasAlternative is set if another credential of the client can be tried, or if an earlier credential was
	// rate-limited or got a hidden response. tried lists the security classes of the credentials that were tried.
	hasAlternative bool
	tried          []string
	// credentialBy is the end of the wait for a held credential; zero before the wait. sentCredential is the held credential of
	// the attempt in progress, otherwise it is nil.
	credentialBy   time.Time
	sentCredential SentCredential
	// unclear is set if the last response may be one to a token that the upstream does not know yet, and the client cannot
	// wait for a repetition.
	unclear    bool
	call       *coalesce.Call                        // call that this exchange leads; nil without a call
	skipped    int                                   // number of paused calls that the exchange stopped following
	polls      int                                   // number of 202 responses to polled statistics
	sent       time.Time                             // start of the last attempt
	reused     bool                                  // the last attempt used an existing connection
	limited    limits.LimitKind                      // limit error in the last response
	limitError limits.LimitError                     // of the last response; further responses may have to confirm it
	lateLimit  *lateLimit                            // recognizes a limit error at the end of a long body; usually nil
	shed       error                                 // the refusal of an overloaded gateway
	broken     bool                                  // the upstream's body ended early
	interim    func(int, textproto.MIMEHeader) error // forwards a 1xx response
	span       trace.Span                            // records nothing if the request is not sampled
	record     Record
}

// detach returns the request's context without its cancellation, for work that must survive a disconnect.
func (ex *exchange) detach() context.Context {
	return context.WithoutCancel(ex.in.Context())
}

// deadline returns the end of the client's wait. The client waits for byDefault without a Prefer field.
func (ex *exchange) deadline(byDefault time.Duration) time.Time {
	if ex.prefer.given {
		byDefault = ex.prefer.wait
	}
	return ex.waitingSince.Add(byDefault)
}

// classify builds the question from the client's request. pickCredential then sets the identity, the header and the
// cache key.
func (g *Gateway) classify(ex *exchange) error {
	path, ok := strings.CutPrefix(ex.in.URL.EscapedPath(), g.Prefix)
	if ok {
		ex.prefix = g.Prefix
	}
	if rest, ok := strings.CutPrefix(path, EnterprisePrefix); ok && strings.HasPrefix(rest, "/") && g.Host == "" { // the paths of files stay unchanged
		ex.prefix, path = ex.prefix+EnterprisePrefix, rest
	}
	match, err := g.Catalogue.Classify(ex.in.Method, path, ex.in.URL.RawQuery)
	if err != nil {
		return err
	}
	op := match.Operation
	ex.match, ex.method = match, ex.in.Method
	ex.cacheControl = cache.ParseDirectives(ex.in.Header["Cache-Control"])
	ex.route, ex.claimScope = g.Host+op.Path, op.ID
	if !op.Known() {
		ex.claimScope = methodLabel(op.Method) + " " + op.Path
	}
	ex.operation = op
	if op.Resource == policy.GraphQL {
		var body []byte // stays nil for an incomplete body, which counts as a mutation
		if ex.body != nil {
			if body, err = g.bufferBody(ex); err != nil {
				return err
			}
			if err := g.throttleSize(ex, body); err != nil {
				return err
			}
		}
		ex.graphQL, ex.invalid = policy.ParseGraphQL(body)
		ex.operation = op.ForCall(ex.graphQL)
		if match.Query != "" { // the upstream may read the call there
			ex.operation = op.ForCall(&policy.GraphQLCall{})
		}
		if name := ex.graphQL.Operation; !ex.isSecret(name) {
			ex.record.Query = name[:min(len(name), maxQueryName)]
		}
	}
	ex.record.Route, ex.record.Operation = ex.route, op.ID
	if err := g.lend(ex); err != nil {
		return err
	}
	ex.resource = g.Resources.of(ex.claimScope, ex.identity.Caller.Kind, op.Resource)
	g.pickCredential(ex)
	return nil
}

// setKey decides whether the question uses the cache, and sets the key and the rule.
func (g *Gateway) setKey(ex *exchange) {
	op, in := ex.match.Operation, ex.in.Header
	switch {
	case ex.graphQL != nil:
		g.setQueryKey(ex)
		return
	case ex.method != http.MethodGet && ex.method != http.MethodHead:
		return
	case op.Cache.Class == policy.Never, ex.cacheControl.Has("no-store"):
		return
	case len(in["If-Match"]) > 0, len(in["If-Unmodified-Since"]) > 0:
		return // only the upstream can evaluate these conditions (RFC 9110 section 13.2.1)
	}
	class := ex.identity.Caller.Class
	switch {
	case op.Cache.Class == policy.Shared:
		class = string(policy.Shared)
	case isFeed(ex.match.Path) && isBasic(in.Get("Authorization")):
		class += " basic"
	}
	ex.ranged = len(in["Range"]) > 0 && ex.method == http.MethodGet
	ex.cacheable = !ex.ranged
	ex.key = g.keyOf(&ex.question, class)
	anonymous := ex.identity.Caller.Kind == policy.Unauthenticated
	// OneCaller is also set for reference data (class Shared), although all callers share the key. Private responses of
	// reference data are then stored without the fields that identify a caller (withoutCaller).
	ex.rule = cache.Rule{
		OneCaller: !anonymous, Heuristic: anonymous && !op.Known(), AnyStatus: !op.Known(), Partial: ex.ranged,
	}
	switch op.Cache.Class {
	case policy.Shared:
		ex.rule.TTL = op.Cache.TTL
	case policy.Immutable:
		if ex.match.Immutable() {
			ex.rule.TTL = op.Cache.TTL
		}
	case policy.Statistics:
		ex.rule.DefaultLifetime = statisticsTTL
	}
	ex.askForIdentity() // so the key need not include Accept-Encoding
	if len(g.Dialect.ETag) > 0 {
		// The upstream formats JSON for browsers, under the same ETag as the compact form. The ETag depends on the
		// spelling of the media type, so the gateway sends one spelling.
		ex.header["User-Agent"] = defaultAgent
		if op.Known() && g.Dialect.Accept(ex.header["Accept"]) == "" {
			ex.header.Set("Accept", g.Dialect.MediaType())
		}
	}
}

// isFeed reports whether a path is that of the list of feeds or of a feed. Private feeds and their URLs need Basic
// authentication, and refuse the same token as a bearer token (Document B section 5.4).
func isFeed(path string) bool { return path == "/feeds" || strings.HasPrefix(path, "/feeds/") }

func isBasic(authorization string) bool {
	scheme, _, _ := strings.Cut(strings.TrimSpace(authorization), " ")
	return strings.EqualFold(scheme, "basic")
}

// keyOf returns the cache key of a question for a security class. The cache evaluates the method, the conditions and the range,
// so the key does not contain them. Neither does it contain fields that have a fixed value or name a program. For unknown
// operations, Vary decides about Accept-Language.
func (g *Gateway) keyOf(q *question, class string) cache.Key {
	accept, language := strings.Join(q.header["Accept"], ","), ""
	if q.match.Operation.Known() {
		accept, language = g.Dialect.Accept(q.header["Accept"]), languageOf(q.header)
	}
	parts := append(make([]string, 0, 16), g.base, q.match.Path, q.match.Query, accept, class, language)
	for _, name := range g.dialectFields {
		parts = append(parts, strings.Join(q.header[name], ","))
	}
	for _, name := range g.keyedFields(q) {
		parts = append(parts, name, cache.FieldValue(q.header, name))
	}
	return cache.NewKey(parts...)
}

// keyedFields returns the sorted names of the fields that keyOf adds to the key of an unknown operation.
func (g *Gateway) keyedFields(q *question) []string {
	if q.match.Operation.Known() {
		return nil
	}
	var names []string
	for name, values := range q.header {
		if g.isKeyed(name, values) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// languageOf returns the normal form of Accept-Language. The value * means the same as no field (RFC 9110 section 12.5.4).
func languageOf(h http.Header) string {
	if language := cache.FieldValue(h, "Accept-Language"); language != "*" {
		return language
	}
	return ""
}

// methodLabel bounds the methods in logs and metrics.
func methodLabel(method string) string {
	switch method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE":
		return method
	}
	return "_OTHER"
}

// preference is the content of a Prefer field (RFC 7240): the maximum wait of the client.
type preference struct {
	wait    time.Duration
	given   bool
	applied string // value of Preference-Applied
}

// maxPreferWait bounds the wait that a client can request.
const maxPreferWait = 5 * time.Minute

func parsePrefer(values []string) preference {
	for _, value := range values {
		for part := range strings.SplitSeq(value, ",") {
			name, argument, _ := strings.Cut(strings.TrimSpace(part), "=")
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "respond-async":
				return preference{given: true, applied: "respond-async"}
			case "wait":
				if n, err := strconv.ParseUint(strings.Trim(argument, `" `), 10, 31); err == nil {
					wait := min(time.Duration(n)*time.Second, maxPreferWait)
					return preference{wait: wait, given: true, applied: "wait=" + strconv.FormatUint(n, 10)}
				}
			}
		}
	}
	return preference{}
}

// otherRoute is the label of requests without an operation.
const otherRoute = "_OTHER"
