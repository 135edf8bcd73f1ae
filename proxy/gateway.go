// Package proxy forwards API requests from clients to one upstream, through the cache and the limits. Package policy
// describes the operations of the upstream.
//
// [Gateway.ServeHTTP] is the entry point. Four values carry a request:
//   - the exchange is the client's side, and is never copied
//   - the question is the upstream request, and is immutable; another credential makes another question
//   - an attempt answers a question from the cache or with requests upstream, and ends with its result
//   - the [record.Record] describes the request, and is handed to Config.Observe once
//
// docs/internals/architecture.md lists the calls of a hit, a miss and a revalidation, with the file of each. Gateway.refuse writes the gateway's own
// error bodies.
//
// Invariants:
//   - The cache key is made from the same question that is sent.
//   - No request is sent upstream without a permit, and every permit is settled.
//   - A response reaches another client only through the cache or a coalesced call, under the key of that client's security class.
//   - The table in policy/fields.yaml decides for all requests which fields are forwarded.
//   - Every forwarded request field that may change a response is part of the cache key.
//   - The credential is set after the permit was granted, and is sent to the upstream only. A request with a key of this gateway in its target or
//     in a forwarded field is refused instead of forwarded. A stored response may answer it, because a hit sends nothing.
package proxy

import (
	"cmp"
	"crypto/rand"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/bodies"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/cors"
	"github.com/weirgate/weir/proxy/inbound"
	"github.com/weirgate/weir/proxy/learned"
	"github.com/weirgate/weir/proxy/names"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/screen"
	"github.com/weirgate/weir/proxy/tracing"
)

// Config configures a gateway. All fields are required unless documented otherwise.
type Config struct {
	// Upstream is the base URL of the API, and may have a path prefix.
	Upstream *url.URL
	// Aliases are further base URLs by which the upstream names itself. No request is sent to them.
	Aliases []*url.URL
	// Prefix is a path prefix by which clients reach the upstream at the gateway's own address, such as /api/uploads.
	// Empty means the root.
	Prefix string
	// Host names an upstream beside the API in the routes of records. Empty means the API.
	Host string
	// Instance is a unique name of this process, by which it recognizes requests that return in a loop. If empty, New
	// makes a name.
	Instance string
	// Timeout bounds the wait for response headers, and each pause within a body in either direction. The policy allows longer
	// pauses of event streams, and of operations outside the catalogue.
	Timeout time.Duration
	// BodyTimeout bounds the total time to read a request body; 0 has no bound.
	BodyTimeout time.Duration
	Catalogue   *policy.Catalogue
	Dialect     *policy.Dialect
	// Identify returns the caller of a request. The errors include caller.ErrUnauthenticated and caller.ErrIdentityUnavailable.
	Identify func(*http.Request) (*caller.Identity, error)
	// HoldsOwn reports whether a text that would be sent upstream contains a key or a token for this gateway. r is the
	// client's request. Nil checks nothing.
	HoldsOwn func(r *http.Request, text string) bool
	// RateLimiter, Shedder and Drain outlive the gateway. Nil values have no effect.
	RateLimiter    *inbound.RateLimiter
	Shedder        *inbound.Shedder
	Drain          *inbound.Drain
	TrustedProxies inbound.TrustedProxies
	Ledger         limits.Ledger
	// Limiter grants the permits of Ledger and outlives the gateway.
	Limiter *limits.Limiter
	Cache   *cache.Store
	// ETags selects the ETags that prove access; empty means [ETagsComputed].
	ETags ETags
	// WebhookFresh bounds the use of a response without revalidation while webhooks report its changes; 0 disables it.
	WebhookFresh time.Duration
	// Lag is the time after a change in which the upstream may still return the state before it.
	Lag time.Duration
	// GraphQLCache has the rules that store responses to GraphQL queries.
	GraphQLCache policy.GraphQLCache
	// Transport sends one request; see [wire.NewTransport].
	Transport http.RoundTripper
	// Wait is the maximum queue time of a request without a Prefer field.
	Wait time.Duration
	// RefusalStatus is the status of a limit refusal: 429 or 403. Zero is the status of the upstream's last limit error for the
	// account, and before that of the dialect.
	RefusalStatus int
	// RateLimitFields adds the RateLimit fields of the IETF to the x-ratelimit fields.
	RateLimitFields bool
	Statistics      Statistics
	// Background runs work that continues after a client's disconnect. Background outlives the gateway. If nil, New creates one,
	// for a gateway that only makes plans.
	Background *Background
	// Tracer starts the spans of requests. Nil disables tracing.
	Tracer trace.Tracer
	// PropagateTrace sends the trace context (W3C Trace Context) to the upstream.
	PropagateTrace bool
	// Resources contains the resources that the upstream named. If nil, New creates an empty list.
	Resources *learned.Resources
	// Tokens contains the credentials that the upstream accepted or refused. If nil, New creates an empty list.
	Tokens *learned.ClientTokens
	// Identities contains the users and installations that the upstream named. If nil, New creates an empty list.
	Identities *learned.Identities
	// AccountOf returns the account of a token that a client sends. It is nil if clients do not send their own tokens.
	AccountOf func(token string) string
	// Observe is called once with the record of each finished request, which does not change any more. Observe must not
	// block. Nil is allowed.
	Observe func(*record.Record)
	Log     *slog.Logger
}

// Gateway is the handler for API requests and is safe for concurrent use.
type Gateway struct {
	Config
	*upstreamState
	etagWarning rate.Sometimes // limits the warnings about computed ETags
	urls        *names.Translator
	tokens      *learned.ClientTokens
	shown       learned.Names
	base        string              // the upstream's URL in cache keys
	via         map[string][]string // the Via value that is added to requests, by the protocol of the client
	exposed     string              // value of Access-Control-Expose-Headers
	// covered are the request fields that a Vary field may name without creating a variant. The cache key contains the
	// field or the security class, or the gateway sends a fixed value (Accept-Encoding).
	covered      []string
	versionField string // the dialect's version header in canonical form
	tracer       tracing.Tracer
	screen       screen.Gateway
	reverse      httputil.ReverseProxy
}

// New returns a gateway.
func New(c Config) *Gateway {
	g := &Gateway{Config: c, base: c.Upstream.String()}
	g.Resources = cmp.Or(c.Resources, &learned.Resources{})
	g.Identities = cmp.Or(c.Identities, &learned.Identities{})
	g.tokens = cmp.Or(c.Tokens, &learned.ClientTokens{})
	pseudonym := "weir-" + cmp.Or(c.Instance, rand.Text())
	g.via = map[string][]string{}
	for _, version := range []string{"1.0", "1.1", "2.0"} {
		g.via["HTTP/"+version] = []string{version + " " + pseudonym}
	}
	if c.Background == nil {
		g.Background = NewBackground()
	}
	g.upstreamState = g.Background.stateOf(g.base)
	g.etagWarning.Interval = time.Hour
	g.urls = names.NewTranslator(c.Upstream, c.Aliases, c.Host != "", c.Catalogue, c.Log)
	g.reverse = httputil.ReverseProxy{BufferPool: &bodies.BufferPool{}, ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug)}
	g.covered = append([]string{"Accept", "Accept-Encoding", c.Dialect.VersionHeader}, c.Dialect.VaryByCredential...)
	g.versionField = http.CanonicalHeaderKey(c.Dialect.VersionHeader)
	g.exposed = strings.Join(slices.Concat([]string{exposedFields, c.Dialect.RequestID}, c.Dialect.Describe), ", ")
	g.screen = screen.Gateway{Prefix: c.Prefix, Files: c.Host != "", Name: pseudonym}
	g.tracer = tracing.Tracer{Spans: c.Tracer, Propagate: c.PropagateTrace, Upstream: c.Upstream, TrustedProxies: c.TrustedProxies}
	return g
}

// ServeHTTP handles one client request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ex := g.open(w, r)
	defer g.finish(ex)

	var q *question
	err := g.throttle(ex)
	if err == nil {
		err = g.screen.Check(ex.in)
	}
	if err == nil && ex.body == nil && cors.IsPreflight(ex.in) {
		g.answerPreflight(ex)
		return
	}
	if err == nil {
		q, err = g.ask(ex)
	}
	if err == nil && ex.body != nil && !ex.forwardsBody() {
		err = ex.discardBody()
	}
	if err != nil {
		g.refuse(ex, err)
		return
	}
	a := g.newAttempt(ex, q)
	if q.match.Operation.ID == rateLimitOperation && g.answerFromLedger(a) || g.answerFromCache(a) {
		return
	}
	if other := g.chooseByBudget(a); other != a { // the cache may have an entry for another credential
		if a = other; g.answerFromCache(a) {
			return
		}
	}

	// The request must wait for the upstream or for a coalesced call. An overloaded gateway forwards no requests, but
	// may serve stale responses.
	if ex.shed = g.shed(a.caller.Priority); ex.shed == nil {
		defer g.Shedder.Leave()
		if err := g.bufferSmallBody(ex); err != nil {
			g.refuse(ex, err)
			return
		}
	}
	if ex.body != nil && (ex.shed != nil || !ex.forwardsBody()) {
		ex.w.Closes = true // net/http or another program could parse bytes of the body as the next request
	}
	g.forward(a)
}

// answerPreflight permits a request of a browser.
func (g *Gateway) answerPreflight(ex *exchange) {
	ex.record.Cache = record.CacheStatus{Detail: "preflight", Own: true}
	h := ex.w.Header()
	cors.Allow(h, g.exposed)
	cors.Permit(h, ex.in.Header)
	g.setWeirHeaders(ex, http.StatusNoContent, h)
	ex.w.WriteHeader(http.StatusNoContent)
}
