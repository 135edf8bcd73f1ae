package proxy

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/bodies"
	"github.com/weirgate/weir/proxy/fields"
	"github.com/weirgate/weir/proxy/refusal"
	"github.com/weirgate/weir/proxy/spool"
)

// chooseByBudget chooses the credential again before a request is forwarded, with regard to budgets. It returns the attempt with
// that credential.
func (g *Gateway) chooseByBudget(a *attempt) *attempt {
	if a.identity.Pool == nil {
		return a
	}
	identity := a.identity.Pool.Pick(g.budgetedRequest(a.question, nil), time.Now())
	if identity == nil || identity.Class == a.caller.Class {
		return a
	}
	return g.newAttempt(a.exchange, g.withCredential(a.exchange, a.question, identity))
}

// shed refuses a request if too many requests wait. If the result is nil, Shedder.Leave must be called after the wait.
func (g *Gateway) shed(p policy.Priority) error {
	if g.Shedder.Enter(p) {
		return nil
	}
	return &refusal.Error{
		Status: http.StatusServiceUnavailable, Detail: "overload", RetryAfter: refusal.UnknownRetry,
		Message: "Service Unavailable: too many requests wait in this gateway",
	}
}

// maxUploadBuffer bounds the bytes of a request body that are buffered before a permit is requested.
const maxUploadBuffer = 1 << 20

// bufferSmallBody reads a small request body before a permit is requested, so that a slow client holds neither a
// concurrency slot nor an upstream connection. Larger bodies are streamed. The queue time of the request starts after
// the read.
func (g *Gateway) bufferSmallBody(ex *exchange) error {
	if !ex.forwardsBody() || ex.in.ContentLength > maxUploadBuffer || ex.buffered != nil {
		return nil
	}
	if len(ex.in.Header["Expect"]) > 0 {
		return nil // the upstream decides whether to accept the body (RFC 9110 section 10.1.1)
	}
	_, err := g.bufferBody(ex)
	return err
}

// bufferBody reads the request body until its end, maxUploadBuffer or the memory budget. The bytes remain readable for
// the transport. A complete body is returned, otherwise nil.
func (g *Gateway) bufferBody(ex *exchange) (complete []byte, err error) {
	ex.buffered = spool.NewBuffer(&g.Background.buffers)
	chunk := make([]byte, 4<<10) // a client may send slowly
	for more := true; err == nil && more; {
		var n int
		n, err = ex.in.Body.Read(chunk)
		more = ex.buffered.Append(chunk[:n]) && len(ex.buffered.Data) <= maxUploadBuffer
	}
	ex.in.Body = bodies.Rejoin(ex.buffered.Data, err, ex.in.Body)
	ex.waitingSince = time.Now()
	switch {
	case errors.Is(err, io.EOF):
		ex.wholeBody = true
		return ex.buffered.Data, nil
	case err != nil:
		return nil, ex.bodyFault(err)
	}
	return nil, nil
}

// forward sends the question through an [httputil.ReverseProxy]. The hooks are closures over the attempt, so neither
// shared structures nor a context contain state of the request.
func (g *Gateway) forward(a *attempt) {
	ex := a.exchange
	a.publish()
	if err := g.checkOwn(a); err != nil {
		g.refuse(ex, err)
		return
	}
	if ex.body != nil {
		// The transport may still read the request body after the start of the response. Without full duplex, net/http
		// would close that body, and the response would be truncated. HTTP/2 is always full duplex and returns an error
		// here.
		_ = http.NewResponseController(&ex.w).EnableFullDuplex()
	}
	reverse := g.reverse
	reverse.Rewrite = func(p *httputil.ProxyRequest) {
		out := p.Out
		*out.URL, out.Host = g.urls.Target(a.match), ""
		out.Header = a.sentHeader() // prepare sets the credential after the permit
		if a.method == http.MethodGet || a.method == http.MethodHead {
			out.Body, out.ContentLength, out.TransferEncoding = nil, 0, nil
			return
		}
		out.Trailer = nil
		g.addTrailers(ex, out)
	}
	reverse.Transport = roundTripper(func(out *http.Request) (*http.Response, error) {
		if ex.pass = passNothing; ex.in.ProtoAtLeast(1, 1) { // RFC 9110 section 15.2
			ex.pass = httptrace.ContextClientTrace(out.Context()).Got1xxResponse
		}
		var resp *http.Response
		var err error
		if ex.shed != nil {
			resp, err = g.staleOr(a, ex.shed)
		} else {
			a, resp, err = g.answerWithAny(a, out)
		}
		a.publish()
		if err == nil {
			ex.answer = resp.Body
		}
		return resp, err
	})
	reverse.ModifyResponse = func(resp *http.Response) error {
		a.encode(resp)
		if fields.FilterResponse(a.match.Operation, g.Dialect.Vendor, resp.Trailer); len(resp.Trailer) > 0 {
			resp.Header.Del("Content-Length") // HTTP/1.1 needs chunks for trailers
		}
		h := ex.w.Header()
		maps.Copy(h, resp.Header)
		resp.Header = nil // the ReverseProxy would copy the header again
		g.finishHeader(ex, resp.StatusCode, h)
		resp.Body = &forwardedBody{resp.Body, g, a, resp}
		return nil
	}
	reverse.ErrorHandler = func(_ http.ResponseWriter, _ *http.Request, err error) { g.refuse(ex, ex.bodyFault(err)) }
	bare := *ex.in
	bare.Header = nil // Rewrite sets the fields, so the ReverseProxy need not copy them
	reverse.ServeHTTP(&ex.w, &bare)
}

// passNothing passes no 1xx response.
func passNothing(int, textproto.MIMEHeader) error { return nil }

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// encode applies a content coding to a response that the upstream sent in identity form. A stored response is encoded
// already, unless its packed form has no coding that the client accepts.
func (a *attempt) encode(resp *http.Response) {
	if !a.identityAsked {
		return
	}
	length := resp.ContentLength
	if resp.StatusCode == http.StatusNotModified || resp.StatusCode == http.StatusPartialContent {
		length = -1 // the length of the complete content is unknown
	}
	c := a.selectCoding(resp.StatusCode, resp.Header, length)
	if c == nil {
		return
	}
	resp.ContentLength = -1 // the ReverseProxy then flushes each write
	if a.method != http.MethodHead {
		resp.Body = c.Reader(resp.Body)
	}
}

// checkOwn refuses a request that would send a key or a token for this gateway upstream. It checks the forwarded fields, the
// path and the query, and the fields for credentials: their client expects that they arrive.
func (g *Gateway) checkOwn(a *attempt) error {
	if g.HoldsOwn == nil {
		return nil
	}
	holds := func(text string) bool { return g.holdsOwn(a.exchange, text) }
	if refusal := g.findOwn(a.exchange, a.Header, "the field "); refusal != nil {
		return refusal
	}
	if refusal := g.findOwn(a.exchange, a.Credentials, "the field "); refusal != nil {
		return refusal
	}
	for parameter := range strings.SplitSeq(a.match.Query, "&") {
		name, value, _ := strings.Cut(parameter, "=")
		switch {
		case holds(name):
			return ownRefusal("the name of a query parameter")
		case holds(value):
			return ownRefusal("the query parameter " + name)
		}
	}
	for segment := range strings.SplitSeq(a.match.Path, "/") {
		if holds(segment) {
			return ownRefusal("the path")
		}
	}
	return nil
}

// findOwn returns the refusal for a key or a token for this gateway in fields or trailers, or nil.
func (g *Gateway) findOwn(ex *exchange, fields http.Header, kind string) *refusal.Error {
	for name, values := range fields {
		if name == "Via" { // the last value is that of the gateway
			values = values[:len(values)-1]
		}
		if slices.ContainsFunc(values, func(value string) bool { return g.holdsOwn(ex, value) }) {
			return ownRefusal(kind + name)
		}
	}
	return nil
}

// minOwn is the length of the shortest text that can contain a key or a token for this gateway.
const minOwn = 20

// holdsOwn reports whether a text of a request contains a key or a token for this gateway.
func (g *Gateway) holdsOwn(ex *exchange, text string) bool {
	return g.HoldsOwn != nil && len(text) >= minOwn && g.HoldsOwn(ex.in, text)
}

// ownRefusal refuses a request that would send a key or a token for this gateway upstream.
func ownRefusal(place string) *refusal.Error {
	return &refusal.Error{
		Status: http.StatusBadRequest, Detail: "key",
		Message: "Bad Request: " + place + " has a key or a token for this gateway, which must not reach the API; send it only in Authorization",
	}
}

// addTrailers forwards the trailers of a request with a body that have no row in the table. In trailers the fields with a row have
// no meaning (RFC 9110 section 6.5.1). The values are known at the end of the body.
func (g *Gateway) addTrailers(ex *exchange, out *http.Request) {
	connection := cache.ConnectionFields(ex.in.Header)
	for name := range ex.in.Trailer {
		if rule, _ := policy.RequestField(name); rule == policy.FieldKeyed && !connection[name] {
			if out.Trailer == nil {
				out.Trailer = http.Header{}
			}
			out.Trailer[name] = nil
		}
	}
	if out.Trailer != nil {
		out.Body = &trailedBody{ReadCloser: out.Body, g: g, ex: ex, out: out.Trailer}
	}
}

// trailedBody is a request body that sets the forwarded trailers at its end.
type trailedBody struct {
	io.ReadCloser
	g   *Gateway
	ex  *exchange
	out http.Header
}

func (b *trailedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != io.EOF {
		return n, err
	}
	for name := range b.out {
		b.out[name] = b.ex.in.Trailer[name]
	}
	if refusal := b.g.findOwn(b.ex, b.out, "the trailer "); refusal != nil {
		return n, refusal
	}
	return n, err
}

// answerWithAny gets the response with one of the client's credentials, starting with the chosen credential. Each credential
// is tried once. The credential with the earliest end of its limit is then tried again, as long as the client waits.
// The returned attempt is the one whose response or error the client gets.
//
// An unsafe request is repeated only if the request was not sent, or has no body and got 401.
func (g *Gateway) answerWithAny(a *attempt, out *http.Request) (*attempt, *http.Response, error) {
	pool := a.identity.Pool
	if pool == nil || a.record.Background {
		resp, err := g.answer(a, out)
		return a, resp, err
	}
	var before earlierAttempts
	for {
		t := g.answerWith(a, out, &before)
		v := t.verdict(before.rejected)
		if v == verdictFinal {
			return before.use(t)
		}
		before.add(t, v)
		request := g.budgetedRequest(a.question, before.classes)
		request.Limited = v == verdictLimited
		next := pool.Pick(request, time.Now())
		if v == verdictRejected && t.resp != nil && (next != nil || len(before.limited)+len(before.hidden) > 0) {
			bodies.Discard(t.resp.Body)
		}
		if next == nil {
			return g.lastAttempt(t, out, before)
		}
		a = g.newAttempt(a.exchange, g.withCredential(a.exchange, a.question, next))
	}
}

// answered is an attempt with its response or its error.
type answered struct {
	*attempt
	resp    *http.Response // nil with an error
	err     error
	refusal *limits.Refusal // set if the limiter refused a permit
}

// newAnswered returns an attempt with its response or its error.
func newAnswered(a *attempt, resp *http.Response, err error) answered {
	t := answered{attempt: a, resp: resp, err: err}
	_ = errors.As(err, &t.refusal) // stays nil for other errors
	return t
}

// verdict classifies an attempt with one of several credentials: final, or the reason to try another credential.
type verdict int

const (
	verdictFinal    verdict = iota
	verdictLimited          // the credential is at a limit
	verdictHidden           // the credential may lack access: 403 or 404
	verdictRejected         // the upstream does not accept the credential
)

// earlierAttempts contains the attempts that are not final.
type earlierAttempts struct {
	classes         []string // security classes of the credentials that were tried
	limited, hidden []answered
	// rejected is set after the upstream has rejected a credential. A second rejection is final.
	rejected bool
}

// answerWith makes one attempt with the credential of its question.
func (g *Gateway) answerWith(a *attempt, out *http.Request, before *earlierAttempts) answered {
	first := len(before.classes) == 0
	before.classes = append(before.classes, a.caller.Class)
	more := a.identity.Pool.Pick(a.credentialRequest(before.classes), time.Now()) != nil
	a.hasAlternative = more || len(before.limited) > 0 || len(before.hidden) > 0
	var resp *http.Response
	var err error
	switch {
	case !first:
		resp, err = g.answerAgain(a, out) //nolint:bodyclose // answerWithAny returns or discards the response
	case a.hidden != nil:
		resp = g.useHit(a, a.hidden) //nolint:bodyclose // as above
	default:
		resp, err = g.answer(a, out) //nolint:bodyclose // as above
	}
	return newAnswered(a, resp, err)
}

// answerAgain gets the response with another credential, from the cache or from the upstream.
func (g *Gateway) answerAgain(a *attempt, out *http.Request) (*http.Response, error) {
	if e := g.usableEntry(a); e != nil {
		return g.useHit(a, e), nil
	}
	out = out.Clone(a.ctx)
	out.Header = a.sentHeader()
	return g.answer(a, out)
}

// useHit returns a stored response as the result of an attempt.
func (g *Gateway) useHit(a *attempt, e *cache.Entry) *http.Response {
	now := time.Now()
	a.result.cache = g.hitStatus(a, e, now)
	return g.entryResponse(a, e, now)
}

func (t answered) verdict(rejectedBefore bool) verdict {
	safe := t.match.Operation.Safe()
	var unusable *policy.UnusableError
	switch {
	case errors.As(t.err, &unusable):
		return verdictRejected
	case t.refusal != nil && t.hasAlternative:
		return verdictLimited
	case t.err != nil:
		return verdictFinal
	case t.result.limited != policy.NotLimited:
		if safe && t.hasAlternative {
			return verdictLimited
		}
	case t.resp.StatusCode == http.StatusUnauthorized:
		if (safe || t.in.ContentLength == 0) && !rejectedBefore {
			return verdictRejected
		}
	case t.mayBeHidden(t.resp.StatusCode):
		return verdictHidden
	}
	return verdictFinal
}

// add records an attempt. The first hidden response is kept, and other responses are discarded.
func (f *earlierAttempts) add(t answered, v verdict) {
	switch v {
	case verdictLimited:
		f.limited = append(f.limited, t)
		if t.resp != nil {
			bodies.Discard(t.resp.Body)
		}
	case verdictHidden:
		if len(f.hidden) == 0 {
			holdBack(t.resp)
		} else {
			bodies.Discard(t.resp.Body)
		}
		f.hidden = append(f.hidden, t)
	case verdictRejected:
		f.rejected = f.rejected || t.resp != nil
	}
}

// maxHeldBack bounds the part of a response that is buffered while other credentials are tried.
const maxHeldBack = 256 << 10

// holdBack buffers a response, so that its concurrency slot is released while other credentials are tried. The end of a
// response over maxHeldBack is lost if the upstream closes the connection.
func holdBack(resp *http.Response) {
	_, _ = bodies.Peek(resp, maxHeldBack) // an error follows the body again
}

// use returns an attempt for the client. A success shows that the credentials with a hidden response lack access. The first
// hidden response replaces an error, unless a credential is at a limit.
func (f *earlierAttempts) use(t answered) (*attempt, *http.Response, error) {
	success := t.err == nil && t.resp.StatusCode < http.StatusBadRequest
	hidden := f.hidden
	if !success && len(hidden) > 0 && len(f.limited) == 0 {
		if t.resp != nil {
			bodies.Discard(t.resp.Body)
		}
		t, hidden = hidden[0], hidden[1:]
	}
	for _, h := range hidden {
		if success {
			h.reportHidden(f.classes, true)
		}
		bodies.Discard(h.resp.Body)
	}
	return t.attempt, t.resp, t.err
}

// lastAttempt returns the attempt for the client after no credential had a final response. If a credential was rate-limited,
// it is tried again, because only this credential may be able to see the resource.
func (g *Gateway) lastAttempt(last answered, out *http.Request, before earlierAttempts) (*attempt, *http.Response, error) {
	if len(before.limited) > 0 {
		q := soonest(before.limited).question
		a := g.newAttempt(last.exchange, g.withCredential(last.exchange, q, q.identity)) // the upstream may have named another resource
		resp, err := g.answerAgain(a, out)
		return before.use(newAnswered(a, resp, err))
	}
	for _, h := range before.hidden {
		h.reportHidden(before.classes, false)
	}
	if len(before.hidden) > 0 {
		last = before.hidden[0]
	}
	return last.attempt, last.resp, last.err
}

// reportHidden reports that the credential of an attempt got 403 or 404. visible means that another credential of the client
// got a better response.
func (t answered) reportHidden(classes []string, visible bool) {
	if !t.unclear {
		t.identity.Pool.OnHidden(t.caller.Class, t.credentialRequest(classes), t.resp.StatusCode, visible, time.Now())
	}
}

// soonest returns the attempt whose limit ends first, as far as known.
func soonest(list []answered) answered {
	best := list[0]
	for _, t := range list[1:] {
		if t.refusal != nil && (best.refusal == nil || t.refusal.Until.Before(best.refusal.Until)) {
			best = t
		}
	}
	return best
}

// forwardedBody filters the trailers of the upstream's body, and records its error. A disconnect of the client is not recorded.
type forwardedBody struct {
	io.ReadCloser
	g    *Gateway
	a    *attempt
	resp *http.Response
}

func (b *forwardedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		fields.FilterResponse(b.a.match.Operation, b.g.Dialect.Vendor, b.resp.Trailer) // net/http has set the trailers
	}
	if ex := b.a.exchange; err != nil && err != io.EOF && ex.in.Context().Err() == nil {
		ex.broken, ex.record.Error = true, "upstream body ended early: "+err.Error()
		ex.record.Cache.Stored, ex.record.Cache.HasTTL = false, false
	}
	return n, err
}
