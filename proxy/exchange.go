package proxy

import (
	"context"
	"crypto/rand"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/inbound"
)

// question is what is asked of the upstream. It is immutable once classify has
// built it, and holds nothing by which a client could be reached.
type question struct {
	identity Identity
	match    policy.Match
	method   string
	// header is what is sent, without the credential.
	header http.Header
	// key is set when the answer may come from, or go to, the cache.
	key       cache.Key
	cacheable bool
	// part is set when a part is asked for: it may come from a whole answer that is
	// kept, and never goes to the cache.
	ranged       bool
	rule         cache.Rule
	cacheControl cache.Directives // the client's Cache-Control
	route        string           // route for logs and metrics, bounded
	// operation is the catalogue's as the body makes it, scope what its points
	// are counted by.
	operation  *policy.Operation
	claimScope string
}

// exchange is one client's request. One goroutine writes it: the one that
// serves the request.
type exchange struct {
	question
	w            *recorder
	in           *http.Request
	body         *inbound.Body // of in; nil without a body
	taken        *takenBody    // what was read of it; nil before
	start        time.Time
	waitingSince time.Time // when its client began to wait: it had nothing more to send
	prefix       string    // by which the client came: "" or "/api/v3"
	prefer       preference
	// stale is what the cache holds but may not give away unasked.
	stale *cache.Entry
	// spare is stale, where it may be given away when nothing better is to be had.
	fallback *cache.Entry
	sent     time.Time // when the last wire attempt began
	reused   bool      // over a connection that had been used before
	// shed is set when too many wait already.
	shed error
	// broken is set when the upstream broke off an answer that had begun.
	broken bool
	// offers are what the upstream was asked to validate; unconditional is set once it has
	// answered 304, and that was no proof.
	offers        []offer
	unconditional bool
	// hasAlternative is set while another credential of the client's could be asked in place of
	// waiting for this one; tried are the classes of those that have been.
	hasAlternative bool
	tried          []string
	// denial is what the cache holds for who pays, where another of the client's credentials
	// may see more.
	denial *cache.Entry
	// flight is set when the question is asked for others, too.
	call  *flight
	polls int // how often the answer was still computed
	apart int // how many flights it did not wait for
	// limited is whether the last answer was a limit error.
	limited limits.LimitKind
	record  Record
	// interim passes on an answer that is not the last one (1xx).
	interim func(int, textproto.MIMEHeader) error
	// forever is the request's context without its end; nil before something is sent.
	detached context.Context
	span     trace.Span // nil where no trace is kept
}

func newRequestID() string { return rand.Text() }

// methodLabel bounds what a method can be in logs and metrics.
func methodLabel(method string) string {
	switch method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE":
		return method
	}
	return "_OTHER"
}

// classify builds the question (journey, step 3).
func (g *Gateway) classify(ex *exchange) error {
	path := ex.in.URL.EscapedPath()
	switch rest, ok := strings.CutPrefix(path, enterprisePrefix); {
	case ok && strings.HasPrefix(rest, "/"):
		ex.prefix, path = enterprisePrefix, rest
	case path == "/api/graphql":
		path = "/graphql"
	}
	match, err := g.Catalogue.Classify(ex.in.Method, path, ex.in.URL.RawQuery)
	if err != nil {
		return err
	}
	ex.match, ex.method = match, ex.in.Method
	ex.cacheControl = cache.ParseDirectives(ex.in.Header["Cache-Control"])
	if ex.route = otherRoute; match.Operation.Known() || !ex.isSecret(match.Operation.Path) {
		ex.route = g.routes.label(match.Operation)
	}
	ex.claimScope = match.Operation.ID
	if !match.Operation.Known() {
		ex.claimScope = match.Operation.Method + " " + ex.route
	}
	if ex.operation, err = g.price(ex); err != nil {
		return err
	}
	ex.record.Route, ex.record.Operation, ex.record.Resource = ex.route, match.Operation.ID, match.Operation.Resource
	g.firstPayer(ex)
	return nil
}

// price is what the call costs. Where the body decides, it is read: one that is not
// read to its end is taken for a mutation.
func (g *Gateway) price(ex *exchange) (*policy.Operation, error) {
	op := ex.match.Operation
	if op.Resource != policy.GraphQL {
		return op, nil
	}
	if ex.body == nil {
		return op.ForBody(nil), nil
	}
	whole, err := g.take(ex)
	if err != nil {
		return nil, err
	}
	return op.ForBody(whole), nil
}

// keyed decides whether the cache has a part in this question, and gives it
// its key, its rule and its tags.
func (g *Gateway) keyed(ex *exchange) {
	op := ex.match.Operation
	safe := ex.method == http.MethodGet || ex.method == http.MethodHead
	if !safe || op.Cache.Class == policy.Never || ex.cacheControl.Has("no-store") || isForOrigin(ex.in.Header) {
		return
	}
	ex.ranged = len(ex.in.Header["Range"]) > 0 && ex.method == http.MethodGet
	class := ex.identity.Caller.Class
	if op.Cache.Class == policy.Shared {
		class = string(policy.Shared)
	}
	ex.cacheable = !ex.ranged
	ex.key = g.keyOf(&ex.question, class)
	anonymous := ex.identity.Caller.Kind == policy.Unauthenticated
	ex.rule = cache.Rule{OneCaller: !anonymous, Heuristic: anonymous && !op.Known()}
	if op.Cache.Class == policy.Shared {
		ex.rule.TTL = op.Cache.TTL
	}
	if op.Cache.Class == policy.Statistics {
		ex.rule.DefaultLifetime = statisticsKept
	}
	if ex.cacheable {
		// One representation for everyone: the key need not know Accept-Encoding.
		ex.header["Accept-Encoding"] = identity
		if len(g.Dialect.ETag) > 0 {
			// The upstream writes for people what browsers and such ask for, behind an ETag of
			// what it writes for programs.
			ex.header["User-Agent"] = agents
			if op.Known() && g.Dialect.Accept(ex.header["Accept"]) == "" {
				ex.header.Set("Accept", g.Dialect.MediaType()) // one spelling, and one ETag
			}
		}
	}
}

// keyOf names the question as callers of a class ask it.
func (g *Gateway) keyOf(q *question, class string) cache.Key {
	accept := strings.Join(q.header["Accept"], ",")
	if q.match.Operation.Known() {
		accept = g.Dialect.Accept(q.header["Accept"])
	}
	var room [8]string
	parts := append(room[:0], g.base, q.match.Path, q.match.Query, accept, class)
	for _, name := range g.forwarded {
		parts = append(parts, strings.Join(q.header[name], ","))
	}
	return cache.NewKey(parts...)
}

// isForOrigin reports whether a request sets a condition that only the origin can
// judge (RFC 9110 section 13.2.1).
func isForOrigin(h http.Header) bool {
	for _, name := range []string{"If-Match", "If-Unmodified-Since"} {
		if len(h[name]) > 0 {
			return true
		}
	}
	return false
}

// preflight answers what must fail by the documents' own words (journey, step
// 4; design section 6.3).
func (g *Gateway) preflight(ex *exchange) error {
	if f := ex.match.Preflight(ex.identity.Caller.Kind); f != nil {
		return &failure{status: f.Status, finding: f, message: f.Message, detail: f.Check}
	}
	return nil
}

// address turns what ReverseProxy has cloned from the client's request into
// the question: URL, header and no more.
func (g *Gateway) address(ex *exchange, p *httputil.ProxyRequest) {
	out := p.Out
	out.URL, out.Host = g.target(ex.match), ""
	out.Header = maps.Clone(ex.header) // the credential comes when it is let go
	if ex.method == http.MethodGet || ex.method == http.MethodHead {
		out.Body, out.ContentLength, out.TransferEncoding = nil, 0, nil
		return
	}
	// The server fills in the values when the body has ended.
	out.Trailer = p.In.Trailer
}

// preference is what a Prefer field asks for (RFC 7240): how long the client
// lets Weir wait.
type preference struct {
	wait    time.Duration
	given   bool
	applied string // for Preference-Applied
}

// maxPreferWait bounds what a client can ask for.
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

// until is the end of a wait that lasts for byDefault unless the client says.
func (ex *exchange) until(byDefault time.Duration) time.Time {
	if ex.prefer.given {
		byDefault = ex.prefer.wait
	}
	return ex.waitingSince.Add(byDefault)
}

// brokenOff notes that the upstream broke off an answer that had begun: it is kept
// nowhere.
func (ex *exchange) brokenOff(err error) {
	ex.broken, ex.record.Error = true, "the answer broke off: "+err.Error()
	ex.record.Cache, _, _ = strings.Cut(ex.record.Cache, "; stored")
}

// maxRoutes bounds how many unknown routes become labels of logs and metrics.
const maxRoutes = 200

// otherRoute is the label of all other routes.
const otherRoute = "_OTHER"

// routeLabels bounds the labels that requests for unknown routes can create.
type routeLabels struct {
	mu   sync.RWMutex
	seen map[string]bool
}

// label returns the operation's route for logs and metrics.
func (l *routeLabels) label(op *policy.Operation) string {
	if op.Known() {
		return op.Path
	}
	l.mu.RLock()
	seen, n := l.seen[op.Path], len(l.seen)
	l.mu.RUnlock()
	if seen {
		return op.Path
	}
	if n >= maxRoutes {
		return otherRoute
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = map[string]bool{}
	}
	if len(l.seen) < maxRoutes {
		l.seen[op.Path] = true
	}
	if !l.seen[op.Path] {
		return otherRoute
	}
	return op.Path
}
