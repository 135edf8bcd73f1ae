package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/inbound"
)

// NewTransport returns the transport for the upstream. The transport uses HTTP/2 if the upstream supports HTTP/2, no
// proxy from the environment and no transparent decompression. Idle connections are closed before the upstream's idle
// timeout of about 60 s.
func NewTransport() *http.Transport {
	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    10 * time.Second,
		ExpectContinueTimeout:  time.Second,
		IdleConnTimeout:        30 * time.Second,
		MaxIdleConns:           256,
		MaxIdleConnsPerHost:    256,
		MaxResponseHeaderBytes: 256 << 10,
		DisableCompression:     true,
		WriteBufferSize:        32 << 10,
		ReadBufferSize:         32 << 10,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout:           15 * time.Second,
			PingTimeout:               5 * time.Second,
			MaxReceiveBufferPerStream: streamWindow,
		},
	}
}

// streamWindow bounds the bytes of one response over HTTP/2 that are in flight, or wait in memory for a slow client. A round trip of
// 100 ms needs 4 MB for 40 MB/s, and more if a delay in the gateway makes it longer.
const streamWindow = 6 << 20

// roundTrip sends the request once. The outcome is also valid with an error. A request counts as sent unless it is provably
// unsent ([wire.mayHaveArrived]).
func (g *Gateway) roundTrip(a *attempt, out *http.Request, permit limits.Permit) (*http.Response, limits.Outcome, error) {
	ctx, cancel := context.WithCancelCause(a.ctx)
	w := &wire{start: time.Now(), timeout: a.match.Operation.HeaderSilence(g.Timeout), ctx: ctx, cancel: cancel}
	w.timer = time.AfterFunc(w.timeout, func() { cancel(errStalled) })
	answered := false
	defer func() {
		if !answered { // also after a panic
			w.stop()
		}
	}()
	g.setHooks(w, a)
	hasBody := out.Body != nil && out.Body != http.NoBody
	if hasBody {
		uploaded := g.Limiter.Upload(permit)
		w.hooks.WroteRequest = func(httptrace.WroteRequestInfo) { w.noteSent(); uploaded() }
	}
	sent := out.WithContext(httptrace.WithClientTrace(ctx, &w.hooks))
	if hasBody {
		sent.Body = &requestBody{out.Body, w}
	}
	resp, err := g.Transport.RoundTrip(sent)
	o := limits.Outcome{Sent: err == nil || w.mayHaveArrived(ctx), Resent: int(w.copies.Load())}
	if o.Sent {
		o.Elapsed = time.Since(w.start) - time.Duration(w.sent.Load())
	}
	a.reused = w.reused.Load()
	if err == nil && policy.Status.IsOutside(int64(resp.StatusCode)) { // net/http cannot send it to a client
		_ = resp.Body.Close()
		err, o.Outside = fmt.Errorf("%w: %d", errStatus, resp.StatusCode), policy.Status.Name
	}
	if err != nil {
		return nil, o, w.cause(err) // the deferred function stops w
	}
	if hasNoContent(resp) {
		_ = resp.Body.Close()
		resp.Body = http.NoBody
		w.stop()
	} else {
		received := resp.Body
		body := &responseBody{received, w, a.match.Operation.BodySilence(resp.Header.Get("Content-Type"), g.Timeout)}
		w.timer.Reset(body.timeout)
		if hasBody && resp.ProtoMajor > 1 {
			// The transport does not notice a cancellation while it waits for the upstream to accept more of the request.
			context.AfterFunc(ctx, func() { _ = received.Close() })
		}
		resp.Body = body
	}
	o.Answered = true
	o.Failed = resp.StatusCode >= http.StatusInternalServerError ||
		resp.StatusCode == http.StatusRequestTimeout || resp.StatusCode == http.StatusTooEarly
	o.Succeeded = resp.StatusCode < http.StatusBadRequest
	o.Unauthorized = resp.StatusCode == http.StatusUnauthorized
	o.Uncounted = resp.StatusCode == http.StatusNotModified && permit.Kind != policy.Unauthenticated || a.match.Operation.ID == rateLimitOperation
	o.Rate = g.Limiter.ReadRate(resp.Header)
	a.limitError = g.recognizeLimit(a, resp, &o, permit)
	answered = true
	return resp, o, nil
}

// These errors end a request.
var (
	errStalled = errors.New("the upstream did not respond in time")
	errInterim = errors.New("the upstream sent too many interim responses")
	errStatus  = errors.New("the upstream sent an invalid status")
	// errUnpermitted ends a request that the transport would otherwise send again without a permit.
	errUnpermitted = fmt.Errorf("the upstream closed the connection during the request: %w", io.ErrUnexpectedEOF)
)

// maxInterim bounds the interim responses (1xx) of one request.
const maxInterim = 100

// wire is the state of one HTTP request. The request is canceled after a pause of the timeout during the upload or before the
// response; a response body has its own timeout. The total time of a body has no bound. The transport reports events from its own
// goroutines.
type wire struct {
	start   time.Time
	timeout time.Duration
	timer   *time.Timer
	ctx     context.Context // of the request
	cancel  context.CancelCauseFunc
	hooks   httptrace.ClientTrace

	reused    atomic.Bool  // the connection had been used before
	connected atomic.Bool  // the transport has had a connection for the request
	written   atomic.Int32 // number of times that the header was written
	copies    atomic.Int32 // number of times that the header was written before the last connection or stream
	sent      atomic.Int64 // time of the latest sent part of the request, in nanoseconds since start
	interim   atomic.Int32 // number of interim responses
	ended     atomic.Bool  // set before the transport sends the request again
}

// setHooks sets the hooks of a request of the attempt.
func (g *Gateway) setHooks(w *wire, a *attempt) {
	safe := a.match.Operation.Safe()
	w.hooks = httptrace.ClientTrace{
		// If a reused connection ends without a response, the transport sends a request again, even an unsafe request
		// with an Idempotency-Key. GotConn prevents the copy, which has no permit; [Gateway.retries] decides about
		// retries. Over HTTP/2, the transport may send a copy of a safe request, and the permit is charged for the copy,
		// too. A copy of an unsafe request has a permit of its own, and could be processed twice: the transport of Go
		// 1.26 also sends one after the upstream has reset the stream with PROTOCOL_ERROR.
		GotConn: func(c httptrace.GotConnInfo) {
			w.connected.Store(true)
			w.noteSent()
			switch written := w.written.Load(); {
			case written == 0:
				w.reused.Store(c.Reused)
			case isHTTP2(c.Conn) && safe:
				w.copies.Store(written)
			default:
				w.ended.Store(true)
				w.cancel(errUnpermitted)
				if !isHTTP2(c.Conn) { // other requests share a connection of HTTP/2
					_ = c.Conn.Close()
				}
			}
		},
		WroteHeaders: func() {
			if !w.ended.Load() && w.written.Add(1) == 1 {
				w.noteSent()
			}
		},
		Got1xxResponse: func(status int, header textproto.MIMEHeader) error {
			if w.interim.Add(1) > maxInterim {
				w.cancel(errInterim)
			}
			return a.pass(status, textproto.MIMEHeader(g.interimFields(a, http.Header(header))))
		},
	}
}

// mayHaveArrived reports whether the upstream may have received the header of the request. After a cancellation,
// RoundTrip returns before its goroutines have ended, and over HTTP/2 they may still write the header. So a canceled
// request is provably unsent only if it had no connection.
func (w *wire) mayHaveArrived(ctx context.Context) bool {
	return w.written.Load() > 0 || w.connected.Load() && ctx.Err() != nil
}

// noteSent records that another part of the request was sent. Outcome.Elapsed starts at the last part, so that the
// upload does not count as upstream time.
func (w *wire) noteSent() { w.sent.Store(int64(time.Since(w.start))) }

// cause returns the reason why the request was canceled, or err if it was not canceled. The transport itself returns
// context.Canceled over HTTP/2, which would look like a disconnect of the client.
func (w *wire) cause(err error) error {
	if cause := context.Cause(w.ctx); cause != nil {
		return cause
	}
	return err
}

func (w *wire) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// hasNoContent reports whether a response ends with its header (RFC 9110 section 6.4.1), with any Content-Length.
// Over HTTP/2, the transport returns an error for the body of such a response if it has a Content-Length.
func hasNoContent(resp *http.Response) bool {
	return resp.Body == http.NoBody || resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified ||
		resp.Request != nil && resp.Request.Method == http.MethodHead
}

func isHTTP2(c net.Conn) bool {
	secure, ok := c.(interface{ ConnectionState() tls.ConnectionState })
	return ok && secure.ConnectionState().NegotiatedProtocol == "h2"
}

// requestBody reports the progress of an upload. An error of the client ends the request, so that neither the upstream nor the
// client takes a part of the body for the whole.
type requestBody struct {
	io.ReadCloser
	wire *wire
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.wire.timer.Stop() // the client has a deadline of its own (inbound.Body)
	n, err := b.ReadCloser.Read(p)
	b.wire.timer.Reset(b.wire.timeout)
	b.wire.noteSent()
	_, invalid := errors.AsType[*inbound.BodyError](err)
	if _, refused := errors.AsType[*failure](err); invalid || refused {
		b.wire.cancel(err)
	}
	return n, err
}

// responseBody reports the progress of a response, and ends the request when it is closed.
type responseBody struct {
	io.ReadCloser
	wire    *wire
	timeout time.Duration // longest pause
}

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.wire.timer.Reset(b.timeout)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.wire.cause(err)
	}
	return n, err
}

func (b *responseBody) Close() error {
	err := b.ReadCloser.Close()
	b.wire.stop()
	return err
}

// recognizeLimit adds a limit error to the outcome, and returns the error. GraphQL reports a limit with status 200.
// recognizeLimit also adds the cost that a short response to a GraphQL call reports. It removes the rate headers of a refused
// credential, because they report another budget.
func (g *Gateway) recognizeLimit(a *attempt, resp *http.Response, outcome *limits.Outcome, permit limits.Permit) limits.LimitError {
	answer := policy.UpstreamAnswer{
		Status: resp.StatusCode, Header: resp.Header, GraphQL: a.graphQL != nil,
		Unproven: a.sentCredential != nil && a.sentCredential.IsUnproven(),
	}
	if g.mayReportLimit(a, resp) {
		answer.Body = peekText(resp)
	}
	e := g.Limiter.ReadLimitError(permit.Account, answer)
	if a.sentCredential != nil && e.Kind == limits.NotLimited && (answer.GraphQL || resp.StatusCode == http.StatusForbidden) && policy.LacksPermission(answer.Body) {
		a.sentCredential.Denied()
		a.lacksPermission = true
	}
	retryAfter := boundRetryAfter(resp.Header, outcome)
	if e.Kind != limits.NotLimited {
		outcome.RetryAfter = retryAfter
	}
	if e.Repeated == 0 {
		outcome.Limited = e.Kind
	}
	a.lateLimit = nil
	if answer.GraphQL && resp.StatusCode == http.StatusOK && len(answer.Body) >= maxPeek && e.Kind == limits.NotLimited && resp.Header.Get("Content-Encoding") == "" {
		a.lateLimit = g.watchEnd(a, resp, permit)
	} else if len(answer.Body) < maxPeek {
		a.record.QueryFailure = g.observeQuery(a.question, permit.Account, answer, outcome.Elapsed)
	}
	if answer.GraphQL && resp.StatusCode == http.StatusOK {
		cost, executed, outside := limits.ReadCost(answer.Body)
		if outside {
			outcome.Outside = policy.GraphQLCost.Name
		}
		if outcome.Succeeded = executed; a.graphQL.ReportsCost {
			outcome.Cost = cost
		}
	}
	if outcome.Unauthorized && permit.Kind != policy.Unauthenticated {
		outcome.Rate = limits.Rate{}
		limits.RemoveRate(resp.Header)
	}
	return e
}

// boundRetryAfter returns the Retry-After of a response. The client gets no value outside the range.
func boundRetryAfter(h http.Header, outcome *limits.Outcome) time.Duration {
	wait, v := limits.ReadRetryAfter(h, time.Now())
	switch v {
	case policy.InRange:
		return wait
	case policy.Clamped:
		h.Set("Retry-After", strconv.Itoa(int(wait/time.Second)))
	case policy.Ignored:
		h.Del("Retry-After")
	}
	outcome.Outside = policy.RetryAfter.Name
	return wait
}

// mayReportLimit reports whether the body of a response must be read to recognize a limit error. A successful response of
// REST is rarely one, so its length or its beginning decides. The response must be JSON of the API, because other
// representations are texts of users.
func (g *Gateway) mayReportLimit(a *attempt, resp *http.Response) bool {
	const longestError = 1 << 10
	switch status := resp.StatusCode; {
	case resp.Body == http.NoBody:
		return false
	case a.graphQL != nil:
		return status < http.StatusInternalServerError
	case status >= http.StatusBadRequest:
		return status < http.StatusInternalServerError && (g.Host == "" || status == http.StatusForbidden || status == http.StatusTooManyRequests)
	case status != http.StatusOK, resp.ContentLength == 0, resp.ContentLength > longestError, g.Host != "",
		!g.isPlainType(a, resp.Header.Get("Content-Type")), g.Dialect.SelectsFile(a.header["Accept"]):
		return false
	case resp.ContentLength > 0:
		return true
	}
	if resp.Header.Get("Content-Encoding") != "" {
		return false
	}
	start := make([]byte, 0, longestError)
	var err error
	for n := 0; err == nil && len(start) < longestError && policy.BeginsAsError(start); start = start[:len(start)+n] {
		n, err = resp.Body.Read(start[len(start):longestError])
	}
	resp.Body = rejoin(start, err, resp.Body)
	return policy.BeginsAsError(start) && bytes.Contains(start, []byte(`"message"`))
}

// isPlainType reports whether a Content-Type may be that of an error in a success. An operation of the catalogue has JSON in
// its plain representation, so a missing or a wrong type does not hide an error.
func (g *Gateway) isPlainType(a *attempt, contentType string) bool {
	mediaType, _, _ := strings.Cut(contentType, ";")
	mediaType = strings.ToLower(strings.TrimSpace(mediaType))
	return mediaType == "application/json" || a.match.Operation.Known() && (mediaType == "text/plain" || g.Dialect.Accept([]string{mediaType}) == "")
}

// lateLimit is a GraphQL response that is too long for a peek. Its errors follow the data, so a limit error is recognized at
// the end of the body.
type lateLimit struct {
	io.ReadCloser
	header http.Header
	found  func(limits.LimitError)
	// ended returns the failure of the query that the errors of the response show.
	ended func(policy.UpstreamAnswer) string

	tail []byte // the last bytes of the body, at most maxPeek; nil after the end

	mu      sync.Mutex // the body may be read ahead in another goroutine
	limit   limits.LimitError
	failure string
}

// watchEnd replaces the body of a response. A limit error in the last bytes of the body then counts for the account.
func (g *Gateway) watchEnd(a *attempt, resp *http.Response, permit limits.Permit) *lateLimit {
	l := &lateLimit{ReadCloser: resp.Body, header: resp.Header.Clone(), tail: make([]byte, 0, maxPeek)}
	retryAfter, _ := limits.ReadRetryAfter(resp.Header, a.sent)
	ctx := a.detach()
	l.found = func(e limits.LimitError) {
		if err := g.Limiter.SettleLate(ctx, permit, e.Kind, retryAfter); err != nil {
			g.Log.DebugContext(ctx, "limit error not settled", "request", a.record.ID, "error", err)
		}
	}
	q := a.question
	l.ended = func(answer policy.UpstreamAnswer) string { return g.observeQuery(q, permit.Account, answer, 0) }
	resp.Body = l
	return l
}

func (l *lateLimit) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	if l.tail != nil {
		l.keep(p[:n])
	}
	if err == io.EOF && l.tail != nil {
		l.end()
	}
	return n, err
}

// Close also ends a body whose reader has read all bytes without io.EOF.
func (l *lateLimit) Close() error {
	if l.tail != nil {
		l.end()
	}
	return l.ReadCloser.Close()
}

// keep adds bytes to the tail.
func (l *lateLimit) keep(p []byte) {
	p = p[max(0, len(p)-maxPeek):]
	if over := len(l.tail) + len(p) - maxPeek; over > 0 {
		l.tail = l.tail[:copy(l.tail, l.tail[over:])]
	}
	l.tail = append(l.tail, p...)
}

// end looks for the list of errors of the outermost object in the tail. After any other list, further closing brackets follow,
// so the text from such a list on is no valid object.
func (l *lateLimit) end() {
	tail, answer := l.tail, policy.UpstreamAnswer{Status: http.StatusOK, Header: l.header, GraphQL: true}
	l.tail = nil
	defer func() {
		failure := l.ended(answer)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.failure = failure
	}()
	name := []byte(`"errors"`)
	for at := bytes.LastIndex(tail, name); at > 0; at = bytes.LastIndex(tail[:at], name) {
		object := append([]byte("{"), tail[at:]...)
		if !json.Valid(object) {
			continue
		}
		answer.Body = object
		e := limits.ReadLimitError(answer)
		if e.Kind != limits.NotLimited {
			l.mu.Lock()
			l.limit = e
			l.mu.Unlock()
			l.found(e)
		}
		return
	}
}

// result returns the limit error of the body, and the failure of the query, as far as the body has been read.
func (l *lateLimit) result() (e limits.LimitError, failure string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limit, l.failure
}
