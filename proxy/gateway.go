// Package proxy forwards API requests from clients to one upstream, through the cache and the limits. Package policy
// describes the operations of the upstream.
//
// [Gateway.ServeHTTP] is the entry point. Four values carry a request:
//   - the exchange is the client's side, and is never copied
//   - the question is the upstream request, and is immutable; another credential makes another question
//   - an attempt answers a question from the cache or with requests upstream, and ends with its result
//   - the [Record] describes the request, and is handed to Config.Observe once
//
// A hit makes these calls, which TestCallGraph follows:
//
//	ServeHTTP               gateway.go
//	  open                  exchange.go
//	  traceRequest          trace.go
//	  throttle              exchange.go
//	  screen                exchange.go
//	  ask                   question.go
//	    requestTagOf        question.go
//	    parse               question.go
//	    lendFor             question.go
//	    chooseCredential    question.go
//	    setCredential       question.go
//	      outbound          question.go
//	      setKey            question.go
//	        keyWithoutClass question.go
//	      unifyHeader       question.go
//	    authorize           question.go
//	      checkToken        question.go
//	  newAttempt            attempt.go
//	  answerFromLedger      ratelimit.go
//	  answerFromCache       attempt.go
//	    usableEntry         attempt.go
//	      lookup            attempt.go
//	        isCurrent       attempt.go
//	      isHit             attempt.go
//	    replyFromEntry      reply.go
//	      hitStatus         reply.go
//	      adopt             attempt.go
//	      copyEntryHeader   reply.go
//	      storedContent     reply.go
//	      finishHeader      reply.go
//	        localize        reply.go
//	        setWeirHeaders  reply.go
//	  finish                gateway.go
//	    conclude            gateway.go
//	      maskedPath        gateway.go
//	      targetHash        gateway.go
//	    endTrace            trace.go
//	    Observe             gateway.go
//
// A miss makes these calls after answerFromCache:
//
//	ServeHTTP                 gateway.go
//	  chooseByBudget          attempt.go
//	  shed                    exchange.go
//	  bufferSmallBody         exchange.go
//	  forward                 forward.go
//	    checkOwn              forward.go
//	    answerWithAny         forward.go
//	      answer              coalesce.go
//	        coalesce          coalesce.go
//	          join            coalesce.go
//	          startCall       coalesce.go
//	            lead          coalesce.go
//	              fetchForFleet coalesce.go
//	                fetch     fetch.go
//	                  send    upstream.go
//	                  store   fetch.go
//	    encode                reply.go
//	    finishHeader          reply.go
//	send                      upstream.go
//	  beginToken              upstream.go
//	  makeReady               upstream.go
//	    awaitCredential       upstream.go
//	    queue                 upstream.go
//	    prepare               upstream.go
//	      sendCredential      upstream.go
//	      setConditions       proof.go
//	  roundTrip               transport.go
//	    recognizeLimit        transport.go
//	  settle                  upstream.go
//	  learnIdentity           upstream.go
//	  observeUpstream         upstream.go
//	  endCredentialUse        upstream.go
//	  observeToken            upstream.go
//	  readAhead               bodies.go
//
// A revalidation makes these calls after send:
//
//	fetch            fetch.go
//	  notModified    proof.go
//	    confirmed    proof.go
//	    updateStored proof.go
//
// refusal.go writes all error bodies.
//
// Invariants:
//   - The cache key is made from the same question that is sent.
//   - No request is sent upstream without a permit, and every permit is settled.
//   - A response reaches another client only through the cache, under the key of that client's security class.
//   - The table in policy/fields.yaml decides for all requests which fields are forwarded.
//   - Every forwarded request field that may change a response is part of the cache key.
//   - The credential is set last and is sent to the upstream only. A request with a key of this gateway in its target or
//     in a forwarded field is refused instead of forwarded. A stored response may answer it, because a hit sends nothing.
package proxy

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/time/rate"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/inbound"
	"github.com/weirgate/weir/proxy/learned"
	"github.com/weirgate/weir/proxy/names"
	"github.com/weirgate/weir/proxy/secrets"
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
	// Identify returns the caller of a request. The errors include ErrUnauthenticated and ErrIdentityUnavailable.
	Identify func(*http.Request) (Identity, error)
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
	// Transport sends one request; see [NewTransport].
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
	Observe func(*Record)
	Log     *slog.Logger
}

// Gateway is the handler for API requests and is safe for concurrent use.
type Gateway struct {
	Config
	*upstream
	etagWarning rate.Sometimes // limits the warnings about computed ETags
	names       names.List     // Upstream and Aliases
	nameWarning rate.Sometimes // limits the warnings about other names to one
	tokens      *learned.ClientTokens
	shown       repositoryNames
	base        string   // the upstream's URL in cache keys
	via         []string // the Via value that is added to requests
	exposed     string   // value of Access-Control-Expose-Headers
	// covered are the request fields that a Vary field may name without creating a variant. The cache key contains the
	// field or the security class, or the gateway sends a fixed value (Accept-Encoding).
	covered      []string
	versionField string // the dialect's version header in canonical form
	reverse      httputil.ReverseProxy
}

// New returns a gateway.
func New(c Config) *Gateway {
	g := &Gateway{Config: c, base: c.Upstream.String()}
	g.Resources = cmp.Or(c.Resources, &learned.Resources{})
	g.Identities = cmp.Or(c.Identities, &learned.Identities{})
	g.tokens = cmp.Or(c.Tokens, &learned.ClientTokens{})
	g.via = []string{"1.1 weir-" + cmp.Or(c.Instance, rand.Text())}
	if c.Background == nil {
		g.Background = NewBackground()
	}
	g.upstream = g.Background.upstream(g.base)
	g.etagWarning.Interval = time.Hour
	g.names, g.nameWarning.First = append(names.List{c.Upstream}, c.Aliases...), 1
	g.reverse = httputil.ReverseProxy{BufferPool: &bufferPool{}, ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug)}
	g.covered = append([]string{"Accept", "Accept-Encoding", c.Dialect.VersionHeader}, c.Dialect.VaryByCredential...)
	g.versionField = http.CanonicalHeaderKey(c.Dialect.VersionHeader)
	g.exposed = strings.Join(slices.Concat([]string{exposedFields, c.Dialect.RequestID}, c.Dialect.Describe), ", ")
	if g.Tracer == nil {
		g.Tracer = noop.Tracer{}
	}
	return g
}

// ServeHTTP handles one client request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ex := g.open(w, r)
	g.traceRequest(ex)
	defer g.finish(ex)

	var q *question
	err := g.throttle(ex)
	if err == nil {
		err = g.screen(ex.in)
	}
	if err == nil && ex.isPreflight() {
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
	if g.answerFromLedger(a) || g.answerFromCache(a) {
		return
	}
	if other := g.chooseByBudget(a); other != a { // the cache may have an entry for another credential
		if a = other; g.answerFromCache(a) {
			return
		}
	}

	// The request must wait for the upstream or for a coalesced call. An overloaded gateway forwards no requests, but
	// may serve stale responses.
	if ex.shed = g.shed(a.identity.Caller.Priority); ex.shed == nil {
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

// finish completes and traces the record of the exchange, and calls Observe. After a panic, finish ends the permits of the
// exchange, and responds with
// 500 if no response has begun. Otherwise finish panics with [http.ErrAbortHandler], so that the client sees an
// incomplete response. An exchange without a response ends in the same way, because net/http would respond with 200.
func (g *Gateway) finish(ex *exchange) {
	p := recover()
	defer ex.body.Detach()
	defer ex.buffered.Release()
	defer inbound.LimitEnd(ex.w.ResponseWriter)
	if ex.counted != notCounted {
		defer func() {
			if ex.body == nil { // net/http resets a stream with an unread body
				ex.w.FlushShort(ex.in)
			}
			g.leave(ex)
		}()
	}
	switch {
	case p == nil:
	case ex.answer != nil:
		_ = ex.answer.Close()
	default:
		ex.permitted.abandon()
	}
	if err, _ := p.(error); p != nil && !errors.Is(err, http.ErrAbortHandler) {
		g.Log.ErrorContext(ex.detach(), "panic in a request", "request", ex.record.ID, "panic", p, "stack", string(debug.Stack()))
		if ex.w.Status == 0 {
			g.refuse(ex, &failure{status: http.StatusInternalServerError, message: "Internal Server Error"})
			p = nil
		}
	}
	ex.record.Status, ex.record.Bytes = ex.w.Status, ex.w.Bytes
	ex.record.Elapsed = time.Since(ex.record.Start)
	if p != nil || errors.Is(context.Cause(ex.in.Context()), context.Canceled) && ex.w.Status == 0 {
		ex.record.Status = statusClientGone
		if ex.broken {
			ex.record.Status = http.StatusBadGateway // the record has 502, although the client got another status
		}
	}
	g.conclude(ex)
	g.endTrace(ex)
	if g.Observe != nil {
		g.Observe(ex.record)
	}
	if (p != nil || ex.w.Status == 0) && !ex.record.Background { // a background task has no client
		ex.w.ShowAbort(ex.in, ex.broken)
		panic(http.ErrAbortHandler)
	}
}

// statusClientGone is the recorded status if the client disconnected before the end of the response.
const statusClientGone = 499

// conclude sets the fields that describe the result and the target at the end of the request.
func (g *Gateway) conclude(ex *exchange) {
	r := ex.record
	if ex.lateLimit != nil {
		e, failure := ex.lateLimit.result()
		r.QueryFailure = failure
		if e.Kind != limits.NotLimited {
			r.Limited, r.LimitAnswer = e.Kind, e.Name
			for i, s := range slices.Backward(r.Stages) {
				if s.Name == StageRequest {
					r.Stages[i].Limited = e.Kind
					break
				}
			}
		}
	}
	r.Account = g.Ledger.Canonical(r.Account)
	r.Outcome = r.Cache.Outcome()
	r.Path, r.Target = ex.maskedPath(), ex.question.targetHash()
	switch q := ex.question; {
	case q == nil, r.Background, r.Spent > 0, r.Status == statusClientGone, r.Operation == rateLimitOperation:
	case r.Status == http.StatusNotModified && q.identity.Caller.Kind != policy.Unauthenticated:
		// An authenticated 304 costs no quota at the upstream either.
	default:
		r.Saved = r.Outcome != OutcomeRefused && r.Outcome != OutcomeBypass && r.Outcome != OutcomeMiss
	}
}

// maskedPath returns the path for records and traces, without segments that may contain a secret. For an unknown operation,
// maskedPath returns the route.
func (ex *exchange) maskedPath() string {
	if ex.question == nil || !ex.question.match.Operation.Known() {
		return ex.record.Route
	}
	return secrets.MaskPath(ex.question.match.Path, ex.in.Header)
}

// targetHash returns a hash that identifies the target of a request, with its query and with a GraphQL query and its
// variables. Two requests with the same hash and the same caller are the same question. The hash is empty for a GraphQL
// call that cannot share a response, such as a mutation.
func (q *question) targetHash() string {
	switch {
	case q == nil, q.graphQL != nil && q.graphQL.Question == "":
		return ""
	case q.graphQL != nil:
		return hexOf(cache.NewKey(q.match.Path, q.match.Query, q.graphQL.Question))
	}
	return hexOf(cache.NewKey(q.match.Path, q.match.Query))
}

func hexOf(key cache.Key) string { return hex.EncodeToString(key[:8]) }
